"""Intervals, tests and means that the evaluation and the paper stages share. numpy and scipy only.

Two-sample Kolmogorov-Smirnov tests whose p never underflows, AUC with ties counted half, bootstrap intervals over
items, paired differences over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lethe.errors import LetheError

Floats = NDArray[np.float64]

# Larger samples use the limiting distribution, whose error is then far below what anybody reads off a p-value.
EXACT_UP_TO = 10_000


@dataclass(frozen=True)
class KS:
    """A two-sided two-sample Kolmogorov-Smirnov test. log10p stays finite where p underflows to 0.

    method: 'exact' or 'asymptotic'. warnings: what a reader of p must know (ties make the exact p conservative).
    """

    D: float
    p: float
    log10p: float
    n: int
    m: int
    method: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairedDifference:
    """mean and sample standard deviation of a - b over shared seeds, with a Student interval (None for one seed)."""

    mean: float
    std: float | None
    lo: float | None
    hi: float | None
    n: int


def ks_two_sample(x: ArrayLike, y: ArrayLike) -> KS:
    """Whether two samples come from one distribution. x: (n,), y: (m,), finite. LetheError: empty or not finite.

    D is found in integers (|i m - j n| over the pooled values), so equality with a critical value is exact.
    """
    a, b = np.sort(np.asarray(x, dtype=float)), np.sort(np.asarray(y, dtype=float))
    n, m = len(a), len(b)
    if n == 0 or m == 0:
        raise LetheError(f"a Kolmogorov-Smirnov test needs two samples, got {n} and {m} values")
    pooled = np.concatenate([a, b])
    if not np.isfinite(pooled).all():
        raise LetheError("a Kolmogorov-Smirnov test needs finite values, got some that are not")
    steps = np.searchsorted(a, pooled, side="right") * m - np.searchsorted(b, pooled, side="right") * n
    reach = int(np.abs(steps).max())
    ties = len(np.unique(pooled)) < n + m
    exact = max(n, m) <= EXACT_UP_TO
    log_p = ks_log_p(reach, n, m)
    return KS(
        D=reach / (n * m),
        p=math.exp(log_p),
        log10p=log_p / math.log(10),
        n=n,
        m=m,
        method="exact" if exact else "asymptotic",
        warnings=("ties: p is conservative",) if ties else (),
    )


def ks_log_p(reach: int, n: int, m: int) -> float:
    """ln P(D >= reach / (n m)) for two samples of n and m values from one continuous distribution."""
    if reach == 0:
        return 0.0
    if max(n, m) > EXACT_UP_TO:
        return _log_p_asymptotic(reach, n, m)
    if n == m:
        return _log_p_equal(reach // n, n)
    return _log_p_paths(reach, n, m)


def _log_p_equal(h: int, n: int) -> float:
    """Gnedenko and Korolyuk (1951), D >= h/n: p = 2 sum_i (-1)^(i-1) C(2n, n - ih) / C(2n, n)."""
    from scipy.special import gammaln

    i = np.arange(1, n // h + 1)
    log_terms = 2 * gammaln(n + 1) - gammaln(n - i * h + 1) - gammaln(n + i * h + 1)
    ratios = np.exp(log_terms - log_terms[0])
    return min(0.0, float(math.log(2) + log_terms[0] + np.log(np.sum(ratios * (-1.0) ** (i - 1)))))


def _log_p_paths(reach: int, n: int, m: int) -> float:
    """Chance that a random lattice path from (0, 0) to (n, m) ever has |i m - j n| >= reach, summed over first hits.

    Every term is positive, so nothing cancels; logarithms, so nothing underflows. One anti-diagonal at a time.
    """
    i = np.arange(n + 1)
    at = np.full(n + 1, -np.inf)  # ln P(the path is at (i, t - i) and has hit nothing yet)
    at[0] = 0.0
    hits = [-np.inf]
    with np.errstate(divide="ignore", invalid="ignore"):
        for t in range(n + m):
            left = np.log(n + m - t)
            right = at + np.log(np.maximum(n - i, 0)) - left
            up = at + np.log(np.maximum(m - (t - i), 0)) - left
            at = np.logaddexp(up, np.concatenate([[-np.inf], right[:-1]]))
            hit = np.abs(i * m - (t + 1 - i) * n) >= reach
            hits.append(np.logaddexp.reduce(at[hit], initial=-np.inf))
            at[hit] = -np.inf
    return min(0.0, float(np.logaddexp.reduce(hits)))


def _log_p_asymptotic(reach: int, n: int, m: int) -> float:
    """Kolmogorov's limit 2 sum_i (-1)^(i-1) exp(-2 i^2 t^2), t = D sqrt(nm / (n + m))."""
    from scipy.special import kolmogorov

    t = reach / (n * m) * math.sqrt(n * m / (n + m))
    p = float(kolmogorov(t))
    return math.log(p) if p > 1e-300 else math.log(2) - 2 * t * t


def ks_resampled(x: Floats, y: Floats, counts: NDArray) -> tuple[Floats, Floats]:
    """D and ln p of bootstrap resamples of n pairs (x_i, y_i): x and y (n,), counts (B, n). Returns (B,), (B,)."""
    n = len(x)
    pooled = np.concatenate([x, y])
    order = np.argsort(pooled, kind="stable")
    steps = np.concatenate([counts, -counts], axis=1)[:, order].cumsum(axis=1)
    last_of_a_tie = np.append(np.diff(pooled[order]) > 0, True)
    reach = np.abs(steps[:, last_of_a_tie]).max(axis=1)
    log_p = {h: ks_log_p(int(h) * n, n, n) for h in np.unique(reach)}
    return reach / n, np.array([log_p[h] for h in reach])


def auc(positive: ArrayLike, negative: ArrayLike) -> float:
    """P(a positive's score > a negative's), ties half. (n,), (m,). LetheError: an empty sample."""
    p, q = np.asarray(positive, dtype=float), np.sort(np.asarray(negative, dtype=float))
    if len(p) == 0 or len(q) == 0:
        raise LetheError(f"an AUC needs two samples, got {len(p)} and {len(q)} values")
    below = np.searchsorted(q, p, side="left") + np.searchsorted(q, p, side="right")
    return float(below.sum() / (2 * len(p) * len(q)))


def auc_resampled(positive: Floats, negative: Floats, counts_p: NDArray, counts_n: NDArray) -> Floats:
    """AUC of each resample. counts_p (B, n), counts_n (B, m): how often a resample holds each item. Returns (B,)."""
    wins = (np.sign(positive[:, None] - negative[None, :]) + 1) / 2
    with np.errstate(invalid="ignore"):  # a resample may hold none of the items at hand: nan
        return np.einsum("bn,nm,bm->b", counts_p, wins, counts_n, optimize=True) / (
            counts_p.sum(axis=1) * counts_n.sum(axis=1)
        )


def harmonic_mean(values: ArrayLike) -> Floats:
    """Along the first axis; 0 where any member is 0. LetheError: a negative member, or none."""
    x = np.asarray(values, dtype=float) + 0.0  # -0.0 becomes 0.0, whose inverses add up
    if len(x) == 0 or (x < 0).any():
        raise LetheError(f"a harmonic mean needs members >= 0, got {x.tolist() if x.size < 20 else 'negative ones'}")
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(len(x) / np.sum(1 / x, axis=0))


def resample_counts(n: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(resamples, n): how often each of n items occurs in bootstrap resamples of size n."""
    if n == 0:
        return np.zeros((resamples, 0), dtype=np.int64)
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples)


def resampled_means(values: Floats, counts: NDArray) -> Floats:
    """Mean of each resample over the items that have a value (not nan). values (n,), counts (B, n) -> (B,)."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return (counts[:, there] @ values[there]) / counts[:, there].sum(axis=1)


def interval(samples: ArrayLike | None, level: float = 0.95) -> tuple[float | None, float | None]:
    """Percentile interval of bootstrap samples; (None, None) where there are none. nan does not count."""
    if samples is None:
        return None, None
    x = np.asarray(samples, dtype=float)
    x = x[~np.isnan(x)]
    if len(x) == 0:
        return None, None
    lo, hi = np.quantile(x, [(1 - level) / 2, (1 + level) / 2])
    return float(lo), float(hi)


def bootstrap_mean(
    values: ArrayLike, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float | None, float | None]:
    """Mean and percentile interval over items; no interval for a single item or without resamples."""
    x = np.asarray(values, dtype=float)
    if len(x) == 0:
        raise LetheError("a mean needs values, got none")
    if len(x) == 1 or resamples == 0:
        return float(x.mean()), None, None
    counts = resample_counts(len(x), resamples, np.random.default_rng(seed))
    return float(x.mean()), *interval(resampled_means(x, counts), level)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95) -> PairedDifference:
    """a - b over the seeds that both have. A Student interval: a bootstrap over 3 to 5 seeds is far too narrow.

    LetheError: no shared seed.
    """
    from scipy.stats import t

    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        raise LetheError(f"a paired difference needs shared seeds, got {sorted(a)} and {sorted(b)}")
    d = np.array([a[s] - b[s] for s in seeds])
    mean = float(d.mean())
    if len(d) == 1:
        return PairedDifference(mean, None, None, None, 1)
    std = float(d.std(ddof=1))
    half = float(t.ppf((1 + level) / 2, len(d) - 1)) * std / math.sqrt(len(d))
    return PairedDifference(mean, std, mean - half, mean + half, len(d))
