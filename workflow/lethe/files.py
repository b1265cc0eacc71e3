"""Small files, written whole or not at all."""

import fcntl
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lethe.errors import LetheError


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it into place when the block ends without an exception."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    tmp = Path(name)
    try:
        yield tmp
        tmp.chmod(0o644)
        tmp.replace(path)
    finally:
        tmp.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    with atomic(path) as tmp:
        tmp.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """NaN and infinity are errors: they are not JSON, and a reader elsewhere would fail on them later."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LetheError(f"{path}: no such file") from None
    except json.JSONDecodeError as e:
        raise LetheError(f"{path} line {e.lineno}: not JSON ({e.msg})") from None


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_jsonl(path: str | Path, require: Iterable[str] = ()) -> list[dict]:
    """Rows of a JSON Lines file; each must have every field of `require`. Empty lines are passed over."""
    rows = []
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise LetheError(f"{path}: no such file") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise LetheError(f"{path} line {number}: not JSON ({e.msg})") from None
        if not isinstance(row, dict):
            raise LetheError(f"{path} line {number}: expected an object, got {type(row).__name__}")
        for field in require:
            if field not in row:
                raise LetheError(f"{path} line {number}: no field '{field}' (has: {', '.join(row)})")
        rows.append(row)
    return rows


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextmanager
def lock(path: str | Path) -> Iterator[None]:
    """Hold an exclusive lock for the block; wait, saying so, while another process (perhaps an orphan) holds it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lethe: waiting for another process that is writing here ({path})", file=sys.stderr)
            fcntl.flock(f, fcntl.LOCK_EX)
        yield
