"""Blind tuning: the settings of scale mini, chosen by one rule for every method in a world that is never reported.

Every method has the same number of trials, named in config/tuning.yaml. A trial is one run from the target of scale
`tuning`, evaluated as any other, and gets

    J = mean over forget scores of |score - retrained model's| + max(0, target's utility - utility),

all scores between 0 and 1. The forget scores are ROUGE-L recall, probability, truth ratio and value recall on TOFU;
VerbMem, KnowMem and the membership AUC on MUSE. The lowest J wins, of equal ones the first. J asks of every method the
same two things that unlearning is for, being close to a model that never saw the data and as useful as before; it looks
at nothing of multiple choice, paraphrases, quantisation or time, which are reported. A run that diverged, or lacks a
score, is a trial without J. Each trial is one run of seed 0.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from lethe import config, paths
from lethe.errors import LetheError
from lethe.files import read_json, write_json, write_text
from lethe.plan import REFERENCE_SEED, paper_roles, recipe_of, weights
from lethe.recipe import Recipe, load_recipes, set_values
from lethe.schema import read_yaml, validate

SCALE = "tuning"
MOST_TRIALS = 8

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Criterion:
    """The scores of a suite that J is made of. top: their highest value, where it is not 1."""

    forget: tuple[str, ...]
    utility: str
    top: Scores = field(default_factory=dict)

    @property
    def scores(self) -> tuple[str, ...]:
        return (*self.forget, self.utility)


CRITERIA = {
    "tofu": Criterion(
        ("forget.rouge_l_recall", "forget.prob", "forget.truth_ratio.geo", "forget.value_recall"), "model_utility"
    ),
    "muse": Criterion(
        ("verbmem.forget", "knowmem.forget", "mia.min_k_auc"),
        "knowmem.retain",
        top={"verbmem.forget": 100, "knowmem.forget": 100, "knowmem.retain": 100},
    ),
}


def objective(criterion: Criterion, scores: Mapping[str, Any], retrain: Scores, target: Scores) -> float | None:
    """J of a run; at least 0, lower is better. None where a score is missing or not finite."""
    values = [scores.get(name) for name in criterion.scores]
    if not all(value is not None and math.isfinite(value) for value in values):
        return None
    ours, retrained, started = (
        {name: found[name] / criterion.top.get(name, 1) for name in criterion.scores}
        for found in (scores, retrain, target)
    )
    distance = sum(abs(ours[name] - retrained[name]) for name in criterion.forget) / len(criterion.forget)
    return distance + max(0.0, started[criterion.utility] - ours[criterion.utility])


def choose(js: list[float | None]) -> int | None:
    """The trial with the lowest J, the first of equal ones; None where no trial has any."""
    known = [(j, i) for i, j in enumerate(js) if j is not None and math.isfinite(j)]
    return min(known)[1] if known else None


def read_trials(path: Path, suite: str) -> dict[str, list[dict[str, Any]]]:
    """{recipe: settings of its trials on a suite's benchmarks}. LetheError: another number of trials for some method,
    or too many."""
    trials = read_yaml(path).get(suite, {})
    counts = {name: len(rows) for name, rows in trials.items()}
    if not counts or len(set(counts.values())) > 1 or max(counts.values()) > MOST_TRIALS:
        raise LetheError(f"{path}: {suite}: the same number of trials for each, at most {MOST_TRIALS}, got {counts}")
    return trials


def check_world(scale: config.Scale, others: Mapping[str, config.Scale]) -> None:
    """LetheError: a world of this scale is one of another scale's, which could be reported."""
    seeds = _world_seeds(scale)
    for name, other in others.items():
        if shared := seeds & _world_seeds(other):
            raise LetheError(
                f"{paths.scale_file(scale.name)}: a world of its own, got seed {min(shared)} of scale {name}"
            )


def tune(benchmark: str, trials_file: Path, out: Path, work: Path, only: list[str] | None = None) -> None:
    """Run the trials on a benchmark that are not in the work folder yet, then write the log `out` of all that are.

    LetheError: a recipe without trials; a world that another scale has; a trial that fails without having diverged.
    """
    scale = config.load_scale(SCALE)
    if benchmark not in scale.benchmarks:
        raise LetheError(
            f"--benchmark: no benchmark '{benchmark}' at scale {SCALE} (has: {', '.join(scale.benchmarks)})"
        )
    suite = scale.benchmarks[benchmark].suite
    trials, criterion = read_trials(trials_file, suite), CRITERIA[suite]
    if unknown := sorted(set(only or ()) - set(trials)):
        raise LetheError(f"{trials_file}: {suite}: no trials of {', '.join(unknown)} (has: {', '.join(trials)})")
    names = (file.stem for file in Path(paths.scale_file(SCALE)).parent.glob("*.yaml"))
    check_world(scale, {name: config.load_scale(name) for name in names if name != SCALE})
    model = paper_roles(config.load_study(SCALE), scale)["models"]["of"][benchmark]
    anchors: dict[str, dict[str, float]] = {
        name: _scores(criterion, paths.evaluation(SCALE, f"{benchmark}/{model}/{name}", REFERENCE_SEED, "none"))
        for name in ("retrain", "target")
    }
    for name in trials if only is None else only:
        for i, changes in enumerate(trials[name]):
            record = work / name / f"{i}.json"
            if not record.exists() or read_json(record)["settings"] != changes:
                write_json(record, {"settings": changes, **run_trial(scale, benchmark, model, name, changes, work)})
    rows: list[dict[str, Any]] = [{"recipe": name, **scores} for name, scores in anchors.items()]
    for name, settings in trials.items():
        found = {
            i: trial
            for i, changes in enumerate(settings)
            if (p := work / name / f"{i}.json").exists() and (trial := read_json(p))["settings"] == changes
        }
        js = [objective(criterion, found[i], **anchors) if i in found else None for i in range(len(settings))]
        rows += [
            {
                **trial, "recipe": name, "trial": i, "settings": json.dumps(trial["settings"]), "J": js[i],
                "chosen": i == choose(js),
            }
            for i, trial in found.items()
        ]  # fmt: skip
    columns = [
        "recipe",
        "trial",
        "settings",
        *criterion.scores,
        "J",
        "steps",
        "stop_reason",
        "cpu_s",
        "chosen",
        "reason",
    ]
    log = pd.DataFrame(rows, columns=columns)
    write_text(out, log.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def run_trial(
    scale: config.Scale, benchmark: str, model: str, name: str, settings: Mapping[str, Any], work: Path
) -> dict[str, Any]:
    """One run and its scores; where it diverged, the reason. Its weights are not kept. LetheError: another failure."""
    from lethe.data.text import get_template
    from lethe.metrics.evaluate import evaluate_model
    from lethe.unlearn.run import train_single
    from lethe.unlearn.training import Sources

    recipe = recipe_of(load_recipes(), scale, f"{benchmark}/{model}/{name}")
    changed = set_values(recipe.model_dump(mode="json"), [f"{key}={value}" for key, value in settings.items()])
    recipe = validate(Recipe, changed, f"tuning: {name}")
    data, run = Path(paths.data(SCALE, benchmark)), f"{benchmark}/{model}"
    options = scale.models[model].template
    sources = Sources(
        start=weights(scale, f"{run}/target", REFERENCE_SEED),
        forget=data / "forget.jsonl",
        retain=data / "retain.jsonl",
        refusals=data / "idk.jsonl" if recipe.needs_refusals else None,
        retrain=weights(scale, f"{run}/retrain", REFERENCE_SEED),
        template=get_template(options.name, options.system, options.date_string),
    )
    folder = work / name / "run"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        train_single(recipe, sources, 0, folder, work / name / "training")
        evaluate_model(
            f"{folder}/weights",
            "none",
            data,
            folder / "eval.json",
            reference=None,
            options=scale.evaluation.model_copy(update={"bootstrap": 0}),
            margin=None,
            template=sources.template,
        )
        trained = read_json(folder / "run.json")
        return {
            **_scores(CRITERIA[scale.benchmarks[benchmark].suite], folder / "eval.json"),
            **{k: trained[k] for k in ("steps", "stop_reason", "cpu_s")},
        }
    except LetheError as e:
        if "not finite" not in str(e):  # a missing file is no property of the method
            raise
        return {"reason": str(e)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scores(criterion: Criterion, evaluation: str | Path) -> dict[str, float]:
    metrics = read_json(evaluation)["metrics"]
    return {name: metrics[name]["value"] for name in criterion.scores}


def _world_seeds(scale: config.Scale) -> set[int]:
    sources = [scale.world, scale.library, *(corpus.source for corpus in scale.corpora.values())]
    worlds = {source.world.seed for source in sources if isinstance(source, config.WorldSource)}
    return worlds | {source.library.seed for source in sources if isinstance(source, config.LibrarySource)}
