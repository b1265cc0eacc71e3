"""A training run from files to files: load, train, save whole or not at all. Fine-tuning and unlearning alike."""

from __future__ import annotations

import contextlib
import copy
import csv
import hashlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lethe.errors import LetheError
from lethe.files import lock, read_json, sha256_file, write_json, write_text
from lethe.machine import machine, peak_memory
from lethe.models.load import DTYPES, layer_at, parameter_counts, save_model, weights_sha256
from lethe.optim.build import check_optimizer
from lethe.recipe import RMU, Recipe
from lethe.schema import canonical_json, spec_sha256
from lethe.unlearn.change import update_size
from lethe.unlearn.loop import uses_autocast
from lethe.unlearn.training import TRAINERS, Run, Sources

CHECKPOINT = "checkpoint.pt"


def train_seeds(
    recipe: Recipe, sources: Sources, seeds: Sequence[int], out: Path, work: Path, *, flat: bool = False
) -> None:
    """Train one run a seed into {out}/s{seed}. A finished seed waits under `work` until all are, so an interrupted
    call loses none; then each is renamed into place, run.json last."""
    check_recipe(recipe, sources)
    for seed in seeds:
        with lock(work / f"s{seed}.lock"):
            train_one(recipe, sources, seed, work / f"s{seed}", flat=flat)
    for seed in seeds:
        with lock(work / f"s{seed}.lock"):
            promote(work / f"s{seed}", out / f"s{seed}")


def train_single(recipe: Recipe, sources: Sources, seed: int, out: Path, work: Path, *, flat: bool = False) -> None:
    """Train one run into `out` itself."""
    check_recipe(recipe, sources)
    with lock(work / "lock"):
        train_one(recipe, sources, seed, work / "run", flat=flat)
        promote(work / "run", out)


def check_recipe(recipe: Recipe, sources: Sources) -> None:
    """What can be said before anything is loaded."""
    if recipe.method == "none" and not recipe.unlearns:
        raise LetheError(f"recipe {recipe.name}: method none trains nothing")
    if recipe.optimizer is not None:
        check_optimizer(recipe.optimizer)
    if recipe.needs_retrain and not sources.retrain:
        raise LetheError(f"recipe {recipe.name}: stop.alpha 'retrain' needs the retrained model (--retrain), got none")
    if recipe.like and not sources.like:
        raise LetheError(f"recipe {recipe.name}: needs the run of recipe '{recipe.like}' (--like), got none")
    if recipe.needs_refusals and sources.refusals is None:
        raise LetheError(f"recipe {recipe.name}: needs refusals (--refusals, a file of {{text}} rows), got none")
    if recipe.retain is not None and sources.retain is None and recipe.method != "task_vector":
        raise LetheError(
            f"recipe {recipe.name}: its retain loss {recipe.retain.loss} needs retain rows (--retain), got none"
        )
    if recipe.method == "task_vector" and sources.forget is None:
        raise LetheError(f"recipe {recipe.name}: needs forget rows (--forget), got none")


def train_one(recipe: Recipe, sources: Sources, seed: int, work: Path, *, flat: bool) -> None:
    """Train into work/done, resuming from work/checkpoint.pt where one of the same run lies."""
    sources = sources.of_seed(seed)
    identity = run_identity(recipe, sources, seed)
    done = work / "done"
    if (done / "run.json").exists() and read_json(done / "run.json")["identity"] == identity:
        return
    if work.exists() and identity_of(work) != identity:
        shutil.rmtree(work)
    write_text(work / "identity", identity)

    run = Run.load(recipe, sources, seed)
    save_dtype = run.start_dtype if recipe.precision.save == "start" else recipe.precision.save
    unchanged_sha256 = weights_sha256(_in_dtype(run.model, save_dtype))
    trained = TRAINERS[recipe.method](run, work / CHECKPOINT)

    if done.exists():
        shutil.rmtree(done)
    model = run.model
    if trained.adapter is not None:
        trained.adapter.save_pretrained(done / "adapter", safe_serialization=True)
        model = trained.adapter.merge_and_unload()
    saved = _in_dtype(model, save_dtype)
    sha256 = weights_sha256(saved)
    if sha256 == unchanged_sha256 and trained.reason not in ("already-satisfied", "untouched"):
        raise LetheError(
            f"{recipe.name} s{seed}: no parameter changed in {trained.state.step} steps (saved as {save_dtype})"
        )
    save_model(saved, run.tokenizer, done if flat else done / "weights")
    write_trace(done / "trace.csv", trained.state.trace)
    total, nonembed = parameter_counts(saved)
    state = trained.state
    write_json(
        done / "run.json",
        {
            "recipe": recipe.name,
            "seed": seed,
            "n_params": total,
            "n_params_nonembed": nonembed,
            "start_sha256": run.start_sha256,
            "weights_sha256": sha256,
            "steps": state.step,
            "stop_rule": recipe.stop.rule if recipe.stop else "budget",
            "stop_reason": trained.reason,
            "alpha": trained.alpha,
            **state.costs.report(state.step),
            "forget_tokens": state.tokens["forget"],
            "retain_tokens": state.tokens["retain"],
            "truncated": trained.truncated,
            "flops": state.costs.flops(parameters_run(model, recipe)),
            **(update_size(run.load_start(), saved, seed) if recipe.unlearns else {}),
            **peak_memory(),
            "effective_batch": recipe.batch.effective if recipe.batch else None,
            "dtype": f"float32, autocast {'bfloat16' if uses_autocast(recipe) else 'none'}, saved as {save_dtype}",
            **machine(),
            "identity": identity,
            "spec_sha256": spec_sha256(recipe),
            "spec": json.loads(canonical_json(recipe)),
        },
    )


def parameters_run(model: Any, recipe: Recipe) -> int:
    """The parameters that a token passes through: RMU stops at its layer."""
    if not isinstance(recipe.forget, RMU):
        return parameter_counts(model)[0]
    layers = model.get_decoder().layers[: layer_at(model, recipe.forget.depth)]
    return sum(p.numel() for module in (model.get_input_embeddings(), *layers) for p in module.parameters())


def _in_dtype(model: Any, dtype: str) -> Any:
    """As it will be saved: the model itself in float32, else a rounded copy."""
    return model if dtype == "float32" else copy.deepcopy(model).to(DTYPES[dtype])


def run_identity(recipe: Recipe, sources: Sources, seed: int) -> str:
    """Of everything that a run's result depends on, but for the code: a checkpoint of another run is not resumed."""
    files = [p for p in (sources.forget, sources.retain, sources.replay, sources.refusals) if p is not None]
    files += [sources.like / "run.json"] if sources.like else []
    for model in (sources.start, sources.retrain):
        files += sorted(Path(model).glob("*.safetensors")) if model else []  # none for a name on the hub
    text = json.dumps(
        [
            spec_sha256(recipe),
            seed,
            sources.start,
            sources.revision,
            str(sources.template),
            [sha256_file(p) for p in files],
            sources.retrain,
        ]
    )
    return hashlib.sha256(text.encode()).hexdigest()


def identity_of(work: Path) -> str | None:
    with contextlib.suppress(OSError):
        return (work / "identity").read_text()
    return None


def promote(work: Path, out: Path) -> None:
    """Rename a finished run into place, run.json last: a run without it is not finished."""
    done = work / "done"
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        if old.name in {p.name for p in done.iterdir()} | {"adapter", "run.json"}:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for path in sorted(done.iterdir(), key=lambda p: p.name == "run.json"):
        shutil.move(path, out / path.name)
    shutil.rmtree(work)


def write_trace(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """One row a step; for a run without steps, the heading alone."""
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["step"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    write_text(path, text.getvalue())
