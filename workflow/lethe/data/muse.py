"""MUSE (Shi et al. 2024): raw text to unlearn, and what its six-way evaluation asks.

Read from the hub, from a folder of the hub's schema, from a folder of plain text files (excerpts are cut from them), or
generated. Splits have one name each, whatever the source calls them: see PARTS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lethe.config import Excerpts
from lethe.errors import LetheError
from lethe.files import read_jsonl

Splits = dict[str, list[dict[str, Any]]]

# Fields here -> columns of the source.
TEXT = {"text": "text"}
PAIR = {"question": "question", "answer": "answer"}
VERBATIM = {"prompt": "prompt", "continuation": "gt"}

# Split -> the source's config, the names that the split has there (the first found counts), its fields.
EVALUATION = {
    "verbatim_forget": ("verbmem", ("forget",), VERBATIM),
    "knowledge_forget": ("knowmem", ("forget_qa",), PAIR),
    "knowledge_retain": ("knowmem", ("retain_qa", "retain2_qa"), PAIR),
    "examples_forget": ("knowmem", ("forget_qa_icl",), PAIR),
    "examples_retain": ("knowmem", ("retain_qa_icl", "retain2_qa_icl"), PAIR),
    "member_forget": ("privleak", ("forget",), TEXT),
    "member_retain": ("privleak", ("retain", "retain2"), TEXT),
    "member_holdout": ("privleak", ("holdout",), TEXT),
}
PARTS = {
    **{name: ("raw", (name,), TEXT) for name in ("forget", "retain1", "retain2", "holdout")},
    **EVALUATION,
    **{f"{config}_{k}": (config, (f"forget_{k}",), TEXT) for config in ("scal", "sust") for k in range(1, 5)},
}
NEEDED = ("forget", "retain1")
EXCERPTS = Excerpts().model_dump()  # count in excerpts, the rest in words


@dataclass(frozen=True)
class Source:
    """splits: rows by name, absent where the source lacks them. missing: why, by name of an evaluation split. skipped:
    how many texts were empty. excerpts: how long those cut from plain text are, None where none were cut."""

    splits: Splits
    missing: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    excerpts: dict[str, int] | None = None


def corpus_files(corpus: dict[str, Any]) -> tuple[Splits, dict[str, Any]]:
    """Rows by file name, and facts for the manifest. full: what a target learns; replay where the source has it."""
    source = read_source(corpus)
    splits = source.splits
    full = [*splits["forget"], *splits["retain1"], *splits.get("retain2", [])]
    return {"full": full, "replay": splits.get("replay", [])}, {"skipped": source.skipped}


def benchmark_files(spec: dict[str, Any]) -> tuple[Splits, dict[str, Any]]:
    """Rows by file name, and facts for the manifest. spec: {"corpus": ..., "forget": "forget", "scal_2", "sust_1", ..}.

    What a retrained model learns is the same for every forget set, as in MUSE: all that is retained. An evaluation
    split of a forget set's own, such as verbatim_forget_scal_2, goes before the one for all.
    LetheError: a forget set that the source lacks, a text both to forget and to retain.
    """
    name = spec["forget"]
    source = read_source(spec["corpus"])
    splits = source.splits
    sets = [part for part in PARTS if part in splits and (part == "forget" or part.startswith(("scal_", "sust_")))]
    if name not in sets:
        raise LetheError(f"benchmark: forget must be one of {', '.join(sets)}, got '{name}'")
    _refuse_duplicates(name, splits)
    evaluation = {file: splits.get(f"{file}_{name}") or splits.get(file, []) for file in EVALUATION}
    files = {
        "forget": splits[name],
        "retain": splits["retain1"],
        "retrain": [*splits["retain1"], *splits.get("retain2", [])],
        **evaluation,
    }
    return files, {
        "suite": "muse",
        "forget": name,
        "missing": {f: source.missing.get(f, "not part of the source") for f, rows in evaluation.items() if not rows},
        "skipped": source.skipped,
        "excerpts": source.excerpts,
    }


def read_source(corpus: dict[str, Any]) -> Source:
    """corpus: {"source": {"local": folder} | {"hub": name, "revision": sha} | {"library": {"seed": 1, "style": "news"
    or "books"}}, "excerpts": see EXCERPTS, for plain text files only}."""
    if corpus.get("subset"):
        raise LetheError(f"corpus: subset belongs to the family tofu, got {corpus['subset']} with the family muse")
    source = corpus["source"]
    if "library" in source:
        from lethe.data.library import muse_splits

        return Source(muse_splits(source["library"]["seed"], source["library"]["style"]))
    if "local" in source:
        return read_local(source["local"], corpus.get("excerpts"))
    return read_hub(source["hub"], source["revision"])


def read_hub(name: str, revision: str) -> Source:
    """Every split from the hub at a pinned revision, each loaded by itself.

    LetheError: it cannot be reached; no text to forget or to retain; a column that is missing or not of text.
    """
    import datasets

    where = f"{name}@{revision[:12]}"
    found = {}
    try:
        configs = datasets.get_dataset_config_names(name, revision=revision)
        known = {
            config: datasets.get_dataset_split_names(name, config, revision=revision)
            for config in dict.fromkeys(config for config, _, _ in PARTS.values())
            if config in configs
        }
        for part, (config, names, _) in PARTS.items():
            for split in [split for split in names if split in known.get(config, ())][:1]:
                where = f"{name}@{revision[:12]} {config}/{split}"
                rows = datasets.load_dataset(name, config, revision=revision, split=split)
                found[part] = where, [dict(row) for row in rows]
    except Exception as e:  # the hub's client raises many kinds, depending on what is missing
        raise LetheError(f"{where}: cannot be read, got {' '.join(str(e).split())[:160]}") from None
    return _from_schema(f"{name}@{revision[:12]}", found)


def read_local(folder: str | Path, excerpts: dict[str, int] | None = None) -> Source:
    """A folder of the hub's schema, {config}/{split}.json or .jsonl (JSON Lines or one array; texts also .txt), or of
    plain text: forget.txt, retain.txt and where there are retain2.txt and holdout.txt, or folders forget/ ... of such.

    LetheError: neither; no text to forget or to retain; fields that are missing or not text; texts too short to cut.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise LetheError(f"{folder}: no such folder (MUSE's files or plain text files are expected there)")
    if (folder / "raw").is_dir():
        return _from_schema(str(folder), _read_schema(folder))
    if (folder / "forget.txt").is_file() or (folder / "forget").is_dir():
        return _read_plain(folder, _check_excerpts(excerpts or {}))
    raise LetheError(f"{folder}: needs MUSE's folders (raw/ ...) or plain text (forget.txt or forget/*.txt), has none")


def _read_schema(folder: Path) -> dict[str, tuple[str, list[Any]]]:
    """Rows of every split found, with the file's name; `-` in file names stands for `_`."""
    found = {}
    for part, (config, names, columns) in PARTS.items():
        suffixes = (".json", ".jsonl", ".txt") if columns == TEXT else (".json", ".jsonl")
        files = [path for path in sorted((folder / config).glob("*")) if path.suffix in suffixes]
        for name in names:
            paths = [path for path in files if path.stem.replace("-", "_") == name]
            if len(paths) > 1:
                raise LetheError(f"{folder / config}: one file is expected, got {' and '.join(p.name for p in paths)}")
            if paths:
                found[part] = str(paths[0]), _read_rows(paths[0])
                break
    return found


def _read_rows(path: Path) -> list[Any]:
    text = _read_text(path)
    if path.suffix == ".txt":
        return [{"text": text}]
    if not text.lstrip().startswith("["):
        return read_jsonl(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise LetheError(f"{path} line {e.lineno}: not JSON ({e.msg})") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise LetheError(f"{path}: must be UTF-8, got {e.reason} at byte {e.start}") from None


def _from_schema(where: str, found: dict[str, tuple[str, list[Any]]]) -> Source:
    """Checked rows under the names used here, without empty texts."""
    splits, skipped, missing = {}, {}, {}
    for part, (config, names, columns) in PARTS.items():
        label = f"{config}/{' or '.join(names)}"
        if part in found:
            rows = [_row(found[part][0], number, row, columns) for number, row in enumerate(found[part][1], start=1)]
            splits[part] = [row for row in rows if columns != TEXT or row["text"].strip()]
            if len(splits[part]) < len(rows):
                skipped[f"{config}/{names[0]}"] = len(rows) - len(splits[part])
            if not splits[part]:
                raise LetheError(f"{found[part][0]}: no rows" + (f", only {len(rows)} empty texts" if rows else ""))
        elif part in NEEDED:
            raise LetheError(f"{where}: no {label}")
        elif part in EVALUATION:
            missing[part] = f"no {label}"
    return Source(splits, missing, skipped)


def _row(where: str, number: int, row: Any, columns: dict[str, str]) -> dict[str, str]:
    """Every field is a text, and not an empty one unless it is all there is; such a text may also stand by itself."""
    if columns == TEXT and isinstance(row, str):
        row = {"text": row}
    if not isinstance(row, dict):
        raise LetheError(f"{where} row {number}: expected an object, got {type(row).__name__}")
    for column in columns.values():
        if column not in row:
            raise LetheError(f"{where} row {number}: no field '{column}' (has: {', '.join(row)})")
        if not isinstance(row[column], str):
            raise LetheError(f"{where} row {number}: field '{column}' must be a text, got {row[column]!r}")
        if columns != TEXT and not row[column].strip():
            raise LetheError(f"{where} row {number}: field '{column}' must not be empty, got {row[column]!r}")
    return {name: row[column] for name, column in columns.items()}


def _read_plain(folder: Path, excerpts: dict[str, int]) -> Source:
    """Each file is one text. Verbatim and membership parts are excerpts; questions cannot be cut from a text."""
    files, skipped = {}, {}
    for split, name in {"forget": "forget", "retain1": "retain", "retain2": "retain2", "holdout": "holdout"}.items():
        paths = _plain_paths(folder, name)
        if not paths and split in NEEDED:
            raise LetheError(f"{folder}: no {name}.txt or {name}/*.txt")
        texts = {path: text for path in paths if (text := _read_text(path)).strip()}
        if paths and not texts:
            raise LetheError(f"{paths[0]}: must hold text, got an empty file")
        if texts:
            files[split] = texts
        if len(texts) < len(paths):
            skipped[name] = len(paths) - len(texts)

    splits = {split: [{"text": text} for text in texts.values()] for split, texts in files.items()}
    missing = dict.fromkeys([part for part in EVALUATION if EVALUATION[part][2] == PAIR], "plain text has no questions")
    count, prompt = excerpts["count"], excerpts["prompt"]
    splits["verbatim_forget"] = [
        {"prompt": text[words[0][0] : words[prompt - 1][1]], "continuation": text[words[prompt - 1][1] : words[-1][1]]}
        for text, words in _excerpts(files["forget"], count, prompt + excerpts["continuation"])
    ]
    members = {"member_forget": "forget", "member_retain": "retain1", "member_holdout": "holdout"}
    if "holdout" not in files:
        missing |= dict.fromkeys(members, "no holdout.txt or holdout/*.txt, texts that no model has learned")
        members = {}
    for part, split in members.items():
        cut = _excerpts(files[split], count, excerpts["member"])
        splits[part] = [{"text": text[words[0][0] : words[-1][1]]} for text, words in cut]
    return Source(splits, missing, skipped, excerpts)


def _plain_paths(folder: Path, name: str) -> list[Path]:
    """{name}.txt, or the text files of the folder {name}."""
    file, inner = folder / f"{name}.txt", folder / name
    if file.is_file() and inner.is_dir():
        raise LetheError(f"{folder}: one of {name}.txt and {name}/ is expected, got both")
    if file.is_file() or not inner.is_dir():
        return [file] if file.is_file() else []
    if not (paths := sorted(inner.glob("*.txt"))):
        raise LetheError(f"{inner}: no .txt files")
    return paths


def _excerpts(texts: dict[Path, str], count: int, length: int) -> list[tuple[str, Sequence[tuple[int, int]]]]:
    """`count` places of `length` words, evenly spread over the texts, each as its text and the spans of its words.

    They do not overlap where the texts have room for that. Texts shorter than an excerpt are passed over.
    """
    words = {path: [match.span() for match in re.finditer(r"\S+", text)] for path, text in texts.items()}
    longest = max(words, key=lambda path: len(words[path]))
    if len(words[longest]) < length:
        raise LetheError(f"{longest}: {len(words[longest])} words, too short for an excerpt of {length} words")
    places = [(path, start) for path in words for start in _side_by_side(len(words[path]), length)]
    if len(places) < count:
        places = [(path, start) for path in words for start in range(len(words[path]) - length + 1)]
    if len(places) < count:
        raise LetheError(f"{longest}: too short for {count} different excerpts of {length} words, got {len(places)}")
    chosen = [places[i * len(places) // count] for i in range(count)]
    return [(texts[path], words[path][start : start + length]) for path, start in chosen]


def _side_by_side(words: int, length: int) -> list[int]:
    """As many starts as fit into a text without overlap, spread from its first word to its last."""
    fit = words // length
    return [i * (words - length) // max(1, fit - 1) for i in range(fit)]


def _check_excerpts(options: dict[str, int]) -> dict[str, int]:
    for name, value in options.items():
        if name not in EXCERPTS:
            raise LetheError(f"corpus: excerpts.{name} is unknown (has: {', '.join(EXCERPTS)})")
        if type(value) is not int or value < 1:
            raise LetheError(f"corpus: excerpts.{name} must be a positive whole number, got {value!r}")
    return {**EXCERPTS, **options}


def _refuse_duplicates(name: str, splits: Splits) -> None:
    """What is to be forgotten and retained at once can be neither."""
    forget = {row["text"]: number for number, row in enumerate(splits[name], start=1)}
    for split in ("retain1", "retain2"):
        for number, row in enumerate(splits.get(split, []), start=1):
            if row["text"] in forget:
                both = f"{name} row {forget[row['text']]} and {split} row {number}"
                raise LetheError(f"benchmark: {both} are the same text, got {row['text'][:60]!r}")
