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
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from lethe.errors import LetheError
from lethe.metrics import privacy, stats
from lethe.metrics.items import FILES, NUMBER_COLUMNS, of_split, padded, require_same_questions
from lethe.metrics.rouge import coverage_note
from lethe.metrics.stats import Floats

Variant = Literal["geo", "arith", "prob_mean"]
VARIANTS: tuple[Variant, ...] = ("geo", "arith", "prob_mean")
ANSWERED = ("forget", "retain", "ra", "wf")  # splits with questions, answers and a generation
MEMBERSHIP = {"loss": "nll", "zlib": "zlib", "min_k": "min_k", "min_k_pp": "min_k_pp"}

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
_PLAIN = {("ra", "nll_correct"), ("wf", "nll_correct")}  # the correct answer there is the plain one
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


# ------------------------------------------------------------------------------------------ estimates


@dataclass(frozen=True)
class Estimate:
    """A metric over n items with its bootstrap samples (B,). reason: why there is no value, or a note on the value."""

    value: float | None
    n: int = 0
    samples: Floats | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """{"value", "n", "lo", "hi", "reason"}: 95 % percentile interval; never a number that is not finite."""
        if self.value is None or not math.isfinite(self.value):
            reason = self.reason if self.value is None else f"not a finite number, got {self.value}"
            return {"value": None, "n": self.n, "lo": None, "hi": None, "reason": reason}
        lo, hi = stats.interval(self.samples)
        finite = lo is not None and hi is not None and math.isfinite(lo) and math.isfinite(hi)
        return {
            "value": float(self.value),
            "n": self.n,
            "lo": lo if finite else None,
            "hi": hi if finite else None,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class _Split:
    """The items of one split, and how often each occurs in every bootstrap resample: counts (B, n)."""

    name: str
    frame: pd.DataFrame
    counts: NDArray[np.int64]

    def column(self, name: str) -> Floats:
        return self.frame[name].to_numpy(dtype="float64")

    def lacks(self, *columns: str) -> str | None:
        """Why these columns cannot be used, if they cannot."""
        if self.frame.empty:
            return f"no items of split '{self.name}' ({FILES[self.name]})"
        for name in columns:
            values = self.column(name) if name in NUMBER_COLUMNS else padded(self.frame[name])
            if not np.isfinite(values).any():
                field = "answer" if (self.name, name) in _PLAIN else _NEEDS.get(name)
                return f"{FILES[self.name]}: no field '{field}'" if field else f"no '{name}' was computed"
        return None

    def mean(self, values: Floats, *, needs: tuple[str, ...], note: str | None = None) -> Estimate:
        if reason := self.lacks(*needs):
            return Estimate(None, reason=reason)
        there = np.isfinite(values)
        n = int(there.sum())
        if n == 0:
            return Estimate(None, reason=f"no item of split '{self.name}' has a value")
        if n < len(values):
            note = _join(note, f"{len(values) - n} of {len(values)} items have no value")
        samples = stats.resampled_means(values, self.counts) if n > 1 and len(self.counts) else None
        return Estimate(float(values[there].mean()), n, samples, note)


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
    metrics |= _margins(splits["forget"])
    return {key: estimate.as_dict() for key, estimate in metrics.items()}


def _split(items: pd.DataFrame, split: str, resamples: int, seed: int) -> _Split:
    frame = of_split(items, split)
    rng = np.random.default_rng([seed, crc32(split.encode())])  # a split's resamples depend on no other split
    return _Split(split, frame, stats.resample_counts(len(frame), resamples, rng))


def _check_reference(items: pd.DataFrame, reference: pd.DataFrame, name: str, reference_name: str) -> None:
    key = ["split", "index"]
    a, b = (t[key + list(NUMBER_COLUMNS)].sort_values(key, ignore_index=True) for t in (items, reference))
    if a.equals(b):
        raise LetheError(f"{name} and {reference_name}: the same values, a model cannot be its own reference")
    for split in ("forget", "holdout"):
        left, right = of_split(items, split), of_split(reference, split)
        if len(left) and len(right):
            require_same_questions(left, right, name, reference_name)


def _answer_metrics(split: _Split) -> dict[str, Estimate]:
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


def _mcq_accuracy(split: _Split) -> Estimate:
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


def _forget_quality(
    forget: _Split, reference: dict[str, pd.DataFrame] | None, no_reference: str
) -> dict[str, Estimate]:
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
    forget: _Split, holdout: _Split, reference: dict[str, pd.DataFrame] | None, no_reference: str
) -> dict[str, Estimate]:
    """a = P(forget score > holdout score) for each score, and PrivLeak on min-k against the reference's own a."""
    out = {
        f"mia.{score}_auc": _auc(forget, holdout, forget.column(column), holdout.column(column), column)
        for score, column in MEMBERSHIP.items()
    }
    lacking = [s.name for s in (forget, holdout) if reference and len(reference[s.name]) != len(s.frame)]
    if reference is None or lacking:
        reason = f"the reference has no items of split '{lacking[0]}'" if lacking else no_reference
        unavailable = Estimate(None, reason=forget.lacks("nll") or holdout.lacks("nll") or reason)
        return out | {"mia.ref_auc": unavailable, "privleak": unavailable}

    ref_f, ref_h = reference["forget"], reference["holdout"]
    excess_f, excess_h = forget.column("nll") - ref_f["nll"].to_numpy(), holdout.column("nll") - ref_h["nll"].to_numpy()
    out["mia.ref_auc"] = _auc(forget, holdout, excess_f, excess_h, "nll")
    # The reference's items are the model's, so its AUC shares their resamples.
    reference_auc = _auc(forget, holdout, ref_f["min_k"].to_numpy(), ref_h["min_k"].to_numpy(), "min_k")
    out["privleak"] = _privleak(out["mia.min_k_auc"], reference_auc)
    return out


def _auc(forget: _Split, holdout: _Split, f: Floats, h: Floats, needs: str) -> Estimate:
    """AUC of scores f, h of the two splits' items. n counts both."""
    if reason := forget.lacks(needs) or holdout.lacks(needs):
        return Estimate(None, reason=reason)
    in_f, in_h = np.isfinite(f), np.isfinite(h)
    if not in_f.any() or not in_h.any():
        return Estimate(None, reason=f"no '{needs}' was computed for the reference")
    a = privacy.membership_auc(f[in_f], h[in_h])
    samples = None
    if len(forget.counts):
        samples = stats.auc_resampled(f[in_f], h[in_h], forget.counts[:, in_f], holdout.counts[:, in_h])
    few = f"only {len(h)} holdout items" if len(h) < privacy.ENOUGH_HOLDOUT else None
    return Estimate(a, int(in_f.sum() + in_h.sum()), samples, _join(privacy.auc_note(a), few))


def _privleak(own: Estimate, reference: Estimate) -> Estimate:
    if own.value is None or reference.value is None:
        return Estimate(None, reason=own.reason or reference.reason)
    if reference.value == 0:
        return Estimate(None, reason="the reference's own AUC is 0")
    samples = None
    if own.samples is not None and reference.samples is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            samples = 100 * (own.samples - reference.samples) / reference.samples
    note = _join(privacy.reference_note(reference.value), own.reason)
    return Estimate(privacy.privleak(own.value, reference.value), own.n, samples, note)


def _margins(forget: _Split) -> dict[str, Estimate]:
    """MASC's violation rate V_rho (mean of per-sequence rates), and Proposition 1's slack and violations (a count)."""
    unscored = "scored without a margin (k, beta, rho)"

    def mean(name: str) -> Estimate:
        found = forget.mean(forget.column(name), needs=(name,))
        return found if found.value is not None or forget.frame.empty else Estimate(None, reason=unscored)

    broken = mean("prop1_violation")
    if broken.value is not None:
        samples = None if broken.samples is None else broken.samples * broken.n
        broken = Estimate(round(broken.value * broken.n), broken.n, samples, broken.reason)
    return {
        "violation_rate": mean("violation_rate"),
        "forget.gold_logit": mean("gold_logit"),
        "prop1.slack": mean("prop1_slack"),
        "prop1.violations": broken,
    }


def _join(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
