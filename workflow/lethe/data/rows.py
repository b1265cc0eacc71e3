"""From a file of rows to token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lethe.data.text import TEMPLATES, Encoded, Template, encode_long, encode_pair, encode_text
from lethe.errors import LetheError
from lethe.files import read_jsonl


def default_template(tokenizer: Any) -> Template:
    """The tokenizer's own chat template where it has one, else `plain`."""
    return TEMPLATES["chat" if getattr(tokenizer, "chat_template", None) else "plain"]


def encode_rows(
    tokenizer: Any,
    template: Template,
    path: Path,
    max_length: int,
    shuffle: torch.Generator | None = None,
    chunks: Any = None,
) -> list[Encoded]:
    """Rows {question, answer} or {text} of a JSON Lines file; with `shuffle`, every question has the answer of another.

    chunks: window, overlap, bos and tail and the rest of `encode_long`; then a
    text is cut into as many items as it needs instead of being cut off at max_length.
    LetheError: no rows, neither form, an empty text, nothing to shuffle.
    """
    rows = read_jsonl(path)
    if not rows:
        raise LetheError(f"{path}: no rows")
    if shuffle is not None:
        rows = _with_answers_of_others(rows, path, shuffle)
    return [
        item
        for i, row in enumerate(rows, start=1)
        for item in _encode(tokenizer, template, row, max_length, chunks, f"{path} row {i}")
    ]


def _with_answers_of_others(rows: list[dict], path: Path, generator: torch.Generator) -> list[dict]:
    """Answers move along one random cycle through all rows, so that none stays."""
    if len(rows) < 2 or not all("answer" in row for row in rows):
        raise LetheError(f"{path}: shuffled answers need at least two rows with an 'answer'")
    cycle = torch.randperm(len(rows), generator=generator).tolist()
    answers = {i: rows[j]["answer"] for i, j in zip(cycle, [*cycle[1:], cycle[0]], strict=True)}
    return [{**row, "answer": answers[i]} for i, row in enumerate(rows)]


def _encode(tokenizer: Any, template: Template, row: dict, max_length: int, chunks: Any, where: str) -> list[Encoded]:
    fields = ("text",) if "text" in row else ("question", "answer")
    for name in fields:
        if name not in row:
            raise LetheError(f"{where}: no field '{name}' (has: {', '.join(row)})")
        if not isinstance(row[name], str) or not row[name].strip():
            raise LetheError(f"{where}: '{name}' must be a text that is not empty, got {row[name]!r}")
    try:
        if "text" not in row:
            return [encode_pair(tokenizer, template, row["question"], row["answer"], max_length)]
        if chunks is None:
            return [encode_text(tokenizer, row["text"], max_length)]
        return encode_long(tokenizer, row["text"], chunks)
    except LetheError as e:
        raise LetheError(f"{where}: {e}") from None
