"""MASC's tables of its own settings: hyper-parameters, LoRA or all parameters, and the number of alternatives."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lethe.paper import findings
from lethe.paper.data import PaperData, Score, recipe_name
from lethe.paper.masc_tables import (
    PAPER,
    PRINTED,
    SECONDS,
    SPREAD,
    TIMES,
    ordered,
    printed_number,
    score_columns,
    score_frame,
    shown_scores,
    stacked,
)
from lethe.paper.tables import Column, Table, beside_paper

LORA = {"masc": "MASC-LoRA", "masc-full": "MASC Full-FT"}  # by the names of Table 4
ALTERNATIVES = {"masc": 10, "masc-k100": 100, "masc-k1000": 1000}
GOLD_LOGIT = "forget.gold_logit"
# Columns of Table 8: name in the reported numbers, heading, and where the value stands in a recipe.
SETTINGS = {
    "lambda_fg": ("λ forget", ("forget", "weight")),
    "rho": ("ρ", ("forget", "rho")),
    "eta": ("η", ("forget", "eta")),
    "top-k": ("k", ("forget", "k")),
    "beta": ("β", ("forget", "beta")),
    "stop_alpha": ("α", ("stop", "alpha")),
    "learning_rate": ("learning rate", ("optimizer", "lr")),
    "lora_rank": ("LoRA rank", ("adapter", "r")),
}
DIGITS = {"top-k": 0, "lora_rank": 0, "learning_rate": 5}


def table4(data: PaperData) -> Table:
    """MASC with LoRA and with all parameters trained (MASC Table 4)."""
    place, blocks, notes = "Table 4", [], []
    labels: dict[str, Score] = {}
    benchmarks = data.roles.benchmarks.get("tofu", ())
    for benchmark in benchmarks:
        scores = shown_scores(data, benchmark)
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, tuple(LORA))
        for name, label in [*((s.name, s.label) for s in scores), ("time_wall_s", "Time")]:
            printed = [printed_number(data, place, label, benchmark, LORA[r]) for r in frame["recipe"]]
            frame = beside_paper(frame, name, printed)
        names = [*(s.name for s in scores), *TIMES, "steps"]
        blocks.append(ordered(frame, ["recipe", "benchmark", "model"], names))
        notes += _changes(data, place, benchmark, scores, LORA)
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *score_columns(labels.values()),
            Column("time_cpu_s", "CPU s", digits=2, paper_digits=1),
            Column("time_wall_s", "wall s", digits=2, paper_digits=1),
            Column("steps", "steps", digits=0),
        ],
        caption=f"{PAPER}, {place}: MASC with LoRA and with all parameters trained.",
        notes=[f"Ours: {data.place()}.", SPREAD, SECONDS, *findings.lone_seed(data, benchmarks), *notes],
    )


def _changes(
    data: PaperData, place: str, benchmark: str, scores: Sequence[Score], printed_as: Mapping[str, str]
) -> list[str]:
    """Each other recipe minus MASC, score by score and in time, and whether the paper's difference has that sign."""
    sentences, clock = [], data.summary.time_kind()
    for recipe in data.ran(benchmark, [r for r in printed_as if r != "masc"]):
        measured = {
            s.label: [{k: s.of(v) for k, v in data.values(benchmark, r, s.metric).items()} for r in (recipe, "masc")]
            for s in scores
        }
        measured["Time"] = [data.run_values(benchmark, r, clock) for r in (recipe, "masc")]
        decided: list[str] = []
        open_: list[str] = []
        for label, sides in measured.items():
            found = findings.difference(*sides)
            if found is None:
                continue
            own = findings.verdict(*sides)
            text = f"{label}{' in s' if label == 'Time' else ''} {findings.interval(found)}"
            theirs = [printed_number(data, place, label, benchmark, printed_as[r]) for r in (recipe, "masc")]
            if theirs[0] and theirs[1]:
                change = theirs[0].value - theirs[1].value
                text += f" (paper {change:+.{1 if label == 'Time' else 3}f}"
                same = "the same" if (change > 0) == (found.mean > 0) else "the opposite"
                text += ")" if own == "undecided" or change == 0 else f", {same} sign)"
            (open_ if own == "undecided" else decided).append(text)
        pair = f"{recipe_name(recipe)} minus MASC ({benchmark})"
        sentences.append(
            f"{pair}, beyond the spread over seeds: {'; '.join(decided) or 'nothing'}. Not told apart: "
            f"{'; '.join(open_) or 'nothing'}."
        )
    return sentences


def table5(data: PaperData) -> Table:
    """How many alternatives the margin is taken over (MASC Table 5)."""
    place, blocks, notes = "Table 5", [], []
    labels: dict[str, Score] = {}
    printed_as = {r: f"MASC k={k}" for r, k in ALTERNATIVES.items()}
    benchmarks = data.headline("tofu")
    for benchmark in benchmarks:
        scores = shown_scores(data, benchmark)
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, tuple(ALTERNATIVES))
        start = data.values(benchmark, "target", GOLD_LOGIT)
        falls = {r: _falls(data.values(benchmark, r, GOLD_LOGIT), start) for r in frame["recipe"]}
        frame["k"] = frame["recipe"].map(ALTERNATIVES)
        frame["delta_zy_mean"] = [pd.Series(falls[r], dtype=float).mean() for r in frame["recipe"]]
        frame["delta_zy_std"] = [pd.Series(falls[r], dtype=float).std(ddof=1) for r in frame["recipe"]]
        for name, label in [("delta_zy", "delta_zy"), ("steps", "stop_step"), *((s.name, s.label) for s in scores)]:
            printed = [printed_number(data, place, label, benchmark, printed_as[r]) for r in frame["recipe"]]
            frame = beside_paper(frame, name, printed)
        blocks.append(ordered(frame, ["recipe", "benchmark", "k"], ["delta_zy", "steps", *(s.name for s in scores)]))
        notes += _gold_logit(data, benchmark, place, falls)
        notes += _changes(data, place, benchmark, scores, printed_as)
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "k": "k"},
        columns=[
            Column("delta_zy", "Δ gold logit", digits=2, paper_digits=2),
            Column("steps", "stop step", digits=1, paper_digits=0),
            *(Column(s.name, s.label) for s in labels.values()),
        ],
        caption=f"{PAPER}, {place}: alternatives in the margin.",
        notes=[
            f"Ours: {data.place()}. Δ gold logit: mean raw logit of the forget answers' tokens, after minus before "
            "(the first target seed, where every run starts). Raw logits are defined up to a constant a position, so "
            "only rows of one model compare.",
            SPREAD,
            *findings.lone_seed(data, benchmarks),
            *notes,
        ],
    )


def _falls(after: Mapping[int, float], start: Mapping[int, float]) -> dict[int, float]:
    return {seed: value - start[min(start)] for seed, value in after.items()} if start else {}


def _gold_logit(data: PaperData, benchmark: str, place: str, falls: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Does the gold logit change less with more alternatives, as the paper prints?"""
    present = [r for r in ALTERNATIVES if falls.get(r)]
    if len(present) < 2 or present[0] != "masc":
        return []
    parts = [f"k {ALTERNATIVES['masc']} {findings.spread(falls['masc'], 2)}"]
    words: dict[str, list[str]] = {"lower": [], "higher": [], "undecided": []}
    for recipe in present[1:]:
        size = [{s: abs(v) for s, v in falls[r].items()} for r in (recipe, "masc")]
        words[findings.verdict(*size)].append(f"k {ALTERNATIVES[recipe]}")
        parts.append(f"k {ALTERNATIVES[recipe]} {findings.spread(falls[recipe], 2)}")
    text = (
        f"Change of the gold logit ({benchmark}): {', '.join(parts)}; beyond the spread over seeds smaller in size "
        f"than with k {ALTERNATIVES['masc']}: {findings.listed(words['lower'])}; larger: "
        f"{findings.listed(words['higher'])}; not told apart: {findings.listed(words['undecided'])}."
    )
    printed = [printed_number(data, place, "delta_zy", benchmark, f"MASC k={ALTERNATIVES[r]}") for r in present]
    if all(printed):
        text += f" The paper prints {', '.join(f'{p.value:.2f}' for p in printed if p)}."
    return [text]


def table8(data: PaperData) -> Table:
    """MASC's hyper-parameters, ours and the paper's (MASC Table 8)."""
    rows, notes = [], []
    benchmarks = data.corpora()
    for benchmark in benchmarks:
        runs = data.runs_of(benchmark, ["masc"])
        specs = [json.loads(text) for text in runs["spec"].dropna().unique()] if "spec" in runs else []
        for spec in specs:
            own = {name: _setting(spec, path) for name, (_, path) in SETTINGS.items()}
            used = list(data.run_values(benchmark, "masc", "alpha").values())
            own["alpha_used"] = sum(used) / len(used) if used else math.nan
            printed = {
                f"{name}_paper": p.value
                if (p := _printed_setting(data, PRINTED.get(benchmark, ""), name))
                else math.nan
                for name in SETTINGS
            }
            rows.append({"recipe": "masc", "benchmark": benchmark, **own, **printed})
            notes += [_other_settings(data, benchmark, spec), *_unlike_printed(benchmark, own, printed)]
    ours = {PRINTED.get(row["benchmark"]) for row in rows}
    for name in dict.fromkeys(
        row["benchmark"] for row in data.reported.rows_of("Table 8") if row["benchmark"] not in ours
    ):
        printed = {f"{n}_paper": p.value if (p := _printed_setting(data, name, n)) else math.nan for n in SETTINGS}
        rows.append({"recipe": "masc", "benchmark": name, **printed})
    columns = [column for name in SETTINGS for column in (name, f"{name}_paper")]
    at = columns.index("stop_alpha") + 1
    frame = pd.DataFrame(rows, columns=["recipe", "benchmark", *columns[:at], "alpha_used", *columns[at:]])
    return Table(
        frame=frame,
        keys={"recipe": "Method", "benchmark": "Benchmark"},
        columns=[
            column
            for name, (heading, _) in SETTINGS.items()
            for column in (
                Column(name, heading, digits=DIGITS.get(name, 3), paper_digits=DIGITS.get(name, 3)),
                *((Column("alpha_used", "α used"),) if name == "stop_alpha" else ()),
            )
        ],
        caption=f"{PAPER}, Table 8: MASC's hyper-parameters.",
        notes=[
            f"Ours: {data.place(benchmarks)}. α `retrain`: the retrained model's own violation rate, found before each "
            "run; α used is its value. Benchmarks without a row of ours are the paper's.",
            *notes,
        ],
    )


def _other_settings(data: PaperData, benchmark: str, spec: Mapping[str, Any]) -> str:
    """What else decides a run, most of it not in the paper."""
    forget, stop, retain = spec["forget"], spec["stop"], spec.get("retain") or {}
    rows, chunks = spec["batch"]["effective"], spec.get("chunks") if data.roles.suite(benchmark) == "muse" else None
    windows = f", texts in windows of {chunks['window']} tokens" if chunks else ""
    keeps = f"retain loss {retain['loss']} with weight {retain['weight']:g}" if retain else "no retain loss"
    return (
        f"{benchmark}: τ = log(ρ / (1 - ρ)) = {math.log(forget['rho'] / (1 - forget['rho'])):.4f}, {keeps}, batch "
        f"{rows} forget and {rows} retain rows, weight decay {spec['optimizer']['weight_decay']:g}, alternatives of "
        f"the {forget['alternatives']} model, a probe of {stop['trigger']} then {stop['confirm']} rows every "
        f"{stop['every']} steps, budget {spec['epochs']} epochs{windows}."
    )


def _unlike_printed(benchmark: str, own: Mapping[str, Any], printed: Mapping[str, Any]) -> list[str]:
    if all(map(pd.isna, printed.values())):
        return []
    unlike = []
    for name, (heading, _) in SETTINGS.items():
        ours, theirs = own[name], printed[f"{name}_paper"]
        if not pd.isna(theirs) and ours != theirs:
            ours = "absent" if pd.isna(ours) else ours if isinstance(ours, str) else f"{ours:g}"
            unlike.append(f"{heading} {ours} (paper {theirs:g})")
    return [f"{benchmark}: other than the paper's: {findings.listed(unlike)}."]


def _setting(spec: Mapping[str, Any], path: tuple[str, str]) -> Any:
    return (spec.get(path[0]) or {}).get(path[1], math.nan)


def _printed_setting(data: PaperData, benchmark: str, name: str) -> Any:
    return data.reported.find("Table 8", f"hyperparameter:{name}", benchmark=benchmark)
