"""MASC's tables of its own settings: hyper-parameters, LoRA or all parameters, and the number of alternatives."""

import json
import math
from collections.abc import Mapping
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


def table4(data: PaperData) -> Table:
    """MASC with LoRA and with all parameters trained (MASC Table 4)."""
    return _one_change(
        data,
        "Table 4",
        tuple(LORA),
        {recipe: LORA[recipe] for recipe in LORA},
        "MASC with LoRA and with all parameters trained",
    )


def _one_change(
    data: PaperData, place: str, recipes: tuple[str, ...], printed_as: Mapping[str, str], what: str
) -> Table:
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    for benchmark in data.roles.benchmarks.get("tofu", ()):
        scores = shown_scores(data, benchmark)
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, recipes)
        for name, label in [*((s.name, s.label) for s in scores), ("time_wall_s", "Time")]:
            printed = [printed_number(data, place, label, benchmark, printed_as[r]) for r in frame["recipe"]]
            frame = beside_paper(frame, name, printed)
        names = [*(s.name for s in scores), *TIMES, "steps"]
        blocks.append(ordered(frame, ["recipe", "benchmark", "model"], names))
        notes += _changes(data, benchmark, scores, recipes)
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *(
                Column(s.name, s.label, also=(("_distance_to_retrain", "to retrain"),) if s.overshoots else ())
                for s in labels.values()
            ),
            Column("time_cpu_s", "CPU s", digits=2, paper_digits=1),
            Column("time_wall_s", "wall s", digits=2, paper_digits=1),
            Column("steps", "steps", digits=0),
        ],
        caption=f"{PAPER}, {place}: {what}.",
        notes=[f"Ours: {data.place()}.", SPREAD, SECONDS, *notes],
    )


def _changes(data: PaperData, benchmark: str, scores: list[Score], recipes: tuple[str, ...]) -> list[str]:
    """Paired differences of the other recipes against MASC, score by score."""
    sentences = []
    for recipe in data.ran(benchmark, recipes[1:]):
        parts = []
        for score in scores:
            a, b = data.values(benchmark, recipe, score.metric), data.values(benchmark, recipes[0], score.metric)
            sign = 1 if score.top is None else -1
            found = findings.difference({s: sign * v for s, v in a.items()}, {s: sign * v for s, v in b.items()})
            parts.append(f"{score.label} {findings.interval(found)}")
        sentences.append(f"{recipe_name(recipe)} minus {recipe_name(recipes[0])} ({benchmark}): {'; '.join(parts)}.")
    return sentences


def table5(data: PaperData) -> Table:
    """How many alternatives the margin is taken over (MASC Table 5)."""
    place, blocks, notes = "Table 5", [], []
    labels: dict[str, Score] = {}
    for benchmark in data.roles.headline.values():
        suite = data.suite(benchmark)
        scores = [*suite.forget, *suite.utility, *(s for s in suite.probes if data.values(benchmark, "masc", s.metric))]
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, tuple(ALTERNATIVES))
        start = data.values(benchmark, "target", GOLD_LOGIT)
        falls = {r: _falls(data.values(benchmark, r, GOLD_LOGIT), start) for r in frame["recipe"]}
        frame["k"] = [ALTERNATIVES[r] for r in frame["recipe"]]
        frame["delta_zy_mean"] = [pd.Series(falls[r], dtype=float).mean() for r in frame["recipe"]]
        frame["delta_zy_std"] = [pd.Series(falls[r], dtype=float).std(ddof=1) for r in frame["recipe"]]
        for name, label in [("delta_zy", "delta_zy"), ("steps", "stop_step"), *((s.name, s.label) for s in scores)]:
            printed = [
                printed_number(data, place, label, benchmark, f"MASC k={ALTERNATIVES[r]}") for r in frame["recipe"]
            ]
            frame = beside_paper(frame, name, printed)
        blocks.append(ordered(frame, ["recipe", "benchmark", "k"], ["delta_zy", "steps", *(s.name for s in scores)]))
        notes += _changes(data, benchmark, scores, tuple(ALTERNATIVES))
        if len(present := [r for r in ALTERNATIVES if falls.get(r)]) > 1:
            pairs = ", ".join(f"k {ALTERNATIVES[r]}: {findings.spread(falls[r], 2)}" for r in present)
            notes.append(f"Change of the gold logit ({benchmark}): {pairs}. The paper's fall shrinks with k.")
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
            f"Ours: {data.place()}. Δ gold logit: mean raw logit of the forget answers' tokens, after minus before. "
            "Raw logits are defined up to a constant a position, so only rows of one model compare.",
            SPREAD,
            *notes,
        ],
    )


def _falls(after: Mapping[int, float], start: Mapping[int, float]) -> dict[int, float]:
    return {seed: value - start[min(start)] for seed, value in after.items()} if start else {}


def table8(data: PaperData) -> Table:
    """MASC's hyper-parameters, ours and the paper's (MASC Table 8)."""
    rows, notes = [], []
    for benchmark in data.roles.headline.values():
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
            notes.append(
                f"{benchmark}: batch {spec['batch']['effective']} forget and {spec['batch']['effective']} retain rows, "
                f"weight decay {spec['optimizer']['weight_decay']}, alternatives of the "
                f"{spec['forget']['alternatives']} model, a probe of {spec['stop']['trigger']} then "
                f"{spec['stop']['confirm']} rows every {spec['stop']['every']} steps, at most {spec['epochs']} epochs."
            )
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
                Column(
                    name,
                    heading,
                    digits=5 if name == "learning_rate" else 3,
                    paper_digits=5 if name == "learning_rate" else 3,
                ),
                *((Column("alpha_used", "α used"),) if name == "stop_alpha" else ()),
            )
        ],
        caption=f"{PAPER}, Table 8: MASC's hyper-parameters.",
        notes=[
            f"Ours: {data.place()}. α `retrain`: the retrained model's own violation rate, found before each run; α "
            "used is its value. Benchmarks without a row of ours are the paper's.",
            *notes,
        ],
    )


def _setting(spec: Mapping[str, Any], path: tuple[str, str]) -> Any:
    return (spec.get(path[0]) or {}).get(path[1], math.nan)


def _printed_setting(data: PaperData, benchmark: str, name: str) -> Any:
    return data.reported.find("Table 8", f"hyperparameter:{name}", benchmark=benchmark)
