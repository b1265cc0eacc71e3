"""The training of one run in memory: the start, the parts that its recipe names, the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lethe.data.rows import default_template, encode_rows
from lethe.data.text import Encoded, Template, get_template, pad_token_id
from lethe.errors import LetheError
from lethe.files import read_json
from lethe.models.load import load_model, load_tokenizer, weights_sha256
from lethe.models.quantise import toward_grid
from lethe.progress import Progress
from lethe.recipe import Budget as BudgetOptions
from lethe.recipe import Matched, Recipe, ViolationRate
from lethe.unlearn import stopping
from lethe.unlearn.change import random_update
from lethe.unlearn.costs import Costs
from lethe.unlearn.loop import State, Watch, epoch_steps, stop_budget, train, violation_rate
from lethe.unlearn.objective import active_positions, select_trained
from lethe.unlearn.reference import Reference
from lethe.unlearn.refusals import Refusals
from lethe.unlearn.streams import Stream, generator


@dataclass(frozen=True)
class Sources:
    """Where a run starts and what it reads. start, retrain: model folders or hub names. forget: None for fine-tuning,
    whose training rows are `retain`; replay: further rows, drawn from every epoch; refusals: lines {text}. like: the
    folder of the run that recipes with `like` refer to."""

    start: str
    retain: Path | None
    forget: Path | None = None
    replay: Path | None = None
    retrain: str | None = None
    refusals: Path | None = None
    like: Path | None = None
    template: Template | None = None
    revision: str | None = None
    trust_remote_code: bool = False

    def of_seed(self, seed: int) -> Sources:
        """`start` and `like` may hold {seed}: the run of the same seed."""
        like = Path(str(self.like).format(seed=seed)) if self.like else None
        return replace(self, start=self.start.replace("{seed}", str(seed)), like=like)


@dataclass
class Run:
    """What a run starts with: `model` in float32, to be changed in place."""

    recipe: Recipe
    sources: Sources
    seed: int
    tokenizer: Any
    template: Template
    model: Any
    start_dtype: str
    start_sha256: str

    @classmethod
    def load(cls, recipe: Recipe, sources: Sources, seed: int) -> Run:
        tokenizer = load_tokenizer(
            sources.start, revision=sources.revision, trust_remote_code=sources.trust_remote_code
        )
        template = sources.template or default_template(tokenizer)
        if recipe.system is not None:
            template = get_template(template.name, recipe.system, template.date_string)
        run = cls(recipe, sources, seed, tokenizer, template, None, "", "")
        model = run.load_start(grid=False)
        run.start_dtype, run.start_sha256 = str(model.dtype).removeprefix("torch."), weights_sha256(model)
        run.model = run._onto_grid(model.float())
        return run

    def load_start(self, grid: bool = True) -> Any:
        """The starting model from its files; `grid` as the recipe's `start` wants it."""
        model = load_model(
            self.sources.start,
            revision=self.sources.revision,
            dtype="auto",
            trust_remote_code=self.sources.trust_remote_code,
        )
        return self._onto_grid(model.float()) if grid else model

    def _onto_grid(self, model: Any) -> Any:
        if self.recipe.start is not None:
            toward_grid(model, self.recipe.start.grid, self.recipe.start.residue)
        return model


@dataclass
class Trained:
    """How a run's training went; the weights are in the model. adapter: the PEFT wrapper around it, not yet merged."""

    state: State
    reason: str
    adapter: Any = None
    alpha: float | None = None
    truncated: int = 0


def train_by_gradients(
    run: Run, checkpoint: Path, watch: Callable[[Run, Costs], Watch] | None = None, past: int = 0
) -> Trained:
    """Fine-tuning and every gradient method.

    watch: makes what measures on the way, from the run and what it cost before its first step. A watched run with a
    stop rule goes on to step `past`.
    """
    recipe, sources, seed, model = run.recipe, run.sources, run.seed, run.model
    streams, truncated = make_streams(recipe, sources, run.tokenizer, run.template, seed)
    check_context(model, recipe, streams)
    alpha = calibrated_alpha(recipe, sources, streams, run.tokenizer) if watch is None else None
    torch.manual_seed(seed)
    adapter = add_adapter(model, recipe) if recipe.adapter else None
    if recipe.trained:
        select_trained(model, recipe)
    pad = pad_token_id(run.tokenizer)
    forget = streams["forget"].examples if "forget" in streams else []
    stop = make_stop(recipe, sources, streams, seed, alpha) if watch is None else watched_stop(recipe, streams, past)
    refusals = make_refusals(recipe, sources, run.tokenizer, run.template, seed)
    drawn = refusals.drawn(streams["forget"], stop_budget(stop)) if refusals else None
    before, reference = State(), None
    with before.costs.measure("reference"):
        if recipe.method == "gradient":
            reference = Reference(model, adapter, recipe, forget, pad, seed, drawn)
    progress = Progress(f"{recipe.name} s{seed}", total=stop_budget(stop))
    state, reason = train(
        model,
        recipe,
        streams,
        stop,
        seed=seed,
        pad_id=pad,
        reference=reference,
        refusals=refusals,
        watch=watch(run, before.costs) if watch else None,
        checkpoint=checkpoint,
        report=progress,
    )
    progress.close()
    state.costs.seconds["reference"] = before.costs.seconds["reference"]
    state.costs.forward_tokens += reference.forward_tokens if reference else 0
    return Trained(state, reason, adapter, alpha, truncated)


def move_at_random(run: Run, checkpoint: Path) -> Trained:
    """The control that changes the weights as much as the run it is `like`."""
    assert run.sources.like is not None
    random_update(run.model, load_model(run.sources.like / "weights"), run.seed)
    return Trained(State(), "matched")


def negate_task_vector(run: Run, checkpoint: Path) -> Trained:
    """Learn the forget set further, then go the other way: start - strength (learned - start), for every parameter."""
    sources, strength = run.sources, run.recipe.strength
    assert strength is not None
    run.sources = replace(sources, retain=sources.forget, forget=None)
    trained = train_by_gradients(run, checkpoint)
    run.sources = sources
    start = dict(run.load_start().named_parameters())
    with torch.no_grad():
        for name, learned in run.model.named_parameters():
            learned.copy_(start[name].to(learned.device) * (1 + strength) - learned * strength)
    tokens = trained.state.tokens
    tokens["forget"], tokens["retain"] = tokens["retain"], tokens["forget"]
    return trained


def keep_start(run: Run, checkpoint: Path) -> Trained:
    """No training: the start itself, as the recipe wants it."""
    return Trained(State(), "untouched")


TRAINERS: dict[str, Callable[..., Trained]] = {
    "finetune": train_by_gradients,
    "gradient": train_by_gradients,
    "random": move_at_random,
    "task_vector": negate_task_vector,
    "none": keep_start,
}


def watched_stop(recipe: Recipe, streams: dict[str, Stream], past: int) -> stopping.Budget:
    """The recipe's own budget, or `past` where a stop rule would end it."""
    assert recipe.epochs is not None
    own_budget = isinstance(recipe.stop, BudgetOptions)
    return stopping.Budget(recipe.epochs * epoch_steps(recipe, streams) if own_budget else past)


def make_refusals(recipe: Recipe, sources: Sources, tokenizer: Any, template: Template, seed: int) -> Refusals | None:
    """What IDK-DPO prefers to the answers."""
    if not recipe.needs_refusals:
        return None
    assert sources.forget is not None and sources.refusals is not None
    return Refusals(sources.forget, sources.refusals, tokenizer, template, recipe.max_length, seed)


def make_streams(
    recipe: Recipe, sources: Sources, tokenizer: Any, template: Template, seed: int
) -> tuple[dict[str, Stream], int]:
    """Batches by term, and how many rows were cut at max_length."""
    assert recipe.batch is not None

    def read(path: Path, shuffle: torch.Generator | None = None) -> list[Encoded]:
        return encode_rows(tokenizer, template, path, recipe.max_length, shuffle, recipe.chunks)

    own = f" {recipe.name}" if recipe.own_order else ""
    streams = {}
    if recipe.method == "gradient":
        if sources.forget is None:
            raise LetheError(f"recipe {recipe.name}: needs forget rows (--forget), got none")
        shuffle = generator(seed, "answers") if recipe.shuffle_answers else None
        streams["forget"] = Stream(
            read(sources.forget, shuffle), recipe.batch.effective, seed=seed, name=f"forget{own}"
        )
    if recipe.retain is not None:
        assert sources.retain is not None
        rows, pool = read(sources.retain), read(sources.replay) if sources.replay else []
        streams["retain"] = Stream(
            [*rows, *pool],
            recipe.batch.effective,
            seed=seed,
            name=f"retain{own}",
            replay=recipe.replay,
            replay_pool=len(pool),
            shuffle=recipe.shuffle,
        )
    return streams, sum(e.truncated for stream in streams.values() for e in stream.examples)


def check_context(model: Any, recipe: Recipe, streams: dict[str, Stream]) -> None:
    """LetheError: rows longer than what the model can read at once."""
    longest = max(len(e.ids) for stream in streams.values() for e in stream.examples)
    context = getattr(model.config, "max_position_embeddings", None) or longest
    if longest > context:
        key = "max_length" if recipe.chunks is None else "max_length and chunks.window"
        raise LetheError(f"recipe {recipe.name}: {key} must be at most the model's context, {context}, got {longest}")


def make_stop(
    recipe: Recipe, sources: Sources, streams: dict[str, Stream], seed: int, alpha: float | None
) -> stopping.Budget | stopping.ViolationStop:
    assert recipe.epochs is not None
    budget = recipe.epochs * epoch_steps(recipe, streams)
    options = recipe.stop or BudgetOptions(rule="budget")
    if isinstance(options, BudgetOptions):
        return stopping.Budget(budget)
    if isinstance(options, Matched):
        assert sources.like is not None
        return stopping.Budget(read_json(sources.like / "run.json")["steps"])
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
