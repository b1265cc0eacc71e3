"""Strict models of YAML sections: read, merge, check, hash. Unknown keys are errors everywhere."""

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from lethe.errors import LetheError

T = TypeVar("T", bound=BaseModel)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_KINDS = ("loss", "rule", "local", "hub", "world", "tiny")


def merge(base: Any, override: Any) -> Any:
    """Deep merge of mappings. A section that names another loss, stop rule or source replaces the old one whole."""
    if not (isinstance(base, dict) and isinstance(override, dict)):
        return override
    for kind in _KINDS:
        if kind not in override or not any(k in base for k in _KINDS):
            continue
        if kind not in base or (kind in ("loss", "rule") and base[kind] != override[kind]):
            return override
    return {**base, **{key: merge(base[key], value) if key in base else value for key, value in override.items()}}


def validate(kind: type[T], value: Any, where: str) -> T:
    """The model, or one line with the file, the key and what was found."""
    try:
        return kind.model_validate(value)
    except ValidationError as e:
        error = e.errors()[0]
        key = ".".join(str(part) for part in error["loc"])
        found = "" if isinstance(error["input"], dict) else f", got {error['input']!r}"
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            message, found = "unknown key", ""
        raise LetheError(
            f"{where}{':' if ':' not in where else ''} {key}{': ' if key else ''}{message}{found}"
        ) from None


def canonical_json(value: BaseModel) -> str:
    return json.dumps(value.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def spec_sha256(value: BaseModel) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def read_yaml(path: str | Path) -> dict:
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LetheError(f"{path}: no such file") from None
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        raise LetheError(
            f"{path}{f' line {mark.line + 1}' if mark else ''}: not YAML ({getattr(e, 'problem', e)})"
        ) from None
    if not isinstance(raw, dict):
        raise LetheError(f"{path}: expected a mapping, got {type(raw).__name__}")
    return raw
