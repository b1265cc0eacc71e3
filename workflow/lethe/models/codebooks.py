"""The quantisation attacks by name, and the levels that each rounds to. Imports no torch: a workflow asks it early.

Every scheme here stores a weight as level * absmax: the largest |weight| of its group times one of at most 2^bits
numbers in [-1, 1]. What differs is the levels, and how many weights share a group.
"""

import importlib.util
from dataclasses import dataclass, replace

from lethe.errors import LetheError

# 4-bit NormalFloat: quantiles of the normal distribution, 0 among them (QLoRA, arXiv 2305.14314, appendix E).
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
# 4-bit float: a sign, two exponent bits, one mantissa bit. Its two zeros are one level.
FP4 = tuple(sorted({sign * x / 12 for sign in (-1, 1) for x in (0, 1 / 16, 2, 3, 4, 6, 8, 12)}))


def symmetric(bits: int) -> tuple[float, ...]:
    """Equal steps on both sides of 0, the most negative code unused: -q/q, ..., 0, ..., q/q with q = 2^(bits-1) - 1."""
    q = 2 ** (bits - 1) - 1
    return tuple(k / q for k in range(-q, q + 1))


@dataclass(frozen=True)
class Scheme:
    """How an attack rounds a weight matrix of shape (out, in)."""

    quant_type: str  # "nf4", "fp4" or "int"
    bits: int
    block: int | None  # neighbours along the input dimension that share a scale; None: the whole row does
    levels: tuple[float, ...]  # ascending, in units of the group's largest |weight|
    half_first: bool = False  # the weight passes through float16, as bitsandbytes casts it before 8 bits
    backend: str = "torch"  # "bitsandbytes" runs its kernels; "torch" is the reference, which runs anywhere


_FP4 = Scheme("fp4", 4, 64, FP4)
_NF4 = Scheme("nf4", 4, 64, NF4)
_INT8 = Scheme("int", 8, None, symmetric(8), half_first=True)

SCHEMES = {
    "bnb-fp4": replace(_FP4, backend="bitsandbytes"),  # what transformers' load_in_4bit=True does unless told otherwise
    "bnb-nf4": replace(_NF4, backend="bitsandbytes"),
    "bnb-int8": replace(_INT8, backend="bitsandbytes"),  # the weights of load_in_8bit=True; see quantise_model
    "fp4": _FP4,
    "nf4": _NF4,
    "int8": _INT8,
    "rtn8": Scheme("int", 8, 64, symmetric(8)),
    "rtn4": Scheme("int", 4, 64, symmetric(4)),
    "rtn3": Scheme("int", 3, 64, symmetric(3)),
}
ATTACKS = ("none", *SCHEMES)


def check_attack(attack: str) -> Scheme | None:
    """The scheme of `attack`, None for "none". Cheap enough for a workflow to ask before it plans any work.

    Raises LetheError for an unknown attack, and for one whose library is not installed.
    """
    if attack not in ATTACKS:
        raise LetheError(f"attack: expected one of {', '.join(ATTACKS)}, got {attack!r}")
    scheme = SCHEMES.get(attack)
    if scheme and scheme.backend == "bitsandbytes" and importlib.util.find_spec("bitsandbytes") is None:
        raise LetheError(
            f"attack {attack}: bitsandbytes is not installed ({attack.removeprefix('bnb-')} needs no more than torch)"
        )
    return scheme
