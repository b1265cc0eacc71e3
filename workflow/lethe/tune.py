"""Blind tuning: the settings of scale mini, chosen by one rule for every method in a world that is never reported.

Every method has the same number of trials, named in config/tuning.yaml. A trial is one run from the target of scale
`tuning`, evaluated as any other, and gets

    J = mean over forget scores of |score - retrained model's| + max(0, target's utility - utility),

with the forget scores ROUGE-L recall, probability, truth ratio and value recall. The lowest J wins, of equal ones the
first. J asks of every method the same two things that unlearning is for, being close to a model that never saw the
data and as useful as before; it looks at nothing of multiple choice, paraphrases, quantisation or time, which are
reported. A run that diverged, or lacks a score, is a trial without J. Each trial is one run of seed 0.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lethe import config, paths
from lethe.errors import LetheError
from lethe.files import read_json, write_json, write_text
from lethe.plan import REFERENCE_SEED, weights
from lethe.recipe import Recipe, load_recipes, resolve, set_values
from lethe.schema import read_yaml, validate

SCALE = "tuning"
FORGET = ("forget.rouge_l_recall", "forget.prob", "forget.truth_ratio.geo", "forget.value_recall")
UTILITY = "model_utility"
MOST_TRIALS = 8
COLUMNS = ["recipe", "trial", "settings", *FORGET, UTILITY, "J", "steps", "stop_reason", "cpu_s", "chosen", "reason"]

Scores = Mapping[str, float]


def objective(scores: Mapping[str, Any], retrain: Scores, target: Scores) -> float | None:
    """J of a run, from the values of FORGET and UTILITY; at least 0, lower is better. None where a score is missing or
    not finite."""
    values = [scores.get(name) for name in (*FORGET, UTILITY)]
    if not all(value is not None and math.isfinite(value) for value in values):
        return None
    distance = sum(abs(scores[name] - retrain[name]) for name in FORGET) / len(FORGET)
    return distance + max(0.0, target[UTILITY] - scores[UTILITY])


def choose(js: list[float | None]) -> int | None:
    """The trial with the lowest J, the first of equal ones; None where no trial has any."""
    known = [(j, i) for i, j in enumerate(js) if j is not None and math.isfinite(j)]
    return min(known)[1] if known else None


def read_trials(path: Path) -> dict[str, list[dict[str, Any]]]:
    """{recipe: settings of its trials}. LetheError: another number of trials for some method, or too many."""
    trials = read_yaml(path).get("recipes", {})
    counts = {name: len(rows) for name, rows in trials.items()}
    if not counts or len(set(counts.values())) > 1 or max(counts.values()) > MOST_TRIALS:
        raise LetheError(f"{path}: recipes: the same number of trials for each, at most {MOST_TRIALS}, got {counts}")
    return trials


def check_world(scale: config.Scale, others: Mapping[str, config.Scale]) -> None:
    """LetheError: a world of this scale is one of another scale's, which could be reported."""
    seeds = _world_seeds(scale)
    for name, other in others.items():
        if shared := seeds & _world_seeds(other):
            raise LetheError(
                f"{paths.scale_file(scale.name)}: a world of its own, got seed {min(shared)} of scale {name}"
            )


def tune(trials_file: Path, out: Path, work: Path, only: list[str] | None = None) -> None:
    """Run the trials that are not in the work folder yet, then write the log `out` of all that are.

    LetheError: a recipe without trials; a world that another scale has; a trial that fails without having diverged.
    """
    trials, scale = read_trials(trials_file), config.load_scale(SCALE)
    if unknown := sorted(set(only or ()) - set(trials)):
        raise LetheError(f"{trials_file}: recipes: no trials of {', '.join(unknown)} (has: {', '.join(trials)})")
    names = (file.stem for file in Path(paths.scale_file(SCALE)).parent.glob("*.yaml"))
    check_world(scale, {name: config.load_scale(name) for name in names if name != SCALE})
    benchmark, model = scale.roles.benchmarks["tofu"][0], scale.roles.models["main"][0]
    anchors: dict[str, dict[str, float]] = {
        name: _scores(read_json(paths.evaluation(SCALE, f"{benchmark}/{model}/{name}", REFERENCE_SEED, "none")))
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
        js = [objective(found[i], **anchors) if i in found else None for i in range(len(settings))]
        rows += [
            {
                **trial, "recipe": name, "trial": i, "settings": json.dumps(trial["settings"]), "J": js[i],
                "chosen": i == choose(js),
            }
            for i, trial in found.items()
        ]  # fmt: skip
    log = pd.DataFrame(rows, columns=COLUMNS)
    write_text(out, log.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def run_trial(
    scale: config.Scale, benchmark: str, model: str, name: str, settings: Mapping[str, Any], work: Path
) -> dict[str, Any]:
    """One run and its scores; where it diverged, the reason. Its weights are not kept. LetheError: another failure."""
    from lethe.data.text import get_template
    from lethe.metrics.evaluate import evaluate_model
    from lethe.unlearn.run import train_single
    from lethe.unlearn.training import Sources

    recipe = resolve(load_recipes(), name, scale.settings, model, benchmark)
    changed = set_values(recipe.model_dump(mode="json"), [f"{key}={value}" for key, value in settings.items()])
    recipe = validate(Recipe, changed, f"tuning: {name}")
    data, run = Path(paths.data(SCALE, benchmark)), f"{benchmark}/{model}"
    options = scale.models[model].template
    sources = Sources(
        start=weights(scale, f"{run}/target", REFERENCE_SEED),
        forget=data / "forget.jsonl",
        retain=data / "retain.jsonl",
        refusals=data / "idk.jsonl",
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
            **_scores(read_json(folder / "eval.json")),
            **{k: trained[k] for k in ("steps", "stop_reason", "cpu_s")},
        }
    except LetheError as e:
        if "not finite" not in str(e):  # a missing file is no property of the method
            raise
        return {"reason": str(e)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scores(evaluation: Mapping[str, Any]) -> dict[str, float]:
    return {name: evaluation["metrics"][name]["value"] for name in (*FORGET, UTILITY)}


def _world_seeds(scale: config.Scale) -> set[int]:
    sources = [scale.world, *(corpus.source for corpus in scale.corpora.values())]
    return {source.world.seed for source in sources if isinstance(source, config.WorldSource)}
