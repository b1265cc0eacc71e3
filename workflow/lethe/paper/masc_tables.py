"""The tables of MASC (arXiv 2606.02920): each a function from PaperData to a Table."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from lethe.paper import findings
from lethe.paper.data import HEADLINE, REFERENCES, PaperData, Printed, Score, recipe_name, summarise
from lethe.paper.tables import Column, Table, beside_paper

PAPER = "MASC (arXiv 2606.02920)"
PRINTED = {"tofu-forget10": "TOFU", "muse-news": "MUSE News", "muse-books": "MUSE Books"}  # by their names in the paper
SCORES_IN = {"tofu": "Table 1", "muse": "Table 2"}  # where the paper prints the scores of a suite
TIMES = ("time_cpu_s", "time_wall_s")
QUESTIONS = 4  # that Table 11 shows of a benchmark
TASKS = {"forget": "answer", "verbatim_forget": "go on", "knowledge_forget": "answer, after examples"}  # by split
LONGEST = 240  # characters of a question; of a longer one Table 11 shows the end

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


def table1(data: PaperData) -> Table:
    """Forget and utility scores and unlearning time on TOFU (MASC Table 1)."""
    return score_table(data, suite="tofu", notes=[SPREAD, DISTANCE, SECONDS])


def score_table(data: PaperData, suite: str, notes: Sequence[str]) -> Table:
    """Scores and time of every recipe of the main model on the benchmarks of a suite, a block a benchmark."""
    place, benchmarks = SCORES_IN[suite], data.evaluated(suite)
    shown = {benchmark: shown_scores(data, benchmark) for benchmark in benchmarks}
    models = [m for b in benchmarks for m in data.reported.models(place, benchmark=PRINTED.get(b, ""))]
    paper = f" Paper: {place}, {', '.join(models)}." if models else ""
    return Table(
        frame=stacked(_score_block(data, benchmark, shown[benchmark], place) for benchmark in benchmarks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=[
            *score_columns(dict.fromkeys(s for scores in shown.values() for s in scores)),
            Column("time_cpu_s", "CPU s", digits=2, paper_digits=1),
            Column("time_wall_s", "wall s", digits=2, paper_digits=1),
            Column("steps", "steps", digits=0),
        ],
        caption=f"{PAPER}, {place}: forgetting, utility and unlearning time on {', '.join(benchmarks)}.",
        notes=[
            f"Ours: {data.place(benchmarks)}.{paper}",
            *notes,
            *(gap for benchmark in benchmarks for gap in data.gaps(benchmark, shown[benchmark], recipes=HEADLINE)),
            *(text for benchmark in benchmarks for text in _headline_findings(data, benchmark, place)),
        ],
    )


def _headline_findings(data: PaperData, benchmark: str, place: str) -> list[str]:
    baselines = [r for r in HEADLINE if r not in REFERENCES and not r.startswith("masc")]
    printed_as = PRINTED.get(benchmark, "")
    return [
        *findings.faster(data, benchmark, baselines, place, printed_as),
        *findings.closeness(data, benchmark, forgetting(data, benchmark), HEADLINE),
        *findings.utility(data, benchmark, data.suite(benchmark).shown[-1], baselines, place, printed_as),
        *findings.stop_position(data, benchmark),
        *findings.amount(data, benchmark, baselines),
        *findings.probes(data, benchmark, HEADLINE),
    ]


def score_frame(
    data: PaperData,
    benchmark: str,
    scores: Sequence[Score],
    recipes: Sequence[str],
    run_columns: Sequence[str] = ("steps",),
    against: str | None = None,
) -> pd.DataFrame:
    """A row a recipe: mean and deviation of every score, time and column of runs.csv, distances to retrain, and with
    `against` the paired change of each against that recipe, with its Student interval."""
    per_seed = data.per_seed(benchmark, scores, recipes=recipes)
    wide = data.with_times(benchmark, per_seed)
    for column in run_columns:
        found = {r: data.run_values(benchmark, r, column) if r not in REFERENCES else {} for r in set(wide["recipe"])}
        wide[column] = [found[r].get(s, math.nan) for r, s in zip(wide["recipe"], wide["seed"], strict=True)]
    frame = summarise(wide).drop(columns="attack")
    frame = with_distances(data, benchmark, frame, per_seed, scores)
    if against is not None:
        frame = _with_changes(frame, wide, [*(s.name for s in scores), *TIMES, *run_columns], against)
    return frame.assign(benchmark=benchmark, model=data.roles.main_of(benchmark))


def _with_changes(frame: pd.DataFrame, wide: pd.DataFrame, names: Sequence[str], against: str) -> pd.DataFrame:
    """Add {name}_change with _lo and _hi: paired over seeds, 95 % Student interval. Empty for `against` itself and for
    target and retrain, whose seeds are other trainings and pair with nothing."""
    by_seed = {r: rows.set_index("seed") for r, rows in wide.groupby("recipe")}
    for name in names:
        values = {r: rows[name].dropna().to_dict() for r, rows in by_seed.items()}
        changes = [
            None if r in (against, *REFERENCES) else findings.difference(values[r], values.get(against, {}))
            for r in frame["recipe"]
        ]
        frame[f"{name}_change"] = [c.mean if c else math.nan for c in changes]
        frame[f"{name}_change_lo"] = [c.lo if c and c.lo is not None else math.nan for c in changes]
        frame[f"{name}_change_hi"] = [c.hi if c and c.hi is not None else math.nan for c in changes]
    return frame


def _score_block(data: PaperData, benchmark: str, scores: Sequence[Score], place: str) -> pd.DataFrame:
    frame = score_frame(data, benchmark, scores, HEADLINE)
    for score in (*scores, Score("time_wall_s", "Time")):
        printed = [printed_score(data, place, score, benchmark, recipe_name(r)) for r in frame["recipe"]]
        frame = beside_paper(frame, score.name, printed)
    return ordered(frame, ["recipe", "benchmark", "model"], [*(s.name for s in scores), *TIMES, "steps"])


def table6(data: PaperData) -> Table:
    """Forget quality and what is left of the rest: utility, retain scores, multiple choice (MASC Table 6)."""
    place = "Table 6"
    benchmarks = data.roles.benchmarks.get("tofu", ())
    kept = {b: [s for s in data.suite(b).kept if _has_values(data, b, s)] for b in benchmarks}
    blocks = []
    for benchmark in benchmarks:
        frame = score_frame(data, benchmark, kept[benchmark], HEADLINE, run_columns=())
        for score in kept[benchmark]:
            printed = [printed_number(data, place, score.label, benchmark, recipe_name(r)) for r in frame["recipe"]]
            frame = beside_paper(frame, score.name, printed)
        blocks.append(ordered(frame, ["recipe", "benchmark", "model"], [s.name for s in kept[benchmark]]))
    chance = {r for b in benchmarks for r in _chance_levels(data, b)}
    return Table(
        frame=stacked(blocks),
        keys={"recipe": "Method", "benchmark": "Benchmark", "model": "Model"},
        columns=score_columns(dict.fromkeys(s for scores in kept.values() for s in scores)),
        caption=f"{PAPER}, {place}: forget quality, utility and multiple choice on {', '.join(benchmarks)}.",
        notes=[
            f"Ours: {data.place()}. FQ: p of a two-sample Kolmogorov-Smirnov test of truth ratios against the "
            "retrained model's, so its own other seeds have no p of 1. MCQ: share of questions in which the true value "
            f"beats the others offered{'; ' + ', '.join(sorted(chance)) if chance else ''}.",
            SPREAD,
            *(gap for b in benchmarks for gap in data.gaps(b, kept[b], recipes=HEADLINE)),
            *findings.lone_seed(data, benchmarks),
            *(text for b in benchmarks for text in _forget_quality(data, b, place)),
            *(text for b in benchmarks for text in findings.probes(data, b, HEADLINE)),
        ],
    )


def _forget_quality(data: PaperData, benchmark: str, place: str) -> list[str]:
    """Who passes the KS test of forget quality at 5 %, and whether MASC comes closest to passing, as in the paper."""
    methods = [r for r in HEADLINE if r not in REFERENCES]
    found = {r: v for r in data.ran(benchmark, methods) if (v := data.values(benchmark, r, "forget_quality.p"))}
    if not found:
        return []
    passed = [f"{recipe_name(r)} ({findings.spread(v, 3)})" for r, v in found.items() if min(v.values()) > 0.05]
    sentences = [f"FQ above .05 in every seed ({benchmark}): {findings.listed(passed)}."]
    logs = {r: v for r in found if (v := data.values(benchmark, r, "forget_quality.log10p"))}
    if "masc" in logs and len(logs) > 1:
        others = {recipe_name(r): v for r, v in logs.items() if r != "masc"}
        words = findings.ordering(logs["masc"], others)
        text = f"log10 FQ ({benchmark}): MASC has {findings.spread(logs['masc'], 1)}, {words}."
        printed = {r: p.value for r in methods if (p := printed_number(data, place, "FQ", benchmark, recipe_name(r)))}
        if "masc" in printed and len(printed) > 1:
            rank = sorted(printed.values(), reverse=True).index(printed["masc"]) + 1
            text += f" In the paper its FQ, {printed['masc']:.1e}, is number {rank} of {len(printed)} from the top."
        sentences.append(text)
    return sentences


def _chance_levels(data: PaperData, benchmark: str) -> set[str]:
    rows = data.summary.select(benchmark=benchmark, metric="forget.mcq_acc").dropna(subset="value")
    return {str(reason) for reason in rows["reason"].dropna() if "chance" in str(reason)}


def table11(data: PaperData) -> Table:
    """What models answer to forget questions (MASC Table 11); answers of one seed, as they were generated."""
    shown, benchmarks = ("target", "retrain", "simnpo", "masc"), data.corpora()
    rows = [row for benchmark in benchmarks for row in _answers(data, benchmark, shown)]
    frame = pd.DataFrame(rows, columns=["question", "benchmark", "task", "gold", *shown])
    same = [int((frame[recipe] == frame["gold"]).sum()) for recipe in shown]
    counts = ", ".join(f"{recipe_name(r)} {n}" for r, n in zip(shown, same, strict=True))
    keys, texts = {"question": "Question", "benchmark": "Benchmark"}, []
    if set(frame["task"]) - {TASKS["forget"]}:
        keys["task"] = "Task"
        texts = ["MUSE: texts to go on with, of which the end is shown, and questions after examples of others."]
    else:
        frame = frame.drop(columns="task")
    return Table(
        frame=frame,
        keys=keys,
        columns=[Column("gold", "Gold answer"), *(Column(r, recipe_name(r)) for r in shown)],
        caption=f"{PAPER}, Table 11: answers to forget questions.",
        notes=[
            f"Ours: {data.place(benchmarks)}; the first questions of the forget set and the first seed of each recipe, "
            "greedy decoding. The paper's own examples are texts that are not among the numbers shipped here.",
            *texts,
            f"Of these {len(frame)} questions answered word for word as in the data: {counts}.",
        ],
    )


def _answers(data: PaperData, benchmark: str, shown: Sequence[str]) -> list[dict[str, str]]:
    """The first questions of a benchmark, as many of each task, with the gold answer and the first seed's of every
    recipe."""
    tasks: dict[str, dict[tuple[int, str], dict[str, str]]] = {}
    for sample in sorted(data.summary.samples(), key=lambda sample: sample.get("seed", 0)):
        here = sample.get("benchmark") == benchmark and sample.get("model") == data.roles.main_of(benchmark)
        task = TASKS.get(sample.get("split", "forget"))
        if here and task and sample["attack"] == "none" and sample["recipe"] in shown:
            answers = tasks.setdefault(task, {})
            kept = answers.setdefault((sample["index"], sample["question"]), {"gold": sample["answer"]})
            kept.setdefault(sample["recipe"], sample["generation"])
    return [
        {"question": _end(question), "benchmark": benchmark, "task": task, **kept}
        for task, answers in tasks.items()
        for (_, question), kept in sorted(answers.items())[: QUESTIONS // len(tasks)]
    ]


def _end(question: str) -> str:
    return question if len(question) <= LONGEST else "… " + question[-LONGEST:].partition(" ")[2]


def score_columns(scores: Iterable[Score], change: str | None = None) -> list[Column]:
    """Scores with the distance to Retrain and, with `change`, the paired change under that heading."""
    return [
        Column(
            s.name,
            s.label,
            digits=s.digits,
            paper_digits=s.digits,
            also=(
                *((("_distance_to_retrain", "to retrain"),) if s.overshoots else ()),
                *((("_change", change),) if change else ()),
            ),
            tiny=s.metric.endswith(".p"),
        )
        for s in scores
    ]


def forgetting(data: PaperData, benchmark: str) -> list[Score]:
    """The scores whose distances to Retrain are averaged: the paper's, and value recall where the data have values."""
    probes = [s for s in shown_scores(data, benchmark) if s.metric == "forget.value_recall"]
    return [*(s for s in data.suite(benchmark).shown if s.overshoots), *probes]


def shown_scores(data: PaperData, benchmark: str) -> list[Score]:
    """The scores the paper has, and those probes that this summary has values for."""
    suite = data.suite(benchmark)
    rows = data.summary.select(benchmark=benchmark, model=data.roles.main_of(benchmark), attack="none")
    return [*suite.shown, *(s for s in suite.probes if s.metric in set(rows.dropna(subset="value")["metric"]))]


def _has_values(data: PaperData, benchmark: str, score: Score) -> bool:
    return len(data.summary.select(benchmark=benchmark, metric=score.metric).dropna(subset="value")) > 0


def printed_number(
    data: PaperData, place: str, metric: str, benchmark: str, method: str, **where: str
) -> Printed | None:
    return data.reported.find(place, metric, benchmark=PRINTED.get(benchmark, ""), method=method, **where)


def printed_score(data: PaperData, place: str, score: Score, benchmark: str, method: str) -> Printed | None:
    return data.reported.score(place, score, benchmark=PRINTED.get(benchmark, ""), method=method)


def with_distances(
    data: PaperData, benchmark: str, frame: pd.DataFrame, per_seed: pd.DataFrame, scores: Sequence[Score]
) -> pd.DataFrame:
    """Add {score}_distance_to_retrain, the mean over seeds of |score - reference|; empty for the reference itself."""
    groups = [per_seed["recipe"], per_seed["attack"]]
    for score in (s for s in scores if s.overshoots):
        away = (per_seed[score.name] - data.reference(benchmark, score)).abs()
        away[data.is_reference(benchmark, per_seed)] = float("nan")
        frame[f"{score.name}_distance_to_retrain"] = away.groupby(groups, sort=False).mean().to_numpy()
    return frame


def ordered(frame: pd.DataFrame, keys: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Key columns first, then what belongs to each score, then the number of seeds."""
    suffixes = ["_mean", "_std", "_paper", "_paper_std", "_paper_mark"]
    suffixes += [
        "_delta_mean",
        "_delta_std",
        "_delta_paper",
        "_kept_mean",
        "_kept_std",
        "_distance_to_retrain",
        "_change",
        "_change_lo",
        "_change_hi",
    ]
    columns = [*keys, *(name + suffix for name in names for suffix in suffixes), "n_seeds"]
    return frame[[c for c in columns if c in frame]]


def stacked(blocks: Iterable[pd.DataFrame]) -> pd.DataFrame:
    filled = [block for block in blocks if len(block)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


def has_any(frame: pd.DataFrame, column: str) -> bool:
    return column in frame and bool(frame[column].notna().any())
