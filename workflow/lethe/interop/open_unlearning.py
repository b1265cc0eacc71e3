"""OpenUnlearning's evaluation logs: {metric: {"agg_value": ..., "value_by_index": {"0": {...}}}}."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from lethe.errors import LetheError
from lethe.interop.fields import by_index, field, number, numbers
from lethe.interop.prompts import question_of
from lethe.metrics.items import make_items

# (split, column) -> the metric that holds it, and the field of its items
METRICS: dict[tuple[str, str], tuple[str, str]] = {
    (split, column): (f"{split}_Q_A_{suffix}", name)
    for split, correct in (("forget", "PARA_Prob"), ("retain", "PARA_Prob"), ("ra", "Prob"), ("wf", "Prob"))
    for column, suffix, name in (
        ("nll", "Prob", "avg_loss"),
        ("nll_correct", correct, "avg_loss"),
        ("nll_perturbed", "PERT_Prob", "avg_loss"),
        ("rouge_l_recall", "ROUGE", "rougeL_recall"),
    )
}


def is_open_unlearning_log(raw: Any) -> bool:
    return isinstance(raw, dict) and any(isinstance(raw.get(metric), dict) for metric, _ in METRICS.values())


def source(split: str, column: str) -> str:
    """Which metric of an OpenUnlearning log holds a column of the table."""
    return METRICS[split, column][0]


def open_unlearning_items(raw: dict[str, Any], path: str | Path) -> pd.DataFrame:
    """The per-item table of an OpenUnlearning log. A metric may be absent; inside one, each field must be there."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    first: dict[str, tuple[str, set[int]]] = {}  # split -> its first metric and that one's items
    for (split, column), (metric, name) in METRICS.items():
        if metric not in raw:
            continue
        items = by_index(field(raw[metric], "value_by_index", f"{path}: {metric}"), f"{path}: {metric}: value_by_index")
        known, indices = first.setdefault(split, (metric, set(items)))
        if strays := sorted(items.keys() ^ indices):
            raise LetheError(f"{path}: {metric} and {known} differ in items, the first {strays[0]}")
        for index, item in items.items():
            row = rows.setdefault((split, index), {"split": split, "index": index})
            where = f"{path}: {metric}: {index}"
            value = field(item, name, where)
            if column == "nll_perturbed":  # a single perturbed answer is not wrapped in a list
                row[column] = numbers(value if isinstance(value, list) else [value], f"{where}: {name}")
            else:
                row[column] = number(value, f"{where}: {name}")
            if column == "rouge_l_recall":
                row["question"] = question_of(str(field(item, "input", where)))
                row["answer"], row["generation"] = item.get("ground_truth"), item.get("generation")
    return make_items(rows.values())
