"""MASC's restricted margins (Di Gennaro et al. 2026, arXiv 2606.02920): hinge, violation rate, Proposition 1.

Shapes as in losses.py: logits (n, V) at supervised positions in row-major order, labels and item (n,). A margin
compares the gold token y with a small set S of alternatives at the same position, all in float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.errors import LetheError
from lethe.unlearn.losses import sequence_sum


class Alternatives(NamedTuple):
    """The set S of each position: tokens (n, k), none of them the gold one; keep (n, k) says which of them count."""

    tokens: Tensor
    keep: Tensor


def threshold(rho: float) -> float:
    """tau = log(rho / (1 - rho)), in nats: restricted probability <= rho iff margin <= tau (Lemma 1)."""
    if not 0 < rho < 1:
        raise LetheError(f"rho must lie in (0, 1), got {rho}")
    return math.log(rho / (1 - rho))


def top_alternatives(logits: Tensor, labels: Tensor, k: int, within: float | None = None) -> Alternatives:
    """The k tokens other than the gold one with the largest logits (eq. 4), chosen without gradient.

    within: keep only those at most so many logits below the best of them (the released code does so, with 0.5, where
    the frozen starting model chooses the set). LetheError where the vocabulary has no k other tokens: a smaller set
    would be another method under the same name.
    """
    others = logits.shape[-1] - 1
    if not 1 <= k <= others:
        raise LetheError(f"k must lie between 1 and {others}, the vocabulary without the gold token, got {k}")
    scores, tokens = logits.detach().topk(k + 1, dim=-1)
    gold_last = (tokens == labels[:, None]).int().argsort(dim=-1, stable=True)[:, :k]
    scores, tokens = scores.gather(-1, gold_last), tokens.gather(-1, gold_last)
    keep = torch.ones_like(tokens, dtype=torch.bool) if within is None else scores >= scores[:, :1] - within
    return Alternatives(tokens, keep)


def restricted_margin(
    logits: Tensor, labels: Tensor, *, k: int, beta: float, alternatives: Alternatives | None = None
) -> Tensor:
    """m = beta z_y - logsumexp over S of beta z_v (eq. 6); sigmoid(m) is the restricted probability. (n,), in nats.

    S is `alternatives`, or else the k best other tokens of these logits. The gradient goes through z_y and the z_v, not
    through the choice of S.
    """
    tokens, keep = top_alternatives(logits, labels, k) if alternatives is None else alternatives
    chosen = logits.gather(-1, torch.cat([labels[:, None], tokens], dim=-1)).float()
    lead = beta * (chosen[:, 1:] - chosen[:, :1])  # differences first: large logits cancel before they are rounded
    return -torch.logsumexp(lead.masked_fill(~keep, -torch.inf), dim=-1)


def hinge(margin: Tensor, *, rho: float, eta: float) -> Tensor:
    """psi(m) = max(0, m - (tau - eta)) / eta, an upper bound of 1{m > tau}: 1 at tau, 0 from tau - eta down. (n,)."""
    return F.relu(margin - (threshold(rho) - eta)) / eta


def margin_hinge(
    logits: Tensor,
    labels: Tensor,
    *,
    k: int,
    beta: float,
    rho: float,
    eta: float,
    alternatives: Alternatives | None = None,
) -> Tensor:
    """MASC's forget loss (eqs. 4-9): the hinge on the restricted margin, one value a token. (n,)."""
    return hinge(restricted_margin(logits, labels, k=k, beta=beta, alternatives=alternatives), rho=rho, eta=eta)


def active_positions(
    counts: Tensor, *, cut: tuple[float, float], min_prefix: int, min_suffix: int, generator: torch.Generator
) -> Tensor:
    """Which supervised positions the forget loss and the probes see: the released code's continuation mask.

    counts (B,): supervised tokens of each row, n in all. A row of at least min_prefix + min_suffix tokens loses its
    first floor(r * count), r ~ U(cut), but at least min_prefix and so that min_suffix remain; a shorter row is used
    whole. One number is drawn a row, in row order, so micro-batches are cut like the large batch. Returns (n,) bool.
    """
    low, high = cut
    uniform = torch.rand(len(counts), generator=generator, dtype=torch.float64, device=generator.device)
    ratio = low + (high - low) * uniform.to(counts.device)
    start = (ratio * counts).floor().long().clamp_min(min_prefix).minimum(counts - min_suffix)
    start = torch.where(counts < min_prefix + min_suffix, 0, start)
    index = torch.arange(int(counts.sum()), device=counts.device)
    first = counts.cumsum(0) - counts
    return index >= (first + start).repeat_interleave(counts)


def violations(margin: Tensor, rho: float) -> Tensor:
    """Tokens not yet suppressed, m > tau (strict): (n,) bool. A margin that is not a number is a violation: a model
    that broke has not met the constraint."""
    return ~(margin <= threshold(rho))


def violation_rates(margin: Tensor, item: Tensor, rows: int, *, rho: float) -> Tensor:
    """v of each sequence, the share of its tokens with m > tau (eq. 7): (rows,) float64, NaN for a row without tokens.

    The violation rate V of a forget set is the mean of these over sequences, not over pooled tokens.
    """
    return sequence_sum(violations(margin, rho).double(), item, rows) / torch.bincount(item, minlength=rows)


def token_log_bound(*, rho: float, beta: float, k: int) -> float:
    """log b, where m <= tau implies a full softmax probability of at most b.

    b = sigmoid(tau / beta) for beta >= 1 (rho itself at 1; Appendix B), and by the power-mean inequality over the k
    alternatives b = sigmoid((tau + (1 - beta) log k) / beta) for 0 < beta < 1.
    """
    excess = (1 - beta) * math.log(k) if beta < 1 else 0.0
    return float(F.logsigmoid(torch.tensor((threshold(rho) + excess) / beta, dtype=torch.float64)))


def proposition1_slack(
    margin: Tensor, logp: Tensor, item: Tensor, rows: int, *, rho: float, beta: float, k: int
) -> Tensor:
    """How far below Proposition 1's bound each sequence is: (tokens with m <= tau) * log b - log pi(y|x).

    margin, logp (n,): restricted margins and log-probabilities of the same tokens under the same model; k is the size
    of the sets. Returns (rows,) float64 in nats, at least 0 up to rounding. The bound is a theorem, so a sequence
    above it means that the inputs do not belong together: AssertionError.
    """
    bound = (~violations(margin, rho)).double() * token_log_bound(rho=rho, beta=beta, k=k)
    slack = sequence_sum(bound - logp.double(), item, rows)
    rounding = 1e-5 * (1 + 1 / beta) * torch.bincount(item, minlength=rows)  # the margin's own is divided by beta
    if (slack < -rounding).any():
        raise AssertionError(f"a sequence lies {-float(slack.min()):.3g} nats above the bound of Proposition 1")
    return slack
