"""MASC on targets between their own weights and a quantiser's grid: what 4 bits bring back, and why."""

from itertools import pairwise
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from lethe.errors import LetheError
from lethe.paper import findings
from lethe.paper.data import PaperData, recipe_name
from lethe.paper.figures import Figure, legend_below
from lethe.paper.style import COLUMN, looks

DOSED = ("simnpo-small", "npo-klr", "masc", "masc-full")
DOSES = {"+nf4": 0.0, "+nf4-25": 0.25, "+nf4-50": 0.5, "+nf4-75": 0.75, "": 1.0}  # overlay: residue kept


def quantisation_dose(data: PaperData) -> Figure:
    """What quantising brings back, against how far the target was from lying on the quantiser's grid."""
    attack, rows = "bnb-nf4", []
    for benchmark in data.headline("tofu"):
        metric = "forget.value_recall"
        metric = metric if data.values(benchmark, "masc", metric) else "forget.rouge_l_recall"
        for recipe in DOSED:
            for overlay, dose in DOSES.items():
                before, after = (data.values(benchmark, recipe + overlay, metric, a) for a in ("none", attack))
                sizes = [
                    data.run_values(benchmark, recipe + overlay, c)
                    for c in ("update_over_step", "update_over_step_touched")
                ]
                rows += [
                    {"recipe": recipe, "benchmark": benchmark, "attack": attack, "metric": metric, "residue": dose,
                     "seed": seed, "before": before[seed], "after": after[seed],
                     "update_over_step": sizes[0].get(seed), "update_over_step_touched": sizes[1].get(seed)}
                    for seed in sorted(before.keys() & after.keys())
                ]  # fmt: skip
    if not rows:
        raise LetheError(f"the summary has no run of {', '.join(DOSED)} quantised with {attack}")
    frame = pd.DataFrame(rows).astype({"update_over_step": float, "update_over_step_touched": float})
    benchmarks = list(dict.fromkeys(frame["benchmark"]))
    drawing = Drawing(figsize=(COLUMN, 2.8 * len(benchmarks) + 0.3))
    axes = drawing.subplots(len(benchmarks), 1, squeeze=False)[:, 0]
    look = dict(zip(DOSED, looks(DOSED).values(), strict=True))
    for ax, benchmark in zip(axes, benchmarks, strict=True):
        here = frame[frame["benchmark"] == benchmark]
        for i, (recipe, own) in enumerate(here.groupby("recipe", sort=False)):
            means = own.groupby("residue")[["before", "after"]].agg(["mean", "std"])
            at = means.index + 0.024 * (i - 1.5)  # beside each other, so that bars of error do not hide each other
            style: dict[str, Any] = {"color": look[recipe].color, "marker": look[recipe].marker, "capsize": 1.5}
            hollow = style | {"markerfacecolor": "white", "markersize": 3.5, "linewidth": 0.7}
            for column, drawn in (("before", hollow | {"linestyle": ""}), ("after", style)):
                mean, std = means[column, "mean"], means[column, "std"].fillna(0)
                line = {"linestyle": look[recipe].line, "label": recipe_name(recipe)} if column == "after" else {}
                ax.errorbar(at, mean, std, elinewidth=0.7, **drawn, **line)
        label = "value recall" if "value" in here["metric"].iloc[0] else "ROUGE-L recall"
        ax.set(xlabel="rounding residue kept in the target", ylabel=f"forget {label}", ylim=(-0.02, 1.05))
        ax.set_xticks(sorted(DOSES.values()))
        ax.set_title(f"before (hollow) and after {attack}, {benchmark}")
    legend_below(drawing, [recipe_name(r) for r in DOSED], columns=2)
    return Figure(drawing, frame, _dose_findings(frame))


def _dose_findings(frame: pd.DataFrame) -> list[str]:
    sentences = findings.one_seed({int(seed): 0.0 for seed in frame["seed"]})
    for (benchmark, recipe), own in frame.groupby(["benchmark", "recipe"], sort=False):
        doses = {f"{dose:g}": rows for dose, rows in own.groupby("residue")}
        restored = [f"{dose} ({_gain(rows):+.2f})" for dose, rows in doses.items() if _restored(rows)]
        where = f"at a residue of {findings.listed(restored)}" if restored else "at no residue"
        sentences.append(
            f"{recipe_name(str(recipe))} ({benchmark}): quantising raises what is left, beyond the spread over seeds, "
            f"{where} (measured at {', '.join(doses)})."
        )
    for benchmark, own in frame.groupby("benchmark", sort=False):
        sentences += [*_by_size(own, str(benchmark)), *_as_it_is(own, str(benchmark))]
    sentences.append(
        "Below a residue of 1 the target is constructed, its weights pulled towards the centres of the quantiser's "
        "cells: that shows what small updates need to be wiped out, and is no evidence that bf16 language models, "
        "whose weights lie on no such grid, lose theirs."
    )
    return sentences


def _by_size(own: pd.DataFrame, benchmark: str) -> list[str]:
    """Whether methods of smaller updates are restored more, at the smallest residue that several methods have."""
    shared = [dose for dose, rows in own.groupby("residue") if rows["recipe"].nunique() > 1]
    if not shared or own["update_over_step_touched"].isna().all():
        return []
    parts = {str(r): rows for r, rows in own[own["residue"] == shared[0]].groupby("recipe")}
    sized = {r: rows for r, rows in parts.items() if rows["update_over_step_touched"].notna().any()}
    order = sorted(sized, key=lambda r: sized[r]["update_over_step_touched"].mean())
    gains = [_gain(sized[r]) for r in order]
    ordered = all(small >= large for small, large in pairwise(gains))
    listed = []
    for recipe, gain in zip(order, gains, strict=True):
        touched, every = (sized[recipe][c].mean() for c in ("update_over_step_touched", "update_over_step"))
        listed.append(f"{recipe_name(recipe)} {touched:.2f} ({every:.2f} over all matrices): {gain:+.2f}")
    return [
        f"By the size of the update on the matrices it touches, in rounding steps, the change of the means at a "
        f"residue of {shared[0]:g} ({benchmark}) is {'; '.join(listed)}: it "
        f"{'falls' if ordered else 'does not simply fall'} as updates grow."
    ]


def _as_it_is(own: pd.DataFrame, benchmark: str) -> list[str]:
    """What quantising does where nothing was constructed."""
    natural = own[own["residue"] == 1]
    if natural.empty:
        return []
    changes, restored = [], []
    for recipe, rows in natural.groupby("recipe", sort=False):
        by = rows.set_index("seed")
        found = findings.difference(by["after"].to_dict(), by["before"].to_dict())
        changes.append(f"{recipe_name(str(recipe))} {findings.interval(found)}")
        restored += [recipe_name(str(recipe))] if _restored(rows) else []
    return [
        f"With the target as it is ({benchmark}, residue 1), quantising restores {findings.listed(restored)} beyond "
        f"the spread over seeds: {'; '.join(changes)}."
    ]


def _gain(rows: pd.DataFrame) -> float:
    return float((rows["after"] - rows["before"]).mean())


def _restored(rows: pd.DataFrame) -> bool:
    by = rows.set_index("seed")
    return findings.verdict(by["after"].to_dict(), by["before"].to_dict()) == "higher"
