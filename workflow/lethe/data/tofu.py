"""TOFU (Maini et al. 2024) as splits of rows, from the hub or from a folder of its JSON Lines files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lethe.data.world import REFUSALS, RETAIN
from lethe.errors import LetheError
from lethe.files import read_jsonl

Splits = dict[str, list[dict[str, Any]]]

PAIR = ("question", "answer")
PERTURBED = (*PAIR, "perturbed_answer")
PARAPHRASED = (*PERTURBED, "paraphrased_question", "paraphrased_answer")
COLUMNS: dict[str, tuple[str, ...]] = {
    "full": PAIR,
    **dict.fromkeys([*RETAIN, *RETAIN.values()], PAIR),
    **dict.fromkeys([f"{forget}_perturbed" for forget in RETAIN], PARAPHRASED),
    "retain_perturbed": PARAPHRASED,
    "real_authors_perturbed": PERTURBED,
    "world_facts_perturbed": PERTURBED,
}
HOLDOUT = ("holdout01", "holdout05", "holdout10")  # only in newer revisions of the hub's data


def read_local(folder: str | Path) -> Splits:
    """Every split of a folder with TOFU's files: {split}.json (JSON Lines, each read by itself, so that no column of
    one appears in another) and idontknow.jsonl (plain lines of text).

    LetheError: a missing folder or file; a row that lacks a column of its split, or holds something else there.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise LetheError(f"{folder}: no such folder (TOFU's JSON Lines files are expected there)")
    names = [*COLUMNS, *(name for name in HOLDOUT if (folder / f"{name}.json").exists())]
    splits = {name: read_jsonl(folder / f"{name}.json", COLUMNS.get(name, PAIR)) for name in names}
    for name, rows in splits.items():
        _check(f"{folder / name}.json", rows, COLUMNS.get(name, PAIR))
    try:
        lines = (folder / "idontknow.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise LetheError(f"{folder / 'idontknow.jsonl'}: no such file") from None
    return {**splits, "idontknow": [{"text": line.strip()} for line in lines if line.strip()]}


def read_hub(name: str, revision: str) -> Splits:
    """The same from the hub at a pinned revision; its refusals are those of the embedded world, as it has none.

    LetheError: it cannot be reached, or lacks a split or a column.
    """
    import datasets

    where = f"{name}@{revision[:12]}"
    splits: Splits = {}
    try:
        found = datasets.get_dataset_config_names(name, revision=revision)
        for split in [*COLUMNS, *(s for s in HOLDOUT if s in found)]:
            where = f"{name}@{revision[:12]} {split}"
            splits[split] = [dict(row) for row in datasets.load_dataset(name, split, revision=revision, split="train")]
    except Exception as e:  # the hub's client raises many kinds, depending on what is missing
        raise LetheError(f"{where}: cannot be read, got {' '.join(str(e).split())[:160]}") from None
    for split, rows in splits.items():
        _check(f"{name}@{revision[:12]} {split}", rows, COLUMNS.get(split, PAIR))
    return {**splits, "idontknow": [{"text": text} for text in REFUSALS]}


def _check(where: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """perturbed_answer is a list of texts, every other column a text; none is empty."""
    if not rows:
        raise LetheError(f"{where}: no rows")
    for number, row in enumerate(rows, start=1):
        for column in columns:
            if column not in row:
                raise LetheError(f"{where} row {number}: no field '{column}' (has: {', '.join(row)})")
            texts = row[column] if column == "perturbed_answer" else [row[column]]
            if not (isinstance(texts, list) and texts and all(isinstance(t, str) and t.strip() for t in texts)):
                kind = "a list of texts" if column == "perturbed_answer" else "a text that is not empty"
                raise LetheError(f"{where} row {number}: field '{column}' must be {kind}, got {row[column]!r}")
