"""How far unlearning moves weights on the scale of a 4-bit quantiser, beside random updates of the same norm."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from lethe.paper import findings
from lethe.paper.data import HEADLINE, REFERENCES, PaperData, recipe_name
from lethe.paper.figures import Figure, legend_below
from lethe.paper.style import PAGE, looks

ATTACK = "rtn4"  # on whose grid steps and codes are counted
SIZES = {  # column of runs.csv, and its heading; its twin {column}_random is of a random update
    "update_over_step": "update / rounding step",
    "codes_changed": "share of 4-bit codes changed (%)",
}
KINDS = {"update": "unlearning", "random": "random update of the same norm"}


def quantisation_step(data: PaperData) -> Figure:
    """Update over rounding step and share of 4-bit codes changed, by recipe, a column a benchmark."""
    benchmarks = data.corpora()
    frame = _sizes(data, benchmarks)
    if frame.empty:
        return _nothing(frame)
    shown = [name for name in SIZES if (frame["quantity"] == name).any()]
    benchmarks = [b for b in benchmarks if (frame["benchmark"] == b).any()]
    recipes = [r for r in HEADLINE if (frame["recipe"] == r).any()]
    drawing = Drawing(figsize=(PAGE, len(shown) * (0.17 * len(recipes) + 0.75) + 0.3))
    grid = drawing.subplots(len(shown), len(benchmarks), squeeze=False, sharey=True)
    for row, quantity in zip(grid, shown, strict=True):
        rows = frame[frame["quantity"] == quantity]
        for ax, benchmark in zip(row, benchmarks, strict=True):
            _panel(ax, rows[rows["benchmark"] == benchmark], recipes)
            ax.set(xlabel=SIZES[quantity], xlim=(0, 1.08 * (rows["mean"] + rows["std"].fillna(0)).max()))
    for ax, benchmark in zip(grid[0], benchmarks, strict=True):
        ax.set_title(f"{benchmark},\n{data.place([benchmark])}")
    legend_below(drawing, list(KINDS.values()), columns=2)
    frame["unit"] = frame["quantity"].map({"update_over_step": "steps", "codes_changed": "%"})
    sentences = [text for b in benchmarks for text in _findings(data, b)]
    return Figure(drawing, frame, [*findings.lone_seed(data, benchmarks), *sentences])


def _nothing(frame: pd.DataFrame) -> Figure:
    """Summaries made before updates were measured on this scale have nothing to show, and say so."""
    said = "no run of this summary measured its update on the scale of a quantiser"
    drawing = Drawing(figsize=(PAGE, 0.6))
    ax = drawing.subplots()
    ax.set_axis_off()
    ax.text(0.5, 0.5, said, ha="center", va="center")
    return Figure(drawing, frame, [f"{said.capitalize()}."])


def _panel(ax: Axes, rows: pd.DataFrame, recipes: list[str]) -> None:
    look = looks(recipes)
    places = {recipe: i for i, recipe in enumerate(reversed(recipes))}
    for row in rows.to_dict("records"):
        own, filled = look[row["recipe"]], row["kind"] == "update"
        style: dict[str, Any] = {"color": own.color, "marker": own.marker if filled else "|", "linestyle": ""}
        style |= {"markeredgecolor": "black", "markersize": 5} if filled else {"color": "0.3", "markersize": 9}
        std = 0.0 if math.isnan(row["std"]) else row["std"]
        ax.errorbar(row["mean"], places[row["recipe"]], xerr=std, ecolor="0.5", elinewidth=0.8, capsize=0, **style)
    ax.plot([], [], "o", color="0.4", markeredgecolor="black", label=KINDS["update"])
    if (rows["kind"] == "random").any():
        ax.plot([], [], "|", color="0.3", markersize=9, label=KINDS["random"])
    ax.set_yticks(list(places.values()), [recipe_name(r) for r in places])
    ax.set_ylim(-0.6, len(recipes) - 0.4)
    ax.tick_params(axis="y", length=0)


def _sizes(data: PaperData, benchmarks: list[str]) -> pd.DataFrame:
    """recipe, benchmark, quantity, kind, mean, std, n_seeds; codes in %."""
    rows = []
    for benchmark in benchmarks:
        for recipe in data.ran(benchmark, [r for r in HEADLINE if r not in REFERENCES]):
            for quantity in SIZES:
                for kind in KINDS:
                    column = quantity if kind == "update" else f"{quantity}_random"
                    values = pd.Series(data.run_values(benchmark, recipe, column), dtype=float)
                    values = values * (100 if quantity == "codes_changed" else 1)
                    if len(values):
                        found = values.mean(), values.std(ddof=1), len(values)
                        rows.append([recipe, benchmark, quantity, kind, *found])
    return pd.DataFrame(rows, columns=["recipe", "benchmark", "quantity", "kind", "mean", "std", "n_seeds"])


def _findings(data: PaperData, benchmark: str) -> list[str]:
    """Sizes of the updates, how they compare with random ones, and whether they explain what quantising brings back."""
    methods = data.ran(benchmark, [r for r in HEADLINE if r not in REFERENCES])
    steps = {r: v for r in methods if (v := data.run_values(benchmark, r, "update_over_step"))}
    codes = {r: v for r in methods if (v := data.run_values(benchmark, r, "codes_changed"))}
    sentences = []
    if steps:
        means = _means(steps)
        small = [recipe_name(r) for r in means if means[r] < 0.5]
        sentences.append(
            f"Update / step ({benchmark}), from small to large: "
            f"{', '.join(f'{recipe_name(r)} {v:.3f}' for r, v in means.items())}; below half a step on average: "
            f"{len(small)} of {len(means)}."
        )
    if codes:
        groups: dict[findings.Verdict, list[str]] = {"higher": [], "lower": [], "undecided": []}
        for recipe, own in codes.items():
            other = data.run_values(benchmark, recipe, "codes_changed_random")
            groups[findings.verdict(own, other)].append(recipe_name(recipe))
        sentences.append(
            f"Share of 4-bit codes that change ({benchmark}), from small to large: "
            f"{', '.join(f'{recipe_name(r)} {v:.2%}' for r, v in _means(codes).items())}. Fewer than under a random "
            f"update of the same norm, beyond the spread over seeds: {findings.listed(groups['lower'])}; more: "
            f"{findings.listed(groups['higher'])}; not told apart: {findings.listed(groups['undecided'])}."
        )
    return [*sentences, *_explained(data, benchmark, codes or steps, "codes changed" if codes else "update / step")]


def _means(values: dict[str, dict[int, float]]) -> dict[str, float]:
    means = {recipe: sum(v.values()) / len(v) for recipe, v in values.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def _explained(data: PaperData, benchmark: str, sizes: dict[str, dict[int, float]], what: str) -> list[str]:
    """Whether methods of smaller updates get more back: ranks of update sizes against ranks of what quantising adds."""
    score = findings.recall(data, benchmark)
    gains, restored = {}, []
    for recipe in _means(sizes):
        before, after = (data.values(benchmark, recipe, score.metric, attack) for attack in ("none", ATTACK))
        if (change := findings.difference(after, before)) is not None:
            gains[recipe] = change.mean
            restored += [recipe_name(recipe)] if findings.verdict(after, before) == "higher" else []
    if len(gains) < 3:
        return []
    size, gain = pd.Series(_means(sizes)).loc[list(gains)], pd.Series(gains)
    several = size.nunique() > 1 and gain.nunique() > 1
    ranks = f"{size.rank().corr(gain.rank()):+.2f}" if several else "not defined, all being equal"
    changes = f"whose forget {score.label} changes by"
    ends = [f"{recipe_name(r)}, {changes} {gain[r]:+.{score.digits}f}" for r in (size.index[0], size.index[-1])]
    return [
        f"What {ATTACK} brings back ({benchmark}) against {what}, over {len(gains)} methods: rank correlation {ranks} "
        f"(-1 if smaller updates always get more back). Smallest: {ends[0]}; largest: {ends[1]}. Restored beyond the "
        f"spread over seeds: {findings.listed(restored)}."
    ]
