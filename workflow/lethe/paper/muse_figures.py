"""MASC's methods along MUSE's growing forget sets and repeated requests: what is kept, what is still remembered."""

import pandas as pd
from matplotlib.figure import Figure as Drawing

from lethe.errors import LetheError
from lethe.paper import findings
from lethe.paper.data import HEADLINE, KNOWMEM_RETAIN, REFERENCES, VERBMEM, PaperData, Score, recipe_name
from lethe.paper.figures import Figure, legend_below
from lethe.paper.style import PAGE, looks

SCORES = {KNOWMEM_RETAIN: "KnowMem on retain texts (0–100)", VERBMEM: "VerbMem on forget texts (0–100)"}
COLUMNS = ["recipe", "benchmark", "metric", "x", "mean", "std", "n_seeds"]


def scalability(data: PaperData) -> Figure:
    """Utility and memorisation against the size of the forget set."""
    steps = len(data.roles.benchmarks.get("muse-scal", ()))
    return _along(data, "muse-scal", [100 * (i + 1) / steps for i in range(steps)], "share of the forget set (%)")


def sustainability(data: PaperData) -> Figure:
    """Utility and memorisation after one request to unlearn after another, each from the model the last one left."""
    steps = len(data.roles.benchmarks.get("muse-sust", ()))
    return _along(data, "muse-sust", [float(i + 1) for i in range(steps)], "requests, one after another")


def _along(data: PaperData, role: str, places: list[float], label: str) -> Figure:
    """A line a recipe along the benchmarks of a role, a panel a score; where one was run for a recipe the mean over
    seeds stands at its place."""
    path = data.roles.benchmarks.get(role, ())
    recipes = [r for r in HEADLINE if r not in REFERENCES and path and data.ran(path[0], [r])]
    frame = _points(data, path, places, recipes)
    if frame.empty:
        raise LetheError(f"the summary has no run on the benchmarks of role '{role}'")
    drawing = Drawing(figsize=(PAGE, 2.9))
    look, home = looks(recipes), data.roles.headline["muse"]
    for ax, (score, ylabel) in zip(drawing.subplots(1, len(SCORES)), SCORES.items(), strict=True):
        here = frame[frame["metric"] == score.metric]
        for recipe, rows in here.groupby("recipe", sort=False):
            own = look[str(recipe)]
            style = {"color": own.color, "marker": own.marker, "linestyle": own.line, "capsize": 2, "elinewidth": 0.8}
            ax.errorbar(rows["x"], rows["mean"], rows["std"].fillna(0), label=recipe_name(str(recipe)), **style)
        for recipe, line in (("target", ":"), ("retrain", "--")):
            if value := _first(data, home, recipe, score):
                ax.axhline(value, color="0.4", linewidth=0.9, linestyle=line, label=f"{recipe_name(recipe)}, {home}")
        ax.set(xlabel=label, ylabel=ylabel, xticks=places)
        ax.set_ylim(bottom=0)
        ax.margins(x=0.06)
        ax.set_title(data.place([path[0]]))
    names = [recipe_name(r) for r in recipes]
    legend_below(drawing, [*names, *(f"{recipe_name(r)}, {home}" for r in REFERENCES)], columns=len(names) + 2)
    return Figure(drawing, frame, _findings(data, path, recipes, home))


def _points(data: PaperData, path: tuple[str, ...], places: list[float], recipes: list[str]) -> pd.DataFrame:
    rows = []
    for benchmark, x in zip(path, places, strict=True):
        for recipe in data.ran(benchmark, recipes):
            for score in SCORES:
                if values := pd.Series(data.values(benchmark, recipe, score.metric), dtype=float).to_dict():
                    numbers = pd.Series(values)
                    rows.append([recipe, benchmark, score.metric, x, numbers.mean(), numbers.std(ddof=1), len(numbers)])
    return pd.DataFrame(rows, columns=COLUMNS)


def _first(data: PaperData, benchmark: str, recipe: str, score: Score) -> float | None:
    values = data.values(benchmark, recipe, score.metric)
    return values[min(values)] if values else None


def _findings(data: PaperData, path: tuple[str, ...], recipes: list[str], home: str) -> list[str]:
    """What changes from the first to the last place of a path, and whether the end is more than Retrain's."""
    sentences = findings.one_seed(data.values(path[0], recipes[0], KNOWMEM_RETAIN.metric))
    for score in SCORES:
        changes = []
        for recipe in recipes:
            first, last = (data.values(b, recipe, score.metric) for b in (path[0], path[-1]))
            word = {"lower": "falls", "higher": "rises", "undecided": "not told apart"}[findings.verdict(last, first)]
            change = findings.interval(findings.difference(last, first), score.digits)
            changes.append(f"{recipe_name(recipe)} {change} ({word})")
        sentences.append(f"{score.label} at {path[-1]} minus at {path[0]}: {'; '.join(changes)}.")
    for score, words in ((KNOWMEM_RETAIN, "Base"), (VERBMEM, "Retrain")):
        if (goal := _first(data, home, {"Base": "target", "Retrain": "retrain"}[words], score)) is None:
            continue
        ends = {r: data.values(path[-1], r, score.metric) for r in recipes}
        groups: dict[findings.Verdict, list[str]] = {"higher": [], "lower": [], "undecided": []}
        for recipe, values in ends.items():
            groups[findings.verdict(values, dict.fromkeys(values, goal))].append(recipe_name(recipe))
        sentences.append(
            f"{score.label} at the end, against {words}'s {goal:.{score.digits}f} ({home}): above it beyond the spread "
            f"over seeds {findings.listed(groups['higher'])}; below it {findings.listed(groups['lower'])}; not told "
            f"apart from it {findings.listed(groups['undecided'])}."
        )
    return sentences
