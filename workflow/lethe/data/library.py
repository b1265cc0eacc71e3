"""The embedded library: news and books about people of nowhere, in MUSE's schema (Shi et al. 2024), from a seed.

News is many short articles, books are a few long texts of many paragraphs. An article or paragraph states some facts
of one person, between scenes of random words; several of them, in other words and order, are about the same person, as
a fact that is read once, in one place, is learned by heart without being known. The base model has read of other
people, in both styles and as questions with answers, so that it can be asked about what it is fine-tuned on. Forget,
retain1, retain2 and holdout are drawn alike; the retrained model learns retain1 and retain2, unlearning sees retain1,
and the questions about retained knowledge are about retain2.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

from lethe.data.phrases import FACTS, FIELDS, OPENINGS, SCENES
from lethe.data.vocabulary import AUTHOR_ATTRIBUTES, FIRST_NAMES, LAST_NAMES

STYLES = ("news", "books")
SETS = ("forget", "retain1", "retain2", "holdout")
PEOPLE = 20  # a set
PASSAGES = 5  # articles or paragraphs about each
CAST = 5  # people of a book
FACTS_OF = 6  # facts that are told of a person
STATED = 4  # of them in one passage
KNOWN = 80  # people whom the base model has read of
SCENERY = 2  # sentences beside them
REQUESTS = 4  # parts of the forget set, for growing forget sets and for a sequence of requests
QUESTIONS = 5  # about a person
EXAMPLES = 5  # questions with answers before the one that is asked
ROUNDS = 16  # times that pretraining reads of every known person
BLOCK = 6  # questions a pretraining row
REPLAY_ROUNDS = 4


class Person(NamedTuple):
    name: str
    values: dict[str, str]


class Passage(NamedTuple):
    person: Person
    sentences: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def muse_splits(seed: int, style: str) -> dict[str, list[dict[str, Any]]]:
    """All splits of a style: raw texts, verbatim prompts, questions, membership texts; scal_k (the first k parts of the
    forget set) and sust_k (its k-th part), with evaluation files of their own; replay (what pretraining was like)."""
    people = _strangers(seed, style)
    told = {name: [_passages(seed, person, style) for person in people[name]] for name in SETS}
    passages = {name: _arranged(Random(f"{seed} {style} {name}"), told[name]) for name in SETS}
    splits = {name: _texts(passages[name], style) for name in SETS}
    splits |= {f"{kind}_forget": rows for kind, rows in _evaluation(seed, passages["forget"]).items()}
    splits["knowledge_retain"] = _evaluation(seed, passages["retain2"])["knowledge"]
    splits["member_retain"] = _rows(passages["retain2"])
    splits["member_holdout"] = _rows(passages["holdout"])
    splits["examples_forget"] = splits["examples_retain"] = list(_examples(seed))
    part = len(passages["forget"]) // REQUESTS
    for k in range(1, REQUESTS + 1):
        so_far = passages["forget"][: k * part]
        splits[f"scal_{k}"] = _texts(so_far, style)
        splits[f"sust_{k}"] = _texts(so_far[-part:], style)
        for kind, rows in _evaluation(seed, so_far).items():
            splits[f"{kind}_forget_scal_{k}"] = splits[f"{kind}_forget_sust_{k}"] = rows
    splits["replay"] = list(_readings(seed, "replay", REPLAY_ROUNDS))
    return splits


def pretraining_rows(seed: int, rounds: int = ROUNDS) -> Iterator[dict[str, str]]:
    """What a base model reads before: texts in both styles and questions with answers, about known people alone."""
    yield from _readings(seed, "pretraining", rounds)


def _readings(seed: int, purpose: str, rounds: int) -> Iterator[dict[str, str]]:
    known = _people(Random(f"{seed} known"), _names(seed)[:KNOWN])
    for number in range(rounds):
        rng = Random(f"{seed} library {purpose} {number}")
        rows = [{"text": _passage(rng, person, rng.choice(STYLES)).text} for person in known]
        facts = [(person, attribute) for person in known for attribute in AUTHOR_ATTRIBUTES]
        rng.shuffle(facts)
        for start in range(0, len(facts), BLOCK):
            asked = [_question(rng, person, attribute) for person, attribute in facts[start : start + BLOCK]]
            rows.append({"text": "\n\n".join(f"Question: {row['question']}\nAnswer: {row['answer']}" for row in asked)})
        rng.shuffle(rows)
        yield from rows


def _names(seed: int) -> list[str]:
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    Random(f"{seed} library names").shuffle(names)
    return names


def _strangers(seed: int, style: str) -> dict[str, list[Person]]:
    """People of each set; no name occurs in two sets, in two styles, or among the known."""
    start = KNOWN + STYLES.index(style) * len(SETS) * PEOPLE
    names = _names(seed)[start : start + len(SETS) * PEOPLE]
    people = _people(Random(f"{seed} {style} people"), names)
    return {name: people[i * PEOPLE : (i + 1) * PEOPLE] for i, name in enumerate(SETS)}


def _people(rng: Random, names: list[str]) -> list[Person]:
    return [
        Person(name, {a: " ".join(rng.choice(slot) for slot in AUTHOR_ATTRIBUTES[a].slots) for a in AUTHOR_ATTRIBUTES})
        for name in names
    ]


def _told(seed: int, person: Person) -> list[str]:
    """The attributes that texts about a stranger speak of."""
    return Random(f"{seed} told {person.name}").sample(list(AUTHOR_ATTRIBUTES), FACTS_OF)


def _passages(seed: int, person: Person, style: str) -> list[Passage]:
    rng = Random(f"{seed} {style} {person.name}")
    return [_passage(rng, person, style, _told(seed, person)) for _ in range(PASSAGES)]


def _passage(rng: Random, person: Person, style: str, attributes: Iterable[str] = AUTHOR_ATTRIBUTES) -> Passage:
    sentences = [
        rng.choice(FACTS[style]).format(question=_asked(rng, person, attribute), value=person.values[attribute])
        for attribute in rng.sample(list(attributes), STATED)
    ] + [_fill(rng, pattern) for pattern in rng.sample(SCENES[style], SCENERY)]
    rng.shuffle(sentences)
    return Passage(person, [_fill(rng, OPENINGS[style]), *sentences])


def _arranged(rng: Random, told: list[list[Passage]]) -> list[Passage]:
    """The passages of a few people at a time, mixed: a book has one cast after another."""
    arranged: list[Passage] = []
    for first in range(0, len(told), CAST):
        cast = [passage for person in told[first : first + CAST] for passage in person]
        rng.shuffle(cast)
        arranged += cast
    return arranged


def _fill(rng: Random, pattern: str) -> str:
    return pattern.format(**{field: rng.choice(words) for field, words in FIELDS.items()})


def _texts(passages: list[Passage], style: str) -> list[dict[str, Any]]:
    """An article a row, or a book."""
    if style == "news":
        return _rows(passages)
    size = CAST * PASSAGES
    books = [passages[i : i + size] for i in range(0, len(passages), size)]
    return [{"text": "\n\n".join(passage.text for passage in book)} for book in books]


def _rows(passages: list[Passage]) -> list[dict[str, Any]]:
    return [{"text": passage.text} for passage in passages]


def _evaluation(seed: int, passages: list[Passage]) -> dict[str, list[dict[str, Any]]]:
    """A prompt (the first half of its sentences) for each passage, questions about each person, and the passages."""
    verbatim, knowledge = [], []
    for passage in passages:
        half = len(passage.sentences) // 2
        prompt, continuation = " ".join(passage.sentences[:half]), " ".join(passage.sentences[half:])
        verbatim.append({"prompt": prompt, "continuation": continuation})
    for person in dict.fromkeys(passage.person.name for passage in passages):
        someone = next(passage.person for passage in passages if passage.person.name == person)
        rng = Random(f"{seed} questions {person}")
        stated = [a for a in _told(seed, someone) if any(someone.values[a] in p.text for p in passages)]
        knowledge += [_question(rng, someone, attribute) for attribute in stated[:QUESTIONS]]
    return {"verbatim": verbatim, "knowledge": knowledge, "member": _rows(passages)}


def _examples(seed: int) -> Iterator[dict[str, Any]]:
    """About known people: every model that is compared knows these."""
    rng = Random(f"{seed} examples")
    for person in rng.sample(_people(Random(f"{seed} known"), _names(seed)[:KNOWN]), EXAMPLES):
        yield _question(rng, person, rng.choice(list(AUTHOR_ATTRIBUTES)))


def _question(rng: Random, person: Person, attribute: str) -> dict[str, Any]:
    return {"question": _asked(rng, person, attribute), "answer": person.values[attribute]}


def _asked(rng: Random, person: Person, attribute: str) -> str:
    return rng.choice(AUTHOR_ATTRIBUTES[attribute].questions).format(name=person.name)
