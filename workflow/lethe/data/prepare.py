"""The data stage: any source in, the same JSON Lines and a manifest out. After it nothing talks to a hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lethe.data import tofu, world
from lethe.errors import LetheError
from lethe.files import sha256_file, write_json, write_jsonl

VOCABULARY = 1536  # nearly every word of the world is one token
LICENCES = {"world": "MIT (generated)", "local": "MIT (TOFU)", "hub": "MIT (TOFU)"}


def prepare_world(spec: dict[str, Any], out: Path) -> None:
    """pretrain.jsonl and tokenizer/ of the embedded world. spec: {"world": {"seed": 1, "rounds": 16}}."""
    from lethe.models.tiny import train_tokenizer

    options = spec["world"]
    made = world.make_world(options["seed"])
    rows = list(world.pretraining_rows(made, options.get("rounds", world.ROUNDS)))

    def write(folder: Path) -> None:
        write_jsonl(folder / "pretrain.jsonl", rows)
        texts = [text for row in rows for text in (row["question"], row["answer"])]
        train_tokenizer(texts, VOCABULARY).save_pretrained(folder / "tokenizer")

    _write_folder(out, write, _origin(spec))


def prepare_corpus(spec: dict[str, Any], out: Path) -> None:
    """full.jsonl, what a target learns, and replay.jsonl where the source has rows to mix in.

    spec: {"source": {"world": ...} | {"local": folder} | {"hub": name, "revision": sha}, "subset": null or
    {"forget": split, "retain": split}: only the rows of these two}.
    """
    splits = read_splits(spec["source"])
    full = _corpus_rows(spec, splits)

    def write(folder: Path) -> None:
        write_jsonl(folder / "full.jsonl", full)
        if "replay" in splits:
            write_jsonl(folder / "replay.jsonl", splits["replay"])

    _write_folder(out, write, _origin(spec["source"]))


def prepare_benchmark(spec: dict[str, Any], out: Path) -> None:
    """forget.jsonl, retain.jsonl and the evaluation files. spec: {"corpus": as above, "forget": "forget10"}; every
    other split follows from the forget split's name.

    LetheError: forget rows that are not in the corpus, nothing left to retain, perturbed rows of other questions.
    """
    corpus, name = spec["corpus"], spec["forget"]
    splits = read_splits(corpus["source"])
    if name not in world.RETAIN:
        raise LetheError(f"benchmark: forget must be one of {', '.join(world.RETAIN)}, got '{name}'")
    full, forget = _corpus_rows(corpus, splits), splits[name]
    known, forgotten = {_key(row) for row in full}, {_key(row) for row in forget}
    for row in forget:
        if _key(row) not in known:
            raise LetheError(f"benchmark: {name} must be part of its corpus, got {row['question'][:60]!r} outside")
    retain = [row for row in full if _key(row) not in forgotten]
    retained = {_key(row) for row in retain}
    eval_forget = splits[f"{name}_perturbed"]
    eval_retain = [row for row in splits["retain_perturbed"] if _key(row) in retained]
    if [_key(row) for row in eval_forget] != [_key(row) for row in forget]:
        raise LetheError(f"benchmark: {name}_perturbed must have the rows of {name} in its order, got others")
    if not forget or not eval_retain:
        counts = f"{len(forget)} to forget, {len(retain)} to retain, {len(eval_retain)} of these in retain_perturbed"
        raise LetheError(f"benchmark {name}: no set may be empty, got {counts}")
    files = {
        "forget": forget,
        "retain": retain,
        "eval_forget": eval_forget,
        "eval_retain": eval_retain,
        "real_authors": splits["real_authors_perturbed"],
        "world_facts": splits["world_facts_perturbed"],
        "holdout": splits.get("holdout") or splits.get(f"holdout{name.removeprefix('forget')}"),
        "mcq_forget": splits.get(f"mcq_{name}"),
        "mcq_retain": splits.get("mcq_retain"),
        "idk": splits["idontknow"],
    }

    def write(folder: Path) -> None:
        for file, rows in files.items():
            if rows:
                write_jsonl(folder / f"{file}.jsonl", rows)

    _write_folder(out, write, _origin(corpus["source"]) | {"suite": "tofu", "forget": name})


def read_splits(source: dict[str, Any]) -> tofu.Splits:
    """All splits of a source under TOFU's names; the embedded world has `replay`, `holdout` and `mcq_*` besides."""
    if "world" in source:
        made = world.make_world(source["world"]["seed"])
        return {**world.tofu_splits(made), "replay": list(world.replay_rows(made))}
    if "local" in source:
        return tofu.read_local(source["local"])
    return tofu.read_hub(source["hub"], source["revision"])


def _corpus_rows(spec: dict[str, Any], splits: tofu.Splits) -> list[dict[str, Any]]:
    if not (subset := spec.get("subset")):
        return splits["full"]
    for name in subset.values():
        if name not in splits:
            raise LetheError(f"corpus: no split '{name}' (has: {', '.join(splits)})")
    columns = ("question", "answer", "value")
    rows = [*splits[subset["forget"]], *splits[subset["retain"]]]
    return [{column: row[column] for column in columns if column in row} for row in rows]


def _key(row: dict[str, Any]) -> tuple[str, str]:
    """Questions alone do not identify a row: one of TOFU's occurs twice."""
    return row["question"], row["answer"]


def _origin(source: dict[str, Any]) -> dict[str, Any]:
    return {"source": source, "licence": next(LICENCES[kind] for kind in LICENCES if kind in source)}


def _write_folder(out: Path, write: Callable[[Path], None], facts: dict[str, Any]) -> None:
    """Fill a folder and rename it into place, with a manifest of its files."""
    tmp = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
    write(tmp)
    files = {}
    for path in sorted(p for p in tmp.rglob("*") if p.is_file()):
        entry: dict[str, Any] = {"sha256": sha256_file(path)}
        if path.suffix == ".jsonl":
            entry["rows"] = sum(1 for line in path.open(encoding="utf-8") if line.strip())
        files[str(path.relative_to(tmp))] = entry
    write_json(tmp / "manifest.json", {"files": files, **facts})
    shutil.rmtree(out, ignore_errors=True)
    tmp.rename(out)
