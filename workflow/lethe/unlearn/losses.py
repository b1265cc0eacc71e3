"""Losses of the gradient methods, as pure functions of logits at supervised positions.

Throughout: logits (n, V) at a batch's n supervised positions in row-major order, labels (n,) the tokens they predict,
item (n,) the row 0..B-1 each position belongs to. Losses are in nats, computed in float32 whatever the model's dtype,
and from log-probabilities, so that adding a constant to all logits of a position changes nothing.

A loss returns one value a unit (token or sequence). A reduction turns values into (sum, count); the training step
divides the accumulated sum by the accumulated count of the whole effective batch, which makes micro-batches of unequal
lengths equal to the large batch. A loss with one value a sequence is reduced with item = arange(B), where both
reductions agree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

KL_CHUNK = 512  # positions whose (chunk, V) float32 temporaries exist at the same time


def per_token(values: Tensor, item: Tensor) -> tuple[Tensor, int]:
    """Mean over pooled tokens: (sum of values, number of values). Long sequences weigh more."""
    return values.sum(), values.numel()


def per_sequence(values: Tensor, item: Tensor) -> tuple[Tensor, int]:
    """Mean of per-sequence means: (sum of the sequences' means, number of sequences that have a value)."""
    lengths = torch.bincount(item)
    return (values / lengths[item]).sum(), int((lengths > 0).sum())


REDUCTIONS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, int]]] = {
    "per_token": per_token,
    "per_sequence": per_sequence,
}


def sequence_sum(values: Tensor, item: Tensor, rows: int) -> Tensor:
    """Sums of a batch's values by row: (n,), (n,) -> (rows,); 0 for a row without values."""
    return values.new_zeros(rows).index_add(0, item, values)


def token_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each token, -log softmax(z)_y: (n, V), (n,) -> (n,), in nats."""
    return F.cross_entropy(logits.float(), labels, reduction="none")


def sequence_nll(logits: Tensor, labels: Tensor, item: Tensor, rows: int) -> Tensor:
    """-log pi(y|x), summed over the tokens of each row, not averaged: (rows,), in nats."""
    return sequence_sum(token_nll(logits, labels), item, rows)


ce = token_nll


def ga(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient ascent: the negated cross-entropy, +log pi of each token, minimised. (n,), unbounded below."""
    return -token_nll(logits, labels)


def npo(logp: Tensor, reference_logp: Tensor, beta: float) -> Tensor:
    """Negative preference optimisation (arXiv 2404.05868): -(2/beta) log sigma(-beta (log pi - log pi_ref)).

    logp, reference_logp (B,): log pi(y|x) of whole sequences under the model and under the frozen model it started
    from. Returns (B,); (2/beta) log 2 where both agree, falling to 0 as the model forgets.
    """
    return -2 / beta * F.logsigmoid(-beta * (logp.float() - reference_logp.float()))


def simnpo(nll: Tensor, lengths: Tensor, beta: float, delta: float = 0.0) -> Tensor:
    """SimNPO (arXiv 2410.07163), NPO without a reference: -(2/beta) log sigma(beta (NLL/|y| - delta)).

    nll, lengths (B,): summed NLL and number of supervised tokens of each sequence; delta, in nats a token, is the
    margin (gamma / beta in the paper's notation). Returns (B,).
    """
    return -2 / beta * F.logsigmoid(beta * (nll.float() / lengths - delta))


def dpo(chosen: Tensor, chosen_ref: Tensor, rejected: Tensor, rejected_ref: Tensor, beta: float) -> Tensor:
    """Direct preference optimisation (arXiv 2305.18290) in NPO's scale, -(2/beta) log sigma(beta (r_chosen -
    r_rejected)) with r = log pi - log pi_ref, of a refusal (chosen) over the answer (rejected).

    All (B,): log pi(y|x) of whole sequences. Returns (B,); (2/beta) log 2 where the model is its reference.
    """
    return -2 / beta * F.logsigmoid(beta * ((chosen - chosen_ref) - (rejected - rejected_ref)))


def squared_distance(activations: Tensor, goal: Tensor) -> Tensor:
    """Mean over dimensions of (h - goal)^2: (n, H), (H,) or (n, H) -> (n,). RMU (arXiv 2403.03218) takes it to a
    steering vector on forget tokens, and to the starting model's activations on retain tokens."""
    return (activations.float() - goal.float()).pow(2).mean(-1)


def kl(reference: Tensor, logits: Tensor) -> Tensor:
    """KL(ref || model) of each position over the full vocabulary: (n, V), (n, V) -> (n,), in nats.

    reference holds logits or log-probabilities (normalising the latter again changes nothing). At least 0 up to
    rounding and exactly 0 at equality. Nothing of size (n, V) is kept for the backward pass besides the two inputs:
    each chunk of positions is normalised again there.
    """
    chunks = zip(reference.split(KL_CHUNK), logits.split(KL_CHUNK), strict=True)
    return torch.cat([checkpoint(_kl, r, z, use_reentrant=False, preserve_rng_state=False) for r, z in chunks])


def _kl(reference: Tensor, logits: Tensor) -> Tensor:
    logp_ref, logp = F.log_softmax(reference.float(), dim=-1), F.log_softmax(logits.float(), dim=-1)
    return (logp_ref.exp() * (logp_ref - logp)).sum(-1)
