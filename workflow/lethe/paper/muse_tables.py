"""MASC's tables on MUSE: scores and time, 4-bit quantisation, privacy leakage, and MUSE's own six criteria."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev

import pandas as pd

from lethe.paper import findings
from lethe.paper.data import (
    HEADLINE,
    KNOWMEM,
    KNOWMEM_RETAIN,
    REFERENCES,
    VERBMEM,
    PaperData,
    Score,
    recipe_name,
    summarise,
)
from lethe.paper.masc_quantised import quantised_block, restored
from lethe.paper.masc_tables import (
    DISTANCE,
    PAPER,
    PRINTED,
    SCORES_IN,
    SECONDS,
    SPREAD,
    has_any,
    ordered,
    printed_score,
    score_columns,
    score_frame,
    score_table,
    stacked,
)
from lethe.paper.tables import Column, Table, beside_paper

QUANTISED = ("bnb-fp4", "rtn4")
PAPER_QUANTISED = "bnb-fp4"
PRINTED_CHANGES = {VERBMEM.name: "VerbMem_delta_vs_full", KNOWMEM.name: "KnowMem_delta_vs_full"}
PRIVLEAK = Score("privleak", "PrivLeak", digits=2)
AUC = Score("mia.min_k_auc", "AUC", overshoots=True)
CHANGES = {"muse-scal": "scalability", "muse-sust": "sustainability"}  # of utility along the benchmarks of a role
KEYS = {"recipe": "Method", "benchmark": "Benchmark", "model": "Model"}

SCORES = (
    "VerbMem and KnowMem: mean ROUGE-L F1, 0 to 100, of continuations of forget texts and of answers to questions "
    "about forget (f) and retain (r) texts. (f): what is still remembered, so lower means more forgotten."
)
FALLING = DISTANCE.replace("rise with", "fall with")
CHANGE = (
    "Δ: score minus that of the same seed at full precision (none), averaged over seeds. of Base's: score over that of "
    "Base under the same weights, the share of what the target knows that is still there. Read every row beside Base "
    "and Retrain: what these lose is damage done by quantisation. bnb-fp4 is the paper's quantiser, rtn4 another one."
)


def table2(data: PaperData) -> Table:
    """Verbatim and knowledge memorisation, and unlearning time on MUSE (MASC Table 2)."""
    return score_table(data, suite="muse", notes=[SCORES, SPREAD, FALLING, SECONDS])


def table3(data: PaperData) -> Table:
    """What is left of the forget set at full precision and after 4-bit quantisation (MASC Table 3)."""
    place, benchmarks, scores = "Table 3", data.evaluated("muse"), (VERBMEM, KNOWMEM)
    methods = dict(zip(HEADLINE, HEADLINE, strict=True))
    notes = []
    for benchmark in benchmarks:
        for score in scores:
            plain = replace(score, label=score.label.removesuffix("(f)"))
            notes += restored(data, benchmark, methods, QUANTISED, plain)
            notes += _still_there(data, benchmark, plain)
    return Table(
        frame=stacked(_quantised(data, benchmark, scores, place) for benchmark in benchmarks),
        keys=KEYS | {"attack": "Weights"},
        columns=[
            Column(s.name, s.label, s.digits, s.digits, also=(("_delta", "Δ"), ("_kept", "of Base's"))) for s in scores
        ],
        caption=f"{PAPER}, {place}: what is left of the forget set at full precision and after 4-bit quantisation on "
        f"{', '.join(benchmarks)}.",
        notes=[
            f"Ours: {data.place(benchmarks)}.",
            SCORES,
            SPREAD,
            CHANGE,
            *(gap for b in benchmarks for gap in data.gaps(b, scores, ("none", *QUANTISED), HEADLINE)),
            *findings.lone_seed(data, benchmarks),
            *notes,
        ],
        blocks="recipe",
    )


def _quantised(data: PaperData, benchmark: str, scores: Sequence[Score], place: str) -> pd.DataFrame:
    """quantised_block with the share of Base's score that is left; beside it the paper's scores at full precision and
    under its quantiser, and its changes."""
    frame = quantised_block(data, benchmark, scores, attacks=QUANTISED)
    frame = frame.merge(_shares(data, benchmark, scores), on=["recipe", "attack"], how="left")
    for score in scores:
        printed, changes = [], []
        for recipe, attack in zip(frame["recipe"], frame["attack"], strict=True):
            where = {"benchmark": PRINTED.get(benchmark, ""), "method": recipe_name(recipe)}
            full = data.reported.score(SCORES_IN["muse"], score, **where) if attack == "none" else None
            where["method"] += " (4-bit)"
            four = data.reported.score(place, score, **where) if attack == PAPER_QUANTISED else None
            printed.append(full or four)
            changes.append(data.reported.find(place, PRINTED_CHANGES[score.name], **where) if four else None)
        frame = beside_paper(frame, score.name, printed)
        frame = beside_paper(frame, f"{score.name}_delta", changes, spread=False)
    return ordered(frame, [*KEYS, "attack"], [s.name for s in scores])


def _shares(data: PaperData, benchmark: str, scores: Sequence[Score]) -> pd.DataFrame:
    """recipe, attack, {score}_kept_mean and _std: score over that of the first target seed under the same attack."""
    per_seed = data.per_seed(benchmark, scores, ("none", *QUANTISED), HEADLINE)
    for score in scores:
        base = {a: _base(data, benchmark, score, a) for a in ("none", *QUANTISED)}
        per_seed[f"{score.name}_kept"] = per_seed[score.name] / per_seed["attack"].map(base)
    return summarise(per_seed.drop(columns=[s.name for s in scores])).drop(columns="n_seeds")


def _base(data: PaperData, benchmark: str, score: Score, attack: str) -> float | None:
    """The first target seed's score under an attack; None where there is none to share in."""
    values = data.values(benchmark, "target", score.metric, attack)
    return (values[min(values)] or None) if values else None


def _still_there(data: PaperData, benchmark: str, score: Score) -> list[str]:
    """The share of Base's score that MASC, the other methods and Retrain keep under each quantiser."""
    full, sentences = _base(data, benchmark, score, "none"), []
    for attack in QUANTISED:
        four = _base(data, benchmark, score, attack)
        after = {r: v for r in HEADLINE if (v := data.values(benchmark, r, score.metric, attack))}
        if not full or not four or "masc" not in after:
            continue
        shares = {r: mean(values.values()) / four for r, values in after.items()}
        others = {shares[r]: recipe_name(r) for r in shares if r not in (*REFERENCES, "masc")}
        before = data.values(benchmark, "masc", score.metric)
        text = f"{attack} ({benchmark}): of the quantised Base's {score.label} MASC keeps {shares['masc']:.0%}"
        text += f" (at full precision {mean(before.values()) / full:.0%})" if before else ""
        if others:
            low, high = min(others), max(others)
            text += f", the other methods {low:.0%} ({others[low]}) to {high:.0%} ({others[high]})"
        sentences.append(text + (f", Retrain {shares['retrain']:.0%}." if "retrain" in shares else "."))
    return sentences


def table7(data: PaperData) -> Table:
    """Privacy leakage, and the membership AUC that it comes from (MASC Table 7)."""
    place, benchmarks, scores = "Table 7", data.evaluated("muse"), (PRIVLEAK, AUC)
    blocks = []
    for benchmark in benchmarks:
        frame = score_frame(data, benchmark, scores, HEADLINE, run_columns=())
        printed = [printed_score(data, place, PRIVLEAK, benchmark, recipe_name(r)) for r in frame["recipe"]]
        blocks.append(ordered(beside_paper(frame, PRIVLEAK.name, printed), list(KEYS), [s.name for s in scores]))
    return Table(
        frame=stacked(blocks),
        keys=KEYS,
        columns=score_columns(scores),
        caption=f"{PAPER}, {place}: privacy leakage on {', '.join(benchmarks)}.",
        notes=[
            f"Ours: {data.place(benchmarks)}. AUC: probability that a forget text has a higher mean loss over its 40 % "
            "least likely tokens than a text never seen (Min-40%). PrivLeak: 100 (AUC - AUC of Retrain) / AUC of "
            "Retrain; 0 is no leak, below 0 forget texts still look learned, above 0 they look unlearned.",
            SPREAD,
            DISTANCE.replace("These scores rise with forgetting without end", "The AUC rises with forgetting"),
            *(text for b in benchmarks for text in _reference_auc(data, b)),
            *(gap for b in benchmarks for gap in data.gaps(b, scores, recipes=HEADLINE)),
            *findings.lone_seed(data, benchmarks),
            *(text for b in benchmarks for text in _leaks(data, b, place)),
        ],
    )


def _reference_auc(data: PaperData, benchmark: str) -> list[str]:
    """Which AUC PrivLeak was taken against, ours and the paper's."""
    reference = data.reference(benchmark, AUC)
    if math.isnan(reference):
        return []
    rows = data.reported.rows_of("repo:muse_bench/constants.py", benchmark=PRINTED.get(benchmark, ""))
    printed = f"; the released code divides by {float(rows[0]['value']):.4f}" if rows else ""
    return [f"AUC of Retrain ({benchmark}): {reference:.4f}, measured on its first seed{printed}."]


def _leaks(data: PaperData, benchmark: str, place: str) -> list[str]:
    """Who leaks beyond the spread over seeds, to which side, and whether the paper prints the same side."""
    groups: dict[findings.Verdict, list[str]] = {"higher": [], "lower": [], "undecided": []}
    same: list[str] = []
    other: list[str] = []
    for recipe in data.ran(benchmark, [r for r in HEADLINE if r not in REFERENCES]):
        if not (own := data.values(benchmark, recipe, PRIVLEAK.metric)):
            continue
        side = findings.verdict(own, dict.fromkeys(own, 0.0))
        groups[side].append(f"{recipe_name(recipe)} {findings.spread(own, PRIVLEAK.digits)}")
        printed = printed_score(data, place, PRIVLEAK, benchmark, recipe_name(recipe))
        if printed and side != "undecided":
            (same if (printed.value > 0) == (side == "higher") else other).append(recipe_name(recipe))
    if not any(groups.values()):
        return []
    noise = data.values(benchmark, "retrain", PRIVLEAK.metric)
    floor = f" Other retrained seeds: {findings.spread(noise, PRIVLEAK.digits)}." if noise else ""
    return [
        f"PrivLeak beyond the spread over seeds ({benchmark}): below 0, still learned: "
        f"{findings.listed(groups['lower'])}; above 0, unlearned past Retrain: {findings.listed(groups['higher'])}; "
        f"not told apart from 0: {findings.listed(groups['undecided'])}.{floor} On the side that the paper prints: "
        f"{findings.listed(same)}; on the other: {findings.listed(other)}."
    ]


def muse_criteria(data: PaperData) -> Table:
    """MUSE's six criteria (Shi et al. 2024) of every recipe and corpus."""
    scores, benchmarks = (VERBMEM, KNOWMEM, PRIVLEAK, KNOWMEM_RETAIN), data.evaluated("muse")
    blocks, notes = [], []
    for benchmark in benchmarks:
        frame = score_frame(data, benchmark, scores, HEADLINE, run_columns=())
        for role, name in CHANGES.items():
            changes = {r: _change(data, role, benchmark, r) for r in frame["recipe"]}
            for part, of in (("mean", mean), ("std", stdev)):
                enough = 1 if part == "mean" else 2
                frame[f"{name}_{part}"] = [
                    of(changes[r].values()) if len(changes[r]) >= enough else math.nan for r in frame["recipe"]
                ]
            notes += _along(changes, name, benchmark)
        blocks.append(ordered(frame, list(KEYS), [*(s.name for s in scores), *CHANGES.values()]))
        notes += _criteria(data, benchmark)
    frame = stacked(blocks)
    return Table(
        frame=frame,
        keys=KEYS,
        columns=[
            *score_columns(scores),
            *(Column(n, n, digits=2) for n in CHANGES.values() if has_any(frame, f"{n}_mean")),
        ],
        caption=f"{PAPER}: MUSE's six criteria on {', '.join(benchmarks)}.",
        notes=[
            f"Ours: {data.place(benchmarks)}. 1. no verbatim memorisation: VerbMem(f); 2. no knowledge memorisation: "
            "KnowMem(f); 3. no privacy leakage: PrivLeak near 0; 4. utility preservation: KnowMem(r); 5. scalability: "
            "KnowMem(r) at the largest forget set minus at the smallest; 6. sustainability: KnowMem(r) after the last "
            "request minus after the first. 5 and 6 in points, paired over seeds; 0 is best.",
            SPREAD,
            FALLING,
            *_not_run(data, benchmarks),
            *(gap for b in benchmarks for gap in data.gaps(b, scores, recipes=HEADLINE)),
            *findings.lone_seed(data, benchmarks),
            *notes,
        ],
    )


def path_of(data: PaperData, role: str, benchmark: str) -> list[str]:
    """The benchmarks of a role along which a corpus is unlearned, if they are of this corpus."""
    steps = list(data.roles.benchmarks.get(role, ()))
    return steps if steps and steps[0].startswith(f"{benchmark}-") else []


def _change(data: PaperData, role: str, benchmark: str, recipe: str) -> dict[int, float]:
    """Utility at the end of a path minus at its beginning, by seed."""
    if len(path := path_of(data, role, benchmark)) < 2:
        return {}
    first, last = (data.values(b, recipe, KNOWMEM_RETAIN.metric) for b in (path[0], path[-1]))
    return {s: last[s] - first[s] for s in sorted(first.keys() & last.keys())}


def _along(changes: Mapping[str, Mapping[int, float]], name: str, benchmark: str) -> list[str]:
    """Whose utility falls along a path beyond the spread over seeds."""
    groups: dict[findings.Verdict, list[str]] = {"higher": [], "lower": [], "undecided": []}
    for recipe, change in changes.items():
        if change:
            text = f"{recipe_name(recipe)} {findings.interval(findings.versus(change, 0.0), 2)}"
            groups[findings.verdict(change, dict.fromkeys(change, 0.0))].append(text)
    if not any(groups.values()):
        return []
    return [
        f"{name.capitalize()} ({benchmark}): KnowMem(r) falls beyond the spread over seeds for "
        f"{findings.listed(groups['lower'])}; rises for {findings.listed(groups['higher'])}; not told apart from no "
        f"change: {findings.listed(groups['undecided'])}."
    ]


def _not_run(data: PaperData, benchmarks: Sequence[str]) -> list[str]:
    """Why cells of scalability and sustainability are empty."""
    ran = [(b, r) for b in benchmarks for r in HEADLINE if any(_change(data, role, b, r) for role in CHANGES)]
    if not ran:
        return ["Scalability and sustainability are empty: no path of growing or repeated requests was run."]
    places, methods = (list(dict.fromkeys(pair[i] for pair in ran)) for i in range(2))
    return [
        f"Scalability and sustainability are empty where no path of requests was run: they were run on "
        f"{findings.listed(places)} alone, for {findings.listed([recipe_name(r) for r in methods])} alone."
    ]


def _criteria(data: PaperData, benchmark: str) -> list[str]:
    """Who fails the first four criteria beyond the spread over seeds: against Retrain, 0, and Base."""
    methods = data.ran(benchmark, [r for r in HEADLINE if r not in REFERENCES])
    goals = {VERBMEM: data.reference(benchmark, VERBMEM), KNOWMEM: data.reference(benchmark, KNOWMEM)}
    goals |= {PRIVLEAK: 0.0, KNOWMEM_RETAIN: _base(data, benchmark, KNOWMEM_RETAIN, "none") or math.nan}
    words = {
        VERBMEM: "more than Retrain's verbatim memory is left with",
        KNOWMEM: "more than Retrain's knowledge is left with",
        PRIVLEAK: "membership leaks with",
        KNOWMEM_RETAIN: "utility lies below Base's with",
    }
    bad = {VERBMEM: ("higher",), KNOWMEM: ("higher",), PRIVLEAK: ("higher", "lower"), KNOWMEM_RETAIN: ("lower",)}
    failing: dict[Score, list[str]] = {}
    for score, goal in ((s, g) for s, g in goals.items() if not math.isnan(g)):
        values = {r: data.values(benchmark, r, score.metric) for r in methods}
        failing[score] = [
            r for r in methods if findings.verdict(values[r], dict.fromkeys(values[r], goal)) in bad[score]
        ]
    if not methods or len(data.values(benchmark, methods[0], VERBMEM.metric)) < 2:
        return []
    text = "; ".join(f"{words[s]} {findings.listed([recipe_name(r) for r in found])}" for s, found in failing.items())
    clean = [recipe_name(r) for r in methods if not any(r in found for found in failing.values())]
    return [f"Beyond the spread over seeds ({benchmark}): {text}; none of the four: {findings.listed(clean)}."]
