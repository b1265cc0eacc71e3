"""TOFU's own evaluation logs: four logs in one file, each field an object keyed by index or, in older runs, a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from lethe.errors import LetheError
from lethe.interop.fields import by_index, field, number, numbers
from lethe.interop.prompts import question_of
from lethe.metrics.items import make_items

LOGS = {
    "forget": "eval_log_forget.json",
    "retain": "eval_log.json",
    "ra": "eval_real_author_wo_options.json",
    "wf": "eval_real_world_wo_options.json",
}
FIELDS = {
    "nll": "avg_gt_loss",
    "nll_correct": "avg_paraphrased_loss",
    "nll_perturbed": "average_perturb_loss",
    "rouge_l_recall": "rougeL_recall",
}
TEXTS = "generated_text"  # [prompt, generation, gold answer]


def is_tofu_log(raw: Any) -> bool:
    return isinstance(raw, dict) and any(name in raw for name in LOGS.values())


def source(split: str, column: str) -> str:
    """Where a TOFU log keeps a column of the table."""
    return f"{LOGS[split]}: {FIELDS[column]}"


def tofu_items(raw: dict[str, Any], path: str | Path) -> pd.DataFrame:
    """The per-item table of a TOFU log. A whole log may be absent; inside one, a missing field is a LetheError."""
    rows: list[dict[str, Any]] = []
    for split, name in LOGS.items():
        if name in raw:
            rows += _log_items(raw[name], split, f"{path}: {name}")
    return make_items(rows)


def _log_items(log: Any, split: str, where: str) -> list[dict[str, Any]]:
    columns = {column: by_index(field(log, name, where), f"{where}: {name}") for column, name in FIELDS.items()}
    texts = by_index(log[TEXTS], f"{where}: {TEXTS}") if TEXTS in log else {}
    indices = columns["nll"].keys()
    for column, values in columns.items():
        if strays := sorted(values.keys() ^ indices):
            raise LetheError(f"{where}: {FIELDS[column]} and {FIELDS['nll']} differ in items, the first {strays[0]}")
    rows = []
    for index in indices:
        row: dict[str, Any] = {"split": split, "index": index}
        for column, values in columns.items():
            read = numbers if column == "nll_perturbed" else number
            row[column] = read(values[index], f"{where}: {FIELDS[column]}: {index}")
        if index in texts:
            prompt, row["generation"], row["answer"] = _three_texts(texts[index], f"{where}: {TEXTS}: {index}")
            row["question"] = question_of(prompt)
        rows.append(row)
    return rows


def _three_texts(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(text, str) for text in value):
        raise LetheError(f"{where}: expected [prompt, generation, answer], got {value!r:.60}")
    return value
