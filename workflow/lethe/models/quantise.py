"""Quantisation attacks: a model's weights replaced, in place, by dequantise(quantise(weights)).

The model then runs in its own precision on any device, so every metric works on it unchanged. The result is what a
weight-only quantised model computes, up to the rounding of the kernel that would multiply packed weights.
"""

import importlib.metadata
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lethe.errors import LetheError
from lethe.models.codebooks import ATTACKS, SCHEMES, Scheme, check_attack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "ATTACKS", "SCHEMES", "Report", "check_attack", "codes", "quantise_model", "quantise_tensor", "rounded_weights",
    "step_size", "toward_grid",
]  # fmt: skip

SMALLEST = 1e-35  # stands in for the absmax of an all-zero group; its inverse and 127 times that are finite in float32


@dataclass(frozen=True)
class Report:
    """What an attack did to a model; `as_dict` is what an evaluation stores."""

    attack: str
    quantiser: str  # the library that rounded, and its version
    version: str
    quant_type: str
    bits: int
    block: int | None  # weights that share a scale; None: a whole row
    double_quant: bool  # are the scales themselves quantised? Never here
    dtype: str  # of the model, in which the dequantised weights are stored and multiplied
    n_quantised: int  # parameters rounded
    n_params: int  # parameters in all, tied ones counted once
    mean_abs_change: float  # mean |w - q(w)| over the rounded parameters, in units of the weights
    quantised: list[str]  # modules
    skipped: dict[str, str]  # module: why it was kept

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def quantise_model(model: "PreTrainedModel", attack: str) -> Report | None:
    """Round the Linear weights of a causal language model in place; None, and no change, for the attack "none".

    The same modules are rounded as by transformers with bitsandbytes: embeddings, the output embedding and tied weights
    keep their precision, and so do biases and norms. "bnb-int8" rounds the weights as load_in_8bit does and no
    activations, so it is not LLM.int8().
    Raises LetheError, with the model unchanged, for an unknown attack, an adapter that is not merged, a weight that the
    attack cannot round, and a model in which nothing would be rounded.
    """
    scheme = check_attack(attack)
    if scheme is None:
        return None
    chosen, skipped = _linear_modules(model)
    if not chosen:
        kept = ", ".join(f"{name} ({why})" for name, why in skipped.items()) or "no Linear module"
        raise LetheError(f"attack {attack}: nothing to quantise in {type(model).__name__}, got {kept}")
    for name, module in chosen.items():
        _check_weight(module.weight, scheme, name)

    change, count = 0.0, 0
    for name, module in chosen.items():
        rounded = _round(module.weight, scheme)
        _check_levels(rounded, scheme, name)
        change += (rounded.float() - module.weight.float()).abs().sum(dtype=torch.float64).item()
        count += rounded.numel()
        module.weight.copy_(rounded)
    return Report(
        attack=attack,
        quantiser=scheme.backend,
        version=importlib.metadata.version(scheme.backend),
        quant_type=scheme.quant_type,
        bits=scheme.bits,
        block=scheme.block,
        double_quant=False,
        dtype=str(model.dtype).removeprefix("torch."),
        n_quantised=count,
        n_params=sum(p.numel() for p in model.parameters()),
        mean_abs_change=change / count,
        quantised=list(chosen),
        skipped=skipped,
    )


@torch.no_grad()
def toward_grid(model: "PreTrainedModel", attack: str, residue: float) -> None:
    """Move every weight w that the attack rounds to Q(w) + residue (w - Q(w)), in place.

    residue 0 makes a checkpoint that the quantiser holds without loss, 1 changes nothing. Errors as `quantise_model`.
    """
    before = {name: weight.clone() for name, weight in rounded_weights(model).items()}
    quantise_model(model, attack)
    for name, weight in rounded_weights(model).items():
        weight.lerp_(before[name], residue)


def rounded_weights(model: "PreTrainedModel") -> dict[str, Tensor]:
    """The weights that an attack rounds, by the names of their modules."""
    return {name: module.weight.detach() for name, module in _linear_modules(model)[0].items()}


@torch.no_grad()
def quantise_tensor(w: Tensor, attack: str) -> Tensor:
    """dequantise(quantise(w)) of a weight (out, in), float32 or 16 bits: a new tensor of the same shape and dtype.

    Raises LetheError for an unknown attack or a weight that it cannot round.
    """
    scheme = check_attack(attack)
    if scheme is None:
        return w.clone()
    _check_weight(w, scheme, "weight")
    return _round(w, scheme)


@torch.no_grad()
def codes(w: Tensor, attack: str) -> Tensor:
    """Which level each weight of (out, in) rounds to, counted from the lowest: (out, in) integers.

    For the bnb attacks these are the reference's, which agree with bitsandbytes.
    """
    scheme = _scheme(attack)
    _check_weight(w, scheme, "weight")
    return _ungroup(_encode(w, scheme)[0], w.shape[1])


@torch.no_grad()
def step_size(w: Tensor, attack: str) -> Tensor:
    """Local quantisation step of each weight of (out, in): (out, in) float32, in units of the weights.

    It is the width of the cell of values that round to the same level, the outermost cells being taken as symmetric
    about their level; for equally spaced levels, absmax / (2^(bits-1) - 1). In all-zero groups it is 0.
    """
    scheme = _scheme(attack)
    _check_weight(w, scheme, "weight")
    index, absmax = _encode(w, scheme)
    levels = torch.tensor(scheme.levels, device=w.device)
    edges = _midpoints(levels)
    edges = torch.cat([2 * levels[:1] - edges[:1], edges, 2 * levels[-1:] - edges[-1:]])
    return _ungroup(edges.diff()[index] * absmax, w.shape[1])


def _scheme(attack: str) -> Scheme:
    scheme = check_attack(attack)
    if scheme is None:
        raise LetheError(f"attack: a quantisation attack is needed here, got {attack!r}")
    return scheme


def _linear_modules(model: "PreTrainedModel") -> tuple[dict[str, nn.Linear], dict[str, str]]:
    """The modules to round and, with the reason, the Linear and Embedding modules to keep."""
    adapters = [name for name, _ in model.named_parameters() if "lora_" in name]
    if adapters:
        raise LetheError(f"model: merge its LoRA adapter before quantising, got {adapters[0]}")
    head = model.get_output_embeddings()
    holders = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    chosen, skipped = {}, {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            skipped[name] = "embedding"
        elif type(module) is not nn.Linear:  # a subclass may compute something else, or be quantised already
            continue
        elif module is head:
            skipped[name] = "output embedding"
        elif holders[id(module.weight)] > 1:
            skipped[name] = "weight tied to another module's"
        else:
            chosen[name] = module
    return chosen, skipped


def _check_weight(w: Tensor, scheme: Scheme, name: str) -> None:
    if w.ndim != 2 or w.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise LetheError(f"{name}: expected a matrix of 16 or 32-bit floats, got {w.dtype} of shape {tuple(w.shape)}")
    finite = (w.half() if scheme.half_first else w).isfinite()
    if not finite.all():
        raise LetheError(f"{name}: cannot round weights that are not finite, got {int((~finite).sum())} of them")
    # bitsandbytes' CPU kernel assumes that no block straddles two rows, and returns wrong numbers when one does.
    if scheme.backend == "bitsandbytes" and scheme.block and w.device.type == "cpu" and w.shape[1] % scheme.block:
        need = f"an input dimension that is a multiple of {scheme.block}"
        raise LetheError(f"{name}: bitsandbytes on CPU needs {need}, got {w.shape[1]}")


def _check_levels(rounded: Tensor, scheme: Scheme, name: str) -> None:
    """Guard against a backend that returns something finer than it claims (8 bits stored, 4 bits asked for)."""
    ordered = _group(rounded, scheme.block).sort(dim=-1).values
    most = int((ordered.diff(dim=-1) != 0).sum(dim=-1).max()) + 1
    if most > 2**scheme.bits:
        raise LetheError(f"{name}: {scheme.bits} bits allow {2**scheme.bits} values in a group, got {most}")


def _round(w: Tensor, scheme: Scheme) -> Tensor:
    if scheme.backend == "bitsandbytes":
        return _round_with_bitsandbytes(w, scheme).to(w.dtype)
    index, absmax = _encode(w, scheme)
    # Level times absmax, not code times step: the largest weight returns exactly, so rounding twice changes nothing.
    levels = torch.tensor(scheme.levels, device=w.device)
    return _ungroup(levels[index] * absmax, w.shape[1]).to(w.dtype)


def _round_with_bitsandbytes(w: Tensor, scheme: Scheme) -> Tensor:
    import bitsandbytes.functional as bnb

    if scheme.quant_type == "int":
        rows, absmax, _ = bnb.int8_vectorwise_quant(w.half())
        return bnb.int8_vectorwise_dequant(rows, absmax)
    packed, state = bnb.quantize_4bit(
        w.contiguous(),
        blocksize=scheme.block,
        quant_type=scheme.quant_type,
        compress_statistics=False,
        quant_storage=torch.uint8,
    )
    return bnb.dequantize_4bit(packed, state)


def _encode(w: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Indices of the nearest levels (out, groups, size) and the scales (out, groups, 1), for a weight (out, in)."""
    x = _group(w.half() if scheme.half_first else w, scheme.block)
    absmax = x.abs().amax(dim=-1, keepdim=True)
    safe = absmax.clamp_min(SMALLEST)
    if scheme.quant_type == "int":
        largest = len(scheme.levels) // 2
        return (x * (largest / safe)).round().int() + largest, absmax
    levels = torch.tensor(scheme.levels, device=w.device)
    return torch.bucketize(x * (1 / safe), _midpoints(levels), out_int32=True), absmax


def _midpoints(levels: Tensor) -> Tensor:
    return (levels[:-1] + levels[1:]) / 2


def _group(w: Tensor, block: int | None) -> Tensor:
    """(out, in) -> (out, groups, block) float32, a partial last group filled with zeros, which move no scale."""
    size = block or w.shape[1]
    return F.pad(w.float(), (0, -w.shape[1] % size)).unflatten(1, (-1, size))


def _ungroup(grouped: Tensor, width: int) -> Tensor:
    return grouped.flatten(1)[:, :width]
