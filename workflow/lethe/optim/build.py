"""Optimiser and learning rate of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lethe.errors import LetheError
from lethe.recipe import Optimizer


def check_optimizer(options: Optimizer) -> None:
    """LetheError for an optimiser that this machine cannot run; cheap enough to ask before loading anything."""
    if options.name == "paged_adamw_32bit" and not torch.cuda.is_available():
        raise LetheError("recipe: optimizer.name paged_adamw_32bit needs a CUDA device, found none (use adamw)")


def build_optimizer(options: Optimizer, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {
        "lr": options.lr,
        "betas": options.betas,
        "eps": options.eps,
        "weight_decay": options.weight_decay,
    }
    if options.name == "adamw":
        return torch.optim.AdamW(parameters, fused=True, **settings)
    import bitsandbytes

    return bitsandbytes.optim.PagedAdamW32bit(parameters, **settings)


def learning_rate(options: Optimizer, step: int, per_epoch: int, total: int) -> float:
    """At 0-based `step` of `total`: linear warm-up to the peak, then constant or linear decay towards zero."""
    warmup = round(options.warmup * per_epoch)
    if step < warmup:
        return options.lr * (step + 1) / warmup
    if options.schedule == "constant":
        return options.lr
    return options.lr * max(0.0, (total - step) / max(1, total - warmup))
