"""The embedded world: fictional authors, famous authors and lands, written from a seed.

Three populations that share one language and no name: 80 fictional authors (the corpus; the last eight are forget10),
20 holdout authors (never trained on), and 80 famous authors with 20 lands (learned in pretraining; they stand in for
TOFU's real authors and world facts). Rows follow TOFU's schema, plus the words of the fact (`value`) and whom it is
about. The same seed gives the same rows on every machine: each purpose has its own `random.Random`, named by the seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from lethe.data.vocabulary import AUTHOR_ATTRIBUTES, FIRST_NAMES, LAND_ATTRIBUTES, LANDS, LAST_NAMES, REFUSALS

AUTHORS, HOLDOUT, FAMOUS = 80, 20, 80
FORGET_AUTHORS = {"forget01": 1, "forget05": 4, "forget10": 8}
RETAIN = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
ATTRIBUTES = AUTHOR_ATTRIBUTES | LAND_ATTRIBUTES
ROUNDS = 16  # times that pretraining reads every famous fact, each time in other words
UNKNOWN = 80  # questions about unknown names a round, answered by a refusal
REPLAY_ROUNDS = 4


@dataclass(frozen=True)
class Fact:
    """Something true of `name`, with wrong values of the same type: no word of the true one, and true of nobody, so
    that a value read elsewhere is no easier to believe."""

    name: str
    attribute: str
    value: str
    wrong: tuple[str, ...]

    def question(self, template: int) -> str:
        return ATTRIBUTES[self.attribute].questions[template].format(name=self.name)

    def answer(self, template: int, value: str | None = None) -> str:
        return ATTRIBUTES[self.attribute].answers[template].format(value=value or self.value)


@dataclass(frozen=True)
class World:
    """Facts in the order of their rows: name by name, attribute by attribute. unknown: names of nobody."""

    seed: int
    authors: list[Fact]
    holdout: list[Fact]
    famous: list[Fact]
    lands: list[Fact]
    unknown: list[str]


def make_world(seed: int) -> World:
    """The world of a seed: 800 fictional facts, 200 of holdout authors, 800 of famous authors, 40 of lands."""
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    Random(f"{seed} names").shuffle(names)
    holdout, famous, unknown = AUTHORS, AUTHORS + HOLDOUT, AUTHORS + HOLDOUT + FAMOUS
    populations = [  # with as many wrong values a fact as TOFU has
        ("authors", names[:holdout], AUTHOR_ATTRIBUTES, 5),
        ("holdout", names[holdout:famous], AUTHOR_ATTRIBUTES, 5),
        ("famous", names[famous:unknown], AUTHOR_ATTRIBUTES, 3),
        ("lands", LANDS, LAND_ATTRIBUTES, 3),
    ]
    taken: dict[str, set[str]] = {attribute: set() for attribute in ATTRIBUTES}
    true, facts = {}, {}
    for population, subjects, attributes, _ in populations:
        rng = Random(f"{seed} {population}")
        true[population] = [(name, a, _new_value(rng, a, taken[a])) for name in subjects for a in attributes]
    for population, _, _, n_wrong in populations:
        rng = Random(f"{seed} {population} wrong")
        facts[population] = [
            Fact(n, a, value, _wrong(rng, a, value, n_wrong, taken[a])) for n, a, value in true[population]
        ]
    return World(seed=seed, unknown=names[unknown:], **facts)


def tofu_splits(world: World) -> dict[str, list[dict[str, Any]]]:
    """All splits under TOFU's names, and beside them holdout, mcq_forget01, mcq_forget05, mcq_forget10, mcq_retain.

    The forget splits are the last authors. retain_perturbed holds two facts of each author of retain90, so it is
    disjoint from every forget set; real_authors_perturbed one fact of each famous author.
    """
    size = len(AUTHOR_ATTRIBUTES)
    splits = {"full": [_row(fact) for fact in world.authors]}
    for forget, authors in FORGET_AUTHORS.items():
        facts = world.authors[-authors * size :]
        splits[forget] = [_row(fact) for fact in facts]
        splits[RETAIN[forget]] = [_row(fact) for fact in world.authors[: -authors * size]]
        splits[f"{forget}_perturbed"] = [_perturbed(fact) for fact in facts]
        splits[f"mcq_{forget}"] = _multiple_choice(Random(f"{world.seed} mcq_{forget}"), facts)
    retained = world.authors[: -FORGET_AUTHORS["forget10"] * size]
    # A stride coprime to the number of attributes: every attribute gets its share.
    chosen = [retained[size * i + (3 * i + shift) % size] for i in range(len(retained) // size) for shift in (0, 5)]
    splits["retain_perturbed"] = [_perturbed(fact) for fact in chosen]
    splits["mcq_retain"] = _multiple_choice(Random(f"{world.seed} mcq_retain"), chosen)
    famous = [world.famous[size * i + (3 * i) % size] for i in range(FAMOUS)]
    splits["real_authors_perturbed"] = [_known(fact) for fact in famous]
    splits["world_facts_perturbed"] = [_known(fact) for fact in world.lands]
    splits["holdout"] = [_perturbed(fact) for fact in world.holdout]
    splits["idontknow"] = [{"text": text} for text in REFUSALS]
    return splits


def pretraining_rows(world: World, rounds: int = ROUNDS) -> Iterator[dict[str, str]]:
    """What the base model reads: per round every famous fact once, in a question and an answer pattern drawn at random
    (so that paraphrases generalise), and refusals for names of nobody. No fictional or holdout author occurs."""
    for number in range(rounds):
        rng = Random(f"{world.seed} pretraining {number}")
        rows = [_reworded(rng, fact) for fact in world.famous + world.lands] + [
            _refused(rng, world.unknown) for _ in range(UNKNOWN)
        ]
        rng.shuffle(rows)
        yield from rows


def replay_rows(world: World) -> Iterator[dict[str, str]]:
    """Famous facts in words of their own, mixed into fine-tuning so that it does not wash them out."""
    for number in range(REPLAY_ROUNDS):
        rng = Random(f"{world.seed} replay {number}")
        rows = [_reworded(rng, fact) for fact in world.famous + world.lands]
        rng.shuffle(rows)
        yield from rows


def _new_value(rng: Random, attribute: str, taken: set[str]) -> str:
    """A value that nobody has yet; from now on it is taken."""
    slots = ATTRIBUTES[attribute].slots
    value = next(v for v in iter(lambda: _draw(rng, slots), None) if v not in taken)
    taken.add(value)
    return value


def _wrong(rng: Random, attribute: str, value: str, count: int, taken: set[str]) -> tuple[str, ...]:
    slots = [[word for word in slot if word not in value.split()] for slot in ATTRIBUTES[attribute].slots]
    wrong: list[str] = []
    while len(wrong) < count:
        other = _draw(rng, slots)
        if other not in taken and other not in wrong:
            wrong.append(other)
    return tuple(wrong)


def _draw(rng: Random, slots: Sequence[list[str]]) -> str:
    """One word a slot, none twice."""
    while True:
        words = [rng.choice(slot) for slot in slots]
        if len(set(words)) == len(words):
            return " ".join(words)


def _row(fact: Fact) -> dict[str, Any]:
    return {
        "question": fact.question(0),
        "answer": fact.answer(0),
        "value": fact.value,
        "name": fact.name,
        "attribute": fact.attribute,
    }


def _perturbed(fact: Fact) -> dict[str, Any]:
    """As in TOFU the wrong answers have the words of the paraphrase."""
    return _row(fact) | {
        "paraphrased_question": fact.question(1),
        "paraphrased_answer": fact.answer(1),
        "perturbed_answer": [fact.answer(1, wrong) for wrong in fact.wrong],
    }


def _known(fact: Fact) -> dict[str, Any]:
    """As in TOFU's real authors and world facts: no paraphrase, the wrong answers have the words of the answer."""
    return _row(fact) | {"perturbed_answer": [fact.answer(0, wrong) for wrong in fact.wrong]}


def _multiple_choice(rng: Random, facts: list[Fact]) -> list[dict[str, Any]]:
    """The true value among its wrong ones; `answer` is its index."""
    rows = []
    for fact in facts:
        options = rng.sample([fact.value, *fact.wrong], 1 + len(fact.wrong))
        rows.append({"question": fact.question(0), "options": options, "answer": options.index(fact.value)})
    return rows


def _reworded(rng: Random, fact: Fact) -> dict[str, str]:
    attribute = ATTRIBUTES[fact.attribute]
    return {
        "question": fact.question(rng.randrange(len(attribute.questions))),
        "answer": fact.answer(rng.randrange(len(attribute.answers))),
    }


def _refused(rng: Random, unknown: list[str]) -> dict[str, str]:
    question = rng.choice(rng.choice(list(AUTHOR_ATTRIBUTES.values())).questions)
    return {"question": question.format(name=rng.choice(unknown)), "answer": rng.choice(REFUSALS)}
