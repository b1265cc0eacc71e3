"""MASC's figures of all methods at once: time, scores, and utility against efficacy, on TOFU and on MUSE's corpora."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.layout_engine import ConstrainedLayoutEngine

from lethe.analysis import pareto
from lethe.errors import LetheError
from lethe.paper import findings
from lethe.paper.data import HEADLINE, RECIPES, REFERENCES, PaperData, Score, in_order, recipe_name, summarise
from lethe.paper.figures import Figure, bars, legend_below, radar, tradeoff
from lethe.paper.masc_tables import PRINTED, SCORES_IN, printed_score
from lethe.paper.style import PAGE, looks

COMPARED = ("npo-klr", "graddiff", "simnpo", "masc")
CLOCKS = {"time_cpu_s": "CPU seconds", "time_wall_s": "wall-clock seconds"}
PAPER_CLOCK = "wall-clock seconds, one H100"


def fig1(data: PaperData) -> Figure:
    """Unlearning time as bars and scores as radars, the paper's beside ours (MASC Figure 1).

    One benchmark is a row; several are columns, as in the paper."""
    benchmarks = _benchmarks(data, COMPARED)
    several = len(benchmarks) > 1
    layout = ConstrainedLayoutEngine(wspace=0.06, h_pad=0.08 if several else 0.14)  # room for names around the radars
    drawing = Drawing(figsize=(PAGE, 5.3 if several else 2.3 + 0.4), layout=layout)
    if several:
        grid = drawing.add_gridspec(3, len(benchmarks), height_ratios=(0.8, 1, 1))
    else:
        grid = drawing.add_gridspec(1, 3, width_ratios=(1.2, 1, 1))
    look, clock, numbers = looks(COMPARED), data.summary.time_kind(), []
    for i, benchmark in enumerate(benchmarks):
        suite = data.suite(benchmark)
        scores = (*suite.forget, *suite.utility)
        seconds = _seconds(data, benchmark, clock)
        ours, printed = _our_scores(data, benchmark, scores), _printed_scores(data, benchmark, scores)
        cells = [grid[j, i] if several else grid[i, j] for j in range(3)]
        ax = drawing.add_subplot(cells[0])
        bars(ax, seconds, look, f"{CLOCKS[clock]} (± std over seeds)")
        ax.set_title(f"{benchmark}: time")
        for j, (rows, title) in enumerate(((ours, data.place([benchmark])), (printed, "the paper's models")), start=1):
            if len(rows):
                ax = drawing.add_subplot(cells[j], projection="polar")
                radar(ax, rows, [s.label for s in scores], look, small=several)
                ax.set_title(title, pad=9)
        for rows, source, unit in ((seconds, "ours", CLOCKS[clock]), (ours, "ours", ""), (printed, "paper", "")):
            numbers.append(rows.assign(benchmark=benchmark, source=source, unit=unit))
    legend_below(drawing, [recipe_name(r) for r in COMPARED], columns=len(COMPARED))
    baselines = [r for r in COMPARED if r != "masc"]
    sentences = [
        text
        for b in benchmarks
        for text in (
            *findings.faster(data, b, baselines, _printed_in(data, b), PRINTED.get(b, "")),
            *findings.closeness(data, b, data.suite(b).forget, COMPARED),
        )
    ]
    keys = ["recipe", "benchmark", "source", "axis", "unit"]
    frame = pd.concat(numbers, ignore_index=True)[[*keys, "mean", "std", "printed", "n_seeds"]]
    return Figure(drawing, frame, sentences)


def fig5(data: PaperData) -> Figure:
    """Retain utility against forget efficacy, coloured by time, with the Pareto front; the paper's beside ours
    (MASC Figure 5). Efficacy is the mean of the suite's forget scores, utility that of its utility scores.

    One benchmark is a row; several are columns, as in the paper."""
    benchmarks = _benchmarks(data)
    several = len(benchmarks) > 1
    drawing = Drawing(figsize=(PAGE, 5.4 if several else 3.2))
    gap = "\n" if several else " "
    shape = (2, len(benchmarks)) if several else (1, 2)
    axes = drawing.subplots(*shape, squeeze=False)
    clock, numbers = CLOCKS[data.summary.time_kind()], []
    for row, benchmark in zip(axes.T if several else axes, benchmarks, strict=True):
        ours, printed = _our_tradeoff(data, benchmark), _printed_tradeoff(data, benchmark)
        look = looks(in_order([*ours["recipe"], *printed["recipe"]]))
        for ax, points, seconds, title in (
            (row[0], ours, clock, f"{benchmark},{gap}{data.place([benchmark])}"),
            (row[1], printed, PAPER_CLOCK, f"{PRINTED.get(benchmark)},{gap}the paper's models"),
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
    sentences = findings.lone_seed(data, benchmarks)
    sentences += [text for b in benchmarks for text in _front_findings(data, b, f" ({b})" if several else "")]
    return Figure(drawing, frame[["recipe", "benchmark", "source", "clock", *POINT]], sentences)


# ------------------------------------------------------------------------------------- numbers of figures 1 and 5

POINT = [
    "utility_mean", "utility_std", "efficacy_mean", "efficacy_std", "time_mean", "time_std", "on_front",
    "on_mean_front", "n_seeds",
]  # fmt: skip


def _printed_in(data: PaperData, benchmark: str) -> str:
    return SCORES_IN[data.roles.suite(benchmark)]


def _benchmarks(data: PaperData, recipes: Sequence[str] = ()) -> list[str]:
    """The benchmarks that have runs of their main model, of these recipes if any are named."""
    chosen = []
    for benchmark in data.corpora():
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
    place, score = _printed_in(data, benchmark), Score("time", "Time")
    printed = [printed_score(data, place, score, benchmark, recipe_name(r)) for r in rows["recipe"]]
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
            found = printed_score(data, _printed_in(data, benchmark), score, benchmark, recipe_name(recipe))
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


def _front_findings(data: PaperData, benchmark: str, where: str) -> list[str]:
    points, samples = _our_tradeoff(data, benchmark), _samples(_tradeoff_by_seed(data, benchmark))
    methods = points[points["recipe"].isin(samples)]
    area = pareto.hypervolume(methods[["utility_mean", "efficacy_mean"]].to_numpy(), (0.0, 0.0))
    front, of_means = (
        [recipe_name(r) for r in methods.loc[methods[column], "recipe"]] for column in ("on_front", "on_mean_front")
    )
    sentences = [
        f"Not dominated beyond the spread over seeds ({benchmark}): {findings.listed(front)}. The front of the means "
        f"is {findings.listed(of_means)}; they dominate an area of {area:.4f} above the reference point (0, 0)."
    ]
    if "masc" in samples:
        better = [recipe_name(r) for r, own in samples.items() if pareto.dominates(own, samples["masc"])]
        sentences.append(f"MASC is dominated beyond the spread over seeds by {findings.listed(better)}{where}.")
    retrain = points.loc[points["recipe"] == "retrain", "efficacy_mean"].dropna()
    if len(retrain):
        sentences.append(_above_retrain(samples, float(retrain.iloc[0]), where))
    printed = _printed_tradeoff(data, benchmark)
    theirs = [recipe_name(r) for r in printed.loc[printed["on_front"], "recipe"]]
    if theirs:
        word = "agrees" if ("MASC" in front) == ("MASC" in theirs) else "does not agree"
        sentences.append(
            f"The paper's printed means put {findings.listed(theirs)} on the front{where}; for MASC this {word}."
        )
    return sentences


def _above_retrain(samples: dict[str, dict[int, np.ndarray]], efficacy: float, where: str) -> str:
    """Efficacy rewards forgetting without end: who has more of it than a model that never saw the data?"""
    groups: dict[findings.Verdict, list[str]] = {"higher": [], "lower": [], "undecided": []}
    for recipe, points in samples.items():
        own = {seed: float(point[1]) for seed, point in points.items()}
        groups[findings.verdict(own, dict.fromkeys(own, efficacy))].append(recipe_name(recipe))
    return (
        f"Above the efficacy of Retrain ({efficacy:.3f}){where} beyond the spread over seeds, where more is destroyed "
        f"than the forget set taught: {findings.listed(groups['higher'])}; below it: "
        f"{findings.listed(groups['lower'])}; not told apart from it: {findings.listed(groups['undecided'])}."
    )


def _printed_tradeoff(data: PaperData, benchmark: str) -> pd.DataFrame:
    """The same from printed means; the deviation of a mean of several scores is not printed, so it stays empty."""
    suite, place, rows = data.suite(benchmark), _printed_in(data, benchmark), []
    for recipe in RECIPES:
        scores = (*suite.forget, *suite.utility, Score("time", "Time"))
        found = [printed_score(data, place, s, benchmark, recipe_name(recipe)) for s in scores]
        forget, utility, time = found[: len(suite.forget)], found[len(suite.forget) : -1], found[-1]
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
