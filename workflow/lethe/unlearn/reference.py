"""The model a run starts from, frozen: what KL, NPO and MASC's `alternatives: base` compare with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from lethe.data.text import Batch, Encoded, batches_by_length, collate
from lethe.models.load import logits_at
from lethe.recipe import Recipe
from lethe.unlearn.losses import sequence_nll

NO_GRAD_TOKENS = 8192  # padded tokens in one forward pass without gradients


class Reference:
    """Built before the first step, while the model still is the starting model.

    Full logits come from the model with its adapter switched off, or, without an adapter, from a frozen copy (each
    retain row is seen about once, so a cache would cost as much); it exists only where a loss needs it. Sequence
    log-probabilities of the forget rows are computed once and kept.
    """

    def __init__(self, model: Any, adapter: Any, recipe: Recipe, forget: Sequence[Encoded], pad_id: int) -> None:
        """adapter: the PEFT wrapper around `model`, or None."""
        terms = [term for term in (recipe.forget, recipe.retain) if term is not None]
        needs_logits = any(t.loss == "kl" or getattr(t, "alternatives", "") == "base" for t in terms)
        self._adapter = adapter
        self._model = model
        if needs_logits and adapter is None:
            self._model = copy.deepcopy(model).requires_grad_(False).eval()
        self.forward_tokens = 0
        self.logp = self._sequence_logp(model, forget, pad_id) if any(t.loss == "npo" for t in terms) else None

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """(n, V) at the batch's supervised positions."""
        self.forward_tokens += int(batch.lengths.sum())
        training = self._model.training
        self._model.eval()
        with self._adapter.disable_adapter() if self._adapter is not None else nullcontext():
            logits = logits_at(self._model, batch)
        self._model.train(training)
        return logits

    @torch.no_grad()
    def _sequence_logp(self, model: Any, examples: Sequence[Encoded], pad_id: int) -> Tensor:
        """log pi_start(y|x) of every row, (rows,) float32."""
        logp = torch.zeros(len(examples))
        for rows in batches_by_length([len(e.ids) for e in examples], NO_GRAD_TOKENS):
            batch = collate([examples[r] for r in rows], pad_id).to(next(model.parameters()).device)
            logp[rows] = -sequence_nll(logits_at(model, batch), batch.labels, batch.rows, len(rows)).cpu()
        self.forward_tokens += sum(len(e.ids) for e in examples)
        return logp
