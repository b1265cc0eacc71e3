"""MASC on targets between their own weights and a quantiser's grid: what 4 bits bring back, and why."""

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
    for benchmark in data.roles.headline.values():
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
        for recipe, own in here.groupby("recipe", sort=False):
            means = own.groupby("residue")[["before", "after"]].agg(["mean", "std"])
            style = {"color": look[recipe].color, "marker": look[recipe].marker}
            mean, std = means["after", "mean"], means["after", "std"].fillna(0)
            ax.errorbar(means.index, mean, std, **style, linestyle=look[recipe].line, label=recipe_name(recipe))
            ax.plot(means.index, means["before", "mean"], **style, markerfacecolor="white", linestyle="", markersize=4)
        label = "value recall" if "value" in here["metric"].iloc[0] else "ROUGE-L recall"
        ax.set(xlabel="rounding residue kept in the target", ylabel=f"forget {label}", ylim=(-0.02, 1.02))
        ax.set_title(f"before (hollow) and after {attack}, {benchmark}")
    legend_below(drawing, [recipe_name(r) for r in DOSED], columns=2)
    return Figure(drawing, frame, _dose_findings(frame))


def _dose_findings(frame: pd.DataFrame) -> list[str]:
    sentences = []
    for (benchmark, recipe), own in frame.groupby(["benchmark", "recipe"], sort=False):
        restored = []
        for dose, rows in own.groupby("residue"):
            by = rows.set_index("seed")
            if findings.verdict(by["after"].to_dict(), by["before"].to_dict()) == "higher":
                restored.append(f"{dose:g} ({(by['after'] - by['before']).mean():+.2f})")
        size, touched = own["update_over_step"].mean(), own["update_over_step_touched"].mean()
        sentences.append(
            f"{recipe_name(recipe)} ({benchmark}): quantising raises what is left, beyond the spread over seeds, at a "
            f"residue of {findings.listed(restored)}; its updates are {size:.2f} of a rounding step on average, "
            f"{touched:.2f} on the matrices it touches."
        )
    sentences.append(
        "Below a residue of 1 the target is constructed, its weights pulled towards the centres of the quantiser's "
        "cells; the point at 1 is the target as it is. The figure shows what small updates need to be wiped out, not "
        "that bf16 language models have it."
    )
    return sentences
