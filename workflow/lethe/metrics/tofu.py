"""TOFU's metrics (Maini et al. 2024) and their companions, as arithmetic on the per-item table of items.py.

Truth ratios are computed in log space: an epsilon in a denominator turns the ratio of a collapsed model, exactly 1,
into 4e-8 and so gives it a perfect retain score. R compares perturbed with correct answers; three variants are in use:

    geo        R = exp(l_correct - mean_j l_perturbed_j)                 TOFU's leaderboard, OpenUnlearning (default)
    arith      R = mean_j exp(-l_perturbed_j) / exp(-l_correct)          the TOFU paper
    prob_mean  p_correct / (p_correct + p_perturbed) = 1 / (1 + R_geo)   OpenUnlearning's "knowledge"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import expit, logsumexp

from lethe.metrics import stats
from lethe.metrics.estimates import (
    Estimate,
    Split,
    auc,
    margins,
    membership_aucs,
    privleak,
    require_other_values,
    split_of,
)
from lethe.metrics.items import FILES, of_split, padded, require_same_questions
from lethe.metrics.rouge import coverage_note
from lethe.metrics.stats import Floats

Variant = Literal["geo", "arith", "prob_mean"]
VARIANTS: tuple[Variant, ...] = ("geo", "arith", "prob_mean")
ANSWERED = ("forget", "retain", "ra", "wf")  # splits with questions, answers and a generation

# column of the table -> what a file must have for it
_NEEDS = {
    "nll": "answer",
    "nll_correct": "paraphrased_answer",
    "nll_perturbed": "perturbed_answer",
    "rouge_l_recall": "question",
    "value_recall": "value",
    "para_rouge_l_recall": "paraphrased_question",
    "para_value_recall": "paraphrased_question' and 'value",
    "mcq_correct": "options",
}
_MEANS = {  # metric -> column, where the metric is the mean of a column
    "rouge_l_recall": "rouge_l_recall",
    "value_recall": "value_recall",
    "extraction_strength": "extraction_strength",
    "extraction_strength.ou": "extraction_strength_ou",
    "exact_memorization": "exact_memorization",
}
_FORGET_MEANS = {"para_rouge_l_recall": "para_rouge_l_recall", "para_value_recall": "para_value_recall"}


# ------------------------------------------------------------------------------------------ per item


def log_truth_ratio(correct: Floats, perturbed: Floats, variant: Variant = "geo") -> Floats:
    """ln R of each item. correct (n,), perturbed (n, J) with nan where an item has fewer: mean NLL a token, in nats."""
    if perturbed.shape[1] == 0:
        return np.full(len(correct), np.nan)
    counts = np.isfinite(perturbed).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        if variant == "arith":
            likelihoods = logsumexp(np.where(np.isnan(perturbed), -np.inf, -perturbed), axis=1) - np.log(counts)
            return np.where(counts > 0, correct + likelihoods, np.nan)
        return correct - np.where(np.isnan(perturbed), 0, perturbed).sum(axis=1) / np.where(counts > 0, counts, np.nan)


def truth_ratio_score(log_ratio: Floats, split: str, variant: Variant = "geo") -> Floats:
    """What is averaged, in [0, 1]: forget min(R, 1/R), elsewhere max(0, 1 - R); prob_mean 1 / (1 + R)."""
    if variant == "prob_mean":
        return np.asarray(expit(-log_ratio))
    return np.exp(-np.abs(log_ratio)) if split == "forget" else 0 - np.expm1(np.minimum(log_ratio, 0))


def normalised_prob(nll: Floats, perturbed: Floats) -> Floats:
    """p / (p + sum_j p_j) over per-token-normalised probabilities. nll (n,), perturbed (n, J) -> (n,)."""
    if perturbed.shape[1] == 0:
        return np.full(len(nll), np.nan)
    wrong = logsumexp(np.where(np.isnan(perturbed), -np.inf, -perturbed), axis=1)
    return np.where(np.isfinite(wrong), expit(-nll - np.where(np.isfinite(wrong), wrong, 0)), np.nan)


def split_log_ratio(frame: pd.DataFrame, variant: Variant = "geo") -> Floats:
    """ln R of a split's items."""
    return log_truth_ratio(frame["nll_correct"].to_numpy(), padded(frame["nll_perturbed"]), variant)


def split_prob(frame: pd.DataFrame, split: str) -> Floats:
    """exp(-nll) for forget and retain, normalised against the perturbed answers for ra and wf."""
    nll = frame["nll"].to_numpy()
    return np.exp(-nll) if split in ("forget", "retain") else normalised_prob(nll, padded(frame["nll_perturbed"]))


# ------------------------------------------------------------------------------------------ metrics


def tofu_metrics(
    items: pd.DataFrame,
    reference_items: pd.DataFrame | None = None,
    *,
    name: str = "the evaluation",
    reference_name: str = "the reference",
    no_reference: str = "no reference: needs the retrained model's items",
    bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Every metric of one evaluation by name, each {"value", "n", "lo", "hi", "reason"}.

    items, reference_items: tables of items.py, of the model and of the retrained model on the same benchmark; `name`
    and `reference_name` say in errors where they come from. lo and hi are 95 % percentile intervals over `bootstrap`
    resamples of the items; all metrics of a split share its resamples, so an item's values stay together, and
    model_utility resamples within each of its three splits. A metric that cannot be had is null with a reason; a reason
    beside a value is a note. LetheError: other questions in the reference, or a table that is its own reference.
    """
    splits = {split: _split(items, split, bootstrap, seed) for split in FILES}
    if reference_items is not None:
        _check_reference(items, reference_items, name, reference_name)
    reference = None if reference_items is None else {s: of_split(reference_items, s) for s in ("forget", "holdout")}

    metrics: dict[str, Estimate] = {}
    for split in ANSWERED:
        for metric, estimate in _answer_metrics(splits[split]).items():
            metrics[f"{split}.{metric}"] = estimate
    for split in ("forget", "retain"):
        metrics[f"{split}.mcq_acc"] = _mcq_accuracy(splits[f"mcq_{split}"])
    metrics["model_utility"] = _model_utility(metrics, "geo")
    metrics["model_utility.arith"] = _model_utility(metrics, "arith")
    metrics["model_utility.retain"] = _model_utility(metrics, "geo", splits=("retain",))
    metrics |= _forget_quality(splits["forget"], reference, no_reference)
    metrics |= _membership(splits["forget"], splits["holdout"], reference, no_reference)
    metrics |= margins(splits["forget"])
    return {key: estimate.as_dict() for key, estimate in metrics.items()}


def _split(items: pd.DataFrame, name: str, resamples: int, seed: int) -> Split:
    needs = _NEEDS | ({"nll_correct": "answer"} if name in ("ra", "wf") else {})  # the plain one is correct there
    lacking = {column: f"{FILES[name]}: no field '{needed}'" for column, needed in needs.items()}
    return split_of(items, name, resamples, seed, f"no items of split '{name}' ({FILES[name]})", lacking)


def _check_reference(items: pd.DataFrame, reference: pd.DataFrame, name: str, reference_name: str) -> None:
    require_other_values(items, reference, name, reference_name)
    for split in ("forget", "holdout"):
        left, right = of_split(items, split), of_split(reference, split)
        if len(left) and len(right):
            require_same_questions(left, right, name, reference_name)


def _answer_metrics(split: Split) -> dict[str, Estimate]:
    normalised = split.name in ("ra", "wf")
    cut = int(np.nansum(split.column("truncated")))
    out = {
        "prob": split.mean(
            split_prob(split.frame, split.name),
            needs=("nll", "nll_perturbed") if normalised else ("nll",),
            note=f"{cut} items cut at max_length" if cut else None,
        )
    }
    for variant in VARIANTS:
        score = truth_ratio_score(split_log_ratio(split.frame, variant), split.name, variant)
        out[f"truth_ratio.{variant}"] = split.mean(score, needs=("nll_correct", "nll_perturbed"))
    for metric, column in (_MEANS | _FORGET_MEANS if split.name == "forget" else _MEANS).items():
        note = None
        if column in ("rouge_l_recall", "para_rouge_l_recall") and not split.lacks(column):
            note = coverage_note(split.frame["answer"])
        out[metric] = split.mean(split.column(column), needs=(column,), note=note)
    return out


def _mcq_accuracy(split: Split) -> Estimate:
    chance = np.nanmean(1 / split.column("mcq_options")) if not split.lacks("mcq_correct") else 0
    return split.mean(split.column("mcq_correct"), needs=("mcq_correct",), note=f"chance level {chance:.3f}")


def _model_utility(
    metrics: dict[str, Estimate], variant: Variant, splits: Sequence[str] = ("retain", "ra", "wf")
) -> Estimate:
    """Harmonic mean of {prob, rouge_l_recall, truth_ratio} x splits; 0 if one member is 0."""
    names = [f"{s}.{m}" for s in splits for m in ("prob", "rouge_l_recall", f"truth_ratio.{variant}")]
    members = [metrics[name] for name in names]
    for member_name, member in zip(names, members, strict=True):
        if member.value is None:
            return Estimate(None, reason=f"needs {member_name}: {member.reason}")
    values = [member.value for member in members if member.value is not None]
    samples = [member.samples for member in members if member.samples is not None]
    return Estimate(
        float(stats.harmonic_mean(values)),
        sum(member.n for member in members[::3]),
        stats.harmonic_mean(np.stack(samples)) if len(samples) == len(members) else None,
    )


def _forget_quality(forget: Split, reference: dict[str, pd.DataFrame] | None, no_reference: str) -> dict[str, Estimate]:
    """Two-sample KS test of the truth ratios of model and retrained model on the same questions.

    Resampling repeats items, which raises D a little: the interval leans towards smaller p than the test's own.
    """
    names = ("forget_quality.p", "forget_quality.log10p", "forget_quality.D")
    reason = forget.lacks("nll_correct", "nll_perturbed") or (no_reference if reference is None else None)
    x = split_log_ratio(forget.frame)
    y = split_log_ratio(reference["forget"]) if reference is not None else np.full(len(x), np.nan)
    if reason is None and len(y) != len(x):
        reason = "the reference has no items of split 'forget'"
    if reason is None:
        there = np.isfinite(x) & np.isfinite(y)
        reason = None if there.any() else "the reference has no truth ratios"
    if reason:
        return {name: Estimate(None, reason=reason) for name in names}
    x, y = x[there], y[there]
    test = stats.ks_two_sample(x, y)
    note = "; ".join([f"KS {test.method}, n {test.n}/{test.m}", *test.warnings])
    d_samples = log_samples = p_samples = None
    if len(x) > 1 and len(forget.counts) and there.all():
        d_samples, log_samples = stats.ks_resampled(x, y, forget.counts)
        p_samples = np.exp(log_samples)
        log_samples = log_samples / math.log(10)
    return {
        names[0]: Estimate(test.p, test.n, p_samples, note),
        names[1]: Estimate(test.log10p, test.n, log_samples, note),
        names[2]: Estimate(test.D, test.n, d_samples, note),
    }


def _membership(
    forget: Split, holdout: Split, reference: dict[str, pd.DataFrame] | None, no_reference: str
) -> dict[str, Estimate]:
    """a = P(forget score > holdout score) for each score, and PrivLeak on min-k against the reference's own a."""
    out = membership_aucs(forget, holdout)
    lacking = [s.name for s in (forget, holdout) if reference and len(reference[s.name]) != len(s.frame)]
    if reference is None or lacking:
        reason = f"the reference has no items of split '{lacking[0]}'" if lacking else no_reference
        unavailable = Estimate(None, reason=forget.lacks("nll") or holdout.lacks("nll") or reason)
        return out | {"mia.ref_auc": unavailable, "privleak": unavailable}

    ref_f, ref_h = reference["forget"], reference["holdout"]
    excess_f, excess_h = forget.column("nll") - ref_f["nll"].to_numpy(), holdout.column("nll") - ref_h["nll"].to_numpy()
    out["mia.ref_auc"] = auc(forget, holdout, excess_f, excess_h, "nll")
    # The reference's items are the model's, so its AUC shares their resamples.
    reference_auc = auc(forget, holdout, ref_f["min_k"].to_numpy(), ref_h["min_k"].to_numpy(), "min_k")
    out["privleak"] = privleak(out["mia.min_k_auc"], reference_auc)
    return out
