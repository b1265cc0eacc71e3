"""The look of every figure: sizes of a printed column and page, fonts embedded, readable in grey."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

from lethe.paper.data import in_order

COLUMN, PAGE = 3.3, 6.9  # inches

RC: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "errorbar.capsize": 2,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.family": "DejaVu Sans",  # ships with matplotlib, so a figure looks the same everywhere
    "font.size": 8,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "savefig.dpi": 200,
    "svg.hashsalt": "lethe",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}


@dataclass(frozen=True)
class Look:
    """How a recipe is drawn: colour (Okabe and Ito's, safe for the colour-blind), marker, line and hatch."""

    color: str
    marker: str
    line: str | tuple
    hatch: str


LOOKS = {
    "target": Look("#000000", "X", ":", ""),
    "retrain": Look("#555555", "*", (0, (1, 1)), ""),
    "ga": Look("#999999", "v", (0, (5, 1)), ".."),
    "graddiff": Look("#E69F00", "^", "--", "//"),
    "npo": Look("#F0E442", "s", (0, (3, 1, 1, 1, 1, 1)), "oo"),
    "npo-klr": Look("#0072B2", "D", "-.", "\\\\"),
    "task-vector": Look("#7A7A00", "<", (0, (4, 2)), "||"),
    "rmu": Look("#CC79A7", "P", (0, (1, 2)), "++"),
    "simnpo": Look("#009E73", "h", (0, (4, 1, 1, 1)), "xx"),
    "masc": Look("#D55E00", "o", "-", ""),
    "rmu-down": Look("#A04A7A", "X", (0, (2, 1)), "--"),
    "idk-dpo": Look("#56B4E9", "p", (0, (3, 2)), "**"),
    "simnpo-small": Look("#009E73", "H", (0, (1, 1)), "xx"),
    "simnpo-lora": Look("#009E73", "h", (0, (4, 1, 1, 1)), "xx"),
    "graddiff-lora": Look("#E69F00", "^", "--", "//"),
    "masc-full": Look("#8C3A00", "d", (0, (6, 1, 1, 1)), "--"),
}
_OTHERS = [Look("#56B4E9", marker, line, "||") for line in ("--", "-.") for marker in (">", "p", "H", "8")]


def looks(recipes: Sequence[str]) -> dict[str, Look]:
    """A look a recipe: its own, or for an unknown one the next that is free."""
    others = [r for r in in_order(recipes) if r not in LOOKS]
    return {r: LOOKS[r] if r in LOOKS else _OTHERS[others.index(r) % len(_OTHERS)] for r in recipes}


# Scores of the scaling study in one plot: drawn in this order.
SERIES = [
    Look("#0072B2", "o", "-", ""),
    Look("#D55E00", "s", "--", ""),
    Look("#009E73", "^", "-.", ""),
    Look("#CC79A7", "v", ":", ""),
    Look("#000000", "D", (0, (5, 1)), ""),
]


@contextmanager
def paper_style() -> Iterator[None]:
    """Whatever a person's matplotlibrc says, figures look like this."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)  # type: ignore[arg-type]
        yield
