"""Values out of other projects' logs, or one line that says where a log is broken."""

from __future__ import annotations

import math
from typing import Any

from lethe.errors import LetheError


def field(record: Any, name: str, where: str) -> Any:
    if not isinstance(record, dict):
        raise LetheError(f"{where}: expected an object, got {type(record).__name__}")
    if name not in record:
        raise LetheError(f"{where}: no field '{name}' (has: {', '.join(map(str, record))})")
    return record[name]


def by_index(values: Any, where: str) -> dict[int, Any]:
    """Values keyed by item: an object with index strings as keys, or a list. At least one."""
    if isinstance(values, list):
        values = {str(index): value for index, value in enumerate(values)}
    if not isinstance(values, dict) or not values:
        raise LetheError(f"{where}: expected values by index, got {values!r:.60}")
    if wrong := [key for key in values if not key.isdecimal()]:
        raise LetheError(f"{where}: expected values by index, got the key {wrong[0]!r}")
    return {int(index): value for index, value in values.items()}


def number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LetheError(f"{where}: expected a number, got {value!r:.60}")
    return float(value)


def numbers(value: Any, where: str) -> list[float]:
    if not isinstance(value, list) or not value:
        raise LetheError(f"{where}: expected a list of numbers, got {value!r:.60}")
    return [number(x, where) for x in value]
