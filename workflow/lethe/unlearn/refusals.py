"""Refusals to forget questions, for methods that teach a model to decline."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from lethe.data.text import Encoded, Template, encode_pair
from lethe.errors import LetheError
from lethe.files import read_jsonl
from lethe.unlearn.streams import Stream, generator

Key = tuple[int, int]  # (forget row, refusal)


class Refusals:
    """Each time a forget row is seen it is paired with a refusal drawn anew: a pure function of seed, step and row."""

    def __init__(
        self, forget: Path, refusals: Path, tokenizer: Any, template: Template, max_length: int, seed: int
    ) -> None:
        """forget: rows with a question; refusals: rows {text}. LetheError: a row without, no refusals."""
        self.questions = [row["question"] for row in read_jsonl(forget, require=["question"])]
        self.texts = [row["text"] for row in read_jsonl(refusals, require=["text"])]
        if not self.texts:
            raise LetheError(f"{refusals}: no rows")
        self.seed = seed
        self.encode = functools.cache(
            lambda key: encode_pair(tokenizer, template, self.questions[key[0]], self.texts[key[1]], max_length)
        )

    def key(self, row: int, step: int) -> Key:
        drawn = torch.randint(len(self.texts), (1,), generator=generator(self.seed, "refusal", step, row))
        return row, int(drawn)

    def keys(self, rows: list[int], step: int) -> list[Key]:
        return [self.key(row, step) for row in rows]

    def examples(self, keys: list[Key]) -> list[Encoded]:
        return [self.encode(key) for key in keys]

    def drawn(self, stream: Stream, steps: int) -> dict[Key, Encoded]:
        """All that a run of so many steps will see."""
        keys = {key for step in range(steps) for key in self.keys(stream[step], step)}
        return {key: self.encode(key) for key in sorted(keys)}
