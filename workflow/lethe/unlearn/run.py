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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lethe.data.rows import default_template, encode_rows
from lethe.data.text import Encoded, Template, pad_token_id
from lethe.errors import LetheError
from lethe.files import lock, read_json, sha256_file, write_json, write_text
from lethe.machine import machine, peak_memory
from lethe.models.load import DTYPES, load_model, load_tokenizer, parameter_counts, save_model, weights_sha256
from lethe.optim.build import check_optimizer
from lethe.progress import Progress
from lethe.recipe import Budget as BudgetOptions
from lethe.recipe import Recipe, ViolationRate
from lethe.schema import canonical_json, spec_sha256
from lethe.unlearn import stopping
from lethe.unlearn.loop import State, epoch_steps, stop_budget, train, uses_autocast, violation_rate
from lethe.unlearn.objective import active_positions
from lethe.unlearn.reference import Reference
from lethe.unlearn.streams import Stream

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Sources:
    """Where a run starts and what it reads. start, retrain: model folders or hub names. forget: None for fine-tuning,
    whose training rows are `retain`; replay: further rows, drawn from every epoch."""

    start: str
    retain: Path | None
    forget: Path | None = None
    replay: Path | None = None
    retrain: str | None = None
    template: Template | None = None
    revision: str | None = None
    trust_remote_code: bool = False


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
    if recipe.method == "none":
        raise LetheError(f"recipe {recipe.name}: method none trains nothing")
    if recipe.optimizer is not None:
        check_optimizer(recipe.optimizer)
    if recipe.needs_retrain and not sources.retrain:
        raise LetheError(f"recipe {recipe.name}: stop.alpha 'retrain' needs the retrained model (--retrain), got none")
    if recipe.retain is not None and sources.retain is None:
        raise LetheError(
            f"recipe {recipe.name}: its retain loss {recipe.retain.loss} needs retain rows (--retain), got none"
        )


def train_one(recipe: Recipe, sources: Sources, seed: int, work: Path, *, flat: bool) -> None:
    """Train into work/done, resuming from work/checkpoint.pt where one of the same run lies."""
    tokenizer = load_tokenizer(sources.start, revision=sources.revision, trust_remote_code=sources.trust_remote_code)
    template = sources.template or default_template(tokenizer)
    streams, truncated = make_streams(recipe, sources, tokenizer, template, seed)
    identity = run_identity(recipe, sources, seed)
    done = work / "done"
    if (done / "run.json").exists() and read_json(done / "run.json")["identity"] == identity:
        return
    if work.exists() and _identity_of(work) != identity:
        shutil.rmtree(work)
    write_text(work / "identity", identity)

    alpha = calibrated_alpha(recipe, sources, streams, tokenizer)
    start = load_model(
        sources.start, revision=sources.revision, dtype="auto", trust_remote_code=sources.trust_remote_code
    )
    start_dtype = str(start.dtype).removeprefix("torch.")
    start_sha256 = weights_sha256(start)
    save_dtype = start_dtype if recipe.precision.save == "start" else recipe.precision.save
    unchanged_sha256 = start_sha256
    if save_dtype != start_dtype:  # what "no parameter changed" means for weights saved in another dtype
        unchanged_sha256 = weights_sha256(copy.deepcopy(start).to(DTYPES[save_dtype]))
    model = start.float()
    torch.manual_seed(seed)
    adapter = add_adapter(model, recipe) if recipe.adapter else None
    pad = pad_token_id(tokenizer)
    forget = streams["forget"].examples if "forget" in streams else []
    state_before = State()
    with state_before.costs.measure("reference"):
        reference = Reference(model, adapter, recipe, forget, pad) if recipe.method == "gradient" else None
    stop = make_stop(recipe, streams, seed, alpha)
    progress = Progress(f"{recipe.name} s{seed}", total=stop_budget(stop))
    state, reason = train(
        model,
        recipe,
        streams,
        stop,
        seed=seed,
        pad_id=pad,
        reference=reference,
        checkpoint=work / CHECKPOINT,
        report=progress,
    )
    progress.close()
    state.costs.seconds["reference"] = state_before.costs.seconds["reference"]
    state.costs.forward_tokens += reference.forward_tokens if reference else 0

    if done.exists():
        shutil.rmtree(done)
    if adapter is not None:
        adapter.save_pretrained(done / "adapter", safe_serialization=True)
        model = adapter.merge_and_unload()
    saved = model if save_dtype == "float32" else copy.deepcopy(model).to(DTYPES[save_dtype])
    sha256 = weights_sha256(saved)
    if sha256 == unchanged_sha256 and reason != "already-satisfied":
        raise LetheError(f"{recipe.name} s{seed}: no parameter changed in {state.step} steps (saved as {save_dtype})")
    save_model(saved, tokenizer, done if flat else done / "weights")
    write_trace(done / "trace.csv", state.trace)
    total, nonembed = parameter_counts(saved)
    write_json(
        done / "run.json",
        {
            "recipe": recipe.name,
            "seed": seed,
            "n_params": total,
            "n_params_nonembed": nonembed,
            "start_sha256": start_sha256,
            "weights_sha256": sha256,
            "steps": state.step,
            "stop_rule": recipe.stop.rule if recipe.stop else "budget",
            "stop_reason": reason,
            "alpha": alpha,
            **state.costs.report(state.step),
            "forget_tokens": state.tokens["forget"],
            "retain_tokens": state.tokens["retain"],
            "truncated": truncated,
            "flops": state.costs.flops(total),
            **peak_memory(),
            "effective_batch": recipe.batch.effective if recipe.batch else None,
            "dtype": f"float32, autocast {'bfloat16' if uses_autocast(recipe) else 'none'}, saved as {save_dtype}",
            **machine(),
            "identity": identity,
            "spec_sha256": spec_sha256(recipe),
            "spec": json.loads(canonical_json(recipe)),
        },
    )


def make_streams(
    recipe: Recipe, sources: Sources, tokenizer: Any, template: Template, seed: int
) -> tuple[dict[str, Stream], int]:
    """Batches by term, and how many rows were cut at max_length."""
    assert recipe.batch is not None

    def read(path: Path) -> list[Encoded]:
        return encode_rows(tokenizer, template, path, recipe.max_length)

    streams = {}
    if recipe.method == "gradient":
        if sources.forget is None:
            raise LetheError(f"recipe {recipe.name}: needs forget rows (--forget), got none")
        streams["forget"] = Stream(read(sources.forget), recipe.batch.effective, seed=seed, name="forget")
    if recipe.retain is not None:
        assert sources.retain is not None
        rows, pool = read(sources.retain), read(sources.replay) if sources.replay else []
        streams["retain"] = Stream(
            [*rows, *pool],
            recipe.batch.effective,
            seed=seed,
            name="retain",
            replay=recipe.replay,
            replay_pool=len(pool),
            shuffle=recipe.shuffle,
        )
    return streams, sum(e.truncated for stream in streams.values() for e in stream.examples)


def make_stop(
    recipe: Recipe, streams: dict[str, Stream], seed: int, alpha: float | None
) -> stopping.Budget | stopping.ViolationStop:
    assert recipe.epochs is not None
    budget = recipe.epochs * epoch_steps(recipe, streams)
    options = recipe.stop or BudgetOptions(rule="budget")
    if isinstance(options, BudgetOptions):
        return stopping.Budget(budget)
    assert alpha is not None
    return stopping.ViolationStop(
        alpha=alpha,
        every=options.every,
        trigger=options.trigger,
        confirm=options.confirm,
        budget=budget,
        examples=len(streams["forget"].examples),
        rows=options.probe,
        seed=seed,
    )


def calibrated_alpha(recipe: Recipe, sources: Sources, streams: dict[str, Stream], tokenizer: Any) -> float | None:
    """The stop rule's alpha; `retrain` is the violation rate of the retrained model over the whole forget set."""
    if not isinstance(recipe.stop, ViolationRate):
        return None
    if recipe.stop.alpha != "retrain":
        return recipe.stop.alpha
    assert sources.retrain is not None
    examples = streams["forget"].examples
    active = active_positions(recipe.forget, examples, "retrain")
    return violation_rate(load_model(sources.retrain), examples, recipe.margin, pad_token_id(tokenizer), active)


def add_adapter(model: Any, recipe: Recipe) -> Any:
    """LoRA matrices injected into `model`; returns the PEFT wrapper around it."""
    import peft

    assert recipe.adapter is not None
    config = peft.LoraConfig(
        r=recipe.adapter.r,
        lora_alpha=recipe.adapter.alpha,
        lora_dropout=recipe.adapter.dropout,
        target_modules=list(recipe.adapter.targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(model, config)
    except ValueError as e:
        raise LetheError(f"recipe {recipe.name}: adapter.targets: {' '.join(str(e).split())[:200]}") from None


def run_identity(recipe: Recipe, sources: Sources, seed: int) -> str:
    """Of everything that a run's result depends on, but for the code: a checkpoint of another run is not resumed."""
    files = [p for p in (sources.forget, sources.retain, sources.replay) if p is not None]
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


def _identity_of(work: Path) -> str | None:
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
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    write_text(path, text.getvalue())
