"""Sentences that say what a table or figure shows, made from its numbers: every branch is decided by them.

A difference counts where the Student interval of the paired difference over seeds excludes 0. One seed decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Literal

from lethe.metrics.stats import PairedDifference, paired_difference
from lethe.paper.data import REFERENCES, PaperData, Score, recipe_name

BySeed = Mapping[int, float]
Verdict = Literal["lower", "higher", "undecided"]


def difference(a: BySeed, b: BySeed) -> PairedDifference | None:
    """a - b over the seeds that both have; None without any."""
    return paired_difference(a, b) if a.keys() & b.keys() else None


def verdict(a: BySeed, b: BySeed) -> Verdict:
    """Whether a lies below or above b beyond the spread over shared seeds."""
    found = difference(a, b)
    if found is None or found.lo is None or found.hi is None:
        return "undecided"
    return "lower" if found.hi < 0 else "higher" if found.lo > 0 else "undecided"


def spread(values: BySeed, digits: int = 3) -> str:
    """`0.550 ± 0.170 (n 3)`."""
    numbers = [float(v) for v in values.values()]
    if not numbers:
        return "no value"
    text = f"{mean(numbers):.{digits}f}"
    return f"{text} ± {stdev(numbers):.{digits}f} (n {len(numbers)})" if len(numbers) > 1 else f"{text} (n 1)"


def interval(found: PairedDifference | None, digits: int = 3) -> str:
    """`-0.120 [-0.200, -0.040], n 3`."""
    if found is None:
        return "no shared seed"
    text = f"{found.mean:+.{digits}f}"
    if found.lo is None or found.hi is None:
        return f"{text}, n 1, no interval"
    return f"{text} [{found.lo:+.{digits}f}, {found.hi:+.{digits}f}], n {found.n}"


def grouped(ours: BySeed, others: Mapping[str, BySeed]) -> dict[Verdict, list[str]]:
    """Names of the others by how `ours` lies to them."""
    groups: dict[Verdict, list[str]] = {"lower": [], "higher": [], "undecided": []}
    for name, values in others.items():
        groups[verdict(ours, values)].append(name)
    return groups


def listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def one_seed(values: BySeed) -> list[str]:
    """A warning where nothing can be told apart."""
    return ["One seed: no difference can be told from chance."] if len(values) == 1 else []


def faster(data: PaperData, benchmark: str, baselines: Sequence[str], place: str, printed_as: str) -> list[str]:
    """Is MASC the fastest? Ours, paired over seeds, and the paper's printed times."""
    clock = data.summary.time_kind()
    ours = data.run_values(benchmark, "masc", clock)
    others = {recipe_name(r): data.run_values(benchmark, r, clock) for r in data.ran(benchmark, baselines)}
    if not ours or not others:
        return []
    groups = grouped(ours, others)
    unit = "CPU s" if clock == "time_cpu_s" else "wall-clock s"
    text = (
        f"Time ({benchmark}): MASC takes {spread(ours, 2)} {unit}; less than {listed(groups['lower'])}; more than "
        f"{listed(groups['higher'])}; not told apart from {listed(groups['undecided'])}."
    )
    printed = {
        r: found.value
        for r in ("masc", *baselines)
        if (found := data.reported.find(place, "Time", benchmark=printed_as, method=recipe_name(r)))
    }
    least = min((v for r, v in printed.items() if r != "masc"), default=math.nan)
    if "masc" in printed and not math.isnan(least):
        text += f" The paper prints {printed['masc']:.0f} s for MASC and at least {least:.0f} s for the others"
        both = printed["masc"] < least and not groups["higher"] and not groups["undecided"]
        text += "; here, too, it is the fastest." if both else "; here it is not the fastest of all."
    return [text, *one_seed(ours)]


def distances(data: PaperData, benchmark: str, scores: Sequence[Score], recipes: Sequence[str]) -> dict[str, BySeed]:
    """Mean over scores of the distance to the retrained model, by recipe and seed. Only scores that would reward
    forgetting too much, and that the retrained model has."""
    known = [s for s in scores if s.overshoots and not math.isnan(data.reference(benchmark, s))]
    found: dict[str, dict[int, float]] = {}
    for row in data.per_seed(benchmark, known, recipes=recipes).to_dict("records") if known else []:
        away = [abs(row[s.name] - data.reference(benchmark, s)) for s in known]
        if not any(map(math.isnan, away)):
            found.setdefault(row["recipe"], {})[int(row["seed"])] = mean(away)
    return dict(found)


def closeness(data: PaperData, benchmark: str, scores: Sequence[Score], recipes: Sequence[str]) -> list[str]:
    """Which method comes closest to the retrained model, and where MASC stands."""
    away = distances(data, benchmark, scores, recipes)
    methods = {r: v for r, v in away.items() if r not in REFERENCES}
    if "masc" not in methods or len(methods) < 2:
        return []
    ranked = sorted(methods, key=lambda r: mean(methods[r].values()))
    groups = grouped(methods["masc"], {recipe_name(r): v for r, v in methods.items() if r != "masc"})
    noise = f" (other retrained seeds: {spread(away['retrain'])})" if len(away.get("retrain", ())) > 1 else ""
    return [
        f"Closeness to Retrain ({benchmark}), mean distance over {listed([s.label for s in scores if s.overshoots])}: "
        f"{recipe_name(ranked[0])} is closest with {spread(methods[ranked[0]])}{noise}; MASC is number "
        f"{ranked.index('masc') + 1} of {len(ranked)} with {spread(methods['masc'])}, closer than "
        f"{listed(groups['lower'])}, farther than {listed(groups['higher'])}, not told apart from "
        f"{listed(groups['undecided'])}."
    ]


def utility(data: PaperData, benchmark: str, score: Score, recipes: Sequence[str]) -> list[str]:
    """What MASC keeps, beside the start and the baselines."""
    ours, start = (data.values(benchmark, r, score.metric) for r in ("masc", "target"))
    others = {recipe_name(r): data.values(benchmark, r, score.metric) for r in data.ran(benchmark, recipes)}
    if not ours or not start:
        return []
    groups = grouped(ours, others)
    return [
        f"{score.label} ({benchmark}): MASC keeps {spread(ours)} of Base's {start[min(start)]:.3f}; more than "
        f"{listed(groups['higher'])}, less than {listed(groups['lower'])}, not told apart from "
        f"{listed(groups['undecided'])}."
    ]


def stop_position(data: PaperData, benchmark: str) -> list[str]:
    """Does MASC's stop fire before or after its model has forgotten as much as the retrained one?"""
    steps, alpha = (data.run_values(benchmark, "masc", column) for column in ("steps", "alpha"))
    metric = next(
        (m for m in ("forget.value_recall", "forget.rouge_l_recall") if data.values(benchmark, "masc", m)), ""
    )
    if not steps or not alpha or not metric:
        return []
    ours, goal = data.values(benchmark, "masc", metric), data.values(benchmark, "retrain", metric)
    rate, retrained = (data.values(benchmark, r, "violation_rate") for r in ("masc", "retrain"))
    text = (
        f"Stop ({benchmark}): after {spread(steps, 1)} steps, at a violation rate of {spread(rate)} with alpha "
        f"{mean(alpha.values()):.3f}"
    )
    if retrained:
        text += f" (the retrained model's own rate: {spread(retrained)})"
    if not goal:
        return [text + "."]
    reference = goal[min(goal)]
    where = {
        "higher": "it fires early: more is left than in a model that never saw the data",
        "lower": "it fires late: less is left than in a model that never saw the data",
        "undecided": "what is left cannot be told from a model that never saw the data",
    }[verdict(ours, dict.fromkeys(ours, reference))]
    label = "value recall" if "value" in metric else "ROUGE-L recall"
    return [f"{text}; forget {label} is then {spread(ours)}, Retrain's {reference:.3f}: {where}."]


def probes(data: PaperData, benchmark: str, recipes: Sequence[str]) -> list[str]:
    """Who still prefers the true value when it is offered."""
    found = {r: v for r in data.ran(benchmark, recipes) if (v := data.values(benchmark, r, "forget.mcq_acc"))}
    methods = {r: mean(v.values()) for r, v in found.items() if r not in REFERENCES}
    if "retrain" not in found or not methods:
        return []
    retrain = mean(found["retrain"].values())
    hiding = [recipe_name(r) for r, v in methods.items() if v > retrain + 0.1]
    return [
        f"Multiple choice ({benchmark}): Retrain picks the true value in {retrain:.2f} of the questions, the methods "
        f"in {min(methods.values()):.2f} to {max(methods.values()):.2f}. More than .10 above Retrain, hiding the "
        f"answer rather than forgetting it: {listed(hiding)}."
    ]
