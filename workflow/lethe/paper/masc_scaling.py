"""MASC's tables of the scaling study: scores before fine-tuning and the fitted power laws."""

import math

import pandas as pd

from lethe.analysis.summary import over_seeds
from lethe.paper.data import E_ROUGE, P_ROUGE, UTILITY, PaperData, recipe_name
from lethe.paper.masc_tables import PAPER, PRINTED, SPREAD, has_any, ordered, printed_number, stacked
from lethe.paper.tables import Column, Table, beside_paper

PRINTED_FIT = {E_ROUGE.metric: "E-ROUGE", P_ROUGE.metric: "P-ROUGE", UTILITY.metric: "MU on D_ret"}


def table9(data: PaperData) -> Table:
    """Scores before fine-tuning by model size (MASC Table 9); the paper's sizes that are not ours have rows too."""
    frame = stacked(_initial_block(data, benchmark) for benchmark in data.headline("tofu"))
    scores = dict.fromkeys(s for benchmark in data.headline("tofu") for s in data.suite(benchmark).initial)
    return Table(
        frame=frame,
        keys={"recipe": "Stage", "benchmark": "Benchmark", "model": "Model", "n_params": "Parameters"},
        columns=[
            Column(s.name, s.label)
            for s in scores
            if has_any(frame, f"{s.name}_mean") or has_any(frame, f"{s.name}_paper")
        ],
        caption=f"{PAPER}, Table 9: scores on the forget set before fine-tuning, by model size.",
        notes=[
            f"Ours: {data.roles.scale}; what guessing and the answer's template give at each size. Rows marked paper: "
            "the paper's models, which are not ours unless a row of ours stands above.",
            SPREAD,
            *(text for benchmark in data.headline("tofu") for text in _before(frame, data, benchmark)),
        ],
    )


def _before(frame: pd.DataFrame, data: PaperData, benchmark: str) -> list[str]:
    """From the smallest to the largest model, ours and the paper's; both are one model a size."""
    rows, sentences = frame[frame["benchmark"] == benchmark], []
    if len(ours := rows[rows["n_params"].notna()]) < 2:
        return []
    for score in data.suite(benchmark).initial:
        ends = [float(v) for v in ours[f"{score.name}_mean"].iloc[[0, -1]]]
        if any(map(math.isnan, ends)):
            continue
        text = f"{score.label} ({benchmark}): {ends[0]:.3f} in the smallest model and {ends[1]:.3f} in the largest"
        theirs = rows[f"{score.name}_paper"].dropna()
        if len(theirs) > 1:
            text += f"; the paper prints {theirs.iloc[0]:.3f} and {theirs.iloc[-1]:.3f}"
            same = (ends[1] > ends[0]) == (theirs.iloc[-1] > theirs.iloc[0])
            text += f", {'the same' if same else 'the opposite'} direction"
        sentences.append(text + ".")
    if sentences and ours["n_seeds"].max() == 1:
        sentences.append("One model a size, here as there: no trend can be told from chance.")
    return sentences


def _initial_block(data: PaperData, benchmark: str) -> pd.DataFrame:
    recipe, place, method = "base", "Table 9", "initial (before finetuning)"
    scores = data.suite(benchmark).initial
    metrics = [s.metric for s in scores]
    rows = data.summary.select(
        benchmark=benchmark, recipe=recipe, attack="none", model=data.roles.ladder, metric=metrics
    )
    wide = rows.pivot(index=["model", "n_params", "seed"], columns="metric", values="value").reindex(columns=metrics)
    frame = over_seeds(wide.reset_index(), by=["model", "n_params"]).sort_values("n_params", ignore_index=True)
    names = [data.roles.printed_models.get(model, model) for model in frame["model"]]
    theirs = data.reported.models(place, method=method, benchmark=PRINTED.get(benchmark, ""))
    others = [name for name in theirs if name not in names]
    frame = pd.concat([frame, pd.DataFrame({"model": others})], ignore_index=True)
    for score in scores:
        printed = [
            printed_number(data, place, score.label, benchmark, method, model=name) for name in [*names, *others]
        ]
        frame = beside_paper(frame, score.name, printed)
    frame = frame.assign(recipe=recipe, benchmark=benchmark).astype({"n_params": "Int64", "n_seeds": "Int64"})
    return ordered(frame, ["recipe", "benchmark", "model", "n_params"], metrics)


def table10(data: PaperData) -> Table:
    """Power laws of the unlearning stage, with t intervals of the exponent (MASC Table 10)."""
    fits = data.fits[(data.fits["study"] == "masc") & (data.fits["stage"] == "unlearning")].reset_index(drop=True)
    frame = fits[["recipe", "benchmark", "metric", "n_kind", "C", "alpha", "alpha_lo", "alpha_hi", "r2"]].copy()
    for quantity, printed_as in (("C", "C_hat"), ("alpha", "alpha_hat"), ("r2", "R2")):
        printed = [
            printed_number(
                data, "Table 10", f"{PRINTED_FIT.get(r.metric)}:{printed_as}", r.benchmark, recipe_name(r.recipe)
            )
            if r.n_kind == "total" else None
            for r in frame.itertuples()
        ]  # fmt: skip
        frame = beside_paper(frame, quantity, printed, spread=False)
    frame = frame.join(fits[["n_sizes", "n_seeds", "reason"]])
    refused = fits[fits["reason"] != ""]
    return Table(
        frame=frame,
        keys={"recipe": "Method", "benchmark": "Benchmark", "metric": "Score", "n_kind": "N counts"},
        columns=[
            Column("C", "C", digits=4, paper_digits=4),
            Column("alpha", "α", digits=4, paper_digits=4),
            Column("r2", "R²"),
            Column("n_sizes", "sizes", digits=0),
        ],
        caption=f"{PAPER}, Table 10: power laws s = C N^α of the unlearning stage, N in billions of parameters.",
        notes=[
            f"Ours: {data.roles.scale}, models {', '.join(data.roles.ladder)}; seeds averaged at each size, then least "
            "squares of log s on log N; in brackets the Student t interval of α at 95%; R² in log space. Paper: "
            "Qwen2.5 of 0.5, 1.5, 3 and 7 billion parameters. C is the value at one billion parameters. A handful of "
            "sizes gives R² little power.",
            *(
                f"No fit for {recipe_name(recipe)} ({', '.join(rows['metric'].unique())}): {reason}."
                for (recipe, reason), rows in refused.groupby(["recipe", "reason"], sort=False)
            ),
            *exponents(fits, data),
        ],
        blocks="recipe",
        labels={s.metric: s.label for benchmark in fits["benchmark"].unique() for s in data.suite(benchmark).scaling},
    )


def exponents(fits: pd.DataFrame, data: PaperData) -> list[str]:
    """Do scores rise, fall or stay with size, and does our interval of the exponent hold the printed one?"""
    sentences = []
    for row in fits[(fits["n_kind"] == "total") & fits["alpha"].notna()].itertuples():
        label = next((s.label for s in data.suite(row.benchmark).scaling if s.metric == row.metric), row.metric)
        trend = "rises" if row.alpha_lo > 0 else "falls" if row.alpha_hi < 0 else "neither rises nor falls"
        hedge = "" if trend in ("rises", "falls") else " beyond the interval, which holds 0"
        seeds = "1 seed" if row.n_seeds == 1 else f"{row.n_seeds} seeds"
        text = (
            f"{recipe_name(row.recipe)}, {label}: {trend} with size{hedge} (exponent {row.alpha:.3f} "
            f"[{row.alpha_lo:.3f}, {row.alpha_hi:.3f}], {row.n_sizes} sizes, {seeds} each)"
        )
        stage = "Table 10" if row.stage == "unlearning" else "Figure 3 (inset table)"
        where = {"method": recipe_name(row.recipe)} if row.stage == "unlearning" else {}
        printed = data.reported.find(
            stage, f"{PRINTED_FIT.get(row.metric)}:alpha_hat", benchmark=PRINTED.get(row.benchmark, ""), **where
        )
        if printed:
            inside = row.alpha_lo <= printed.value <= row.alpha_hi
            text += f"; the paper's {printed.value:.3f} lies {'inside' if inside else 'outside'}"
        sentences.append(text + ".")
    return sentences
