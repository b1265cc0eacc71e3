"""The table of per-item values that every metric is computed from: one row an item of the benchmark.

It is written beside each evaluation as `eval/{attack}.items.parquet`, and logs of other projects are read into it, so
that an aggregate can always be recomputed, resampled or doubted. A value that cannot be had is nan (None for lists).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from lethe.errors import LetheError
from lethe.metrics.stats import Floats

# split -> the file it comes from, under data/{benchmark}/ (suite tofu)
FILES = {
    "forget": "eval_forget.jsonl",
    "retain": "eval_retain.jsonl",
    "ra": "real_authors.jsonl",
    "wf": "world_facts.jsonl",
    "holdout": "holdout.jsonl",
    "mcq_forget": "mcq_forget.jsonl",
    "mcq_retain": "mcq_retain.jsonl",
}

# split -> the fields of its rows in {split}.jsonl (suite muse)
MUSE_FIELDS = {
    "forget": ("text",),
    "verbatim_forget": ("prompt", "continuation"),
    "knowledge_forget": ("question", "answer"),
    "knowledge_retain": ("question", "answer"),
    "member_forget": ("text",),
    "member_retain": ("text",),
    "member_holdout": ("text",),
}
MUSE_UNATTACKED = ("knowledge_retain", "member_forget", "member_retain", "member_holdout")

KEY_COLUMNS = {
    "split": "one of FILES or MUSE_FIELDS",
    "index": "row in the file, from 0; in muse's forget split the window, counted through all texts",
}
TEXT_COLUMNS = {
    "question": "as in the file, or the prompt of a continuation; '' for a row that is only a text",
    "answer": "the gold answer or continuation, or the text of such a row",
    "generation": "greedy answer to the question, cut at the template's stop strings",
    "generation_raw": "the same before cutting",
    "para_generation": "greedy answer to the paraphrased question, cut",
    "para_generation_raw": "the same before cutting",
}
NUMBER_COLUMNS = {
    "n_tokens": "supervised tokens of the answer, end token included",
    "truncated": "1 if max_length cut the answer, a prompt or another text of this item, else 0",
    "nll": "mean negative log-likelihood a token of the answer given the question, end token included, in nats",
    "nll_correct": "nll of what truth ratios call correct: paraphrased answer in forget and retain, else the answer",
    "exact_memorization": "share of answer tokens that are the argmax, end token dropped",
    "extraction_strength": "1 - k/L, 0 if not even the last token is right; end token dropped",
    "extraction_strength_ou": "the same with OpenUnlearning's floor of 1/L",
    "zlib": "nll over the compressed bytes of the answer (forget, holdout, member_* only, as the next two)",
    "min_k": "minus the mean of the lowest 40 % of token log-probabilities, end token dropped",
    "min_k_pp": "the same on (log p - mean) / std",
    "violation_rate": "share of answer tokens whose restricted margin exceeds tau (forget only, as the next three)",
    "gold_logit": "mean logit of the answer's own tokens, as the model gives it (MASC's Table 5 has its change)",
    "prop1_slack": "log bound of MASC's Proposition 1 minus log pi(answer), in nats a sequence",
    "prop1_violation": "1 if that slack is negative beyond rounding, else 0",
    "rouge_l_recall": "ROUGE-L recall of the generation; stemmed in tofu, in muse neither stemmed nor the gold uncut",
    "rouge_l_f1": "ROUGE-L F1 likewise",
    "rouge_l_f1_ou": "muse's F1 as OpenUnlearning has it: stemmed, against the uncut gold",
    "value_recall": "ROUGE-L recall of the row's `value` words in the generation",
    "para_rouge_l_recall": "ROUGE-L recall of the answer to the paraphrased question, against the original answer",
    "para_value_recall": "recall of the `value` words there",
    "mcq_correct": "1 if the right option has the lowest mean NLL, 1/t if t options tie with it, else 0",
    "mcq_options": "number of options",
}
LIST_COLUMNS = {"nll_perturbed": "mean NLL a token of each perturbed answer, given the question"}

ITEM_COLUMNS = KEY_COLUMNS | TEXT_COLUMNS | NUMBER_COLUMNS | LIST_COLUMNS


def make_items(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The table, with every column of ITEM_COLUMNS; what a row does not say is nan, '' or None."""
    frame = pd.DataFrame(list(rows), columns=list(ITEM_COLUMNS))
    for column in TEXT_COLUMNS:
        frame[column] = ["" if pd.isna(cell) else str(cell) for cell in frame[column]]
    for column in NUMBER_COLUMNS:
        frame[column] = pd.to_numeric(frame[column]).astype("float64")
    for column in LIST_COLUMNS:
        frame[column] = pd.Series([_floats(cell) for cell in frame[column]], index=frame.index, dtype=object)
    return frame.astype({"split": str, "index": "int64"})


def of_split(items: pd.DataFrame, split: str) -> pd.DataFrame:
    """The rows of one split in the file's order. LetheError: an index that occurs twice."""
    frame = items[items["split"] == split].sort_values("index", ignore_index=True)
    twice = frame["index"][frame["index"].duplicated()]
    if len(twice):
        raise LetheError(f"items of split '{split}': index {twice.iloc[0]} occurs twice")
    return frame


def padded(column: pd.Series) -> Floats:
    """Lists of numbers as a matrix (n, J), short ones filled with nan; (n, 0) where no row has any."""
    rows = [_floats(cell) or [] for cell in column]
    matrix = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for into, row in zip(matrix, rows, strict=True):
        into[: len(row)] = row
    return matrix


def require_same_questions(a: pd.DataFrame, b: pd.DataFrame, name_a: str, name_b: str) -> None:
    """Two tables of one split must ask the same questions in the same order: values are compared item by item.

    LetheError names both and the first difference.
    """
    if found := difference(a, b, "questions"):
        raise LetheError(f"{name_a} and {name_b}: {found}")


def difference(a: pd.DataFrame, b: pd.DataFrame, what: str) -> str | None:
    """Where two tables of one split first differ in their questions or texts (`what` they are called), if they do."""
    for i, (left, right) in enumerate(zip(_identity(a), _identity(b), strict=False)):
        if left != right:
            return f"different {what}, the first at {i}: {left[:80]!r} against {right[:80]!r}"
    return None if len(a) == len(b) else f"different numbers of {what}, got {len(a)} and {len(b)}"


def _identity(frame: pd.DataFrame) -> list[str]:
    """What an item is known by: its question, or the text itself where there is none."""
    return [question or answer for question, answer in zip(frame["question"], frame["answer"], strict=True)]


def _floats(cell: Any) -> list[float] | None:
    return None if cell is None or isinstance(cell, float) else [float(x) for x in cell]
