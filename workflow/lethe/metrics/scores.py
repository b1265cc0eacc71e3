"""One teacher-forced pass over (prompt, answer) pairs, and what is arithmetic on it.

`score_pairs` keeps a handful of float32 numbers a token; probabilities, memorisation, extraction, margins, the bound of
MASC's Proposition 1 and the membership scores (privacy.py) all come from those, so no pair is ever forwarded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lethe.data.text import Encoded, batches_by_length, collate
from lethe.errors import LetheError
from lethe.models.load import logits_at
from lethe.unlearn.margin import restricted_margin, threshold, token_log_bound

Float32s = NDArray[np.float32]
Progress = Callable[[int, int], None]  # (done, total)

# Rows of (n, V) logits are worked on in slices of about this many elements: several temporaries of that size exist.
SLICE = 1 << 24


@dataclass(frozen=True)
class MarginSpec:
    """Which restricted margin to record, and the level rho that counts as suppressed (MASC, eqs. 5-7)."""

    k: int = 10
    beta: float = 1.0
    rho: float = 0.7


@dataclass(frozen=True)
class PairScore:
    """What one forward pass says about the L supervised tokens of one pair, end token included. All arrays (L,).

    logp: log-probability of each label, in nats. correct: whether the argmax is the label. mean, std: of log p under
    the model's own next-token distribution (None where not asked for). margin, logit: restricted margin, and the
    label's logit as it is (None likewise).
    """

    logp: Float32s
    correct: NDArray[np.bool_]
    mean: Float32s | None = None
    std: Float32s | None = None
    margin: Float32s | None = None
    logit: Float32s | None = None


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode (no dropout) and no gradients for the block; the mode is restored after it."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def score_pairs(
    model: Any,
    encoded: Sequence[Encoded],
    *,
    max_tokens: int,
    margin: MarginSpec | None = None,
    moments: bool = True,
    progress: Progress | None = None,
) -> list[PairScore]:
    """Score every pair once, in batches of similar length within max_tokens padded tokens; results in input order.

    moments: also mean and std of log p, which min-k++ needs and which cost about as much as the softmax itself.
    LetheError: logits that are not numbers (a model that diverged).
    """
    scores: list[PairScore | None] = [None] * len(encoded)
    device = next(model.parameters()).device
    done = 0
    with evaluating(model):
        for indices in batches_by_length([len(e.ids) for e in encoded], max_tokens):
            batch = collate([encoded[i] for i in indices], pad_id=0).to(device)
            tokens = _score_tokens(logits_at(model, batch), batch.labels, margin, moments)
            ends = np.cumsum(batch.counts.cpu().numpy())[:-1]
            columns = {name: np.split(values, ends) for name, values in tokens.items()}
            for row, i in enumerate(indices):
                scores[i] = PairScore(**{name: values[row] for name, values in columns.items()})
            done += len(indices)
            if progress:
                progress(done, len(encoded))
    return [score for score in scores if score is not None]


def _score_tokens(logits: Tensor, labels: Tensor, margin: MarginSpec | None, moments: bool) -> dict[str, NDArray]:
    """Per-token columns of PairScore from (n, V) logits, a slice of rows at a time."""
    slices = []
    rows = max(1, SLICE // logits.shape[-1])
    for z, y in zip(logits.split(rows), labels.split(rows), strict=True):
        z = z.float()
        logp = torch.log_softmax(z, dim=-1)
        part = {"logp": logp.gather(-1, y[:, None])[:, 0], "correct": z.argmax(dim=-1) == y}
        if moments:
            p = logp.exp()
            mean = (p * logp).sum(dim=-1)
            # The variance around the mean, not E[x^2] - E[x]^2, which cancels in float32.
            variance = p.mul_(logp.sub_(mean[:, None]).square_()).sum(dim=-1)
            part |= {"mean": mean, "std": variance.clamp_min(1e-6).sqrt()}
        if margin is not None:
            part["margin"] = restricted_margin(z, y, k=margin.k, beta=margin.beta)
            part["logit"] = z.gather(-1, y[:, None])[:, 0]
        slices.append({name: column.cpu().numpy() for name, column in part.items()})
    tokens = {name: np.concatenate([part[name] for part in slices]) for name in slices[0]}
    if np.isnan(tokens["logp"]).any():
        raise LetheError(
            f"the model's logits are not numbers at {int(np.isnan(tokens['logp']).sum())} of {len(labels)} positions "
            "(did its training diverge?)"
        )
    return tokens


def nll(score: PairScore) -> float:
    """Mean negative log-likelihood a token, end token included, in nats; probability is exp(-nll)."""
    return float(-score.logp.mean(dtype=np.float64))


def exact_memorization(correct: NDArray[np.bool_]) -> float | None:
    """Share of tokens whose argmax is the label. correct: (L,) without the end token; None where L = 0."""
    return float(correct.mean()) if len(correct) else None


def extraction_strength(correct: NDArray[np.bool_], *, floor: bool = False) -> float | None:
    """1 - k/L, k the shortest prefix after which every argmax is right. correct: (L,) without the end token.

    0 where even the last token is wrong; floor=True gives OpenUnlearning's value, which never falls below 1/L.
    None where L = 0.
    """
    if len(correct) == 0:
        return None
    wrong = np.flatnonzero(~correct)
    strength = 1 - (wrong[-1] + 1 if len(wrong) else 0) / len(correct)
    return float(max(strength, 1 / len(correct)) if floor else strength)


def violation_rate(margin: Float32s, rho: float) -> float:
    """v_rho of one sequence: share of its tokens with m > log(rho / (1 - rho)), strictly (MASC, eq. 7)."""
    return float((margin > threshold(rho)).mean())


def proposition1_slack(score: PairScore, spec: MarginSpec) -> float:
    """Bound minus value of log pi(y|x), in nats: (number of tokens with m <= tau) log b - sum of log p.

    Never negative but for rounding (MASC, Proposition 1, with the per-token bound b for any beta > 0).
    """
    assert score.margin is not None
    suppressed = int((score.margin <= threshold(spec.rho)).sum())
    bound = suppressed * token_log_bound(rho=spec.rho, beta=spec.beta, k=spec.k)
    return bound - float(score.logp.sum(dtype=np.float64))


def slack_is_violation(slack: float, tokens: int) -> bool:
    """Whether a slack lies below 0 by more than float32 rounding of `tokens` log-probabilities and margins."""
    return slack < -1e-4 * tokens
