"""Batched greedy decoding that stops paying for a row once it has finished."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch

from lethe.data.text import batches_by_length, collate_prompts
from lethe.metrics.scores import Progress, evaluating


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    max_tokens: int,
    progress: Progress | None = None,
) -> list[list[int]]:
    """The most likely continuation of each prompt, token by token, in input order and without its stop token.

    Prompts of similar length share a batch of at most max_tokens tokens (prompt and continuation, padded). What comes
    out is what one-at-a-time decoding gives: padding on the left, positions and masks from lengths.
    """
    continuations: list[list[int]] = [[] for _ in prompts]
    done = 0
    with evaluating(model):
        for indices in batches_by_length([len(p) + max_new_tokens for p in prompts], max_tokens):
            decoded = _decode(model, [prompts[i] for i in indices], max_new_tokens, frozenset(stop_ids))
            for i, tokens in zip(indices, decoded, strict=True):
                continuations[i] = tokens
            done += len(indices)
            if progress:
                progress(done, len(prompts))
    return continuations


def _decode(model: Any, prompts: list[Sequence[int]], max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
    from transformers import DynamicCache

    batch = collate_prompts(prompts, pad_id=0).to(next(model.parameters()).device)
    ids, mask, positions = batch.ids, batch.attention_mask, batch.position_ids
    cache = DynamicCache(config=model.config)
    cache_argument = _cache_argument(model)
    continuations: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # which prompt each row of the batch belongs to
    for step in range(max_new_tokens):
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{cache_argument: cache},
        ).logits[:, -1]
        tokens = logits.argmax(dim=-1)
        unfinished = []
        for place, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if token not in stop_ids:
                continuations[row].append(token)
                unfinished.append(place)
        if not unfinished or step == max_new_tokens - 1:
            break
        positions = positions[:, -1:] + 1
        if len(unfinished) < len(rows):
            keep = torch.tensor(unfinished, device=tokens.device)
            cache.batch_select_indices(keep)
            tokens, mask, positions = tokens[keep], mask[keep], positions[keep]
            rows = [rows[place] for place in unfinished]
        ids = tokens[:, None]
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
    return continuations


def _cache_argument(model: Any) -> str:
    """Newer releases of transformers renamed the argument; adapters hide the signature of the model they wrap."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"
