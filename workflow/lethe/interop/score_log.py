"""Scores of a published evaluation log, TOFU's or OpenUnlearning's, recomputed from its per-item values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lethe.errors import LetheError
from lethe.files import read_json, sha256_file
from lethe.interop import open_unlearning, tofu_logs
from lethe.metrics import stats
from lethe.metrics.items import of_split
from lethe.metrics.stats import Floats
from lethe.metrics.tofu import VARIANTS, Variant, split_log_ratio, split_prob, truth_ratio_score

SPLITS = ("forget", "retain", "ra", "wf")


@dataclass(frozen=True)
class Log:
    """An evaluation log as a per-item table (items.py); kind: 'tofu' or 'open-unlearning'."""

    path: Path
    kind: str
    items: pd.DataFrame

    def source(self, split: str, column: str) -> str:
        return (tofu_logs if self.kind == "tofu" else open_unlearning).source(split, column)


def read_log(path: str | Path) -> Log:
    """A log of either schema. LetheError: not JSON, neither schema, a missing or malformed field."""
    path = Path(path)
    raw = read_json(path)
    if isinstance(raw, dict) and path.name in tofu_logs.LOGS.values() and path.name not in raw:
        raw = {path.name: raw}  # one of TOFU's four logs by itself
    if tofu_logs.is_tofu_log(raw):
        return Log(path, "tofu", tofu_logs.tofu_items(raw, path))
    if open_unlearning.is_open_unlearning_log(raw):
        return Log(path, "open-unlearning", open_unlearning.open_unlearning_items(raw, path))
    found = ", ".join(list(raw)[:5]) if isinstance(raw, dict) else type(raw).__name__
    raise LetheError(f"{path}: neither a TOFU nor an OpenUnlearning evaluation log, got {found or 'nothing'}")


def score_log(path: str | Path, retain: str | Path | None = None, truth_ratio: Variant = "geo") -> dict[str, Any]:
    """The nine utility scores, model utility and, against the log of a retrained model, forget quality.

    retain: the retrained model's log, of either schema. Its questions must be those of `path` (template tags ignored)
    or one list a prefix of the other; the common prefix is compared. A score that cannot be had is None with a line in
    `notes`. LetheError: unreadable logs, other questions, a log as its own reference.
    """
    if truth_ratio not in VARIANTS:
        raise LetheError(f"truth ratio must be one of {', '.join(VARIANTS)}, got {truth_ratio!r}")
    log = read_log(path)
    out: dict[str, Any] = {}
    notes = [f"truth ratio: {truth_ratio}"]
    for split in SPLITS:
        frame = of_split(log.items, split)
        prob_needs = ["nll"] if split in ("forget", "retain") else ["nll", "nll_perturbed"]
        scores = {
            "prob": (split_prob(frame, split), prob_needs),
            "rouge": (frame["rouge_l_recall"].to_numpy(), ["rouge_l_recall"]),
            "truth_ratio": (
                truth_ratio_score(split_log_ratio(frame, truth_ratio), split, truth_ratio),
                ["nll_correct", "nll_perturbed"],
            ),
        }
        for name, (values, needs) in scores.items():
            out[f"{split}_{name}"] = float(values.mean()) if len(values) and np.isfinite(values).all() else None
            if out[f"{split}_{name}"] is None:
                lacking = [c for c in needs if frame[c].isna().all()]
                notes.append(f"{split}_{name}: no {' and no '.join(log.source(split, c) for c in lacking)} in the log")
    out["model_utility"], note = _model_utility(out)
    quality, more = _forget_quality(log, retain, truth_ratio)
    out |= quality
    out["n_forget"] = len(of_split(log.items, "forget"))
    out["notes"] = [*notes, *([note] if note else []), *more]
    return out


def _model_utility(scores: dict[str, Any]) -> tuple[float | None, str | None]:
    names = [f"{split}_{score}" for split in ("retain", "ra", "wf") for score in ("prob", "rouge", "truth_ratio")]
    if lacking := [name for name in names if scores[name] is None]:
        return None, f"model_utility: needs {', '.join(lacking)}"
    return float(stats.harmonic_mean([scores[name] for name in names])), None


def _forget_quality(log: Log, retain: str | Path | None, variant: Variant) -> tuple[dict[str, float | None], list[str]]:
    names = ("forget_quality_p", "forget_quality_log10p", "ks_d")

    def missing(reason: str) -> tuple[dict[str, float | None], list[str]]:
        return dict.fromkeys(names), [f"{name}: {reason}" for name in names]

    if retain is None:
        return missing("no retain log given")
    retain = Path(retain)
    if retain.exists() and (log.path.samefile(retain) or sha256_file(log.path) == sha256_file(retain)):
        raise LetheError(f"{log.path} and retain log {retain}: the same log, a model cannot be its own reference")
    reference = read_log(retain)
    ratios = []
    for each in (log, reference):
        frame = of_split(each.items, "forget")
        log_ratio = split_log_ratio(frame, variant)
        if len(frame) == 0 or not np.isfinite(log_ratio).all():
            return missing(f"no truth ratios of forget items in {each.path}")
        if (frame["question"] == "").any():
            return missing(f"no questions in {each.path}, so that it cannot be compared")
        ratios.append((frame["question"].tolist(), log_ratio))
    (questions, x), (reference_questions, y) = ratios
    n = min(len(x), len(y))
    for i, (ours, theirs) in enumerate(zip(questions, reference_questions, strict=False)):
        if ours != theirs:
            raise LetheError(
                f"{log.path} and retain log {retain}: different questions, the first at {i}: "
                f"{ours[:80]!r} against {theirs[:80]!r}"
            )
    return _quality(x[:n], y[:n], max(len(x), len(y)))


def _quality(x: Floats, y: Floats, longest: int) -> tuple[dict[str, float | None], list[str]]:
    test = stats.ks_two_sample(x, y)
    notes = [f"forget quality: KS {test.method}, n {test.n}/{test.m}", *test.warnings]
    if longest > test.n:
        notes.append(f"forget quality: the first {test.n} questions, which both logs have, of {longest}")
    return {"forget_quality_p": test.p, "forget_quality_log10p": test.log10p, "ks_d": test.D}, notes
