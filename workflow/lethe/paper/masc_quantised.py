"""MASC's Table 3 read on TOFU: what 4-bit quantisation brings back, from a target as it is and from one whose weights
lie on a 4-bit grid already."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean

import pandas as pd

from lethe.paper import findings
from lethe.paper.data import HEADLINE, REFERENCES, PaperData, Score, recipe_name, summarise
from lethe.paper.masc_tables import PAPER, PRINTED, SPREAD, has_any, ordered, stacked, with_distances
from lethe.paper.tables import Column, Table

QUANTISED = ("bnb-fp4", "bnb-nf4", "rtn4")
GRID_ATTACKS = ("bnb-nf4", "rtn4")  # the quantiser of the 4-bit-native start, and another
STARTS = {"": "as it is", "+nf4": "4-bit-native"}  # overlay of a recipe: its start
STEPS = {"update_over_step": "update / step", "update_over_step_touched": "of matrices touched"}
RECALL_PRINTED = "VerbMem"  # the paper's score of Table 3 that is closest to recall of the answers

CHANGE = (
    "Δ: score minus that of the same seed at full precision (none), averaged over seeds. Lower scores mean more "
    "forgotten, except Truth Ratio, where higher does. Read every row beside Base and Retrain under the same weights: "
    "what these lose is damage done by quantisation. MCQ: share of probes in which the true value beats the others."
)
NATIVE = (
    "4-bit-native: the target's weights put on the NF4 grid, w := dequantise(quantise(w)), before unlearning. This "
    "start is constructed. It shows what the same quantiser does to updates smaller than half a rounding step where "
    "every weight lies at the centre of its cell, and by rtn4 what another one does. rtn4 has NF4's blocks of 64 "
    "weights and their scale, so all of NF4's values lie at fixed places in its cells, .06 to .5 of a step from an "
    "edge: smaller updates are wiped out there too. It is no evidence for bf16 language models: their weights lie "
    "anywhere in their cells, and rounding then keeps a "
    "small update on average. The rows that start from the target as it is are that case, at this size; the paper "
    "quantises released bf16 models on MUSE."
)


def table3_tofu(data: PaperData) -> Table:
    """Forget scores at full precision, under 4-bit quantisation, and their change (MASC Table 3, read on TOFU)."""
    benchmarks = data.roles.benchmarks.get("tofu", ())
    scores = dict.fromkeys(s for b in benchmarks for s in data.suite(b).retained)
    frame = stacked(quantised_block(data, b, data.suite(b).retained) for b in benchmarks)
    return Table(
        frame=frame,
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model", "attack": "Weights"},
        columns=[Column(s.name, s.label, also=(("_delta", "Δ"),)) for s in scores if has_any(frame, f"{s.name}_mean")],
        caption=f"{PAPER}, Table 3, read on {', '.join(benchmarks)}: what is left of the forget set at full precision "
        "and after 4-bit quantisation.",
        notes=[
            f"Ours: {data.place()}. The paper prints this table for MUSE, under bnb-fp4.",
            SPREAD,
            CHANGE,
            *(gap for b in benchmarks for gap in data.gaps(b, data.suite(b).retained, ("none", *QUANTISED), HEADLINE)),
            *findings.lone_seed(data, benchmarks),
            *(text for b in benchmarks for text in restored(data, b, dict(zip(HEADLINE, HEADLINE, strict=True)))),
            *printed_changes(data),
        ],
        blocks="recipe",
    )


def table3_grid(data: PaperData) -> Table:
    """Two targets, as it is and 4-bit-native, unlearned alike and quantised with the same and another quantiser."""
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    benchmarks = data.headline("tofu")
    for benchmark in benchmarks:
        scores = [*data.suite(benchmark).retained, _kept(data, benchmark)]
        labels |= {s.name: s for s in scores}
        for overlay, start in STARTS.items():
            methods = {f"{r}{overlay}".replace("target+", "untouched+"): r for r in (*HEADLINE, "simnpo-small")}
            frame = quantised_block(data, benchmark, scores, tuple(methods), GRID_ATTACKS)
            frame.insert(3, "start", start)
            for column in STEPS:
                sizes = {r: list(data.run_values(benchmark, r, column).values()) for r in methods}
                frame[column] = [
                    mean(sizes[r]) if sizes[r] and a == "none" else math.nan
                    for r, a in zip(frame["recipe"], frame["attack"], strict=True)
                ]
            frame["recipe"] = frame["recipe"].map(methods)
            blocks.append(frame)
            notes += [f"Start {start}: {text}" for text in restored(data, benchmark, methods, GRID_ATTACKS)]
    frame = stacked(blocks)
    return Table(
        frame=frame,
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model", "start": "Start", "attack": "Weights"},
        columns=[
            *(Column(n, s.label, also=(("_delta", "Δ"),)) for n, s in labels.items() if has_any(frame, f"{n}_mean")),
            *(Column(name, label) for name, label in STEPS.items() if has_any(frame, name)),
        ],
        caption=f"{PAPER}, Table 3, explained: unlearning from a target as it is and from a 4-bit-native one.",
        notes=[
            f"Ours: {data.place()}. {NATIVE}",
            "Update / step: mean distance between final and starting weights, in local steps of 4-bit round-to-nearest "
            "of the start, over all weights that are rounded and over those of matrices that changed.",
            SPREAD,
            CHANGE,
            *findings.lone_seed(data, benchmarks),
            *notes,
            *printed_changes(data),
        ],
        blocks="start",
    )


def _kept(data: PaperData, benchmark: str) -> Score:
    """What of the rest is left: value recall where the data have values."""
    value = Score("retain.value_recall", "Retain value recall")
    return value if data.values(benchmark, "masc", value.metric) else Score("retain.rouge_l_recall", "Retain ROUGE-L")


def quantised_block(
    data: PaperData,
    benchmark: str,
    scores: Sequence[Score],
    recipes: Sequence[str] = HEADLINE,
    attacks: Sequence[str] = QUANTISED,
) -> pd.DataFrame:
    """A row a recipe and attack: scores that an attack may bring back, and their change against none, by seed."""
    names = [s.name for s in scores]
    per_seed = data.per_seed(benchmark, scores, ("none", *attacks), recipes)
    runs = pd.MultiIndex.from_frame(per_seed[["recipe", "seed"]])
    attacked = per_seed["attack"] != "none"
    full = per_seed[~attacked].set_index(["recipe", "seed"])[names].reindex(runs).set_axis(per_seed.index)
    change = (per_seed[names] - full).where(attacked).add_suffix("_delta")
    frame = summarise(pd.concat([per_seed, change], axis=1))
    frame = with_distances(data, benchmark, frame, per_seed, scores)
    frame = frame.assign(benchmark=benchmark, model=data.roles.main_of(benchmark))
    return ordered(frame, ["recipe", "benchmark", "model", "attack"], names)


def restored(
    data: PaperData,
    benchmark: str,
    methods: Mapping[str, str],
    attacks: Sequence[str] = QUANTISED,
    score: Score | None = None,
) -> list[str]:
    """Whose forgetting a quantiser undoes: recall (or `score`) higher than before it, beyond the spread over seeds; and
    whether those whose scores rise more than MASC's in the paper's Table 3 rise more than MASC's here.

    methods: recipes of the summary by the plain recipe that they are, such as {"npo+nf4": "npo"}.
    """
    score = score or findings.recall(data, benchmark)
    metric, label, digits = score.metric, score.label, score.digits
    own = {plain: recipe for recipe, plain in methods.items() if plain not in REFERENCES}
    start = data.values(benchmark, next(r for r, plain in methods.items() if plain == "target"), metric)
    printed_as = score.printed[0] if score.printed else RECALL_PRINTED
    rising = _rise_more_in_print(_printed(data, printed_as), PRINTED[benchmark] if score.printed else None)
    sentences = []
    for attack in attacks:
        groups: dict[str, list[str]] = {"higher": [], "lower": [], "undecided": []}
        changes: dict[str, dict[int, float]] = {}
        for plain, recipe in own.items():
            before, after = data.values(benchmark, recipe, metric), data.values(benchmark, recipe, metric, attack)
            change = {s: after[s] - before[s] for s in before.keys() & after.keys()}
            if not change:
                continue
            changes[plain] = change
            rise, sort = mean(change.values()), findings.verdict(after, before)
            share = ""
            if sort == "higher" and start and (forgotten := start[min(start)] - mean(before[s] for s in change)) > 0:
                share = f", {rise / forgotten:.0%} of what was forgotten"
            groups[sort].append(f"{recipe_name(plain)} ({rise:+.{digits}f}{share})")
        if not changes:
            continue
        text = (
            f"{attack} ({benchmark}): forget {label} rises beyond the spread over seeds for "
            f"{findings.listed(groups['higher'])}; falls for {findings.listed(groups['lower'])}; no change beyond the "
            f"spread for {findings.listed(groups['undecided'])}."
        )
        others = {recipe_name(p): changes[p] for p in rising if p in changes}
        if "masc" in changes and others:
            words = findings.ordering(changes["masc"], others, "less than for", "more than for")
            text += (
                f" In the paper {printed_as} rises more than MASC's for {findings.listed(list(others))}; here "
                f"MASC's changes by {findings.spread(changes['masc'], digits)}: {words}."
            )
        sentences.append(text)
    return sentences


def _printed(data: PaperData, metric: str = RECALL_PRINTED) -> dict[str, dict[str, float]]:
    """The paper's changes of a metric under 4 bits: by benchmark, by recipe."""
    rows = data.reported.rows_of("Table 3", metric=f"{metric}_delta_vs_full")
    names = {f"{recipe_name(r)} (4-bit)": r for r in HEADLINE if r not in REFERENCES}
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["method"] in names:
            found.setdefault(row["benchmark"], {})[names[row["method"]]] = float(row["value"])
    return found


def _rise_more_in_print(printed: Mapping[str, Mapping[str, float]], benchmark: str | None) -> list[str]:
    """Recipes that rise in print, and more than MASC, on a benchmark, or on every one of the paper's table."""
    tables = [table for name, table in printed.items() if "masc" in table and benchmark in (name, None)]
    return [
        r for r in HEADLINE
        if r != "masc" and tables and all(t.get(r, -math.inf) > max(0.0, t["masc"]) for t in tables)
    ]  # fmt: skip


def printed_changes(data: PaperData) -> list[str]:
    """The paper's own changes, as one sentence a benchmark."""
    return [
        f"The paper's change of {RECALL_PRINTED} under 4 bits on {benchmark}, in points, one model each: "
        f"{', '.join(f'{recipe_name(r)} {value:+.2f}' for r, value in changes.items())}."
        for benchmark, changes in _printed(data).items()
    ]
