"""The data stage: any source in, the same JSON Lines and a manifest out. After it nothing talks to a hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lethe.data import muse, tofu, world
from lethe.errors import LetheError
from lethe.files import sha256_file, write_json, write_jsonl

VOCABULARY = 1536  # nearly every word of the world is one token
# Family -> the kinds of source that it can be read from, and their licences.
LICENCES = {
    "tofu": {"world": "MIT (generated)", "local": "MIT (TOFU)", "hub": "MIT (TOFU)"},
    "muse": {"library": "MIT (generated)", "local": "as in the folder", "hub": "CC BY 4.0 (MUSE)"},
}


def prepare_world(spec: dict[str, Any], out: Path) -> None:
    """pretrain.jsonl and tokenizer/ of the embedded world. spec: {"world": {"seed": 1, "rounds": 16}}."""
    options = spec["world"]
    rows = list(world.pretraining_rows(world.make_world(options["seed"]), options.get("rounds", world.ROUNDS)))
    _write_language(out, rows, (text for row in rows for text in (row["question"], row["answer"])), spec)


def prepare_library(spec: dict[str, Any], out: Path) -> None:
    """pretrain.jsonl and tokenizer/ of the embedded library. spec: {"world": {"seed": 1, "rounds": 16}}."""
    from lethe.data import library

    options = spec["world"]
    rows = list(library.pretraining_rows(options["seed"], options.get("rounds", library.ROUNDS)))
    _write_language(out, rows, (row["text"] for row in rows), spec)


def prepare_corpus(spec: dict[str, Any], out: Path) -> None:
    """full.jsonl, what a target learns, and replay.jsonl where the source has rows to mix in.

    spec: {"family": "tofu" (the default) or "muse", "source": {kind: ...}, and what else the family has}; see
    `tofu_corpus` and `muse.read_source`.
    """
    family, origin = _origin(spec)
    files, facts = CORPORA[family](spec)
    _write_folder(out, lambda folder: _write_rows(folder, files), origin | facts)


def prepare_benchmark(spec: dict[str, Any], out: Path) -> None:
    """forget.jsonl, retain.jsonl, retrain.jsonl (what the retrained model learns) and the evaluation files.

    spec: {"corpus": as above, "forget": the forget set's name}; every other split follows from that name.
    """
    family, origin = _origin(spec["corpus"])
    files, facts = BENCHMARKS[family](spec)
    _write_folder(out, lambda folder: _write_rows(folder, files), origin | facts)


def tofu_corpus(spec: dict[str, Any]) -> tuple[tofu.Splits, dict[str, Any]]:
    """Rows by file name, and facts for the manifest. spec: {"source": {"world": ...} | {"local": folder} |
    {"hub": name, "revision": sha}, "subset": null or {"forget": split, "retain": split}: only the rows of these two}.
    """
    splits = read_splits(spec["source"])
    return {"full": _corpus_rows(spec, splits), "replay": splits.get("replay", [])}, {}


def tofu_benchmark(spec: dict[str, Any]) -> tuple[tofu.Splits, dict[str, Any]]:
    """Rows by file name, and facts for the manifest. spec: {"corpus": as above, "forget": "forget10"}.

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
        "retrain": retain,
        "eval_forget": eval_forget,
        "eval_retain": eval_retain,
        "real_authors": splits["real_authors_perturbed"],
        "world_facts": splits["world_facts_perturbed"],
        "holdout": splits.get("holdout") or splits.get(f"holdout{name.removeprefix('forget')}", []),
        "mcq_forget": splits.get(f"mcq_{name}", []),
        "mcq_retain": splits.get("mcq_retain", []),
        "idk": splits["idontknow"],
    }
    return files, {"suite": "tofu", "forget": name}


CORPORA = {"tofu": tofu_corpus, "muse": muse.corpus_files}
BENCHMARKS = {"tofu": tofu_benchmark, "muse": muse.benchmark_files}


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


def _origin(corpus: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The family of a corpus, and its source and licence for the manifest."""
    family, source = corpus.get("family", "tofu"), corpus["source"]
    if family not in LICENCES:
        raise LetheError(f"corpus: family must be one of {', '.join(LICENCES)}, got '{family}'")
    for kind, licence in LICENCES[family].items():
        if kind in source:
            return family, {"source": source, "licence": licence}
    kinds = ", ".join(LICENCES[family])
    raise LetheError(f"corpus: the source of family {family} must be one of {kinds}, got {', '.join(source)}")


def _write_language(out: Path, rows: list[dict[str, str]], texts: Iterable[str], spec: dict[str, Any]) -> None:
    """What a base model reads, and a tokenizer of its words."""
    from lethe.models.tiny import train_tokenizer

    def write(folder: Path) -> None:
        write_jsonl(folder / "pretrain.jsonl", rows)
        train_tokenizer(texts, VOCABULARY).save_pretrained(folder / "tokenizer")

    _write_folder(out, write, {"source": spec, "licence": "MIT (generated)"})


def _write_rows(folder: Path, files: tofu.Splits) -> None:
    for file, rows in files.items():
        if rows:
            write_jsonl(folder / f"{file}.jsonl", rows)


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
