"""MASC's figures of the scaling study: each a function from PaperData to a Figure."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from lethe.analysis.powerlaw import size_scores
from lethe.errors import LetheError
from lethe.paper.data import (
    UTILITY,
    PaperData,
    recipe_name,
)
from lethe.paper.figures import Figure, legend_below, loglog, radar, small_table
from lethe.paper.masc_scaling import PRINTED_FIT, exponents
from lethe.paper.masc_tables import PRINTED
from lethe.paper.style import COLUMN, PAGE, SERIES, Look

SCALED = ("simnpo", "masc")


def fig3(data: PaperData) -> Figure:
    """Memorisation against model size at the learning stage, the fitted laws in a table below (MASC Figure 3)."""
    panels = _laws(data, "learning", [data.roles.learning], "Figure 3 (inset table)")
    drawing = Drawing(figsize=(COLUMN * len(panels), 4.3))
    axes = drawing.subplots(2, len(panels), squeeze=False, height_ratios=(2.9, 1))
    for (upper, lower), ((benchmark, _), points) in zip(axes.T, panels.items(), strict=True):
        series = _series(data, points)
        loglog(upper, points, series, "score")
        upper.set_title(f"learning stage, {benchmark}, {data.roles.scale}")
        _law_table(lower, points, series)
    return _with_legend(drawing, data, panels, 2, "learning")


def fig4(data: PaperData) -> Figure:
    """Scores after unlearning by model size, a radar a method (MASC Figure 4)."""
    axes = (("forget.rouge_l_recall", "1-E-ROUGE"), ("forget.para_rouge_l_recall", "1-P-ROUGE"), (UTILITY.metric, "MU"))
    panels = {}
    for benchmark in data.headline("tofu"):
        for recipe in SCALED:
            rows = []
            for metric, label in axes:
                points = size_scores(data.summary, data.roles, benchmark, recipe, metric)
                value = points["mean"] if label == "MU" else 1 - points["mean"]
                rows.append(points.assign(axis=label, mean=value, recipe=points["model"]))
            if len(found := pd.concat(rows, ignore_index=True)):
                panels[benchmark, recipe] = found
    if not panels:
        raise LetheError(f"the summary has no run of {', '.join(SCALED)} on models {', '.join(data.roles.ladder)}")
    look = dict(zip(data.roles.ladder, itertools.cycle(SERIES), strict=False))
    drawing = Drawing(figsize=(PAGE, 3.0 * math.ceil(len(panels) / 2)), layout=ConstrainedLayoutEngine(h_pad=0.14))
    for i, ((benchmark, recipe), rows) in enumerate(panels.items(), start=1):
        ax = drawing.add_subplot(math.ceil(len(panels) / 2), 2, i, projection="polar")
        radar(ax, rows, [label for _, label in axes], look)
        ax.set_title(f"{recipe_name(recipe)}, {benchmark}, {data.roles.scale}", pad=9)
    legend_below(drawing, list(data.roles.ladder), columns=len(data.roles.ladder))
    frame = pd.concat(
        [rows.assign(method=recipe, benchmark=b) for (b, recipe), rows in panels.items()], ignore_index=True
    )
    frame = frame.drop(columns="recipe").rename(columns={"method": "recipe", "size": "n_params"})
    sentences = []
    for (benchmark, recipe), rows in panels.items():
        parts = []
        for _, label in axes:
            own = rows[rows["axis"] == label].sort_values("size")
            parts.append(f"{label} {own['mean'].iloc[0]:.2f} to {own['mean'].iloc[-1]:.2f}")
        sentences.append(f"{recipe_name(recipe)} ({benchmark}), smallest to largest model: {', '.join(parts)}.")
    return Figure(
        drawing, frame[["recipe", "benchmark", "model", "n_params", "axis", "mean", "std", "n_seeds"]], sentences
    )


def fig7(data: PaperData) -> Figure:
    """Memorisation and utility against model size after unlearning, a panel a method (MASC Figure 7)."""
    panels = _laws(data, "unlearning", SCALED, "Table 10")
    benchmarks = list(dict.fromkeys(benchmark for benchmark, _ in panels))
    drawing = Drawing(figsize=(PAGE, 2.6 * len(benchmarks) + 0.3))
    axes = drawing.subplots(len(benchmarks), len(SCALED), squeeze=False, sharey="row")
    for row, benchmark in zip(axes, benchmarks, strict=True):
        for ax, recipe in zip(row, SCALED, strict=True):
            if (points := panels.get((benchmark, recipe))) is None:
                ax.set_axis_off()
                continue
            loglog(ax, points, _series(data, points), "score" if ax is row[0] else "")
            ax.set_title(f"{recipe_name(recipe)}, {benchmark}, {data.roles.scale}")
    return _with_legend(drawing, data, panels, 5, "unlearning")


# ------------------------------------------------------------------------------------- numbers of figures 3 and 7


Panels = dict[tuple[str, str], pd.DataFrame]  # (benchmark, recipe): scores by size and their laws


def _laws(data: PaperData, stage: str, recipes: Sequence[str], place: str) -> Panels:
    """Scores by size, the fit of fits.csv and the printed one beside, for each benchmark and recipe that has any."""
    panels = {}
    for benchmark in data.headline("tofu"):
        suite = data.suite(benchmark)
        scores = [s for s in suite.scaling if stage == "unlearning" or s not in suite.utility]
        for recipe in recipes:
            parts = [_law(data, stage, benchmark, recipe, score.metric, place) for score in scores]
            if filled := [part for part in parts if len(part)]:
                panels[benchmark, recipe] = pd.concat(filled, ignore_index=True)
    if not panels:
        raise LetheError(f"the summary has no run of {', '.join(recipes)} on models {', '.join(data.roles.ladder)}")
    return panels


def _law(data: PaperData, stage: str, benchmark: str, recipe: str, metric: str, place: str) -> pd.DataFrame:
    """recipe, benchmark, metric, model, n_params, mean, std, n_seeds, fitted, C, alpha, r2 and the printed three."""
    points = size_scores(data.summary, data.roles, benchmark, recipe, metric).rename(columns={"size": "n_params"})
    fits = data.fits
    mine = fits[
        (fits["stage"] == stage) & (fits["benchmark"] == benchmark) & (fits["recipe"] == recipe)
        & (fits["metric"] == metric) & (fits["attack"] == "none") & (fits["n_kind"] == "total")
    ]  # fmt: skip
    C, alpha, r2 = mine[["C", "alpha", "r2"]].iloc[0] if len(mine) else (math.nan,) * 3
    points.insert(0, "recipe", recipe)
    points.insert(1, "benchmark", benchmark)
    points.insert(2, "metric", metric)
    points = points.assign(fitted=C * (points["n_params"] / 1e9) ** alpha, C=C, alpha=alpha, r2=r2)
    return points.assign(**_printed_law(data, benchmark, recipe, metric, place))


def _printed_law(data: PaperData, benchmark: str, recipe: str, metric: str, place: str) -> dict[str, float]:
    where = {"benchmark": PRINTED.get(benchmark, "")}
    if place == "Table 10":
        where["method"] = recipe_name(recipe)
    found = {
        name: data.reported.find(place, f"{PRINTED_FIT.get(metric)}:{printed}", **where)
        for name, printed in (("C", "C_hat"), ("logC", "logC_hat"), ("alpha", "alpha_hat"), ("r2", "R2"))
    }
    C = found["C"].value if found["C"] else math.exp(found["logC"].value) if found["logC"] else math.nan
    return {
        "C_paper": C,
        "alpha_paper": found["alpha"].value if found["alpha"] else math.nan,
        "r2_paper": found["r2"].value if found["r2"] else math.nan,
    }


def _series(data: PaperData, points: pd.DataFrame) -> dict[str, tuple[str, Look]]:
    """Label and look of each metric drawn, the same in every panel."""
    scores, present = data.suite(points["benchmark"].iloc[0]).scaling, set(points["metric"])
    return {s.metric: (s.label, SERIES[i]) for i, s in enumerate(scores) if s.metric in present}


def _with_legend(drawing: Drawing, data: PaperData, panels: Panels, columns: int, stage: str) -> Figure:
    labels = [label for points in panels.values() for label, _ in _series(data, points).values()]
    legend_below(drawing, list(dict.fromkeys(labels)), columns)
    fits = data.fits[(data.fits["study"] == "masc") & (data.fits["stage"] == stage)]
    return Figure(drawing, pd.concat(panels.values(), ignore_index=True), exponents(fits, data))


def _law_table(ax: Axes, points: pd.DataFrame, series: dict[str, tuple[str, Look]]) -> None:
    rows = []
    for metric, (label, _) in series.items():
        law = points[points["metric"] == metric].iloc[0]
        for suffix, source in (("", ""), ("_paper", ", paper")):
            numbers = [law[f"alpha{suffix}"], np.log(law[f"C{suffix}"]), law[f"r2{suffix}"]]
            if not (source and pd.isna(numbers).all()):
                rows.append([label + source, *("–" if pd.isna(v) else f"{v:.3f}" for v in numbers)])
    small_table(ax, ["s = C N^α, N in billions", "α", "log C", "R²"], rows)
