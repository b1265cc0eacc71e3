"""The terms of a recipe's loss, by name: from logits at supervised positions to (sum, count)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lethe.data.text import Encoded
from lethe.unlearn import losses, margin
from lethe.unlearn.streams import generator


@dataclass(frozen=True)
class View:
    """One term's share of a micro-batch.

    logits (n, V), labels (n,), item (n,): row 0..B-1 of each position. active: (n,) bool, the positions that the loss
    is taken over, None for all. reference_logits: (n, V) of the starting model, computed when asked for.
    reference_logp: (B,) log pi_start(y|x), None where no loss needs it.
    """

    logits: Tensor
    labels: Tensor
    item: Tensor
    active: Tensor | None
    reference_logits: Callable[[], Tensor]
    reference_logp: Tensor | None


Sum = tuple[Tensor, int]


def _reduce(values: Tensor, view: View, options: Any) -> Sum:
    if view.active is None:
        return losses.REDUCTIONS[options.reduction](values, view.item)
    return losses.REDUCTIONS[options.reduction](values[view.active], view.item[view.active])


def ce(view: View, options: Any) -> Sum:
    return _reduce(losses.ce(view.logits, view.labels), view, options)


def kl(view: View, options: Any) -> Sum:
    return _reduce(losses.kl(view.reference_logits(), view.logits), view, options)


def ga(view: View, options: Any) -> Sum:
    return _reduce(losses.ga(view.logits, view.labels), view, options)


def npo(view: View, options: Any) -> Sum:
    assert view.reference_logp is not None
    logp = -losses.sequence_nll(view.logits, view.labels, view.item, len(view.reference_logp))
    values = losses.npo(logp, view.reference_logp, options.beta)
    return values.sum(), len(values)


def simnpo(view: View, options: Any) -> Sum:
    lengths = torch.bincount(view.item)
    nll = losses.sequence_nll(view.logits, view.labels, view.item, len(lengths))
    values = losses.simnpo(nll, lengths, options.beta, options.delta)
    return values.sum(), len(values)


def margin_hinge(view: View, options: Any) -> Sum:
    alternatives = None
    if options.alternatives == "base":
        alternatives = margin.top_alternatives(view.reference_logits(), view.labels, options.k, options.within)
    settings = {"k": options.k, "beta": options.beta, "rho": options.rho, "eta": options.eta}
    return _reduce(margin.margin_hinge(view.logits, view.labels, alternatives=alternatives, **settings), view, options)


TERMS: dict[str, Callable[[View, Any], Sum]] = {
    "ce": ce,
    "kl": kl,
    "ga": ga,
    "npo": npo,
    "simnpo": simnpo,
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
