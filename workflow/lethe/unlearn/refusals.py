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
        """forget: rows with a question; refusals: rows {text}. LetheError: a row without, an empty text, no rows; when
        a pair is first encoded, a question that leaves no room for an answer."""
        self.questions, self.texts = _texts(forget, "question"), _texts(refusals, "text")
        self.seed = seed

        def encode(key: Key) -> Encoded:
            row, refusal = key
            try:
                return encode_pair(tokenizer, template, self.questions[row], self.texts[refusal], max_length)
            except LetheError as e:
                raise LetheError(f"{forget} row {row + 1} with {refusals} row {refusal + 1}: {e}") from None

        self.encode = functools.cache(encode)

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


def _texts(path: Path, field: str) -> list[str]:
    texts = [row[field] for row in read_jsonl(path, require=[field])]
    if not texts:
        raise LetheError(f"{path}: no rows")
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str) or not text.strip():
            raise LetheError(f"{path} row {number}: '{field}' must be a text that is not empty, got {text!r}")
    return texts
