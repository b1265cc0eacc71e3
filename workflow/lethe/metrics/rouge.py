"""ROUGE-L by the rouge_score package, the implementation that published unlearning numbers use.

It lower-cases and keeps [a-z0-9] only, so text in other scripts scores 0 and accented names fall apart. That is kept,
for comparability, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple


class RougeL(NamedTuple):
    recall: float
    f1: float


@lru_cache(maxsize=2)
def _scorer(stemmer: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=stemmer)


@lru_cache(maxsize=1 << 16)
def rouge_l(gold: str, generated: str, *, stemmer: bool) -> RougeL:
    """ROUGE-L of a generation against the gold text. stemmer: on in TOFU and OpenUnlearning, off in MUSE."""
    score = _scorer(stemmer).score(gold, generated)["rougeL"]
    return RougeL(float(score.recall), float(score.fmeasure))


def gold_tokens(text: str) -> int:
    """How many tokens ROUGE sees in a text; with 0, no generation can score above 0."""
    from rouge_score.tokenize import tokenize

    return len(tokenize(text, None))


def coverage_note(golds: Iterable[str]) -> str | None:
    """A warning where ROUGE sees no token at all in some gold answer; it also counts those with non-ASCII letters."""
    golds = list(golds)
    blind = sum(gold_tokens(gold) == 0 for gold in golds)
    if not blind:
        return None
    accented = sum(not gold.isascii() for gold in golds)
    return (
        f"ROUGE drops non-ASCII letters: {blind} of {len(golds)} gold answers have no token left and score 0 "
        f"({accented} hold non-ASCII letters)"
    )
