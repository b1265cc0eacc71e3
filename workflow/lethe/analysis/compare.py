"""Two folders of table CSVs side by side: what of a reproduction lies outside the declared tolerances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.analysis.summary import read_csv

KEYS = ("recipe", "benchmark", "model", "start", "attack", "metric", "n_kind", "question")
EXCLUDED = ("time_*",)  # seconds depend on the machine


@dataclass(frozen=True)
class Tolerance:
    """|ours - expected| <= absolute + relative * |expected| for columns that match the pattern."""

    columns: str
    absolute: float = 0.0
    relative: float = 0.0


# The first that matches counts. Training is deterministic on one machine; on another, float rounding moves some greedy
# generations, hence room for the scores but none for counts and printed numbers.
TOLERANCES = (
    Tolerance("n_*"),
    Tolerance("*_paper*", relative=1e-6),
    Tolerance("C", relative=0.10),
    Tolerance("alpha*", absolute=0.05),
    Tolerance("r2", absolute=0.10),
    Tolerance("*_kept*", absolute=0.05),
    *(
        Tolerance(f"{name}*", absolute=5)
        for name in ("verbmem", "knowmem", "privleak", "scalability", "sustainability")
    ),
    Tolerance("*", absolute=0.05),
)


@dataclass(frozen=True)
class Difference:
    """One thing outside: a file, row or column that only one side has, or a cell that differs."""

    file: str
    row: str
    column: str
    expected: str
    ours: str

    def __str__(self) -> str:
        place = " ".join(part for part in (self.file, self.row, self.column) if part)
        return f"{place}: expected {self.expected}, got {self.ours}"


def compare_tables(
    ours: str | Path, expected: str | Path, tolerances: Sequence[Tolerance] = TOLERANCES
) -> list[Difference]:
    """Differences between the CSVs `{study}/{id}.csv` of two folders, in order; empty where all lies within."""
    ours, expected = Path(ours), Path(expected)
    names = sorted({str(p.relative_to(root)) for root in (ours, expected) for p in root.glob("*/*.csv")})
    found = []
    for name in names:
        if not (expected / name).exists() or not (ours / name).exists():
            found.append(_one_sided(name, "", "", (expected / name).exists()))
        else:
            found += _compare(name, read_csv(ours / name, []), read_csv(expected / name, []), tolerances)
    return found


def _compare(
    name: str, ours: pd.DataFrame, expected: pd.DataFrame, tolerances: Sequence[Tolerance]
) -> list[Difference]:
    columns = [c for c in dict.fromkeys([*expected.columns, *ours.columns]) if not _matches(c, EXCLUDED)]
    found = [_one_sided(name, "", c, c in expected) for c in columns if (c in ours) != (c in expected)]
    both = [c for c in columns if c in ours and c in expected]
    keys = [c for c in KEYS if c in both]
    mine, theirs = ({_row_key(row, keys): row for row in frame.to_dict("records")} for frame in (ours, expected))
    for key in dict.fromkeys([*theirs, *mine]):
        if key not in mine or key not in theirs:
            found.append(_one_sided(name, key, "", key in theirs))
            continue
        for column in both:
            if not _close(mine[key][column], theirs[key][column], column, tolerances):
                found.append(Difference(name, key, column, _show(theirs[key][column]), _show(mine[key][column])))
    return found


def _close(ours: Any, expected: Any, column: str, tolerances: Sequence[Tolerance]) -> bool:
    if pd.isna(ours) or pd.isna(expected):
        return bool(pd.isna(ours) and pd.isna(expected))
    if isinstance(ours, str) or isinstance(expected, str):
        return str(ours) == str(expected)
    tolerance = next(t for t in tolerances if fnmatch(column, t.columns))
    return math.isclose(ours, expected, rel_tol=0, abs_tol=tolerance.absolute + tolerance.relative * abs(expected))


def _matches(column: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(column, pattern) for pattern in patterns)


def _row_key(row: dict, keys: Sequence[str]) -> str:
    return "/".join(_show(row[key]) for key in keys)


def _show(value: Any) -> str:
    return "nothing" if pd.isna(value) else f"{value:.4g}" if isinstance(value, float) else str(value)


def _one_sided(file: str, row: str, column: str, in_expected: bool) -> Difference:
    expected, ours = ("present", "nothing") if in_expected else ("nothing", "present")
    return Difference(file, row, column, expected, ours)
