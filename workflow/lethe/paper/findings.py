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


def ordering(ours: BySeed, others: Mapping[str, BySeed], less: str = "less than", more: str = "more than") -> str:
    """`less than NPO, RMU; not told apart from GA`: how `ours` lies to the others, empty groups left out."""
    groups = grouped(ours, others)
    words: dict[Verdict, str] = {"lower": less, "higher": more, "undecided": "not told apart from"}
    return "; ".join(f"{words[v]} {listed(names)}" for v, names in groups.items() if names)


def versus(ours: BySeed, value: float) -> PairedDifference | None:
    """ours minus one number that has no seeds of its own, such as a score of the model that every run starts from."""
    return difference(ours, dict.fromkeys(ours, value))


def one_seed(values: BySeed) -> list[str]:
    """A warning where nothing can be told apart."""
    return ["One seed: no difference can be told from chance."] if len(values) == 1 else []


def lone_seed(data: PaperData, benchmarks: Sequence[str]) -> list[str]:
    """The same warning for a table whose rows are held against MASC's."""
    return next((w for b in benchmarks if (w := one_seed(data.run_values(b, "masc", "steps")))), [])


def many_intervals(n: int) -> list[str]:
    """What n intervals at 95 % show by chance alone."""
    text = f"{n} intervals at 95 %: about {n / 20:.0f} would exclude 0 if nothing differed; none is corrected for that."
    return [text] if n >= 10 else []


def recall(data: PaperData, benchmark: str) -> Score:
    """The score that says what is left of the forget set: value recall where the data have values."""
    *better, last = data.suite(benchmark).recall
    for score in better:
        if any(data.values(benchmark, recipe, score.metric) for recipe in ("masc", *REFERENCES)):
            return score
    return last


def faster(data: PaperData, benchmark: str, baselines: Sequence[str], place: str, printed_as: str) -> list[str]:
    """Is MASC the fastest? Seconds and steps, paired over seeds, and the paper's printed times."""
    clock = data.summary.time_kind()
    ours, steps = (data.run_values(benchmark, "masc", column) for column in (clock, "steps"))
    ran = data.ran(benchmark, baselines)
    others = {recipe_name(r): data.run_values(benchmark, r, clock) for r in ran}
    if not ours or not others:
        return []
    groups = grouped(ours, others)
    unit = "CPU s" if clock == "time_cpu_s" else "wall-clock s"
    text = f"Time ({benchmark}): MASC takes {spread(ours, 2)} {unit}, {ordering(ours, others)}."
    if steps:
        theirs = {recipe_name(r): data.run_values(benchmark, r, "steps") for r in ran}
        text += f" Optimiser steps: {spread(steps, 1)}, {ordering(steps, theirs, less='fewer than')}."
    printed = {
        r: found.value
        for r in ("masc", *baselines)
        if (found := data.reported.find(place, "Time", benchmark=printed_as, method=recipe_name(r)))
    }
    times = [v for r, v in printed.items() if r != "masc"]
    if "masc" in printed and times:
        if groups["higher"]:
            here = f"here it is slower than {listed(groups['higher'])}"
        elif groups["undecided"]:
            here = f"here it cannot be told apart from {listed(groups['undecided'])}"
        else:
            here = f"here it is faster than all {len(others)} of them"
        text += (
            f" The paper prints {printed['masc']:.1f} s for MASC and {min(times):.1f} to {max(times):.1f} s for the "
            f"others; {here}."
        )
    return [text, *one_seed(ours)]


def distances(data: PaperData, benchmark: str, scores: Sequence[Score], recipes: Sequence[str]) -> dict[str, BySeed]:
    """Mean over scores of the distance to the retrained model, by recipe and seed. Only scores that would reward
    forgetting too much, and that the retrained model has."""
    goals = {s: data.reference(benchmark, s) for s in scores if s.overshoots}
    goals = {s: goal for s, goal in goals.items() if not math.isnan(goal)}
    found: dict[str, dict[int, float]] = {}
    for row in data.per_seed(benchmark, list(goals), recipes=recipes).to_dict("records") if goals else []:
        away = [abs(row[s.name] - goal) for s, goal in goals.items()]
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
    others = {recipe_name(r): v for r, v in methods.items() if r != "masc"}
    digits = scores[0].digits
    noise = f" (other retrained seeds: {spread(away['retrain'], digits)})" if len(away.get("retrain", ())) > 1 else ""
    return [
        f"Closeness to Retrain ({benchmark}), mean distance over {listed([s.label for s in scores if s.overshoots])}: "
        f"{recipe_name(ranked[0])} has the smallest mean, {spread(methods[ranked[0]], digits)}{noise}; MASC, number "
        f"{ranked.index('masc') + 1} of {len(ranked)} with {spread(methods['masc'], digits)}, is "
        f"{ordering(methods['masc'], others, 'closer than', 'farther than')}."
    ]


def utility(
    data: PaperData, benchmark: str, score: Score, recipes: Sequence[str], place: str, printed_as: str
) -> list[str]:
    """What MASC keeps, beside the model it starts from, the baselines, and the paper's numbers."""
    ours, start = (data.values(benchmark, r, score.metric) for r in ("masc", "target"))
    others = {recipe_name(r): v for r in data.ran(benchmark, recipes) if (v := data.values(benchmark, r, score.metric))}
    if not ours or not start:
        return []
    base, digits = start[min(start)], score.digits
    text = (
        f"{score.label} ({benchmark}): MASC has {spread(ours, digits)}, the model it starts from {base:.{digits}f} "
        f"(difference {interval(versus(ours, base), digits)})"
    )
    text += f"; {ordering(ours, others)}." if others else "."
    printed = {
        r: found.value
        for r in ("target", "masc", *recipes)
        if (found := data.reported.score(place, score, benchmark=printed_as, method=recipe_name(r)))
    }
    if "masc" in printed and (least := [v for r, v in printed.items() if r not in ("masc", "target")]):
        text += f" The paper prints {printed['masc']:.{digits}f} for MASC, {min(least):.{digits}f} to "
        text += f"{max(least):.{digits}f} for the others"
        text += f", {printed['target']:.{digits}f} before unlearning." if "target" in printed else "."
    return [text]


def amount(data: PaperData, benchmark: str, recipes: Sequence[str]) -> list[str]:
    """Does MASC forget as much as the methods that train for a fixed number of steps?"""
    score = recall(data, benchmark)
    ours = data.values(benchmark, "masc", score.metric)
    others = {recipe_name(r): v for r in data.ran(benchmark, recipes) if (v := data.values(benchmark, r, score.metric))}
    if not ours or not others:
        return []
    words = ordering(ours, others, less="less is left than with", more="more is left than with")
    return [f"Forget {score.label} ({benchmark}): MASC leaves {spread(ours, score.digits)}; {words}."]


def unstopped(data: PaperData, benchmark: str, recipe: str) -> list[int]:
    """Seeds in which a run with a stop rule used up its budget before the rule fired."""
    runs = data.runs_of(benchmark, [recipe])
    late = (runs["stop_rule"] == "violation_rate") & (runs["stop_reason"] == "budget")
    return sorted(int(seed) for seed in runs.loc[late, "seed"])


def stop_position(data: PaperData, benchmark: str) -> list[str]:
    """Does MASC's stop fire before or after its model has forgotten as much as the retrained one?"""
    steps, alpha = (data.run_values(benchmark, "masc", column) for column in ("steps", "alpha"))
    score = recall(data, benchmark)
    ours, goal = (data.values(benchmark, r, score.metric) for r in ("masc", "retrain"))
    if not steps or not alpha or not ours:
        return []
    rate, retrained = (data.values(benchmark, r, "violation_rate") for r in ("masc", "retrain"))
    text = (
        f"Stop ({benchmark}): after {spread(steps, 1)} steps, at a violation rate of {spread(rate)} with alpha "
        f"{mean(alpha.values()):.3f}"
    )
    if retrained:
        text += f" (the retrained model's own rate: {spread(retrained)})"
    if late := unstopped(data, benchmark, "masc"):
        text += f"; in seed {listed([str(seed) for seed in late])} the budget ended before the rule fired"
    if not goal:
        return [text + "."]
    reference = goal[min(goal)]
    where = {
        "higher": "it fires early: more is left than in a model that never saw the data",
        "lower": "it fires late: less is left than in a model that never saw the data",
        "undecided": "whether more or less is left than in a model that never saw the data cannot be told",
    }[verdict(ours, dict.fromkeys(ours, reference))]
    if len(ours) == 1:
        where = "one seed, which does not say whether it fires early or late"
    return [
        f"{text}; forget {score.label} is then {spread(ours, score.digits)}, Retrain's {reference:.{score.digits}f} "
        f"(difference {interval(versus(ours, reference), score.digits)}): {where}."
    ]


def probes(data: PaperData, benchmark: str, recipes: Sequence[str]) -> list[str]:
    """Who still prefers the true value when it is offered, though a model that never saw it does not."""
    found = {r: v for r in data.ran(benchmark, recipes) if (v := data.values(benchmark, r, "forget.mcq_acc"))}
    methods = {r: v for r, v in found.items() if r not in REFERENCES}
    if "retrain" not in found or not methods:
        return []
    retrain = found["retrain"][min(found["retrain"])]
    groups: dict[Verdict, list[str]] = {"higher": [], "lower": [], "undecided": []}
    for recipe, values in methods.items():
        groups[verdict(values, dict.fromkeys(values, retrain))].append(f"{recipe_name(recipe)} {spread(values, 2)}")
    return [
        f"Multiple choice ({benchmark}): Retrain picks the true value in {retrain:.2f} of the questions. Above it "
        f"beyond the spread over seeds, so that the answer is still known where it is offered: "
        f"{listed(groups['higher'])}; below it: {listed(groups['lower'])}; not told apart from it: "
        f"{listed(groups['undecided'])}."
    ]
