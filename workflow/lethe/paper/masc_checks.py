"""Tables that the paper does not have and its claims need: paired differences, controls, the 4-bit-native target, and
what each difference between paper and released code changes."""

import math
from collections.abc import Sequence
from statistics import mean

import numpy as np

from lethe.analysis import pareto
from lethe.paper import findings
from lethe.paper.data import HEADLINE, REFERENCES, PaperData, Score, recipe_name
from lethe.paper.masc_tables import (
    CHANGE,
    DISTANCE,
    PAPER,
    SECONDS,
    SPREAD,
    TIMES,
    has_any,
    ordered,
    quantised_block,
    restored,
    score_frame,
    shown_scores,
    stacked,
)
from lethe.paper.tables import Column, Table

CONTROLS = (
    "target", "retrain", "masc", "masc-random", "masc-shuffled", "graddiff", "graddiff-stop", "simnpo", "simnpo-stop",
)  # fmt: skip
# Points in which the paper and its released code differ, and what is run for each.
POINTS = {
    "masc": "as the paper: KL on retain, alternatives of the current model, averages by sequence",
    "masc-noretain": "1. code's TOFU script has no retain loss",
    "masc-base": "2. code's News script takes the start's alternatives within .5 logits",
    "masc-offbatch": "3. paper probes 8-16 random rows off the batch, code leading 4 then 32",
    "masc-pooled": "4. code averages over pooled tokens",
    "masc-suffix": "5. code trains and probes on a suffix of each answer",
    "masc-scaling": "6. code's scaling runs: λ .1, ρ .5, η .5, α .2",
    "masc-alpha": "α as printed where ours is the retrained model's, and the other way round",
    "masc-system": "11. a system prompt in unlearning that evaluation has not",
}
NOT_RUN = (
    "Not among the rows: point 7 (4-bit evaluation by default) concerns MUSE; 8 (utility as retain scores or as the "
    "nine-way mean) is the pair of columns MU and MU, retain only; 9 (two printed utilities of SimNPO) and 12 (a "
    "script that fails as shipped) have nothing to run; 10 (where Figure 2 stops) is answered by our Figure 2."
)
RETAIN_ONLY = Score("model_utility.retain", "MU, retain only")
GRID_ATTACKS = ("bnb-nf4", "rtn4")
STARTS = {"": "as it is", "+nf4": "4-bit-native"}
INTERVAL = "In brackets the Student t interval at 95 % of the paired difference over seeds; one seed has none."


def _columns(scores: Sequence[Score], change: str | None = None) -> list[Column]:
    """Scores with the distance to retrain and, with `change`, the paired change under that heading."""
    also = (("_change", change),) if change else ()
    return [
        Column(s.name, s.label, also=(*((("_distance_to_retrain", "to retrain"),) if s.overshoots else ()), *also))
        for s in scores
    ]


def paired(data: PaperData) -> Table:
    """Every method and control minus MASC, seed by seed, and who dominates whom."""
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    recipes = tuple(dict.fromkeys([*HEADLINE, *CONTROLS]))
    for benchmark in data.roles.benchmarks.get("tofu", ()):
        scores = shown_scores(data, benchmark)
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, recipes, against="masc")
        frame = frame[~frame["recipe"].isin(("masc", *REFERENCES))].reset_index(drop=True)
        names = [*(s.name for s in scores), *TIMES, "steps"]
        frame = frame.rename(
            columns={f"{n}_change{end}": f"{n}_minus_masc{end}" for n in names for end in ("", "_lo", "_hi")}
        )
        found, sentences = _dominance(data, benchmark, scores, recipes)
        frame["pareto"] = [found.get(r, "") for r in frame["recipe"]]
        kept = [f"{n}_minus_masc{end}" for n in names for end in ("", "_lo", "_hi")]
        blocks.append(frame[["recipe", "benchmark", "model", *kept, "pareto", "n_seeds"]])
        notes += sentences
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *(Column(f"{s.name}_minus_masc", s.label) for s in labels.values()),
            Column("time_cpu_s_minus_masc", "CPU s", digits=2),
            Column("time_wall_s_minus_masc", "wall s", digits=2),
            Column("steps_minus_masc", "steps", digits=1),
            Column("pareto", "Pareto"),
        ],
        caption=f"{PAPER}: every method minus MASC, paired over seeds.",
        notes=[f"Ours: {data.place()}.", INTERVAL, *notes],
    )


def _dominance(
    data: PaperData, benchmark: str, scores: Sequence[Score], recipes: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Who dominates MASC, or is dominated by it, in closeness to Retrain and utility, and the areas of the fronts."""
    score = data.suite(benchmark).utility[0]
    away = findings.distances(data, benchmark, scores, recipes)
    samples = {
        r: {s: np.array([1 - d, data.values(benchmark, r, score.metric)[s]]) for s, d in values.items()
            if s in data.values(benchmark, r, score.metric)}
        for r, values in away.items() if r not in REFERENCES
    }  # fmt: skip
    samples = {r: v for r, v in samples.items() if v}
    if "masc" not in samples:
        return {}, []
    pairs = pareto.dominance(samples)
    pairs = pairs[pairs["dominates"]]
    found = dict.fromkeys(pairs.loc[pairs["worse"] == "masc", "better"], "dominates MASC")
    found |= dict.fromkeys(pairs.loc[pairs["better"] == "masc", "worse"], "dominated by MASC")
    means = {r: np.mean(list(v.values()), axis=0) for r, v in samples.items()}
    area = pareto.hypervolume(np.array(list(means.values())), (0.0, 0.0))
    without = pareto.hypervolume(np.array([m for r, m in means.items() if not r.startswith("masc")]), (0.0, 0.0))
    front = [recipe_name(r) for r in pareto.front_beyond_noise(samples)]
    return found, [
        f"Pareto ({benchmark}), objectives 1 - mean distance to Retrain and {score.label}, decided on bootstrap "
        f"intervals over seeds: not dominated by any: {findings.listed(front)}. Area dominated by the means above the "
        f"reference point (0, 0): {area:.4f} with MASC and its variants, {without:.4f} without."
    ]


def controls(data: PaperData) -> Table:
    """What of MASC's result comes from the update's size, the data, the loss, the stop rule."""
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    for benchmark in data.roles.headline.values():
        scores = [*shown_scores(data, benchmark), Score("retain.rouge_l_recall", "Retain ROUGE")]
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, CONTROLS, ("steps", "update_norm"), against="masc")
        names = [*(s.name for s in scores), *TIMES, "steps", "update_norm"]
        blocks.append(ordered(frame, ["recipe", "benchmark", "model"], names))
        notes += _control_findings(data, benchmark, scores)
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *_columns(list(labels.values()), "minus MASC"),
            Column("time_cpu_s", "CPU s", digits=2),
            Column("steps", "steps", digits=1),
            Column("update_norm", "update norm", digits=2),
        ],
        caption=f"{PAPER}: controls.",
        notes=[
            f"Ours: {data.place()}. Random update: every weight matrix moved as far as MASC moved it, in a random "
            "direction. Shuffled answers: MASC on forget questions with each other's answers, for as many steps. "
            "MASC's stop: GradDiff and SimNPO, with their own training, ended by MASC's rule at MASC's alpha.",
            SPREAD, DISTANCE, SECONDS, INTERVAL, *notes,
        ],
    )  # fmt: skip


def _control_findings(data: PaperData, benchmark: str, scores: Sequence[Score]) -> list[str]:
    metric = "forget.value_recall" if data.values(benchmark, "masc", "forget.value_recall") else "forget.rouge_l_recall"
    keep, clock = data.suite(benchmark).utility[0].metric, data.summary.time_kind()
    values = {r: data.values(benchmark, r, metric) for r in data.ran(benchmark, CONTROLS)}
    kept = {r: data.values(benchmark, r, keep) for r in values}
    start = values.get("target") or {}
    label = "value recall" if "value" in metric else "ROUGE-L recall"
    sentences = []
    for name in (r for r in ("masc-random", "masc-shuffled") if values.get(r)):
        base = dict.fromkeys(values[name], start[min(start)]) if start else {}
        harmless = findings.verdict(values[name], base) != "lower" and mean(values[name].values()) > 0.9 * mean(
            base.values() or [1]
        )
        sentences.append(
            f"{recipe_name(name).capitalize()} ({benchmark}): forget {label} {findings.spread(values[name])}, utility "
            f"{findings.spread(kept[name])}; it {'leaves the forget set alone' if harmless else 'forgets by itself'}."
        )
    for plain in ("graddiff", "simnpo"):
        if not (stopped := values.get(f"{plain}-stop")) or "masc" not in values:
            continue
        times = [data.run_values(benchmark, r, clock) for r in ("masc", f"{plain}-stop", plain)]
        less = {"lower": "less", "higher": "more", "undecided": "not told apart from what MASC leaves"}
        sentences.append(
            f"{recipe_name(plain)} with MASC's stop ({benchmark}) takes {findings.spread(times[1], 2)} s (MASC "
            f"{findings.spread(times[0], 2)}, its own budget {findings.spread(times[2], 2)}) and leaves forget {label} "
            f"{findings.spread(stopped)} ({less[findings.verdict(stopped, values['masc'])]}"
            f"{'' if findings.verdict(stopped, values['masc']) == 'undecided' else ' than MASC'}), with utility "
            f"{findings.interval(findings.difference(kept[f'{plain}-stop'], kept['masc']))} against MASC's."
        )
    return sentences


def discrepancies(data: PaperData) -> Table:
    """Each point in which the paper and its released code differ, both ways, and what it changes."""
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    for benchmark in data.roles.headline.values():
        scores = [*shown_scores(data, benchmark), RETAIN_ONLY, Score("retain.rouge_l_recall", "Retain ROUGE")]
        scores = [s for s in scores if data.values(benchmark, "masc", s.metric)]
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, tuple(POINTS), ("steps", "alpha"), against="masc")
        frame["point"] = [POINTS[r] for r in frame["recipe"]]
        names = [*(s.name for s in scores), *TIMES, "steps", "alpha"]
        blocks.append(ordered(frame, ["recipe", "benchmark", "model", "point"], names))
        notes += [_matters(data, benchmark, recipe, scores) for recipe in data.ran(benchmark, list(POINTS)[1:])]
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model", "point": "Point"},
        columns=[
            *(Column(s.name, s.label, also=(("_change", "change"),)) for s in labels.values()),
            Column("time_cpu_s", "CPU s", digits=2),
            Column("steps", "steps", digits=1, also=(("_change", "change"),)),
            Column("alpha", "α used"),
        ],
        caption=f"{PAPER}: what each difference between the paper and its released code changes.",
        notes=[f"Ours: {data.place()}; change against MASC. " + INTERVAL, SPREAD, NOT_RUN, *notes],
    )


def _matters(data: PaperData, benchmark: str, recipe: str, scores: Sequence[Score]) -> str:
    parts = []
    for score in scores:
        sign = 1 if score.top is None else -1
        a, b = ({s: sign * v for s, v in data.values(benchmark, r, score.metric).items()} for r in (recipe, "masc"))
        if findings.verdict(a, b) != "undecided":
            parts.append(f"{score.label} {findings.interval(findings.difference(a, b))}")
    steps = findings.difference(*(data.run_values(benchmark, r, "steps") for r in (recipe, "masc")))
    changed = "; ".join(parts) or "no score beyond the spread over seeds"
    return f"{POINTS[recipe]} ({benchmark}): {changed}; steps {findings.interval(steps, 1)}."


def table3_grid(data: PaperData) -> Table:
    """Two targets, as it is and 4-bit-native, unlearned alike and quantised with the same and another quantiser."""
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    for benchmark in data.roles.headline.values():
        suite = data.suite(benchmark)
        labels |= {s.name: s for s in suite.retained}
        methods = [*HEADLINE, "simnpo-small"]
        for suffix, start in STARTS.items():
            names = {f"{r}{suffix}".replace("target+", "untouched+"): r for r in methods}
            recipes = data.ran(benchmark, list(names))
            if not recipes or (suffix and not any("+" in r for r in recipes)):
                continue
            frame = quantised_block(data, benchmark, recipes, GRID_ATTACKS)
            for column in ("update_over_step", "update_over_step_touched"):
                sizes = {r: list(data.run_values(benchmark, r, column).values()) for r in recipes}
                frame[column] = [
                    mean(sizes[r]) if sizes[r] and a == "none" else math.nan
                    for r, a in zip(frame["recipe"], frame["attack"], strict=True)
                ]
            frame.insert(3, "start", start)
            notes += [f"Start {start}: {text}" for text in restored(data, benchmark, recipes, GRID_ATTACKS)]
            frame["recipe"] = [names[r] for r in frame["recipe"]]
            blocks.append(frame)
    frame = stacked(blocks)
    return Table(
        frame=frame,
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model", "start": "Start", "attack": "Weights"},
        columns=[
            *(Column(n, s.label, also=(("_delta", "Δ"),)) for n, s in labels.items() if has_any(frame, f"{n}_mean")),
            Column("update_over_step", "update / step", digits=3),
            Column("update_over_step_touched", "of matrices touched", digits=3),
        ],
        caption=f"{PAPER}, Table 3, explained: unlearning from a target as it is and from a 4-bit-native one.",
        notes=[
            f"Ours: {data.place()}. 4-bit-native: the target's weights put on the NF4 grid, w := "
            "dequantise(quantise(w)), before unlearning. This start is constructed: it shows what happens to updates "
            "smaller than half a rounding step where weights lie at the centres of their cells, and whether that needs "
            "the quantiser whose cells they are. It says nothing about how bf16 language models, whose weights fill "
            "their cells, come out of 4 bits. The paper quantises released bf16 models on MUSE.",
            "Update / step: mean distance between final and starting weights, in local steps of 4-bit round-to-nearest "
            "of the start, over all weights that are rounded and over those of matrices that changed.",
            SPREAD, CHANGE, *notes,
        ],
        blocks="start",
    )  # fmt: skip
