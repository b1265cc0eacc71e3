"""The figures of MASC (arXiv 2606.02920): each a function from PaperData to a Figure."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from lethe.analysis import pareto
from lethe.analysis.powerlaw import size_scores
from lethe.errors import LetheError
from lethe.paper import findings
from lethe.paper.data import (
    HEADLINE,
    RECIPES,
    REFERENCES,
    UTILITY,
    PaperData,
    Score,
    in_order,
    recipe_name,
    summarise,
)
from lethe.paper.figures import Figure, bars, legend_below, loglog, radar, small_table, tradeoff
from lethe.paper.masc_scaling import PRINTED_FIT, exponents
from lethe.paper.masc_tables import PRINTED, SCORES_IN
from lethe.paper.style import COLUMN, PAGE, SERIES, Look, looks

COMPARED = ("npo-klr", "graddiff", "simnpo", "masc")
SCALED = ("simnpo", "masc")
CLOCKS = {"time_cpu_s": "CPU seconds", "time_wall_s": "wall-clock seconds"}
PAPER_CLOCK = "wall-clock seconds, one H100"


def fig1(data: PaperData) -> Figure:
    """Unlearning time as bars and scores as radars, the paper's beside ours, a row a benchmark (MASC Figure 1)."""
    benchmarks = _benchmarks(data, COMPARED)
    layout = ConstrainedLayoutEngine(wspace=0.06, h_pad=0.14)  # room for the names around the radars
    drawing = Drawing(figsize=(PAGE, 2.3 * len(benchmarks) + 0.4), layout=layout)
    grid = drawing.add_gridspec(len(benchmarks), 3, width_ratios=(1.2, 1, 1))
    look, clock, numbers = looks(COMPARED), data.summary.time_kind(), []
    for i, benchmark in enumerate(benchmarks):
        suite = data.suite(benchmark)
        scores = (*suite.forget, *suite.utility)
        seconds = _seconds(data, benchmark, clock)
        ours, printed = _our_scores(data, benchmark, scores), _printed_scores(data, benchmark, scores)
        ax = drawing.add_subplot(grid[i, 0])
        bars(ax, seconds, look, f"{CLOCKS[clock]} (± std over seeds)")
        ax.set_title(f"{benchmark}: time")
        for j, (rows, title) in enumerate(((ours, data.place()), (printed, "the paper's models")), start=1):
            if len(rows):
                ax = drawing.add_subplot(grid[i, j], projection="polar")
                radar(ax, rows, [s.label for s in scores], look)
                ax.set_title(title, pad=9)
        for rows, source, unit in ((seconds, "ours", CLOCKS[clock]), (ours, "ours", ""), (printed, "paper", "")):
            numbers.append(rows.assign(benchmark=benchmark, source=source, unit=unit))
    legend_below(drawing, [recipe_name(r) for r in COMPARED], columns=len(COMPARED))
    baselines = [r for r in COMPARED if r != "masc"]
    sentences = [
        text
        for b in benchmarks
        for text in (
            *findings.faster(data, b, baselines, SCORES_IN, PRINTED.get(b, "")),
            *findings.closeness(data, b, data.suite(b).forget, COMPARED),
        )
    ]
    keys = ["recipe", "benchmark", "source", "axis", "unit"]
    frame = pd.concat(numbers, ignore_index=True)[[*keys, "mean", "std", "printed", "n_seeds"]]
    return Figure(drawing, frame, sentences)


def fig5(data: PaperData) -> Figure:
    """Retain utility against forget efficacy, coloured by time, with the Pareto front; the paper's beside ours
    (MASC Figure 5). Efficacy is the mean of the suite's forget scores, utility that of its utility scores."""
    benchmarks = _benchmarks(data)
    drawing = Drawing(figsize=(PAGE, 2.6 * len(benchmarks) + 0.6))
    axes = drawing.subplots(len(benchmarks), 2, squeeze=False)
    clock, numbers = CLOCKS[data.summary.time_kind()], []
    for row, benchmark in zip(axes, benchmarks, strict=True):
        ours, printed = _our_tradeoff(data, benchmark), _printed_tradeoff(data, benchmark)
        look = looks(in_order([*ours["recipe"], *printed["recipe"]]))
        for ax, points, seconds, title in (
            (row[0], ours, clock, f"{benchmark}, {data.place()}"),
            (row[1], printed, PAPER_CLOCK, f"{PRINTED.get(benchmark)}, the paper's models"),
        ):
            if len(points):
                tradeoff(ax, points, look, seconds)
                ax.set_title(title)
            else:
                ax.set_axis_off()
            source = "ours" if ax is row[0] else "paper"
            numbers.append(points.assign(benchmark=benchmark, source=source, clock=seconds))
    frame = pd.concat(numbers, ignore_index=True)
    names = [recipe_name(r) for r in in_order(frame["recipe"])]
    lines = ["not dominated beyond the spread", "front of the means", "efficacy of Retrain"]
    legend_below(drawing, [*names, *lines], columns=5)
    sentences = [text for benchmark in benchmarks for text in _front_findings(data, benchmark)]
    return Figure(drawing, frame[["recipe", "benchmark", "source", "clock", *POINT]], sentences)


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
    for benchmark in data.roles.headline.values():
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


# ------------------------------------------------------------------------------------- numbers of figures 1 and 5

POINT = [
    "utility_mean", "utility_std", "efficacy_mean", "efficacy_std", "time_mean", "time_std", "on_front",
    "on_mean_front", "n_seeds",
]  # fmt: skip


def _benchmarks(data: PaperData, recipes: Sequence[str] = ()) -> list[str]:
    """The headline benchmarks that have runs of the main model, of these recipes if any are named."""
    chosen = []
    for benchmark in data.roles.headline.values():
        ran = set(data.per_seed(benchmark, data.suite(benchmark).utility)["recipe"]) - set(REFERENCES)
        if ran & set(recipes or ran):
            chosen.append(benchmark)
    if not chosen:
        raise LetheError(f"the summary has no run of {', '.join(recipes) or 'a method'} on {data.roles.main}")
    return chosen


def _seconds(data: PaperData, benchmark: str, clock: str) -> pd.DataFrame:
    """recipe, axis ("time"), mean, std, n_seeds, and the seconds printed, in the order of COMPARED."""
    per_seed = data.with_times(benchmark, data.per_seed(benchmark, data.suite(benchmark).utility))
    rows = summarise(per_seed[["recipe", "attack", "seed", clock]])
    rows = rows.rename(columns={f"{clock}_mean": "mean", f"{clock}_std": "std"}).dropna(subset="mean")
    where = {"benchmark": PRINTED.get(benchmark, "")}
    printed = [data.reported.find(SCORES_IN, "Time", method=recipe_name(r), **where) for r in rows["recipe"]]
    return _compared(rows.assign(axis="time", printed=[p.value if p else math.nan for p in printed]))


def _our_scores(data: PaperData, benchmark: str, scores: Sequence[Score]) -> pd.DataFrame:
    """recipe, axis, mean, std, n_seeds: a row a recipe and axis of the radar."""
    wide = summarise(data.per_seed(benchmark, scores))
    parts = [
        wide[["recipe", "n_seeds"]].assign(axis=s.label, mean=wide[f"{s.name}_mean"], std=wide[f"{s.name}_std"])
        for s in scores
    ]
    return _compared(pd.concat(parts, ignore_index=True))


def _printed_scores(data: PaperData, benchmark: str, scores: Sequence[Score]) -> pd.DataFrame:
    rows = []
    for recipe in COMPARED:
        for score in scores:
            found = data.reported.find(
                SCORES_IN, score.label, benchmark=PRINTED.get(benchmark, ""), method=recipe_name(recipe)
            )
            if found:
                rows.append({"recipe": recipe, "axis": score.label, "mean": found.value, "std": found.std})
    return pd.DataFrame(rows, columns=["recipe", "axis", "mean", "std", "n_seeds"])


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["recipe"].isin(COMPARED)]
    return rows.sort_values("recipe", key=lambda c: c.map(COMPARED.index), kind="stable", ignore_index=True)


def _tradeoff_by_seed(data: PaperData, benchmark: str) -> pd.DataFrame:
    """recipe, attack, seed, utility, efficacy, time; without a score in a seed there is no efficacy in that seed."""
    suite, clock = data.suite(benchmark), data.summary.time_kind()
    wide = data.with_times(benchmark, data.per_seed(benchmark, (*suite.forget, *suite.utility), recipes=HEADLINE))
    return wide[["recipe", "attack", "seed"]].assign(
        utility=wide[[s.name for s in suite.utility]].mean(axis=1, skipna=False),
        efficacy=wide[[s.name for s in suite.forget]].mean(axis=1, skipna=False),
        time=wide[clock],
    )


def _our_tradeoff(data: PaperData, benchmark: str) -> pd.DataFrame:
    """A row a recipe in the columns of POINT: `on_front` is decided over seeds, `on_mean_front` by the means."""
    points = _tradeoff_by_seed(data, benchmark)
    shown = summarise(points)
    shown["on_front"] = shown["recipe"].isin(pareto.front_beyond_noise(_samples(points)))
    return _with_mean_front(shown)


def _with_mean_front(points: pd.DataFrame) -> pd.DataFrame:
    """Add `on_mean_front`; the references do not compete."""
    competing = points[["utility_mean", "efficacy_mean"]].where(~points["recipe"].isin(REFERENCES))
    return points.assign(on_mean_front=pareto.front(competing.to_numpy()))


def _samples(points: pd.DataFrame) -> dict[str, dict[int, np.ndarray]]:
    """(utility, efficacy) of every method and seed; the references do not compete: the target has full utility."""
    complete = points[~points["recipe"].isin(REFERENCES)].dropna(subset=["utility", "efficacy"])
    return {
        str(recipe): dict(zip(rows["seed"], rows[["utility", "efficacy"]].to_numpy(), strict=True))
        for recipe, rows in complete.groupby("recipe", sort=False)
    }


def _front_findings(data: PaperData, benchmark: str) -> list[str]:
    points, samples = _our_tradeoff(data, benchmark), _samples(_tradeoff_by_seed(data, benchmark))
    methods = points[points["recipe"].isin(samples)]
    area = pareto.hypervolume(methods[["utility_mean", "efficacy_mean"]].to_numpy(), (0.0, 0.0))
    front, of_means = (
        [recipe_name(r) for r in methods.loc[methods[column], "recipe"]] for column in ("on_front", "on_mean_front")
    )
    sentences = findings.lone_seed(data, [benchmark])
    sentences.append(
        f"Not dominated beyond the spread over seeds ({benchmark}): {findings.listed(front)}. The front of the means "
        f"is {findings.listed(of_means)}; they dominate an area of {area:.4f} above the reference point (0, 0)."
    )
    if "masc" in samples:
        better = [recipe_name(r) for r, own in samples.items() if pareto.dominates(own, samples["masc"])]
        sentences.append(f"MASC is dominated beyond the spread over seeds by {findings.listed(better)}.")
    retrain = points.loc[points["recipe"] == "retrain", "efficacy_mean"].dropna()
    if len(retrain):
        sentences.append(_above_retrain(samples, float(retrain.iloc[0])))
    printed = _printed_tradeoff(data, benchmark)
    theirs = [recipe_name(r) for r in printed.loc[printed["on_front"], "recipe"]]
    if theirs:
        word = "agrees" if ("MASC" in front) == ("MASC" in theirs) else "does not agree"
        sentences.append(f"The paper's printed means put {findings.listed(theirs)} on the front; for MASC this {word}.")
    return sentences


def _above_retrain(samples: dict[str, dict[int, np.ndarray]], efficacy: float) -> str:
    """Efficacy rewards forgetting without end: who has more of it than a model that never saw the data?"""
    groups: dict[findings.Verdict, list[str]] = {"higher": [], "lower": [], "undecided": []}
    for recipe, points in samples.items():
        own = {seed: float(point[1]) for seed, point in points.items()}
        groups[findings.verdict(own, dict.fromkeys(own, efficacy))].append(recipe_name(recipe))
    return (
        f"Above the efficacy of Retrain ({efficacy:.3f}) beyond the spread over seeds, where more is destroyed than "
        f"the forget set taught: {findings.listed(groups['higher'])}; below it: {findings.listed(groups['lower'])}; "
        f"not told apart from it: {findings.listed(groups['undecided'])}."
    )


def _printed_tradeoff(data: PaperData, benchmark: str) -> pd.DataFrame:
    """The same from printed means; the deviation of a mean of several scores is not printed, so it stays empty."""
    suite, rows = data.suite(benchmark), []
    for recipe in RECIPES:
        where = {"benchmark": PRINTED.get(benchmark, ""), "method": recipe_name(recipe)}
        forget = [data.reported.find(SCORES_IN, s.label, **where) for s in suite.forget]
        utility = [data.reported.find(SCORES_IN, s.label, **where) for s in suite.utility]
        time = data.reported.find(SCORES_IN, "Time", **where)
        if all(forget) and all(utility):
            rows.append({
                "recipe": recipe,
                "utility_mean": np.mean([p.value for p in utility if p]),
                "utility_std": utility[0].std if len(utility) == 1 and utility[0] else None,
                "efficacy_mean": np.mean([p.value for p in forget if p]),
                "efficacy_std": None,
                "time_mean": time.value if time else None,
                "time_std": time.std if time else None,
                "n_seeds": None,
            })  # fmt: skip
    points = pd.DataFrame(rows, columns=["recipe", *(c for c in POINT if not c.startswith("on_"))])
    points = _with_mean_front(points.astype(dict.fromkeys(points.columns[1:], float)))
    return points.assign(on_front=points["on_mean_front"])  # by seed nothing is printed


# ------------------------------------------------------------------------------------- numbers of figures 3 and 7


Panels = dict[tuple[str, str], pd.DataFrame]  # (benchmark, recipe): scores by size and their laws


def _laws(data: PaperData, stage: str, recipes: Sequence[str], place: str) -> Panels:
    """Scores by size, the fit of fits.csv and the printed one beside, for each benchmark and recipe that has any."""
    panels = {}
    for benchmark in data.roles.headline.values():
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
