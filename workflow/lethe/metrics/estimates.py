"""What every suite's metrics are made of: estimates with bootstrap intervals over the items of a split.

All metrics of a split share its resamples, so an item's values stay together. A metric that cannot be had is null with
a reason; a reason beside a value is a note.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lethe.errors import LetheError
from lethe.metrics import privacy, stats
from lethe.metrics.items import NUMBER_COLUMNS, of_split, padded
from lethe.metrics.stats import Floats

MEMBERSHIP = {"loss": "nll", "zlib": "zlib", "min_k": "min_k", "min_k_pp": "min_k_pp"}  # score -> column


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
class Split:
    """The items of one split, and how often each occurs in every bootstrap resample: counts (B, n).

    absent: why there are no items, should there be none. lacking: for columns that need a field of the file, what is
    said where no item has a value.
    """

    name: str
    frame: pd.DataFrame
    counts: NDArray[np.int64]
    absent: str
    lacking: Mapping[str, str] = field(default_factory=dict)

    def column(self, name: str) -> Floats:
        return self.frame[name].to_numpy(dtype="float64")

    def lacks(self, *columns: str) -> str | None:
        """Why these columns cannot be used, if they cannot."""
        if self.frame.empty:
            return self.absent
        for name in columns:
            values = self.column(name) if name in NUMBER_COLUMNS else padded(self.frame[name])
            if not np.isfinite(values).any():
                return self.lacking.get(name, f"no '{name}' was computed")
        return None

    def mean(self, values: Floats, *, needs: tuple[str, ...], note: str | None = None) -> Estimate:
        if reason := self.lacks(*needs):
            return Estimate(None, reason=reason)
        there = np.isfinite(values)
        n = int(there.sum())
        if n == 0:
            return Estimate(None, reason=f"no item of split '{self.name}' has a value")
        if n < len(values):
            note = join(note, f"{len(values) - n} of {len(values)} items have no value")
        samples = stats.resampled_means(values, self.counts) if n > 1 and len(self.counts) else None
        return Estimate(float(values[there].mean()), n, samples, note)


def split_of(
    items: pd.DataFrame, name: str, resamples: int, seed: int, absent: str, lacking: Mapping[str, str] | None = None
) -> Split:
    """A split of the table with its resamples, which depend on no other split."""
    frame = of_split(items, name)
    rng = np.random.default_rng([seed, crc32(name.encode())])
    return Split(name, frame, stats.resample_counts(len(frame), resamples, rng), absent, lacking or {})


def require_other_values(items: pd.DataFrame, reference: pd.DataFrame, name: str, reference_name: str) -> None:
    """LetheError: a table that is its own reference."""
    key = ["split", "index"]
    a, b = (t[key + list(NUMBER_COLUMNS)].sort_values(key, ignore_index=True) for t in (items, reference))
    if a.equals(b):
        raise LetheError(f"{name} and {reference_name}: the same values, a model cannot be its own reference")


def membership_aucs(forget: Split, holdout: Split) -> dict[str, Estimate]:
    """mia.{loss,zlib,min_k,min_k_pp}_auc: a = P(forget score > holdout score)."""
    return {
        f"mia.{score}_auc": auc(forget, holdout, forget.column(column), holdout.column(column), column)
        for score, column in MEMBERSHIP.items()
    }


def auc(forget: Split, holdout: Split, f: Floats, h: Floats, needs: str) -> Estimate:
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
    return Estimate(a, int(in_f.sum() + in_h.sum()), samples, join(privacy.auc_note(a), few))


def privleak(own: Estimate, reference: Estimate, against: str | None = None) -> Estimate:
    """100 (a - a_ref) / a_ref of two AUCs over the same resamples. against: what the note says of the reference."""
    if own.value is None or reference.value is None:
        return Estimate(None, reason=own.reason if own.value is None else reference.reason)
    if reference.value == 0:
        return Estimate(None, reason="the reference's own AUC is 0")
    samples = None
    if own.samples is not None and reference.samples is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            samples = 100 * (own.samples - reference.samples) / reference.samples
    note = join(against, privacy.reference_note(reference.value), own.reason)
    return Estimate(privacy.privleak(own.value, reference.value), own.n, samples, note)


def margins(forget: Split) -> dict[str, Estimate]:
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


def join(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
