"""What a run did to the weights, and the control that does as much at random."""

from __future__ import annotations

from typing import Any

import torch

from lethe.models.quantise import rounded_weights, step_size
from lethe.unlearn.streams import generator

STEP_OF = "rtn4"  # the quantiser whose local step an update is compared with


@torch.no_grad()
def update_size(start: Any, final: Any) -> dict[str, float | None]:
    """How far the weights moved from `start` to `final`, two models of one architecture.

    update_norm: L2 norm of the difference of all parameters. update_over_step: mean of |difference| / local step of
    4-bit rounding over the weights that would be rounded; _touched: over those of matrices that changed at all (None
    where none did). A mean far below 1/2 says that most weights would round as before.
    """
    before = dict(start.named_parameters())
    squares = sum(
        (p.detach().float() - before[name].detach().to(p.device).float()).pow(2).sum(dtype=torch.float64).item()
        for name, p in final.named_parameters()
    )
    old, total, touched, count, count_touched = rounded_weights(start), 0.0, 0.0, 0, 0
    for name, weight in rounded_weights(final).items():
        was = old[name].to(weight.device)
        away, step = (weight.float() - was.float()).abs(), step_size(was, STEP_OF)
        ratio = torch.where(step > 0, away / step, 0.0).sum(dtype=torch.float64).item()
        total, count = total + ratio, count + weight.numel()
        if away.any():
            touched, count_touched = touched + ratio, count_touched + weight.numel()
    return {
        "update_norm": squares**0.5,
        "update_over_step": total / count,
        "update_over_step_touched": touched / count_touched if count_touched else None,
    }


@torch.no_grad()
def random_update(model: Any, like: Any, seed: int) -> None:
    """Move every parameter of `model` by a normal direction as far (L2) as it lies from the same one of `like`."""
    others = dict(like.named_parameters())
    for name, parameter in model.named_parameters():
        norm = (others[name].to(parameter.device).float() - parameter.float()).norm()
        direction = torch.randn(parameter.shape, generator=generator(seed, "random update", name)).to(parameter.device)
        parameter.add_(direction * (norm / direction.norm()))
