"""The terms of a recipe's loss, by name: from logits (or activations) at supervised positions to (sum, count)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lethe.data.text import Encoded
from lethe.errors import LetheError
from lethe.models.load import layer_at
from lethe.recipe import RMU, Recipe
from lethe.unlearn import losses, margin
from lethe.unlearn.streams import generator


@dataclass(frozen=True)
class View:
    """One term's share of a micro-batch.

    outputs: logits (n, V) at the supervised positions or, for losses on activations, (n, H) of their layer. labels
    (n,); item (n,): row 0..B-1 of each position. active: (n,) bool, the positions that the loss is taken over, None for
    all. reference: the same outputs of the starting model, computed when asked for. reference_logp: (B,)
    log pi_start(y|x), None where no loss needs it. steering: (H,), what RMU steers to. preferred: the refusals to
    the same questions, row by row.
    """

    outputs: Tensor
    labels: Tensor
    item: Tensor
    active: Tensor | None
    reference: Callable[[], Tensor]
    reference_logp: Tensor | None
    steering: Tensor | None = None
    preferred: View | None = None


Sum = tuple[Tensor, int]


def _reduce(values: Tensor, view: View, options: Any) -> Sum:
    if view.active is None:
        return losses.REDUCTIONS[options.reduction](values, view.item)
    return losses.REDUCTIONS[options.reduction](values[view.active], view.item[view.active])


def ce(view: View, options: Any) -> Sum:
    return _reduce(losses.ce(view.outputs, view.labels), view, options)


def kl(view: View, options: Any) -> Sum:
    return _reduce(losses.kl(view.reference(), view.outputs), view, options)


def ga(view: View, options: Any) -> Sum:
    return _reduce(losses.ga(view.outputs, view.labels), view, options)


def _logps(view: View) -> tuple[Tensor, Tensor]:
    """(B,) log pi(y|x) of the model and of the one it started from."""
    assert view.reference_logp is not None
    return -losses.sequence_nll(view.outputs, view.labels, view.item, len(view.reference_logp)), view.reference_logp


def npo(view: View, options: Any) -> Sum:
    values = losses.npo(*_logps(view), options.beta)
    return values.sum(), len(values)


def idk_dpo(view: View, options: Any) -> Sum:
    assert view.preferred is not None
    values = losses.dpo(*_logps(view.preferred), *_logps(view), options.beta)
    return values.sum(), len(values)


def rmu(view: View, options: Any) -> Sum:
    assert view.steering is not None
    return losses.per_sequence(losses.squared_distance(view.outputs, view.steering), view.item)


def activation_match(view: View, options: Any) -> Sum:
    return losses.per_sequence(losses.squared_distance(view.outputs, view.reference()), view.item)


def simnpo(view: View, options: Any) -> Sum:
    lengths = torch.bincount(view.item)
    nll = losses.sequence_nll(view.outputs, view.labels, view.item, len(lengths))
    values = losses.simnpo(nll, lengths, options.beta, options.delta)
    return values.sum(), len(values)


def margin_hinge(view: View, options: Any) -> Sum:
    alternatives = None
    if options.alternatives == "base":
        alternatives = margin.top_alternatives(view.reference(), view.labels, options.k, options.within)
    settings = {"k": options.k, "beta": options.beta, "rho": options.rho, "eta": options.eta}
    return _reduce(margin.margin_hinge(view.outputs, view.labels, alternatives=alternatives, **settings), view, options)


TERMS: dict[str, Callable[[View, Any], Sum]] = {
    "ce": ce,
    "kl": kl,
    "ga": ga,
    "npo": npo,
    "simnpo": simnpo,
    "idk_dpo": idk_dpo,
    "rmu": rmu,
    "activation_match": activation_match,
    "margin_hinge": margin_hinge,
}


def active_positions(options: Any, examples: Sequence[Encoded], *key: int | str) -> Tensor | None:
    """The continuation mask of these rows, (n,) bool, its cuts drawn by the key alone; None where there is none."""
    continuation = getattr(options, "continuation", None)
    if continuation is None:
        return None
    counts = torch.tensor([len(e.ids) - e.start for e in examples])
    settings = {"cut": continuation.cut, "min_prefix": continuation.min_prefix, "min_suffix": continuation.min_suffix}
    return margin.active_positions(counts, generator=generator("continuation", *key), **settings)


def unit_count(options: Any, examples: Sequence[Encoded], active: Tensor | None) -> int:
    """What a term's sum over a whole effective batch is divided by: its tokens or its sequences."""
    if getattr(options, "reduction", "per_sequence") == "per_sequence":
        return len(examples)
    return int(active.sum()) if active is not None else sum(len(e.ids) - e.start for e in examples)


def select_trained(model: Any, recipe: Recipe) -> None:
    """Leave only the parameters trainable that the recipe's `trained` names. LetheError: no module has such a name."""
    assert recipe.trained is not None and isinstance(recipe.forget, RMU)
    last = layer_at(model, recipe.forget.depth)
    layers = model.get_decoder().layers[max(0, last - recipe.trained.layers) : last]
    model.requires_grad_(False)
    chosen = [
        module
        for layer in layers
        for name, module in layer.named_modules()
        if name.rpartition(".")[2] in recipe.trained.modules
    ]
    if not chosen:
        raise LetheError(
            f"recipe {recipe.name}: trained.modules: no module is called {', '.join(recipe.trained.modules)}"
        )
    for module in chosen:
        module.requires_grad_(True)
