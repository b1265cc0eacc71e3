"""The one training loop: fine-tuning and every gradient method run through it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs

from lethe.data.text import Encoded, batches_by_length, collate
from lethe.errors import LetheError
from lethe.files import atomic
from lethe.models.load import SupervisedLM, logits_at
from lethe.optim.build import build_optimizer, learning_rate
from lethe.recipe import RMU, Recipe
from lethe.unlearn import margin
from lethe.unlearn.costs import Costs
from lethe.unlearn.objective import TERMS, View, active_positions, unit_count
from lethe.unlearn.reference import NO_GRAD_TOKENS, Reference
from lethe.unlearn.refusals import Refusals
from lethe.unlearn.stopping import Budget, ViolationStop
from lethe.unlearn.streams import Stream, generator

CHECKPOINT_SECONDS = 60.0

Watch = Callable[["State"], dict[str, Any]]  # columns to add to the trace at this step, none where it does not look


@dataclass
class State:
    """How far a run is; with the trained weights and the optimiser's moments, all that a resume needs."""

    step: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: {"forget": 0, "retain": 0})
    trace: list[dict[str, Any]] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)


def train(
    model: Any,
    recipe: Recipe,
    streams: dict[str, Stream],
    stop: Budget | ViolationStop,
    *,
    seed: int,
    pad_id: int,
    reference: Reference | None = None,
    refusals: Refusals | None = None,
    watch: Watch | None = None,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[State, str]:
    """Train `model` in place until the stop rule gives a reason; return the final state and that reason.

    streams: batches of rows by term, {"forget", "retain"} or, for fine-tuning, {"retain"} alone. watch: what else
    to measure between steps. checkpoint: a file to resume from and to save to now and then. LetheError: a loss or
    gradient that is not finite (with the step), an effective batch other than the recipe's.
    """
    assert recipe.optimizer is not None and recipe.batch is not None
    # What lies after RMU's layer gets no gradient, which data-parallel training has to be told.
    unused = DistributedDataParallelKwargs(find_unused_parameters=isinstance(recipe.forget, RMU))
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[unused])
    recipe.batch.check(accelerator.num_processes)
    if recipe.precision.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = build_optimizer(recipe.optimizer, list(trained.values()))
    net, optimizer = accelerator.prepare(SupervisedLM(model), optimizer)
    state = load_checkpoint(checkpoint, trained, optimizer) if checkpoint and checkpoint.exists() else State()
    per_epoch, budget = epoch_steps(recipe, streams), stop_budget(stop)
    rows = {name: stream[state.step - 1] if state.step else [] for name, stream in streams.items()}
    saved = time.monotonic()

    while True:
        verdict = stop.check(
            state.step, violation_probe(model, recipe, streams, seed, pad_id, state), rows.get("forget", ())
        )
        watched = watch(state) if watch else {}
        if (verdict.probes or watched) and not state.trace:  # measured before the first step
            state.trace.append({"step": 0, "forget_tokens": 0, "retain_tokens": 0})
        if verdict.probes:
            probe = verdict.probes[-1]
            state.trace[-1] |= {"violation_rate": probe.violation, "probe_n": probe.n, "probe_stage": probe.stage}
        if watched:
            state.trace[-1] |= watched
        if verdict.reason:
            return state, verdict.reason

        rows = {name: stream[state.step] for name, stream in streams.items()}
        lr = learning_rate(recipe.optimizer, state.step, per_epoch, budget)
        for group in optimizer.param_groups:
            group["lr"] = lr
        torch.manual_seed(generator(seed, "dropout", state.step).initial_seed())
        model.train()
        with state.costs.measure("steps" if state.step else "first"):
            losses = accumulate_gradients(
                accelerator, net, recipe, streams, rows, reference, seed, pad_id, state, refusals
            )
            norm = float(accelerator.clip_grad_norm_(trained.values(), recipe.optimizer.clip or math.inf))
            if not all(map(math.isfinite, [*losses.values(), norm])):
                raise LetheError(
                    f"loss or gradient is not finite at step {state.step + 1}, got {losses}, gradient norm {norm}"
                )
            optimizer.step()
            optimizer.zero_grad()
        state.step += 1
        state.trace.append(
            {
                "step": state.step,
                **{f"{name}_loss": value for name, value in losses.items()},
                "lr": lr,
                "grad_norm": norm,
                "forget_tokens": state.tokens["forget"],
                "retain_tokens": state.tokens["retain"],
            }
        )
        report(state.step, sum(losses.values()))
        if checkpoint and time.monotonic() - saved >= checkpoint_seconds:
            save_checkpoint(checkpoint, trained, optimizer, state)
            saved = time.monotonic()


def accumulate_gradients(
    accelerator: Accelerator,
    net: Any,
    recipe: Recipe,
    streams: dict[str, Stream],
    rows: dict[str, list[int]],
    reference: Reference | None,
    seed: int,
    pad_id: int,
    state: State,
    refusals: Refusals | None = None,
) -> dict[str, float]:
    """One step's gradients: the sum of each term over the effective batch, divided by its count over the same, so that
    micro-batches of unequal lengths equal the large batch. Forget and retain rows, and refusals to the forget questions
    where the loss prefers them, share a forward pass. Returns the terms' weighted losses."""
    assert recipe.batch is not None
    terms: dict[str, Any] = {"forget": recipe.forget, "retain": recipe.retain}
    examples = {name: [streams[name].examples[r] for r in rows[name]] for name in rows}
    active = {name: active_positions(terms[name], examples[name], seed, state.step, "train") for name in rows}
    total = {name: unit_count(terms[name], examples[name], active[name]) for name in rows}
    logps = {"forget": reference.logp[rows["forget"]]} if reference and reference.logp is not None else {}
    if refusals is not None and reference is not None:
        keys = refusals.keys(rows["forget"], state.step)
        examples["refusal"], logps["refusal"] = refusals.examples(keys), reference.refusals_logp(keys)
    layer = reference.layer if reference else None
    losses, seen = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0)
    for parts, last in micro_batches({name: len(r) for name, r in rows.items()}, recipe.batch.rows, accelerator):
        if "refusal" in examples:
            parts["refusal"] = parts["forget"]
        batch = collate([e for name, part in parts.items() for e in examples[name][part]], pad_id).to(
            accelerator.device
        )
        with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=uses_autocast(recipe)):
            # Losses on activations take those of the answers' own tokens, one after the positions that predict them.
            outputs = net(batch.ids, batch.rows, batch.cols + (layer is not None), layer)
        views, first = {}, 0
        for name, part in parts.items():
            here = ((batch.rows >= first) & (batch.rows < first + part.stop - part.start)).nonzero()[:, 0]
            views[name] = View(
                outputs[here],
                batch.labels[here],
                batch.rows[here] - first,
                slice_positions(active.get(name), examples[name], part),
                lambda batch=batch, here=here: reference.outputs(batch)[here],  # type: ignore[misc, union-attr]
                logps[name][part].to(outputs.device) if name in logps else None,
                reference.steering.to(outputs.device) if reference and reference.steering is not None else None,
            )
            first += part.stop - part.start
        loss = outputs.new_zeros((), dtype=torch.float32)
        for name in rows:
            if parts[name].stop > parts[name].start:
                view = replace(views[name], preferred=views.get("refusal")) if name == "forget" else views[name]
                value, count = TERMS[terms[name].loss](view, terms[name])
                loss = loss + terms[name].weight * value / total[name]
                losses[name] += terms[name].weight * float(value.detach()) / total[name]
                seen[name] += count
        with nullcontext() if last else accelerator.no_sync(net):
            # Data-parallel wrappers average over processes, while each process holds a share of one sum.
            accelerator.backward(loss * accelerator.num_processes)
        state.costs.trained_tokens += int(batch.lengths.sum())
    assert accelerator.num_processes > 1 or seen == total, f"units seen {seen}, counted {total}"
    for name in rows:
        state.tokens[name] += sum(len(e.ids) - e.start for e in examples[name])
    return losses


def micro_batches(
    sizes: dict[str, int], rows: int, accelerator: Accelerator
) -> Iterator[tuple[dict[str, slice], bool]]:
    """This process's micro-batches of one step as slices of each term's batch, and whether it is the last of them."""
    count = math.ceil(max(sizes.values()) / rows)
    mine = range(accelerator.process_index, count, accelerator.num_processes)
    for i in mine:
        yield {name: slice(min(i * rows, n), min((i + 1) * rows, n)) for name, n in sizes.items()}, i == mine[-1]


def slice_positions(active: Any, examples: Sequence[Encoded], part: slice) -> Any:
    """The mask (n,) of a slice of rows, from the mask of all rows."""
    if active is None:
        return None
    ends = torch.tensor([0, *(len(e.ids) - e.start for e in examples)]).cumsum(0)
    return active[ends[part.start] : ends[part.stop]]


def violation_probe(
    model: Any, recipe: Recipe, streams: dict[str, Stream], seed: int, pad_id: int, state: State
) -> Callable[[Sequence[int]], float]:
    """What the stop rule calls with the forget rows to probe."""

    def measure(rows: Sequence[int]) -> float:
        examples = [streams["forget"].examples[r] for r in rows]
        active = active_positions(recipe.forget, examples, seed, state.step, "probe", len(rows))
        state.costs.forward_tokens += sum(len(e.ids) for e in examples)
        with state.costs.measure("probes"):
            return violation_rate(model, examples, recipe.margin, pad_id, active)

    return measure


@torch.no_grad()
def violation_rate(model: Any, examples: Sequence[Encoded], options: Any, pad_id: int, active: Any = None) -> float:
    """V: the mean over sequences of each one's share of violated tokens (MASC, eq. 7). options: k, beta, rho."""
    model.eval()
    counts = [len(e.ids) - e.start for e in examples]
    keep = active.split(counts) if active is not None else [torch.ones(c, dtype=torch.bool) for c in counts]
    rates = torch.zeros(len(examples), dtype=torch.float64)
    for rows in batches_by_length([len(e.ids) for e in examples], NO_GRAD_TOKENS):
        batch = collate([examples[r] for r in rows], pad_id).to(next(model.parameters()).device)
        m = margin.restricted_margin(logits_at(model, batch), batch.labels, k=options.k, beta=options.beta)
        here = torch.cat([keep[r] for r in rows]).to(m.device)
        rates[rows] = margin.violation_rates(m[here], batch.rows[here], len(rows), rho=options.rho).cpu()
    return float(rates.mean())


def epoch_steps(recipe: Recipe, streams: dict[str, Stream]) -> int:
    """Optimiser steps an epoch: ceil(rows / effective batch), of the forget set or of the longest set."""
    if recipe.epoch == "longest" or "forget" not in streams:
        return max(stream.per_epoch for stream in streams.values())
    return streams["forget"].per_epoch


def stop_budget(stop: Budget | ViolationStop) -> int:
    return stop.steps if isinstance(stop, Budget) else stop.budget


def uses_autocast(recipe: Recipe) -> bool:
    setting = recipe.precision.autocast
    return torch.cuda.is_available() if setting == "auto" else setting == "bfloat16"


def save_checkpoint(path: Path, trained: dict[str, Any], optimizer: Any, state: State) -> None:
    with atomic(path) as tmp:
        torch.save({"trained": trained, "optimizer": optimizer.state_dict(), "state": asdict(state)}, tmp)


def load_checkpoint(path: Path, trained: dict[str, Any], optimizer: Any) -> State:
    saved = torch.load(path, weights_only=True, map_location="cpu")
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(saved["trained"][name])
    optimizer.load_state_dict(saved["optimizer"])
    return State(**{**saved["state"], "costs": Costs(**saved["state"]["costs"])})
