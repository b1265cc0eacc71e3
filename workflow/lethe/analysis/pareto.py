"""Pareto fronts of points to maximise in every objective: on means, and with bootstrap intervals over seeds."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lethe.errors import LetheError


def front(points: np.ndarray) -> np.ndarray:
    """Which of the (n, d) points no other point dominates. Returns (n,) bool; equal points stand or fall together.

    A point dominates another if it is at least as large in every objective and larger in one. Rows with NaN are never
    on the front and dominate nothing.
    """
    points = np.asarray(points, dtype=float)
    at_least = (points[:, None, :] >= points[None, :, :]).all(axis=2)
    larger = (points[:, None, :] > points[None, :, :]).any(axis=2)
    return ~(at_least & larger).any(axis=0) & ~np.isnan(points).any(axis=1)


def hypervolume(points: np.ndarray, reference: tuple[float, float]) -> float:
    """Area that (n, 2) points dominate above the reference point; points not above it in both objectives add none."""
    points = np.asarray(points, dtype=float)
    if points.ndim != 2 or points.shape[1] != 2:
        raise LetheError(f"hypervolume: points must be of shape (n, 2), got {points.shape}")
    above = points[(points > np.asarray(reference)).all(axis=1)]
    area, top = 0.0, reference[1]
    for x, y in sorted(above.tolist(), reverse=True):
        if y > top:
            area += (x - reference[0]) * (y - top)
            top = y
    return area


def dominance(
    samples: Mapping[str, Mapping[int, np.ndarray]], level: float = 0.95, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Which method dominates which, beyond the spread over seeds.

    samples: for each method, the (d,) objectives of each seed. For every ordered pair the seeds they share are drawn
    again with replacement (paired differences), and the percentile interval of the mean difference is taken in each
    objective. `better` dominates `worse` where every interval lies at or above 0 and one above it; with one shared seed
    nothing does. Returns a row a pair: better, worse, dominates, n_seeds, and lo and hi, tuples over objectives.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for better, ours in samples.items():
        for worse, theirs in samples.items():
            shared = sorted(set(ours) & set(theirs))
            if better == worse or not shared:
                continue
            gaps = np.array([np.asarray(ours[s], dtype=float) - np.asarray(theirs[s], dtype=float) for s in shared])
            drawn = generator.integers(len(shared), size=(draws, len(shared)))
            lo, hi = np.quantile(gaps[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2], axis=0)
            rows.append({
                "better": better, "worse": worse,
                "dominates": bool(len(shared) > 1 and (lo >= 0).all() and (lo > 0).any()),
                "n_seeds": len(shared), "lo": tuple(lo.tolist()), "hi": tuple(hi.tolist()),
            })  # fmt: skip
    return pd.DataFrame(rows, columns=["better", "worse", "dominates", "n_seeds", "lo", "hi"])


def front_beyond_noise(samples: Mapping[str, Mapping[int, np.ndarray]], level: float = 0.95) -> list[str]:
    """The methods that no other dominates by `dominance`, in the order given."""
    pairs = dominance(samples, level)
    beaten = set(pairs.loc[pairs["dominates"], "worse"])
    return [name for name in samples if name not in beaten]
