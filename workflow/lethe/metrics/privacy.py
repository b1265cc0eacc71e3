"""Membership inference: scores of one text, and AUC and PrivLeak in one orientation.

A score is higher for texts the model knows less. a := P(score of a forget item > score of a holdout item), ties half:
0 for a target that memorised its forget set, 1 for one that was pushed below unseen text. It is 1 minus
OpenUnlearning's AUC and equals MUSE's.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from lethe.errors import LetheError
from lethe.metrics.stats import auc

MIN_K = 0.4
OVER_UNLEARNED = 0.95  # an AUC below .05 in OpenUnlearning's orientation
REFERENCE_RANGE = (0.3, 0.7)  # where a model that saw neither forget nor holdout items should be
ENOUGH_HOLDOUT = 200  # with 40 against 40 items the standard error of an AUC is .065


def zlib_score(nll: float, text: str) -> float:
    """Mean negative log-likelihood a token over the compressed size of the text in bytes."""
    return nll / len(zlib.compress(text.encode("utf-8")))


def min_k(logp: NDArray, share: float = MIN_K) -> float | None:
    """Minus the mean of the lowest max(1, int(share L)) token log-probabilities. logp: (L,) without the end token."""
    if len(logp) == 0:
        return None
    lowest = np.sort(np.asarray(logp, dtype=np.float64))[: max(1, int(share * len(logp)))]
    return float(-lowest.mean())


def min_k_pp(logp: NDArray, mean: NDArray, std: NDArray, share: float = MIN_K) -> float | None:
    """Min-k++ (Zhang et al. 2024): min-k on (log p - mean) / std under the model's own distribution. (L,) each."""
    return min_k((np.asarray(logp, dtype=np.float64) - mean) / std, share)


def membership_auc(forget: NDArray, holdout: NDArray) -> float:
    """a = P(forget score > holdout score), ties half."""
    return auc(forget, holdout)


def privleak(a: float, reference: float) -> float:
    """100 (a - a_ref) / a_ref, never clipped. a_ref is the retrained model's own a. LetheError: a_ref = 0."""
    if reference == 0:
        raise LetheError("PrivLeak needs a reference AUC above 0, got 0")
    return 100 * (a - reference) / reference


def auc_note(a: float) -> str | None:
    """What must be said beside an AUC: over-unlearned models are labelled, not corrected."""
    return f"over-unlearned: AUC {a:.4g} > {OVER_UNLEARNED}" if a > OVER_UNLEARNED else None


def reference_note(reference: float) -> str | None:
    low, high = REFERENCE_RANGE
    return None if low <= reference <= high else f"the reference's own AUC is {reference:.4g}, far from .5"
