"""From a model and a benchmark's files to the per-item table: every pair scored once, every question answered once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lethe.data.text import Encoded, Template, encode_pair, encode_prompt, encode_text, end_token_id
from lethe.errors import LetheError
from lethe.files import read_jsonl
from lethe.metrics import privacy
from lethe.metrics.generation import greedy
from lethe.metrics.items import FILES, make_items
from lethe.metrics.rouge import rouge_l
from lethe.metrics.scores import (
    MarginSpec,
    PairScore,
    exact_memorization,
    extraction_strength,
    nll,
    proposition1_slack,
    score_pairs,
    slack_is_violation,
    violation_rate,
)

Pair = tuple[str | None, str]  # (question, answer); (None, text) for a row that is only a text
Row = dict[str, Any]

# Where a benchmark has no evaluation file for a split, the rows that unlearning trains on are used.
FALLBACKS = {"forget": "forget.jsonl", "retain": "retain.jsonl"}


def score_benchmark(
    model: Any,
    tokenizer: Any,
    template: Template,
    data_dir: str | Path,
    *,
    max_tokens: int,
    max_new_tokens: int,
    max_length: int,
    margin: MarginSpec | None = None,
    limit: int | None = None,
    encodings: dict[Pair, Encoded] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> pd.DataFrame:
    """Score and answer everything in data_dir (files of items.FILES); the table of items.py.

    max_tokens: padded tokens a batch. margin: also record restricted margins of the forget answers. limit: only the
    first so many rows of each file. encodings: of earlier calls with the same tokenizer, template and max_length, which
    are used and added to. progress(stage, done, total) is called after every batch, stage 'score' or
    'generate'. Optional files and fields that are missing leave nan. LetheError: no forget file, a malformed row.
    """
    splits = {split: rows for split in FILES if (rows := _read_split(Path(data_dir), split, limit)) is not None}
    if "forget" not in splits:
        raise LetheError(f"{Path(data_dir) / FILES['forget']}: no such file")

    # Margins and moments are only needed where a metric uses them.
    asked = {split: [_pairs(split, row) for row in rows] for split, rows in splits.items()}
    margins = list(dict.fromkeys(p[0] for p in asked["forget"]))
    moments = list(dict.fromkeys(p[0] for p in asked.get("holdout", ())))
    plain = list(dict.fromkeys(pair for rows in asked.values() for pairs in rows for pair in pairs))
    groups: list[tuple[list[Pair], MarginSpec | None, bool]] = [
        (margins, margin, True),
        (moments, None, True),
        (plain, None, False),
    ]

    encoded = {} if encodings is None else encodings
    scores: dict[Pair, PairScore] = {}
    for pairs, spec, with_moments in groups:
        todo = [pair for pair in pairs if pair not in scores]
        encoded |= {pair: _encode(tokenizer, template, pair, max_length) for pair in todo if pair not in encoded}

        def scored(done: int, _: int, before: int = len(scores)) -> None:
            if progress:
                progress("score", before + done, len(plain))

        found = score_pairs(
            model,
            [encoded[pair] for pair in todo],
            max_tokens=max_tokens,
            margin=spec,
            moments=with_moments,
            progress=scored,
        )
        scores |= dict(zip(todo, found, strict=True))

    questions = list(dict.fromkeys(q for split, rows in splits.items() for row in rows for q in _questions(split, row)))
    continuations = greedy(
        model,
        [encode_prompt(tokenizer, template, question) for question in questions],
        max_new_tokens=max_new_tokens,
        stop_ids={end_token_id(tokenizer, template), tokenizer.eos_token_id} if questions else (),
        max_tokens=max_tokens,
        progress=(lambda done, total: progress("generate", done, total)) if progress else None,
    )
    generations = {
        question: tokenizer.decode(tokens, skip_special_tokens=True)
        for question, tokens in zip(questions, continuations, strict=True)
    }

    table = []
    for split, rows in splits.items():
        for index, (row, pairs) in enumerate(zip(rows, asked[split], strict=True)):
            item: Row = {"split": split, "index": index, "question": row.get("question", "")}
            if "options" in row:
                item |= _choice(row["answer"], [nll(scores[pair]) for pair in pairs])
            else:
                item |= _answer_values(split, pairs, encoded, scores, tokenizer, margin)
                item |= _truth_ratio_values(split, row, scores)
                item |= _generated(split, row, generations, template)
                item["truncated"] = any(encoded[pair].truncated for pair in pairs)
            table.append(item)
    return make_items(table)


def _read_split(data_dir: Path, split: str, limit: int | None) -> list[Row] | None:
    """The rows of a split; None if the benchmark has no such file."""
    path = data_dir / FILES[split]
    if not path.is_file() and split in FALLBACKS:
        path = data_dir / FALLBACKS[split]
    if not path.is_file():
        return None
    rows = read_jsonl(path)[:limit]
    if not rows:
        raise LetheError(f"{path}: needs at least one row, got none")
    for number, row in enumerate(rows, start=1):
        if split.startswith("mcq"):
            _check_choice(row, f"{path} row {number}")
        else:
            for field in ("question", "answer") if "question" in row else ("text",):
                if not isinstance(row.get(field), str):
                    raise LetheError(f"{path} row {number}: no text in field '{field}' (has: {', '.join(row)})")
            wrong = row.get("perturbed_answer") or []
            if not isinstance(wrong, list) or not all(isinstance(text, str) for text in wrong):
                raise LetheError(f"{path} row {number}: perturbed_answer must be a list of texts, got {wrong!r:.80}")
    return rows


def _check_choice(row: Row, where: str) -> None:
    options, answer = row.get("options"), row.get("answer")
    if not isinstance(row.get("question"), str) or not isinstance(options, list) or len(options) < 2:
        raise LetheError(f"{where}: needs a question and at least two options, got fields {', '.join(row)}")
    if not isinstance(answer, int) or not 0 <= answer < len(options):
        raise LetheError(f"{where}: answer must be an index into its {len(options)} options, got {answer!r}")


def _pairs(split: str, row: Row) -> list[Pair]:
    """Everything of a row that is scored: the answer first, then what truth ratios need."""
    if "options" in row:
        return [(row["question"], option) for option in row["options"]]
    if "question" not in row:
        return [(None, row["text"])]
    if split == "holdout":
        return [(row["question"], row["answer"])]
    answers = [row["answer"], _correct_answer(split, row), *(row.get("perturbed_answer") or [])]
    return [(row["question"], answer) for answer in answers if answer is not None]


def _correct_answer(split: str, row: Row) -> str | None:
    """What truth ratios call correct: the paraphrase, if there is one, in forget and retain, else the answer."""
    return row.get("paraphrased_answer") if split in ("forget", "retain") else row["answer"]


def _questions(split: str, row: Row) -> list[str]:
    """Everything of a row that is answered by generation."""
    if split in ("forget", "retain", "ra", "wf") and "question" in row:
        asked = [row["question"], row.get("paraphrased_question") if split == "forget" else None]
        return [question for question in asked if question is not None]
    return []


def _encode(tokenizer: Any, template: Template, pair: Pair, max_length: int) -> Encoded:
    question, answer = pair
    if question is None:
        return encode_text(tokenizer, answer, max_length)
    return encode_pair(tokenizer, template, question, answer, max_length)


def _answer_values(
    split: str,
    pairs: list[Pair],
    encoded: dict[Pair, Encoded],
    scores: dict[Pair, PairScore],
    tokenizer: Any,
    margin: MarginSpec | None,
) -> Row:
    """What the score of the gold answer (or text) says."""
    pair = pairs[0]
    score, ids = scores[pair], encoded[pair]
    # The end token is dropped from memorisation and min-k, as it is in OpenUnlearning; raw and cut texts have none.
    ended = pair[0] is not None and not ids.truncated
    words = slice(None, -1 if ended else None)
    values: Row = {"answer": pair[1], **memorisation_values(score, words)}
    if split in ("forget", "holdout"):
        values |= membership_values(score, ids, tokenizer, words)
    if split == "forget" and margin is not None:
        values |= margin_values(score, margin)
    return values


def memorisation_values(score: PairScore, words: slice) -> Row:
    """Likelihood and memorisation of a scored answer or text. words: its tokens without the end token."""
    return {
        "n_tokens": len(score.logp),
        "nll": nll(score),
        "exact_memorization": exact_memorization(score.correct[words]),
        "extraction_strength": extraction_strength(score.correct[words]),
        "extraction_strength_ou": extraction_strength(score.correct[words], floor=True),
    }


def membership_values(score: PairScore, ids: Encoded, tokenizer: Any, words: slice) -> Row:
    """The scores of privacy.py beside the loss; nothing where no moments were recorded."""
    if score.mean is None or score.std is None:
        return {}
    return {
        "zlib": privacy.zlib_score(nll(score), tokenizer.decode(ids.ids[ids.start :], skip_special_tokens=True)),
        "min_k": privacy.min_k(score.logp[words]),
        "min_k_pp": privacy.min_k_pp(score.logp[words], score.mean[words], score.std[words]),
    }


def margin_values(score: PairScore, margin: MarginSpec) -> Row:
    """MASC's values a sequence; nothing where no margins were recorded."""
    if score.margin is None or score.logit is None:
        return {}
    slack = proposition1_slack(score, margin)
    return {
        "violation_rate": violation_rate(score.margin, margin.rho),
        "gold_logit": float(score.logit.mean(dtype=np.float64)),
        "prop1_slack": slack,
        "prop1_violation": slack_is_violation(slack, len(score.logp)),
    }


def _truth_ratio_values(split: str, row: Row, scores: dict[Pair, PairScore]) -> Row:
    values: Row = {}
    if split == "holdout" or "question" not in row:
        return values
    if (correct := _correct_answer(split, row)) is not None:
        values["nll_correct"] = nll(scores[row["question"], correct])
    if row.get("perturbed_answer"):
        values["nll_perturbed"] = [nll(scores[row["question"], answer]) for answer in row["perturbed_answer"]]
    return values


def _generated(split: str, row: Row, generations: dict[str, str], template: Template) -> Row:
    """Generations, raw and cut, and their ROUGE against the original answer and the value's words."""
    values: Row = {}
    for prefix, question in zip(("", "para_"), _questions(split, row), strict=False):
        raw = generations[question]
        text = template.cut(raw)
        rouge = rouge_l(row["answer"], text, stemmer=True)
        values |= {f"{prefix}generation": text, f"{prefix}generation_raw": raw, f"{prefix}rouge_l_recall": rouge.recall}
        if not prefix:
            values["rouge_l_f1"] = rouge.f1
        if row.get("value") is not None:
            values[f"{prefix}value_recall"] = rouge_l(row["value"], text, stemmer=True).recall
    return values


def _choice(answer: int, losses: list[float]) -> Row:
    """Scored by length-normalised likelihood; the right option shares the credit with those that tie with it."""
    best = np.flatnonzero(np.asarray(losses) == min(losses))
    return {"mcq_correct": 1 / len(best) if answer in best else 0.0, "mcq_options": len(losses)}
