"""From a model and a MUSE benchmark's files to the per-item table: every text scored once, every prompt continued once.

MUSE evaluates base models: texts and prompts are read as they are, with the special tokens that the tokenizer adds by
itself, and never put into a chat template, not even for chat models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.config import Evaluation
from lethe.data.text import Encoded, Template, encode_long, encode_prompt
from lethe.errors import LetheError
from lethe.files import read_jsonl
from lethe.metrics.benchmark import margin_values, membership_values, memorisation_values
from lethe.metrics.generation import greedy
from lethe.metrics.items import MUSE_FIELDS, MUSE_UNATTACKED, make_items
from lethe.metrics.rouge import rouge_l
from lethe.metrics.scores import MarginSpec, PairScore, score_pairs
from lethe.recipe import Chunks

Row = dict[str, Any]
Ids = tuple[int, ...]
StageProgress = Callable[[str, int, int], None]  # (stage, done, total)

RAW = Template("raw", prompt="{question}")
KNOWLEDGE = Template("knowledge", prompt="{question}", stops=("\n\n", "\nQuestion", "Question:"))
WHOLE = slice(None)  # raw text has no end token


def score_muse(
    model: Any,
    tokenizer: Any,
    data_dir: str | Path,
    options: Evaluation,
    *,
    margin: MarginSpec | None = None,
    forget_only: bool = False,
    encodings: dict[str, list[int]] | None = None,
    progress: StageProgress | None = None,
) -> pd.DataFrame:
    """Score and continue everything in data_dir (files of items.MUSE_FIELDS); the table of items.py.

    Forget texts may be far longer than a model's context: they are scored in the chunks that `options.chunks` says (as
    they are learned), each an item. Membership texts are cut at max_length; prompts that are longer keep their end,
    after the BOS token where there is one. Both are marked in `truncated`.

    options: max_tokens, max_length, chunks, verbatim_tokens, knowledge_tokens and limit (rows a file; in-context
    examples are part of a prompt and always whole). margin: also record restricted margins of the forget texts.
    forget_only: leave out knowledge of retained texts and membership. encodings: token ids by text, of earlier calls
    with the same tokenizer, which are used and added to. progress(stage, done, total) is called after every batch,
    stage 'score' or 'generate'. LetheError: no forget file, a malformed row, a text of one token, what does not fit
    the model's context.
    """
    data_dir = Path(data_dir)
    splits = _read(data_dir, options.limit, forget_only)
    known = {} if encodings is None else encodings

    def ids_of(text: str) -> list[int]:
        if text not in known:
            known[text] = encode_prompt(tokenizer, RAW, text)
        return known[text]

    texts: dict[str, list[Encoded]] = {}
    prompts: dict[str, list[Encoded]] = {}
    for split, rows in splits.items():
        path = data_dir / f"{split}.jsonl"
        if MUSE_FIELDS[split] == ("text",):
            if split == "forget":
                texts[split] = _chunks(tokenizer, [row["text"] for row in rows], options.chunks, path)
            else:
                texts[split] = _beginnings([ids_of(row["text"]) for row in rows], options.max_length, path)
            _check_context(model, path, texts[split], 0)
        else:
            examples = _examples(data_dir, split)
            asked = [_prompt(split, row, examples) for row in rows]
            prompts[split] = [ending(ids_of(text), options.max_length, tokenizer.bos_token_id) for text in asked]
            _check_context(model, path, prompts[split], _new_tokens(split, options))

    scores = _score(model, texts, options, margin, progress)
    generations = _continue(model, tokenizer, prompts, options, progress)
    table: list[Row] = []
    for split, windows in texts.items():
        for index, ids in enumerate(windows):
            score = scores[_key(ids)]
            item = {"split": split, "index": index, "truncated": ids.truncated, **memorisation_values(score, WHOLE)}
            item["answer"] = tokenizer.decode(ids.ids, skip_special_tokens=True)
            if split != "forget":
                item |= membership_values(score, ids, tokenizer, WHOLE)
            elif margin is not None:
                item |= margin_values(score, margin)
            table.append(item)
    for split, asked_ids in prompts.items():
        new = _new_tokens(split, options)
        for index, (row, ids) in enumerate(zip(splits[split], asked_ids, strict=True)):
            item = {"split": split, "index": index, "truncated": ids.truncated}
            item |= _generated(split, row, generations[new, tuple(ids.ids)], tokenizer, new)
            table.append(item)
    return make_items(table)


def ending(ids: Sequence[int], max_length: int, bos: int | None) -> Encoded:
    """A prompt of at most max_length tokens: its beginning goes, but a BOS token stays. Nothing is supervised."""
    kept = list(ids[: int(ids[0] == bos)])
    cut = len(ids) > max_length
    chosen = [*kept, *ids[len(ids) - max_length + len(kept) :]] if cut else list(ids)
    return Encoded(chosen, len(chosen), truncated=cut)


def _read(data_dir: Path, limit: int | None, forget_only: bool) -> dict[str, list[Row]]:
    """The rows of every split that the benchmark has and that is wanted."""
    splits = {}
    for split, fields in MUSE_FIELDS.items():
        path = data_dir / f"{split}.jsonl"
        if path.is_file() and not (forget_only and split in MUSE_UNATTACKED):
            splits[split] = _rows(path, fields)[:limit]
            if not splits[split]:
                raise LetheError(f"{path}: needs at least one row, got none")
    if "forget" not in splits:
        raise LetheError(f"{data_dir / 'forget.jsonl'}: no such file")
    return splits


def _rows(path: Path, fields: Iterable[str]) -> list[Row]:
    rows = read_jsonl(path, require=fields)
    for number, row in enumerate(rows, start=1):
        for name in fields:
            if not isinstance(row[name], str) or not row[name].strip():
                raise LetheError(f"{path} row {number}: '{name}' must be a text that is not empty, got {row[name]!r}")
    return rows


def _examples(data_dir: Path, split: str) -> str:
    """What stands before every question of a split: "Question: ..\\nAnswer: ..\\n\\n" for each in-context example."""
    if split == "verbatim_forget":
        return ""
    rows = _rows(data_dir / f"examples_{split.removeprefix('knowledge_')}.jsonl", ("question", "answer"))
    return "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows)


def _prompt(split: str, row: Row, examples: str) -> str:
    """The text that is continued. MUSE ends question prompts with a blank, which is left out here: tokenizers merge a
    blank into the word after it, so a prompt that ends in one asks for a continuation never seen in training."""
    return row["prompt"] if split == "verbatim_forget" else f"{examples}Question: {row['question']}\nAnswer:"


def _chunks(tokenizer: Any, texts: list[str], chunks: Chunks, path: Path) -> list[Encoded]:
    found = []
    for number, text in enumerate(texts, start=1):
        try:
            found += encode_long(tokenizer, text, chunks)
        except LetheError as e:
            raise LetheError(f"{path} row {number}: {e}") from None
    return found


def _beginnings(encoded: list[list[int]], max_length: int, path: Path) -> list[Encoded]:
    for number, ids in enumerate(encoded, start=1):
        if len(ids) < 2:
            raise LetheError(f"{path} row {number}: a text needs two tokens to be scored, got {len(ids)}")
    return [Encoded(ids[:max_length], 1, truncated=len(ids) > max_length) for ids in encoded]


def _new_tokens(split: str, options: Evaluation) -> int:
    return options.verbatim_tokens if split == "verbatim_forget" else options.knowledge_tokens


def _check_context(model: Any, path: Path, encoded: list[Encoded], new: int) -> None:
    context = getattr(model.config, "max_position_embeddings", None)
    for number, ids in enumerate(encoded, start=1):
        if context is not None and len(ids.ids) + new > context:
            more = f" and {new} new ones" if new else ""
            raise LetheError(
                f"{path} item {number}: {len(ids.ids)} tokens{more} do not fit the model's context of {context} "
                "(a smaller max_length cuts them)"
            )


def _score(
    model: Any,
    texts: dict[str, list[Encoded]],
    options: Evaluation,
    margin: MarginSpec | None,
    progress: StageProgress | None,
) -> dict[tuple[int, Ids], PairScore]:
    """Every different text once: margins only for forget texts, moments only for membership texts."""
    unique = {_key(ids): ids for windows in texts.values() for ids in windows}
    forget = {_key(ids) for ids in texts["forget"]}
    members = {_key(ids) for split, windows in texts.items() if split != "forget" for ids in windows}
    scores: dict[tuple[int, Ids], PairScore] = {}
    for group in ((True, True), (True, False), (False, True)):
        todo = [key for key in unique if (key in forget, key in members) == group]

        def scored(done: int, _: int, before: int = len(scores)) -> None:
            if progress:
                progress("score", before + done, len(unique))

        found = score_pairs(
            model,
            [unique[key] for key in todo],
            max_tokens=options.max_tokens,
            margin=margin if group[0] else None,
            moments=group[1],
            progress=scored,
        )
        scores |= dict(zip(todo, found, strict=True))
    return scores


def _key(ids: Encoded) -> tuple[int, Ids]:
    return ids.start, tuple(ids.ids)


def _continue(
    model: Any,
    tokenizer: Any,
    prompts: dict[str, list[Encoded]],
    options: Evaluation,
    progress: StageProgress | None,
) -> dict[tuple[int, Ids], str]:
    """The greedy continuation of every different prompt, by its number of new tokens and its ids; it may end early."""
    todo: dict[int, dict[Ids, None]] = {}
    for split, encoded in prompts.items():
        todo.setdefault(_new_tokens(split, options), {}).update(dict.fromkeys(tuple(ids.ids) for ids in encoded))
    total = sum(len(unique) for unique in todo.values())
    generations: dict[tuple[int, Ids], str] = {}
    for new, unique in todo.items():

        def generated(done: int, _: int, before: int = len(generations)) -> None:
            if progress:
                progress("generate", before + done, total)

        found = greedy(
            model,
            list(unique),
            max_new_tokens=new,
            stop_ids={tokenizer.eos_token_id},
            max_tokens=options.max_tokens,
            progress=generated,
        )
        for ids, tokens in zip(unique, found, strict=True):
            generations[new, ids] = tokenizer.decode(tokens, skip_special_tokens=True)
    return generations


def _generated(split: str, row: Row, raw: str, tokenizer: Any, new_tokens: int) -> Row:
    """A generation and its ROUGE-L against the gold text: MUSE's (no stemmer) and OpenUnlearning's (stemmed).

    A continuation is compared with as many gold tokens as were asked for, by OpenUnlearning with all.
    """
    if split == "verbatim_forget":
        question, answer, text = row["prompt"], row["continuation"], raw
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"][:new_tokens]
        gold = tokenizer.decode(ids, skip_special_tokens=True)
    else:
        question, answer, text = row["question"], row["answer"], KNOWLEDGE.cut(raw)
        gold = answer
    rouge = rouge_l(gold, text, stemmer=False)
    return {
        "question": question,
        "answer": answer,
        "generation": text,
        "generation_raw": raw,
        "rouge_l_f1": rouge.f1,
        "rouge_l_recall": rouge.recall,
        "rouge_l_f1_ou": rouge_l(answer, text, stemmer=True).f1,
    }
