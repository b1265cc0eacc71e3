"""The tables of MASC (arXiv 2606.02920): each a function from PaperData to a Table."""

from collections.abc import Iterable, Sequence

import pandas as pd

from lethe.analysis.summary import over_seeds
from lethe.paper.data import E_ROUGE, P_ROUGE, UTILITY, PaperData, Printed, Score, recipe_name, summarise
from lethe.paper.tables import Column, Table, beside_paper

PAPER = "MASC (arXiv 2606.02920)"
PRINTED = {"tofu-forget10": "TOFU"}  # benchmarks by their names in the paper
PRINTED_FIT = {E_ROUGE.metric: "E-ROUGE", P_ROUGE.metric: "P-ROUGE", UTILITY.metric: "MU on D_ret"}
SCORES_IN = "Table 1"  # where the paper prints the scores of Figures 1 and 5
QUANTISED = ("bnb-fp4", "rtn4")
TIMES = ("time_cpu_s", "time_wall_s")

SPREAD = "Mean ± sample standard deviation (n-1) over training seeds; a single seed has no deviation."
DISTANCE = (
    "to retrain: mean over seeds of the absolute distance to the first retrained seed without attack. These scores "
    "rise with forgetting without end, so the distance, not the score, says how close a model is to one that never saw "
    "the data. The Retrain row is the other retrained seeds: its distance is the noise floor."
)
SECONDS = (
    "CPU s and wall s: optimiser steps, probes and reference quantities of the start model, timed inside the stage, "
    "without loading, saving and evaluation; the first step, which initialises, counts as an average one. Base and "
    "Retrain are not unlearned, hence untimed. The paper's are wall-clock seconds on one H100."
)
CHANGE = (
    "Δ: score minus that of the same seed at full precision (none), averaged over seeds. Lower scores mean more "
    "forgotten, except Truth Ratio, where higher does. Read every row beside Base and Retrain under the same weights: "
    "what these lose is damage done by quantisation. MCQ: share of probes in which the true value beats the others."
)


def table1(data: PaperData) -> Table:
    """Forget and utility scores and unlearning time on TOFU (MASC Table 1)."""
    return score_table(data, suite="tofu", place=SCORES_IN)


def score_table(data: PaperData, suite: str, place: str) -> Table:
    """Scores and time of every recipe of the main model on the benchmarks of a suite, a block a benchmark."""
    benchmarks = data.roles.benchmarks.get(suite, ())
    shown = {benchmark: _shown(data, benchmark) for benchmark in benchmarks}
    models = [m for b in benchmarks for m in data.reported.models(place, benchmark=PRINTED.get(b, ""))]
    return Table(
        frame=_stacked(_score_block(data, benchmark, shown[benchmark], place) for benchmark in benchmarks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *(
                Column(s.name, s.label, also=(("_distance_to_retrain", "to retrain"),) if s.overshoots else ())
                for s in dict.fromkeys(s for scores in shown.values() for s in scores)
            ),
            Column("time_cpu_s", "CPU s", digits=2, paper_digits=1),
            Column("time_wall_s", "wall s", digits=2, paper_digits=1),
        ],
        caption=f"{PAPER}, {place}: forgetting, utility and unlearning time on {', '.join(benchmarks)}.",
        notes=[
            f"Ours: {data.place()}. Paper: {place}, {', '.join(models)}." if models else f"Ours: {data.place()}.",
            SPREAD,
            DISTANCE,
            SECONDS,
            *(gap for benchmark in benchmarks for gap in data.gaps(benchmark, shown[benchmark])),
        ],
    )


def _score_block(data: PaperData, benchmark: str, scores: Sequence[Score], place: str) -> pd.DataFrame:
    per_seed = data.per_seed(benchmark, scores)
    frame = summarise(data.with_times(benchmark, per_seed)).drop(columns="attack")
    frame = _with_distances(data, benchmark, frame, per_seed, scores)
    for name, label in [*((s.name, s.label) for s in scores), ("time_wall_s", "Time")]:
        printed = [_printed(data, place, label, benchmark, recipe_name(r)) for r in frame["recipe"]]
        frame = beside_paper(frame, name, printed)
    frame = frame.assign(benchmark=benchmark, model=data.roles.main)
    return _ordered(frame, ["recipe", "benchmark", "model"], [*(s.name for s in scores), *TIMES])


def table3_tofu(data: PaperData) -> Table:
    """Forget scores at full precision, under 4-bit quantisation, and their change (MASC Table 3, read on TOFU)."""
    return quantised_table(data, suite="tofu", place="Table 3")


def quantised_table(data: PaperData, suite: str, place: str) -> Table:
    """What quantisation brings back: a row a recipe and attack, with the change against none, paired by seed."""
    benchmarks = data.roles.benchmarks.get(suite, ())
    frame = _stacked(_quantised_block(data, benchmark, place) for benchmark in benchmarks)
    scores = dict.fromkeys(s for benchmark in benchmarks for s in data.suite(benchmark).retained)
    return Table(
        frame=frame,
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model", "attack": "Weights"},
        columns=[Column(s.name, s.label, also=(("_delta", "Δ"),)) for s in scores if _any(frame, f"{s.name}_mean")],
        caption=f"{PAPER}, {place}, read on {', '.join(benchmarks)}: what is left of the forget set at full precision "
        "and after 4-bit quantisation.",
        notes=[
            f"Ours: {data.place()}.",
            SPREAD,
            CHANGE,
            *(gap for b in benchmarks for gap in data.gaps(b, data.suite(b).retained, ("none", *QUANTISED))),
        ],
        blocks="recipe",
    )


def _quantised_block(data: PaperData, benchmark: str, place: str) -> pd.DataFrame:
    scores = data.suite(benchmark).retained
    names = [s.name for s in scores]
    per_seed = data.per_seed(benchmark, scores, ("none", *QUANTISED))
    runs = pd.MultiIndex.from_frame(per_seed[["recipe", "seed"]])
    attacked = per_seed["attack"] != "none"
    full = per_seed[~attacked].set_index(["recipe", "seed"])[names].reindex(runs).set_axis(per_seed.index)
    change = (per_seed[names] - full).where(attacked).add_suffix("_delta")
    frame = summarise(pd.concat([per_seed, change], axis=1))
    frame = _with_distances(data, benchmark, frame, per_seed, scores)
    for score in scores:
        printed = [
            _printed(data, place, score.label, benchmark, f"{recipe_name(r.recipe)} (4-bit)")
            if r.attack == "bnb-fp4" else None
            for r in frame.itertuples()
        ]  # fmt: skip
        frame = beside_paper(frame, score.name, printed)
    frame = frame.assign(benchmark=benchmark, model=data.roles.main)
    return _ordered(frame, ["recipe", "benchmark", "model", "attack"], names)


def table9(data: PaperData) -> Table:
    """Scores before fine-tuning by model size (MASC Table 9); the paper's sizes that are not ours have rows too."""
    frame = _stacked(_initial_block(data, benchmark) for benchmark in data.roles.headline.values())
    scores = dict.fromkeys(s for benchmark in data.roles.headline.values() for s in data.suite(benchmark).initial)
    return Table(
        frame=frame,
        keys={"recipe": "Stage", "benchmark": "Benchmark", "model": "Model", "n_params": "Parameters"},
        columns=[
            Column(s.name, s.label) for s in scores if _any(frame, f"{s.name}_mean") or _any(frame, f"{s.name}_paper")
        ],
        caption=f"{PAPER}, Table 9: scores on the forget set before fine-tuning, by model size.",
        notes=[
            f"Ours: {data.roles.scale}; what guessing and the answer's template give at each size. Rows marked paper: "
            "the paper's models, which are not ours unless a row of ours stands above.",
            SPREAD,
        ],
    )


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
        printed = [_printed(data, place, score.label, benchmark, method, model=name) for name in [*names, *others]]
        frame = beside_paper(frame, score.name, printed)
    frame = frame.assign(recipe=recipe, benchmark=benchmark).astype({"n_params": "Int64", "n_seeds": "Int64"})
    return _ordered(frame, ["recipe", "benchmark", "model", "n_params"], metrics)


def table10(data: PaperData) -> Table:
    """Power laws of the unlearning stage, with t intervals of the exponent (MASC Table 10)."""
    fits = data.fits[(data.fits["study"] == "masc") & (data.fits["stage"] == "unlearning")].reset_index(drop=True)
    frame = fits[["recipe", "benchmark", "metric", "n_kind", "C", "alpha", "alpha_lo", "alpha_hi", "r2"]].copy()
    for quantity, printed_as in (("C", "C_hat"), ("alpha", "alpha_hat"), ("r2", "R2")):
        printed = [
            _printed(data, "Table 10", f"{PRINTED_FIT.get(r.metric)}:{printed_as}", r.benchmark, recipe_name(r.recipe))
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
        ],
        blocks="recipe",
        labels={s.metric: s.label for benchmark in fits["benchmark"].unique() for s in data.suite(benchmark).scaling},
    )


def _shown(data: PaperData, benchmark: str) -> list[Score]:
    """The scores the paper has, and those probes that this summary has values for."""
    suite = data.suite(benchmark)
    rows = data.summary.select(benchmark=benchmark, model=data.roles.main, attack="none").dropna(subset="value")
    return [*suite.forget, *suite.utility, *(s for s in suite.probes if s.metric in set(rows["metric"]))]


def _printed(data: PaperData, place: str, metric: str, benchmark: str, method: str, **where: str) -> Printed | None:
    return data.reported.find(place, metric, benchmark=PRINTED.get(benchmark, ""), method=method, **where)


def _with_distances(
    data: PaperData, benchmark: str, frame: pd.DataFrame, per_seed: pd.DataFrame, scores: Sequence[Score]
) -> pd.DataFrame:
    """Add {score}_distance_to_retrain, the mean over seeds of |score - reference|; empty for the reference itself."""
    groups = [per_seed["recipe"], per_seed["attack"]]
    for score in (s for s in scores if s.overshoots):
        away = (per_seed[score.name] - data.reference(benchmark, score)).abs()
        away[data.is_reference(benchmark, per_seed)] = float("nan")
        frame[f"{score.name}_distance_to_retrain"] = away.groupby(groups, sort=False).mean().to_numpy()
    return frame


def _ordered(frame: pd.DataFrame, keys: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Key columns first, then what belongs to each score, then the number of seeds."""
    suffixes = ["_mean", "_std", "_paper", "_paper_std", "_paper_mark"]
    suffixes += ["_delta_mean", "_delta_std", "_distance_to_retrain"]
    columns = [*keys, *(name + suffix for name in names for suffix in suffixes), "n_seeds"]
    return frame[[c for c in columns if c in frame]]


def _stacked(blocks: Iterable[pd.DataFrame]) -> pd.DataFrame:
    filled = [block for block in blocks if len(block)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


def _any(frame: pd.DataFrame, column: str) -> bool:
    return column in frame and bool(frame[column].notna().any())
