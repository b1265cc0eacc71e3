"""MASC's figures of watched runs: how violation rate, forgetting and utility move along the steps of a run."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from lethe.paper import findings
from lethe.paper.curves import (
    SCORES,
    alpha_of,
    averaged,
    crossings,
    curves,
    first_below,
    first_seed,
    learning_rate_of,
    printed_first,
    stopped,
    stops_of,
    watched_benchmarks,
)
from lethe.paper.data import PaperData, recipe_name
from lethe.paper.figures import Figure, legend_below
from lethe.paper.style import COLUMN, PAGE, SERIES, Look, looks

ALPHAS_SHOWN = (0.7, 0.475, 0.2)  # annotated in the paper's Figure 2
RATES = {"masc-lr-half": 0.5, "masc": 1.0, "masc-lr-double": 2.0}
SAME_TRAINING = ("masc", "graddiff-lora", "simnpo-lora")
BY_STEP = {
    "violation_rate": ("violation rate", SERIES[1]),
    "retain_rouge": ("retain ROUGE-L", SERIES[0]),
    "forget_rouge": ("forget ROUGE-L", SERIES[2]),
}
Panel = Callable[[Any, PaperData, str], tuple[pd.DataFrame, list[str]]]


def panels(data: PaperData, draw: Panel, size: tuple[float, float], columns: int = 1, **grid: Any) -> Figure:
    """A row of axes for each benchmark that has watched runs; `draw` fills it and returns its numbers and findings."""
    benchmarks = watched_benchmarks(data)
    drawing = Drawing(figsize=(size[0], size[1] * len(benchmarks) + 0.3))
    axes = drawing.subplots(len(benchmarks), columns, squeeze=False, **grid)
    parts = [draw(row, data, benchmark) for row, benchmark in zip(axes, benchmarks, strict=True)]
    sentences = [sentence for _, found in parts for sentence in found]
    return Figure(drawing, pd.concat([numbers for numbers, _ in parts], ignore_index=True), sentences)


def fig2(data: PaperData) -> Figure:
    """Violation rate and ROUGE by step, the trade-off along the path, and the violation rate by tokens (Figure 2)."""
    figure = panels(data, _fig2_row, (PAGE, 2.5), columns=3)
    labels = [*(label for label, _ in BY_STEP.values()), "α used", "α of the paper", "stop (seeds)", "path of MASC"]
    labels += [
        *(f"α {a:g}" for a in ALPHAS_SHOWN),
        "stops (seeds)",
        "their mean",
        "Retrain",
        *(recipe_name(r) for r in SAME_TRAINING),
    ]
    legend_below(figure.drawing, labels, columns=5)
    return figure


def _fig2_row(axes: Any, data: PaperData, benchmark: str) -> tuple[pd.DataFrame, list[str]]:
    left, middle, right = axes
    ours, alpha, stops = curves(data, benchmark, "masc"), alpha_of(data, benchmark), stops_of(data, benchmark)
    for name, (label, look) in BY_STEP.items():
        band(left, ours, "step", name, look, label)
    left.axhline(alpha, color="0.4", linewidth=0.8, linestyle=":", label="α used")
    printed = printed_first(data, "Figure 2 (left)", "alpha line")
    left.axhline(printed, color="0.7", linewidth=0.8, linestyle=(0, (1, 3)), label="α of the paper")
    for i, step in enumerate(stops.values()):
        left.axvline(step, color="0.4", linewidth=0.8, linestyle="--", label="stop (seeds)" if i == 0 else None)
    left.set(xlabel="optimiser step", ylabel="score", ylim=(0, 1.02), xlim=(0, ours["step"].max()))
    left.set_title(f"MASC by step, {benchmark}")

    ends = stopped(ours, stops)
    marks = _path(middle, data, benchmark, ours, ends)
    lowest = min(ours["retain_rouge"].min(), ends["retain_rouge"].min())
    middle.set(
        xlabel="1 - forget ROUGE-L", ylabel="retain ROUGE-L", xlim=(0, 1.02), ylim=(min(0.7, lowest - 0.05), 1.02)
    )
    middle.set_title("kept against forgotten")

    own = looks(SAME_TRAINING)
    for recipe in SAME_TRAINING:
        if len(found := curves(data, benchmark, recipe)):
            band(right, found, "forget_tokens", "violation_rate", own[recipe], recipe_name(recipe))
    right.axhline(alpha, color="0.4", linewidth=0.8, linestyle=":")
    right.set(xlabel="forget tokens seen", ylabel="violation rate", ylim=(0, 1.02))
    right.set_xlim(left=0)
    right.set_title("same training, three losses")
    numbers = pd.concat([averaged(data, benchmark, SAME_TRAINING), marks], ignore_index=True)
    return numbers, _fig2_findings(data, benchmark, ours, ends, alpha)


def _path(ax: Axes, data: PaperData, benchmark: str, ours: pd.DataFrame, ends: pd.DataFrame) -> pd.DataFrame:
    """Draw retain against forgotten ROUGE-L along the mean path, with alphas, stops and the retrained model; returns
    recipe, benchmark, point, step, x, y of what is marked."""
    path = ours.groupby("step")[list(SCORES)].mean().reset_index()
    ax.plot(1 - path["forget_rouge"], path["retain_rouge"], color="0.4", linewidth=1, label="path of MASC")
    marks = []
    for wanted, marker in zip(ALPHAS_SHOWN, "s^v", strict=True):
        if (found := first_below(path, wanted)) is not None:
            x, y = 1 - found["forget_rouge"], found["retain_rouge"]
            style: dict[str, Any] = {"markeredgecolor": "black", "markersize": 5, "linestyle": ""}
            ax.plot(x, y, marker=marker, color="white", label=f"α {wanted:g}", **style)
            marks.append({"recipe": "masc", "point": f"alpha {wanted:g}", "step": found["step"], "x": x, "y": y})
    orange = SERIES[1].color
    ax.plot(1 - ends["forget_rouge"], ends["retain_rouge"], "o", color=orange, markersize=4, label="stops (seeds)")
    mean = 1 - ends["forget_rouge"].mean(), ends["retain_rouge"].mean()
    ax.plot(*mean, "*", markersize=9, color=orange, markeredgecolor="black", label="their mean")
    marks.append({"recipe": "masc", "point": "mean stop", "step": ends["step"].mean(), "x": mean[0], "y": mean[1]})
    scores = ("forget.rouge_l_recall", "retain.rouge_l_recall")
    forget, retain = (first_seed(data.values(benchmark, "retrain", m)) for m in scores)
    if not math.isnan(forget + retain):
        ax.plot(1 - forget, retain, "D", color="black", label="Retrain")
        marks.append({"recipe": "retrain", "point": "retrain", "x": 1 - forget, "y": retain})
    return pd.DataFrame(marks).assign(benchmark=benchmark)


def _fig2_findings(data: PaperData, benchmark: str, ours: pd.DataFrame, ends: pd.DataFrame, alpha: float) -> list[str]:
    last = ours["step"].max()
    end = ours[ours["step"] == last]
    at_stop, at_end = ({int(s): v for s, v in zip(f["seed"], f["forget_rouge"], strict=True)} for f in (ends, end))
    moved = {"lower": "falls further", "higher": "rises again", "undecided": "does not move beyond the spread"}
    steps = printed_first(data, "Section D.3 (text)", "stop_step_mean")
    lowest = ours.loc[ours.groupby("seed")["violation_rate"].idxmin(), ["step", "violation_rate"]].mean()
    printed = "" if math.isnan(steps) else f" (the paper's runs stop after {steps:.0f} on another model)"
    tokens, parts = {}, []
    for recipe in SAME_TRAINING:
        if (found := curves(data, benchmark, recipe)).empty:
            continue
        tokens[recipe] = met = crossings(found, alpha, "forget_tokens")
        when = f"after {findings.spread(met, 0)}, in {len(met)} of {found['seed'].nunique()} seeds"
        parts.append(f"{recipe_name(recipe)} {when if met else 'never in the watched steps'}")
    others = {recipe_name(r): t for r, t in tokens.items() if r != "masc" and t}
    if others and tokens["masc"]:
        parts.append(f"over shared seeds MASC's number is {findings.ordering(tokens['masc'], others)}")
    return [
        *findings.stop_position(data, benchmark),
        f"Going on from the stop to step {last:.0f}{printed}, forget ROUGE-L "
        f"{moved[findings.verdict(at_end, at_stop)]} ({findings.interval(findings.difference(at_end, at_stop))}); the "
        f"violation rate is lowest, {lowest['violation_rate']:.2f}, around step {lowest['step']:.0f}.",
        f"Forget tokens seen until the violation rate first meets alpha {alpha:.3f}, in the same training: "
        f"{'; '.join(parts)}.",
    ]


def fig6(data: PaperData) -> Figure:
    """Violation rate by step at three learning rates (Figure 6)."""
    figure = panels(data, _fig6_panel, (COLUMN, 2.6))
    drawn = [label for ax in figure.drawing.axes for label in ax.get_legend_handles_labels()[1]]
    legend_below(figure.drawing, list(dict.fromkeys(drawn)), columns=2)
    return figure


def _fig6_panel(axes: Any, data: PaperData, benchmark: str) -> tuple[pd.DataFrame, list[str]]:
    (ax,), sentences, steps = axes, [], {}
    alpha, lr = alpha_of(data, benchmark), learning_rate_of(data, benchmark)
    look: dict[str, Look] = dict(zip(RATES, SERIES, strict=False))
    for recipe, factor in RATES.items():
        if (found := curves(data, benchmark, recipe)).empty:
            continue
        label = f"{factor:g} x MASC's" if math.isnan(lr) else f"{factor * lr:g}"
        band(ax, found, "step", "violation_rate", look[recipe], f"learning rate {label}")
        reached = steps[recipe] = crossings(found, alpha, "step")
        if reached:
            ax.plot(np.mean([*reached.values()]), alpha, "v", color=look[recipe].color, markeredgecolor="black")
        sentences.append(
            f"Learning rate {label} ({benchmark}): the violation rate first meets alpha {alpha:.3f} at step "
            f"{findings.spread(reached, 1)}, in {len(reached)} of {found['seed'].nunique()} seeds."
        )
    words = {"lower": "alpha is met sooner", "higher": "alpha is met later"}
    for recipe, name in (("masc-lr-half", "half"), ("masc-lr-double", "twice")):
        if steps.get(recipe) and steps["masc"]:
            gap = findings.interval(findings.difference(steps[recipe], steps["masc"]), 1)
            word = words.get(findings.verdict(steps[recipe], steps["masc"]), "sooner or later cannot be told apart")
            sentences.append(f"At {name} MASC's learning rate: {word} (difference in steps {gap}).")
    ax.axhline(alpha, color="0.4", linewidth=0.8, linestyle=":", label="α used")
    ax.set(xlabel="optimiser step", ylabel="violation rate", ylim=(0, 1.02))
    ax.set_xlim(left=0)
    ax.set_title(f"MASC, {benchmark}")
    return averaged(data, benchmark, tuple(RATES)), sentences


def band(ax: Axes, found: pd.DataFrame, x: str, y: str, look: Look, label: str) -> None:
    """Mean over seeds, and a band from the lowest to the highest."""
    groups = found.groupby("step")
    at, mean = groups[x].mean(), groups[y].mean()
    every = max(1, len(at) // 6)
    style: dict[str, Any] = {"color": look.color, "linestyle": look.line, "marker": look.marker, "markersize": 4}
    ax.plot(at, mean, label=label, markevery=every, **style)
    ax.fill_between(at, groups[y].min(), groups[y].max(), color=look.color, alpha=0.15, linewidth=0)
