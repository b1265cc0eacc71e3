"""The model a run starts from, frozen: what KL, NPO, DPO, RMU and MASC's `alternatives: base` compare with."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from lethe.data.text import Batch, Encoded, batches_by_length, collate
from lethe.models.load import activations_at, layer_at, logits_at
from lethe.recipe import RMU, Recipe
from lethe.unlearn.losses import sequence_nll
from lethe.unlearn.refusals import Key
from lethe.unlearn.streams import generator

NO_GRAD_TOKENS = 8192  # padded tokens in one forward pass without gradients


class Reference:
    """Built before the first step, while the model still is the starting model.

    Full logits and activations come from the model with its adapter switched off, or, without an adapter, from a frozen
    copy (each retain row is seen about once, so a cache would cost as much); it exists only where a loss needs it.
    Sequence log-probabilities, of the forget rows and of the refusals that will be drawn, are computed once and kept.

    layer: RMU's, counted from 1, None for other losses. steering: (H,), what it steers to.
    """

    def __init__(
        self,
        model: Any,
        adapter: Any,
        recipe: Recipe,
        forget: Sequence[Encoded],
        pad_id: int,
        seed: int = 0,
        refusals: Mapping[Key, Encoded] | None = None,
    ) -> None:
        """adapter: the PEFT wrapper around `model`, or None. refusals: all that the run will draw."""
        terms = [term for term in (recipe.forget, recipe.retain) if term is not None]
        on_the_fly = any(
            t.loss in ("kl", "activation_match") or getattr(t, "alternatives", "") == "base" for t in terms
        )
        self._adapter = adapter
        self._model = model
        if on_the_fly and adapter is None:
            self._model = copy.deepcopy(model).requires_grad_(False).eval()
        self.forward_tokens = 0
        on_sequences = any(t.loss in ("npo", "idk_dpo") for t in terms)
        self.logp = self._sequence_logp(model, forget, pad_id) if on_sequences else None
        self._refusals = {key: i for i, key in enumerate(refusals or ())}
        self._refusal_logp = self._sequence_logp(model, list((refusals or {}).values()), pad_id)
        self.layer = self.steering = None
        if isinstance(recipe.forget, RMU):
            self.layer = layer_at(model, recipe.forget.depth)
            self.steering = self._steering(model, recipe.forget, forget, pad_id, seed)

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Tensor:
        """Logits (n, V) at the batch's supervised positions, or activations (n, H) of the layer at its tokens."""
        self.forward_tokens += int(batch.lengths.sum())
        training = self._model.training
        self._model.eval()
        with self._adapter.disable_adapter() if self._adapter is not None else nullcontext():
            outputs = (
                logits_at(self._model, batch) if self.layer is None else activations_at(self._model, batch, self.layer)
            )
        self._model.train(training)
        return outputs

    def refusals_logp(self, keys: Sequence[Key]) -> Tensor:
        """(B,) log pi_start of refusals that were named at the start."""
        return self._refusal_logp[[self._refusals[key] for key in keys]]

    @torch.no_grad()
    def _sequence_logp(self, model: Any, examples: Sequence[Encoded], pad_id: int) -> Tensor:
        """log pi_start(y|x) of every row, (rows,) float32."""
        logp = torch.zeros(len(examples))
        for rows in batches_by_length([len(e.ids) for e in examples], NO_GRAD_TOKENS):
            batch = collate([examples[r] for r in rows], pad_id).to(next(model.parameters()).device)
            logp[rows] = -sequence_nll(logits_at(model, batch), batch.labels, batch.rows, len(rows)).cpu()
        self.forward_tokens += sum(len(e.ids) for e in examples)
        return logp

    @torch.no_grad()
    def _steering(self, model: Any, options: RMU, forget: Sequence[Encoded], pad_id: int, seed: int) -> Tensor:
        """c u (arXiv 2403.03218): u uniform in [0, 1]^H, scaled to length 1, drawn once a run."""
        assert self.layer is not None
        direction = torch.rand(model.config.hidden_size, generator=generator(seed, "rmu"))
        coefficient = options.coefficient
        if options.unit == "activations":
            norms = []
            for rows in batches_by_length([len(e.ids) for e in forget], NO_GRAD_TOKENS):
                batch = collate([forget[r] for r in rows], pad_id).to(next(model.parameters()).device)
                norms.append(activations_at(model, batch, self.layer).float().norm(dim=-1))
            self.forward_tokens += sum(len(e.ids) for e in forget)
            coefficient *= float(torch.cat(norms).mean())
        return coefficient * direction / direction.norm()
