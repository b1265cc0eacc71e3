"""Pareto fronts of points to maximise in every objective: on means, and beyond the spread over seeds."""

from collections.abc import Mapping, Sequence

import numpy as np

from lethe.errors import LetheError
from lethe.metrics.stats import paired_difference

BySeed = Mapping[int, Sequence[float] | np.ndarray]  # the objectives of each seed


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


def dominates(better: BySeed, worse: BySeed, level: float = 0.95) -> bool:
    """Whether `better` is larger beyond the spread over seeds in some objective and may not be smaller in any.

    For each method the objectives of each seed. Student intervals of the paired differences over shared seeds: none may
    reach below 0, and one must lie above it. A bootstrap over three to five seeds gives intervals that are far too
    narrow. With fewer than two shared seeds nothing dominates.
    """
    width = max((len(point) for point in [*better.values(), *worse.values()]), default=0)
    lows = []
    for i in range(width):
        a, b = ({seed: float(point[i]) for seed, point in own.items()} for own in (better, worse))
        if not a.keys() & b.keys() or (low := paired_difference(a, b, level).lo) is None:
            return False
        lows.append(low)
    return bool(lows) and min(lows) >= 0 and max(lows) > 0


def front_beyond_noise(samples: Mapping[str, BySeed], level: float = 0.95) -> list[str]:
    """The methods that no other dominates by `dominates`, in the order given."""
    return [
        name
        for name, own in samples.items()
        if not any(dominates(other, own, level) for rival, other in samples.items() if rival != name)
    ]
