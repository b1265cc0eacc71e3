"""Power laws s(N) = C N^alpha of a score in model size (MASC, arXiv 2606.02920, section E.3)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from lethe.analysis.summary import Roles, Summary, load_summary, over_seeds, read_csv
from lethe.files import write_text

CONTRACT = [
    "study", "benchmark", "stage", "recipe", "attack", "metric",
    "C", "alpha", "r2", "alpha_lo", "alpha_hi", "n_sizes", "n_seeds",
]  # fmt: skip
FITS = [*CONTRACT, "n_kind", "reason"]
KINDS = ("total", "nonembed")  # what N counts: all parameters (the paper's reading), or those outside the embeddings


@dataclass(frozen=True)
class Fit:
    """s = C N^alpha, N in billions; r2 is that of log s. A refused fit has NaN numbers and a reason."""

    C: float
    alpha: float
    r2: float
    alpha_lo: float
    alpha_hi: float
    n_sizes: int
    reason: str = ""

    def at(self, billions: Any) -> Any:
        return self.C * np.asarray(billions, dtype=float) ** self.alpha


def fit(billions: Sequence[float], scores: Sequence[float], level: float = 0.95) -> Fit:
    """Ordinary least squares of log s on log N, one score a size (average seeds before).

    alpha_lo and alpha_hi bound the Student t interval of alpha at `level`, with n - 2 degrees of freedom. Refused with
    fewer than three sizes, or where a logarithm does not exist. r2 is NaN where all scores are equal.
    """
    n, s = np.asarray(billions, dtype=float), np.asarray(scores, dtype=float)
    sizes = len(np.unique(n))
    if sizes < 3:
        return _refused(sizes, f"{sizes} of at least 3 sizes")
    if not (np.isfinite(n) & (n > 0)).all():
        return _refused(sizes, "a size that is not positive")
    if not (np.isfinite(s) & (s > 0)).all():
        return _refused(sizes, f"a score that is not positive ({np.min(s):.4g})")
    x, y = np.log(n), np.log(s)
    dx, dy = x - x.mean(), y - y.mean()
    alpha = (dx @ dy) / (dx @ dx)
    residual = dy - alpha * dx
    half = stats.t.ppf((1 + level) / 2, len(x) - 2) * math.sqrt((residual @ residual) / (len(x) - 2) / (dx @ dx))
    flat = s.max() == s.min()
    return Fit(
        C=math.exp(y.mean() - alpha * x.mean()),
        alpha=float(alpha),
        r2=math.nan if flat else float(1 - (residual @ residual) / (dy @ dy)),
        alpha_lo=float(alpha - half),
        alpha_hi=float(alpha + half),
        n_sizes=sizes,
    )


def _refused(sizes: int, reason: str) -> Fit:
    nan = math.nan
    return Fit(nan, nan, nan, nan, nan, sizes, reason)


@dataclass(frozen=True)
class Stage:
    """The fits a study asks for at one stage. Recipe None stands for the scale's learning recipe."""

    name: str
    recipes: tuple[str | None, ...]
    metrics: tuple[str, ...]


MEMORISED = ("forget.rouge_l_recall", "forget.para_rouge_l_recall", "forget.value_recall", "forget.para_value_recall")
PLAN = {
    "masc": (
        Stage("learning", (None,), MEMORISED),
        Stage("unlearning", ("simnpo", "masc"), (*MEMORISED, "model_utility")),
    )
}


def size_scores(
    summary: Summary, roles: Roles, benchmark: str, recipe: str, metric: str, kind: str = "total"
) -> pd.DataFrame:
    """The points of a fit, small to large: model, size (parameters), mean, std and n_seeds over seeds; maybe none."""
    rows = summary.select(benchmark=benchmark, recipe=recipe, metric=metric, attack="none", model=roles.ladder)
    rows = rows.dropna(subset="value").merge(summary.sizes(kind), on="model")
    points = over_seeds(rows[["model", "size", "seed", "value"]], by=["model", "size"])
    return points.rename(columns={"value_mean": "mean", "value_std": "std"}).sort_values("size", ignore_index=True)


def fit_all(summary: Summary, roles: Roles, study: str) -> pd.DataFrame:
    """Every fit of the study's plan for which the summary has runs on the ladder, in the columns of fits.csv.

    n_seeds is the smallest number of seeds averaged at a size. Refused fits keep their row, with a reason.
    """
    rows = []
    for benchmark in roles.headline.values():
        for stage in PLAN[study]:
            for recipe in (r or roles.learning for r in stage.recipes):
                for metric in stage.metrics:
                    for kind in KINDS:
                        points = size_scores(summary, roles, benchmark, recipe, metric, kind)
                        if points.empty:
                            continue
                        found = fit(points["size"] / 1e9, points["mean"])
                        rows.append({
                            "study": study, "benchmark": benchmark, "stage": stage.name, "recipe": recipe,
                            "attack": "none", "metric": metric, **asdict(found),
                            "n_seeds": int(points["n_seeds"].min()), "n_kind": kind,
                        })  # fmt: skip
    return pd.DataFrame(rows, columns=FITS)


def write_fits(summary_dir: str | Path, roles: Mapping[str, Any], out_csv: str | Path, study: str = "masc") -> None:
    """Write fits.csv: no number for a refused fit, but its reason."""
    fits = fit_all(load_summary(summary_dir), Roles.from_json(roles), study)
    write_text(out_csv, fits.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def load_fits(path: str | Path) -> pd.DataFrame:
    """Read fits.csv; n_kind and reason may be absent (then every N is a total)."""
    fits = read_csv(path, CONTRACT)
    fits["n_kind"] = fits.get("n_kind", "total")
    fits["reason"] = fits["reason"].astype(object).fillna("") if "reason" in fits else ""
    return fits
