"""Tables that the paper does not have and its claims need: paired differences, controls, and what each difference
between paper and released code changes."""

from collections.abc import Mapping, Sequence

import numpy as np

from lethe.analysis.pareto import dominates, front_beyond_noise, hypervolume
from lethe.paper import findings
from lethe.paper.data import HEADLINE, REFERENCES, PaperData, Score, recipe_name
from lethe.paper.masc_tables import (
    DISTANCE,
    PAPER,
    SECONDS,
    SPREAD,
    TIMES,
    forgetting,
    ordered,
    score_columns,
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
    "masc": "as the paper says, with the code's probe",
    "masc-noretain": "1. retain loss: paper KL to the start; code (TOFU script) none",
    "masc-base": "2. alternatives: paper the current model's top k; code (News script) the start's within .5 logits",
    "masc-offbatch": "3. probe: paper 8-16 random rows off the batch; code the first 4, then 32",
    "masc-pooled": "4. averages: paper by sequence; code over the batch's pooled tokens",
    "masc-suffix": "5. answer positions: paper does not say; code a random suffix of each answer",
    "masc-scaling": "6. scaling runs: paper gives no settings; code λ .1, ρ .5, η .5, α .2",
    "masc-alpha": "α: where MASC here has the retrained model's own rate, the paper's .475, and the other way round",
    "masc-system": "11. system prompt: code's scaling runs unlearn with another one than they evaluate with",
}
NOT_RUN = (
    "Not among the rows: 7 (4-bit evaluation by default) concerns MUSE; 8 (utility over the retain scores or over all "
    "nine) is the two columns MU and MU, retain only; 9 (two printed utilities of SimNPO) and 12 (a script that fails "
    "as shipped) have nothing to run; 10 (where the paper's Figure 2 stops): our Figure 2 shows where it stops here."
)
RETAIN_ONLY = Score("model_utility.retain", "MU, retain only")
INTERVAL = "In brackets the Student t interval at 95 % of the paired difference over seeds; one seed has none."
ENDS = ("", "_lo", "_hi")

Points = Mapping[str, Mapping[int, tuple[float, float]]]  # of each recipe and seed: closeness to Retrain, utility


def paired(data: PaperData) -> Table:
    """Every method and control minus MASC, seed by seed, and who dominates whom."""
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    benchmarks = data.roles.benchmarks.get("tofu", ())
    recipes = tuple(r for r in dict.fromkeys([*HEADLINE, *CONTROLS]) if r not in REFERENCES)
    for benchmark in benchmarks:
        scores = shown_scores(data, benchmark)
        labels |= {s.name: s for s in scores}
        names = [*(s.name for s in scores), *TIMES, "steps"]
        frame = score_frame(data, benchmark, scores, recipes, against="masc")
        frame = frame[frame["recipe"] != "masc"].reset_index(drop=True)
        frame = frame.rename(columns={f"{n}_change{end}": f"{n}_minus_masc{end}" for n in names for end in ENDS})
        points = _points(data, benchmark, recipes)
        frame["pareto"] = [_relation(points, r) for r in frame["recipe"]]
        differences = [f"{n}_minus_masc{end}" for n in names for end in ENDS]
        blocks.append(frame[["recipe", "benchmark", "model", *differences, "pareto", "n_seeds"]])
        notes += _fronts(data, benchmark, points)
    frame = stacked(blocks)
    shown = int(frame.filter(regex="_minus_masc_lo$").notna().to_numpy().sum())
    return Table(
        frame=frame,
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *(Column(f"{s.name}_minus_masc", s.label) for s in labels.values()),
            Column("time_cpu_s_minus_masc", "CPU s", digits=2),
            Column("time_wall_s_minus_masc", "wall s", digits=2),
            Column("steps_minus_masc", "steps", digits=1),
            Column("pareto", "Pareto"),
        ],
        caption=f"{PAPER}: every method minus MASC, paired over seeds.",
        notes=[
            f"Ours: {data.place()}.",
            INTERVAL,
            *findings.many_intervals(shown),
            *findings.lone_seed(data, benchmarks),
            *notes,
        ],
    )


def _points(data: PaperData, benchmark: str, recipes: Sequence[str]) -> Points:
    utility = data.suite(benchmark).utility[0].metric
    points: dict[str, dict[int, tuple[float, float]]] = {}
    for recipe, away in findings.distances(data, benchmark, forgetting(data, benchmark), recipes).items():
        kept = data.values(benchmark, recipe, utility)
        points[recipe] = {seed: (1 - d, kept[seed]) for seed, d in away.items() if seed in kept}
    return {recipe: by_seed for recipe, by_seed in points.items() if by_seed}


def _relation(points: Points, recipe: str) -> str:
    if recipe not in points or "masc" not in points:
        return ""
    if dominates(points[recipe], points["masc"]):
        return "dominates MASC"
    return "dominated by MASC" if dominates(points["masc"], points[recipe]) else "neither"


def _fronts(data: PaperData, benchmark: str, points: Points) -> list[str]:
    """Which methods nothing dominates, and the area under the means with and without MASC."""
    methods = {r: points[r] for r in HEADLINE if r in points}
    if "masc" not in methods or len(methods) < 2:
        return []
    front = front_beyond_noise(methods)
    means = {r: np.mean(list(v.values()), axis=0) for r, v in methods.items()}
    areas = [
        hypervolume(np.array([m for r, m in means.items() if keep or not r.startswith("masc")]).reshape(-1, 2), (0, 0))
        for keep in (True, False)
    ]
    named = findings.listed([s.label for s in forgetting(data, benchmark)])
    return [
        f"Pareto ({benchmark}): objectives 1 - mean distance to Retrain over {named}, and "
        f"{data.suite(benchmark).utility[0].label}; a method dominates another if neither paired difference may lie "
        f"below 0 and one lies above it. Methods that no other dominates: "
        f"{findings.listed([recipe_name(r) for r in front])}. Area under the means above the reference point (0, 0): "
        f"{areas[0]:.4f} with MASC and MASC (full), {areas[1]:.4f} without."
    ]


def controls(data: PaperData) -> Table:
    """What of MASC's result comes from the update's size, the data, the loss, the stop rule."""
    blocks, notes = [], []
    labels: dict[str, Score] = {}
    benchmarks = data.headline("tofu")
    for benchmark in benchmarks:
        scores = [*shown_scores(data, benchmark), Score("retain.rouge_l_recall", "Retain ROUGE")]
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, CONTROLS, ("steps", "update_norm"), against="masc")
        names = [*(s.name for s in scores), *TIMES, "steps", "update_norm"]
        blocks.append(ordered(frame, ["recipe", "benchmark", "model"], names))
        notes += [*_harm(data, benchmark), *_pairing(data, benchmark), *_loss_or_stop(data, benchmark)]
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *score_columns(labels.values(), "minus MASC"),
            Column("time_cpu_s", "CPU s", digits=2),
            Column("time_wall_s", "wall s", digits=2),
            Column("steps", "steps", digits=1),
            Column("update_norm", "update norm", digits=2),
        ],
        caption=f"{PAPER}: controls.",
        notes=[
            f"Ours: {data.place()}. Random update: every weight matrix moved as far as MASC moved it, in a random "
            "direction. Shuffled answers: MASC on forget questions with each other's answers, for as many steps. "
            "MASC's stop: GradDiff and SimNPO, with their own training, ended by MASC's rule at MASC's alpha.",
            SPREAD,
            DISTANCE,
            SECONDS,
            INTERVAL,
            *findings.lone_seed(data, benchmarks),
            *notes,
        ],
    )


def _harm(data: PaperData, benchmark: str) -> list[str]:
    """Is a random update of the same size harmless?"""
    recall, utility = findings.recall(data, benchmark), data.suite(benchmark).utility[0]
    parts, touched = [], []
    for name, words in ((recall.metric, f"forget {recall.label}"), (utility.metric, utility.label)):
        own, start = data.values(benchmark, "masc-random", name), data.values(benchmark, "target", name)
        if not own or not start:
            return []
        base = start[min(start)]
        parts.append(
            f"{words} by {findings.interval(findings.versus(own, base))} (MASC by "
            f"{findings.interval(findings.versus(data.values(benchmark, 'masc', name), base))})"
        )
        if findings.verdict(own, dict.fromkeys(own, base)) != "undecided":
            touched.append(words)
    what = f"beyond the spread it moves {' and '.join(touched)}" if touched else "neither moves beyond the spread"
    return [f"A random update of MASC's size ({benchmark}) changes {' and '.join(parts)}: {what}."]


def _pairing(data: PaperData, benchmark: str) -> list[str]:
    """Does it matter that questions and answers belong together?"""
    recall = findings.recall(data, benchmark)
    shuffled, ours = (data.values(benchmark, r, recall.metric) for r in ("masc-shuffled", "masc"))
    if not shuffled or not ours:
        return []
    words = {
        "higher": "answers to the wrong questions make it forget less",
        "lower": "answers to the wrong questions make it forget more",
        "undecided": "whether answers and questions belong together makes no difference beyond the spread",
    }[findings.verdict(shuffled, ours)]
    return [
        f"MASC on shuffled answers ({benchmark}) leaves forget {recall.label} {findings.spread(shuffled)}, MASC "
        f"{findings.spread(ours)} (difference {findings.interval(findings.difference(shuffled, ours))}): {words}."
    ]


def _loss_or_stop(data: PaperData, benchmark: str) -> list[str]:
    """The same stop rule on another loss, against MASC and against that loss with its own budget."""
    recall, utility = findings.recall(data, benchmark), data.suite(benchmark).utility[0]
    clock = data.summary.time_kind()
    sentences = []
    for plain in ("graddiff", "simnpo"):
        stopped = data.values(benchmark, f"{plain}-stop", recall.metric)
        if not stopped:
            continue
        text = f"{recipe_name(plain)} with MASC's stop ({benchmark})"
        if late := findings.unstopped(data, benchmark, f"{plain}-stop"):
            text += f", which did not fire within its budget in seed {findings.listed([str(s) for s in late])},"
        text += f" leaves forget {recall.label} {findings.spread(stopped)}."
        for other in ("masc", plain):
            theirs = data.values(benchmark, other, recall.metric)
            if not theirs:
                continue
            kept = [data.values(benchmark, r, utility.metric) for r in (f"{plain}-stop", other)]
            seconds = [data.run_values(benchmark, r, clock) for r in (f"{plain}-stop", other)]
            changes = {
                recall.label: findings.difference(stopped, theirs),
                utility.label: findings.difference(*kept),
                "seconds": findings.difference(*seconds),
            }
            name = "MASC" if other == "masc" else f"{recipe_name(plain)} to the end of its budget"
            decided = [what for what, d in changes.items() if d and d.lo is not None and d.hi is not None
                       and (d.lo > 0 or d.hi < 0)]  # fmt: skip
            text += (
                f" Minus {name}: {'; '.join(f'{what} {findings.interval(d)}' for what, d in changes.items())}; beyond "
                f"the spread: {findings.listed(decided)}."
            )
        sentences.append(text)
    return sentences


def discrepancies(data: PaperData) -> Table:
    """Each point in which the paper and its released code differ, both ways, and what it changes."""
    blocks, notes, shown = [], [], 0
    labels: dict[str, Score] = {}
    benchmarks = data.headline("tofu")
    for benchmark in benchmarks:
        scores = [*shown_scores(data, benchmark), RETAIN_ONLY, Score("retain.rouge_l_recall", "Retain ROUGE")]
        scores = [s for s in scores if data.values(benchmark, "masc", s.metric)]
        labels |= {s.name: s for s in scores}
        frame = score_frame(data, benchmark, scores, tuple(POINTS), ("steps", "alpha"), against="masc")
        frame["point"] = frame["recipe"].map(POINTS)
        names = [*(s.name for s in scores), *TIMES, "steps", "alpha"]
        blocks.append(ordered(frame, ["recipe", "benchmark", "model", "point"], names))
        shown += int(frame[[f"{s.name}_change_lo" for s in scores]].notna().to_numpy().sum())
        notes += _matters(data, benchmark, scores)
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model", "point": "Point"},
        columns=[
            *(Column(s.name, s.label, also=(("_change", "change"),)) for s in labels.values()),
            Column("time_cpu_s", "CPU s", digits=2, also=(("_change", "change"),)),
            Column("steps", "steps", digits=1, also=(("_change", "change"),)),
            Column("alpha", "α used"),
        ],
        caption=f"{PAPER}: what each difference between the paper and its released code changes.",
        notes=[
            f"Ours: {data.place()}; change against MASC. {INTERVAL}",
            "α used: where it is the retrained model's own violation rate, it is measured as the row's stop rule "
            "measures, so it changes with k, answer positions and prompt.",
            SPREAD,
            NOT_RUN,
            *findings.many_intervals(shown),
            *findings.lone_seed(data, benchmarks),
            *notes,
        ],
    )


def _matters(data: PaperData, benchmark: str, scores: Sequence[Score]) -> list[str]:
    """Which points change a score beyond the spread over seeds, then each with what it changes."""
    sentences = []
    changing: list[str] = []
    idle: list[str] = []
    for recipe in data.ran(benchmark, list(POINTS)[1:]):
        parts = []
        for score in scores:
            sides = [
                {s: score.of(v) for s, v in data.values(benchmark, r, score.metric).items()} for r in (recipe, "masc")
            ]
            if findings.verdict(*sides) != "undecided":
                parts.append(f"{score.label} {findings.interval(findings.difference(*sides))}")
        steps = findings.difference(*(data.run_values(benchmark, r, "steps") for r in (recipe, "masc")))
        (changing if parts else idle).append(recipe_name(recipe))
        sentences.append(
            f"{POINTS[recipe]} ({benchmark}): {'; '.join(parts) or 'no score changes beyond the spread over seeds'}; "
            f"steps {findings.interval(steps, 1)}."
        )
    if not sentences:
        return []
    return [
        f"Change a score beyond the spread over seeds ({benchmark}): {findings.listed(changing)}; change none: "
        f"{findings.listed(idle)}.",
        *sentences,
    ]
