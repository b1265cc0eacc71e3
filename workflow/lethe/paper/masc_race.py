"""MASC against the clock and against its own threshold: time to its forget level, and what every alpha would give."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lethe.errors import LetheError
from lethe.paper import findings
from lethe.paper.curves import (
    alpha_of,
    curves,
    first_below,
    first_seed,
    forget_metric,
    printed_first,
    stopped,
    stops_of,
)
from lethe.paper.data import PaperData, recipe_name
from lethe.paper.figures import Figure, legend_below
from lethe.paper.masc_curves import panels
from lethe.paper.style import COLUMN, PAGE, looks

RACED = ("ga", "graddiff", "npo", "npo-klr", "rmu", "rmu-down", "idk-dpo", "simnpo", "masc", "masc-full")
ALPHAS = tuple(round(0.95 - 0.05 * i, 2) for i in range(18))  # .95 to .10
TOLD = (0.9, 0.7, 0.5, 0.3)  # of these, in labels and sentences
CLOCKS = {"time_cpu_s": ("steps_cpu_s", "CPU"), "time_wall_s": ("steps_wall_s", "wall-clock")}
RACE = [
    "recipe", "benchmark", "seed", "metric", "level", "reached", "clock", "seconds", "step", "retain_rouge",
    "budget_seconds", "budget_steps",
]  # fmt: skip
METRIC_OF = {"forget_value_recall": "forget.value_recall", "forget_rouge": "forget.rouge_l_recall"}


def words(metric: str) -> str:
    return {"forget_value_recall": "value recall", "forget_rouge": "ROUGE-L recall"}[metric]


def time_to_forget(data: PaperData) -> Figure:
    """Time of every method to MASC's own forget level, beside its whole run."""
    figure = panels(data, _race_row, (PAGE, 0.24 * len(RACED) + 1.0), 2, width_ratios=(2.2, 1), sharey="row")
    legend_below(figure.drawing, ["until MASC's forget level", "whole run"], columns=2)
    return figure


def _race_row(axes: Any, data: PaperData, benchmark: str) -> tuple[pd.DataFrame, list[str]]:
    ax, kept = axes
    metric = forget_metric(data, benchmark)
    frame = race(data, benchmark, metric)
    if frame.empty:
        raise LetheError(f"{benchmark}: no seed of {recipe_name('masc')} was both run to its stop and watched")
    names = list(dict.fromkeys(frame["recipe"]))
    look = looks(names)
    for place, recipe in zip(range(len(names))[::-1], names, strict=True):
        own = frame[frame["recipe"] == recipe]
        style = {"color": look[recipe].color, "marker": look[recipe].marker, "markeredgecolor": "black"}
        _point(ax, own["budget_seconds"], place, style | {"markerfacecolor": "white", "markersize": 7})
        if own["reached"].any():
            ends = [own["seconds"].mean(), own["budget_seconds"].mean()]
            ax.plot(ends, [place, place], color="0.7", linewidth=0.8, zorder=1)
            _point(ax, own["seconds"], place, style)
            _point(kept, own["retain_rouge"], place, style)
        if not own["reached"].all():
            missed = int((~own["reached"]).sum())
            at = (own["budget_seconds"].mean() + 0.01 * frame["budget_seconds"].max(), place + 0.18)
            ax.text(*at, f"not reached: {missed} of {len(own)}", fontsize=5.5)
    ax.plot([], [], "o", color="0.4", markeredgecolor="black", label="until MASC's forget level")
    ax.plot([], [], "o", color="white", markeredgecolor="black", label="whole run")
    ax.set_yticks(range(len(names))[::-1], [recipe_name(r) for r in names])
    unit = CLOCKS[data.summary.time_kind()][1]
    ax.set(xlabel=f"{unit} seconds (± std over seeds)", ylim=(-0.6, len(names) - 0.3))
    ax.set_xlim(left=0)
    ax.set_title(f"time to forget, {benchmark}")
    kept.set(xlabel="retain ROUGE-L then", xlim=(0, 1.06))
    return frame, race_findings(frame, metric)


def _point(ax: Axes, values: pd.Series, place: int, style: dict[str, Any]) -> None:
    std = values.std(ddof=1)
    ax.errorbar(values.mean(), place, xerr=None if pd.isna(std) else std, linestyle="", ecolor="0.4", **style)


def race(data: PaperData, benchmark: str, metric: str) -> pd.DataFrame:
    """A row a method and seed in the columns of RACE: seconds, step and retain ROUGE-L at the first watched step that
    has forgotten as much as MASC with that seed had at its stop, and the seconds and steps of the whole run. NaN where
    that level is never reached."""
    clock, unit = CLOCKS[data.summary.time_kind()]
    ends = stopped(curves(data, benchmark, "masc"), stops_of(data, benchmark))
    level = dict(zip(ends["seed"].astype(int), ends[metric], strict=True))
    rows = []
    for recipe in RACED:
        times, steps = (data.run_values(benchmark, recipe, c) for c in (data.summary.time_kind(), "steps"))
        for key, curve in curves(data, benchmark, recipe).groupby("seed"):
            seed = int(str(key))
            if seed not in level:
                continue
            there = curve[curve[metric] <= level[seed]]
            at = there.iloc[0] if len(there) else pd.Series(dtype=float)
            rows.append({
                "recipe": recipe, "benchmark": benchmark, "seed": seed, "metric": metric, "level": level[seed],
                "reached": len(there) > 0, "clock": unit, "seconds": at.get(clock, math.nan),
                "step": at.get("step", math.nan), "retain_rouge": at.get("retain_rouge", math.nan),
                "budget_seconds": times.get(seed, curve[clock].max()),
                "budget_steps": steps.get(seed, curve["step"].max()),
            })  # fmt: skip
    return pd.DataFrame(rows, columns=RACE)


def race_findings(frame: pd.DataFrame, metric: str) -> list[str]:
    by = {str(r): rows.set_index("seed") for r, rows in frame.groupby("recipe", sort=False)}
    seconds = {r: rows["seconds"].dropna().to_dict() for r, rows in by.items()}
    if "masc" not in seconds:
        return []
    baselines = {r: v for r, v in seconds.items() if not r.startswith("masc")}
    reached = {_arrivals(r, by[r]): v for r, v in baselines.items() if v}
    groups = findings.grouped(seconds["masc"], reached)
    never = [recipe_name(r) for r, v in baselines.items() if not v]
    kept = {recipe_name(r): rows["retain_rouge"].dropna().to_dict() for r, rows in by.items() if r != "masc"}
    own = by["masc"]["retain_rouge"].dropna().to_dict()
    better = findings.grouped(own, {n: v for n, v in kept.items() if v})
    level = findings.spread(by["masc"]["level"].to_dict())
    unit = frame["clock"].iloc[0]
    return [
        *findings.one_seed(by["masc"]["level"].to_dict()),
        f"MASC's own level, forget {words(metric)} {level}, takes MASC "
        f"{findings.spread(seconds['masc'], 2)} {unit} s; less than {findings.listed(groups['lower'])}; more than "
        f"{findings.listed(groups['higher'])}; not told apart from {findings.listed(groups['undecided'])}; never "
        f"reached by {findings.listed(never)}.",
        *_ranking(by, [r for r, v in baselines.items() if v]),
        *_past_their_stop(by),
        f"At that moment MASC keeps retain ROUGE-L {findings.spread(own)}: more than "
        f"{findings.listed(better['higher'])}, less than {findings.listed(better['lower'])}, not told apart from "
        f"{findings.listed(better['undecided'])}.",
    ]


def _arrivals(recipe: str, own: pd.DataFrame) -> str:
    """A name, with the seeds that arrive where not all do: those that do not are slower than any number says."""
    missed = int((~own["reached"]).sum())
    return (
        f"{recipe_name(recipe)} (reached in {len(own) - missed} of {len(own)} seeds)" if missed else recipe_name(recipe)
    )


def _ranking(by: dict[str, pd.DataFrame], reached: list[str]) -> list[str]:
    """MASC's place among the means of those that arrive in every seed, and its factor to the fastest of the others."""
    means = {r: by[r]["seconds"].mean() for r in reached if by[r]["reached"].all()}
    if not means:
        return []
    ours, best = by["masc"]["seconds"], min(means, key=lambda r: means[r])
    place = 1 + sum(mean < ours.mean() for mean in means.values())
    own, theirs = ours.mean(), means[best]
    factor = f"{theirs / own:.2f} times MASC's" if theirs >= own else f"MASC takes {own / theirs:.2f} times as long"
    found = findings.verdict(ours.to_dict(), by[best]["seconds"].to_dict())
    beyond = "within the spread over seeds" if found == "undecided" else "beyond the spread over seeds"
    return [
        f"By the means MASC is number {place} of {len(means) + 1} to get there; the fastest "
        f"{'of the others' if place == 1 else 'baseline'} is {recipe_name(best)} with "
        f"{findings.spread(by[best]['seconds'].to_dict(), 2)} s ({factor}, {beyond})."
    ]


def _past_their_stop(by: dict[str, pd.DataFrame]) -> list[str]:
    """Runs that were watched past the end of their own run reach the level in steps that run does not have."""
    late = {r: int((own["step"] > own["budget_steps"]).sum()) for r, own in by.items()}
    names = [f"{recipe_name(r)} in {n} of {len(by[r])} seeds" for r, n in late.items() if n]
    return [f"Reached only past the stop of the run itself: {findings.listed(names)}."] if names else []


def alpha(data: PaperData) -> Figure:
    """What each alpha would leave and keep, against the same training with another loss stopped at the same steps."""
    figure = panels(data, _alpha_panel, (COLUMN, 2.9))
    labels = [*(recipe_name(r) for r in ("masc", "simnpo-lora", "masc-full")), "where MASC stopped", "Retrain"]
    legend_below(figure.drawing, labels, columns=2)
    return figure


def _alpha_panel(axes: Any, data: PaperData, benchmark: str) -> tuple[pd.DataFrame, list[str]]:
    (ax,), metric = axes, forget_metric(data, benchmark)
    frame = tradeoff_by_alpha(data, benchmark, metric)
    look = looks(tuple(dict.fromkeys(frame["recipe"])))
    for recipe, points in frame.groupby("recipe", sort=False):
        own, mean = look[str(recipe)], _complete(points)[["forgotten", "kept"]]
        style: dict[str, Any] = {"color": own.color, "marker": own.marker, "linestyle": own.line}
        style |= {"linewidth": 0.7, "markersize": 3} if recipe == "masc-full" else {"markersize": 4}
        ax.plot(mean["forgotten"], mean["kept"], label=recipe_name(str(recipe)), **style)
        if recipe == "masc":
            box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.5}
            for value in (a for a in TOLD if a in mean.index):
                ax.annotate(f"α {value:g}", tuple(mean.loc[value]), textcoords="offset points", xytext=(0, 5),
                            ha="center", fontsize=6, bbox=box, zorder=5)  # fmt: skip
    ends = stopped(curves(data, benchmark, "masc"), stops_of(data, benchmark))
    ax.plot(1 - ends[metric].mean(), ends["retain_rouge"].mean(), "*", markersize=10, color="white",
            markeredgecolor="black", label="where MASC stopped")  # fmt: skip
    scores = (METRIC_OF[metric], "retain.rouge_l_recall")
    forget, retain = (first_seed(data.values(benchmark, "retrain", m)) for m in scores)
    if not math.isnan(forget + retain):
        ax.plot(1 - forget, retain, "D", color="black", label="Retrain")
    ax.set(xlabel=f"1 - forget {words(metric)}", ylabel="retain ROUGE-L")
    ax.margins(0.1)
    ax.set_title(f"stopped at each alpha, {benchmark}")
    return frame, alpha_findings(data, benchmark, frame)


def _complete(points: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of the alphas that every seed meets: seeds that drop out would move the mean by themselves."""
    groups = points.groupby("alpha", sort=False)
    return groups[["forgotten", "kept"]].mean()[groups["seed"].nunique() == points["seed"].nunique()]


def tradeoff_by_alpha(data: PaperData, benchmark: str, metric: str) -> pd.DataFrame:
    """A row an alpha, seed and recipe: MASC (LoRA, full) at the first watched step that meets alpha, and SimNPO in
    MASC's training at the step of MASC. recipe, benchmark, alpha, seed, step, forgotten, kept."""
    other, rows = curves(data, benchmark, "simnpo-lora"), []

    def add(recipe: str, wanted: float, row: pd.Series) -> None:
        rows.append({
            "recipe": recipe, "benchmark": benchmark, "alpha": wanted, "seed": int(row["seed"]), "step": row["step"],
            "forgotten": 1 - row[metric], "kept": row["retain_rouge"],
        })  # fmt: skip

    for recipe in ("masc", "masc-full"):
        for wanted in ALPHAS:
            for _, curve in curves(data, benchmark, recipe).groupby("seed"):
                if (at := first_below(curve, wanted)) is None:
                    continue
                add(recipe, wanted, at)
                if recipe == "masc":
                    for _, row in other[(other["seed"] == at["seed"]) & (other["step"] == at["step"])].iterrows():
                        add("simnpo-lora", wanted, row)
    return pd.DataFrame(rows, columns=["recipe", "benchmark", "alpha", "seed", "step", "forgotten", "kept"])


def alpha_findings(data: PaperData, benchmark: str, frame: pd.DataFrame) -> list[str]:
    used, printed = alpha_of(data, benchmark), printed_first(data, "Figure 2 (left)", "alpha line")
    rate = data.values(benchmark, "retrain", "violation_rate")
    sentences = findings.one_seed({int(seed): 0.0 for seed in frame["seed"]})
    if rate and not math.isnan(printed):
        side = {"higher": "above", "lower": "below", "undecided": "not told apart from"}
        where = side[findings.verdict(rate, dict.fromkeys(rate, printed))]
        sentences.append(
            f"The retrained model violates at a rate of {findings.spread(rate)} ({benchmark}), {where} the paper's "
            f"alpha of {printed:g}; the alpha used here is {used:.3f}."
        )
    paired = frame[frame["recipe"].isin(["masc", "simnpo-lora"])]
    for value in (a for a in TOLD if a in set(paired["alpha"])):
        here = paired[paired["alpha"] == value]
        by = {r: rows.set_index("seed") for r, rows in here.groupby("recipe")}
        if len(by) < 2:
            continue
        parts = []
        for column in ("forgotten", "kept"):
            ours, theirs = (by[r][column].to_dict() for r in ("masc", "simnpo-lora"))
            word = {"higher": "more", "lower": "less", "undecided": "not told apart"}[findings.verdict(ours, theirs)]
            parts.append(f"{column} {findings.interval(findings.difference(ours, theirs))} ({word})")
        sentences.append(
            f"At alpha {value:g} (step {here['step'].mean():.0f}), MASC minus SimNPO in the same training and at "
            f"the same steps: {'; '.join(parts)}."
        )
    return sentences
