"""What a run did to the weights, and the control that does as much at random."""

from __future__ import annotations

from typing import Any

import torch

from lethe.models.quantise import codes, rounded_weights, step_size
from lethe.unlearn.streams import generator

STEP_OF = "rtn4"  # the quantiser whose local step an update is compared with


@torch.no_grad()
def update_size(start: Any, final: Any, seed: int) -> dict[str, float | None]:
    """How far the weights moved from `start` to `final`, two models of one architecture.

    update_norm: L2 norm of the difference of all parameters. update_over_step: mean of |difference| / local step of
    4-bit rounding over the weights that would be rounded; _touched: over those of matrices that changed at all (None
    where none did). A mean far below 1/2 says that most weights would round as before. codes_changed: share of the
    rounded weights whose 4-bit code differs afterwards. update_over_step_random, codes_changed_random: the same for an
    update of a random direction that moves every matrix as far.
    """
    before = dict(start.named_parameters())
    squares = sum(
        (p.detach().float() - before[name].detach().to(p.device).float()).pow(2).sum(dtype=torch.float64).item()
        for name, p in final.named_parameters()
    )
    old, sums, touched, count, count_touched = rounded_weights(start), torch.zeros(4, dtype=torch.float64), 0.0, 0, 0
    for name, weight in rounded_weights(final).items():
        was, now = old[name].to(weight.device).float(), weight.float()
        random = was + _random_direction(was, (now - was).norm(), seed, name)
        step, code = step_size(was, STEP_OF), codes(was, STEP_OF)
        for i, moved in enumerate((now, random)):
            sums[2 * i] += torch.where(step > 0, (moved - was).abs() / step, 0.0).sum(dtype=torch.float64).cpu()
            sums[2 * i + 1] += (codes(moved, STEP_OF) != code).sum().cpu()
        count += weight.numel()
        if (now != was).any():
            touched += torch.where(step > 0, (now - was).abs() / step, 0.0).sum(dtype=torch.float64).item()
            count_touched += weight.numel()
    ratio, changed, random_ratio, random_changed = (sums / count).tolist()
    return {
        "update_norm": squares**0.5,
        "update_over_step": ratio,
        "update_over_step_touched": touched / count_touched if count_touched else None,
        "codes_changed": changed,
        "update_over_step_random": random_ratio,
        "codes_changed_random": random_changed,
    }


@torch.no_grad()
def random_update(model: Any, like: Any, seed: int) -> None:
    """Move every parameter of `model` by a normal direction as far (L2) as it lies from the same one of `like`."""
    others = dict(like.named_parameters())
    for name, parameter in model.named_parameters():
        norm = (others[name].to(parameter.device).float() - parameter.float()).norm()
        parameter.add_(_random_direction(parameter, norm, seed, name))


def _random_direction(like: torch.Tensor, norm: torch.Tensor, seed: int, name: str) -> torch.Tensor:
    """Normal numbers in the shape of `like`, of this length."""
    direction = torch.randn(like.shape, generator=generator(seed, "random update", name)).to(like.device)
    return direction * (norm / direction.norm())
