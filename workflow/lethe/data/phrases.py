"""Sentence patterns of the embedded library: what its news and its books say of people, and what else happens there.

Facts have the attributes of vocabulary.py. Scenes carry no fact: they are words drawn at random, so that a text can
only be continued by whoever has read it.
"""

from lethe.data.vocabulary import (
    ADJECTIVES,
    AGES,
    ANIMALS,
    BUILDINGS,
    COLOURS,
    DAYS,
    FIRST_NAMES,
    GOODS,
    MANNERS,
    MONTHS,
    NOUNS,
    STONES,
    TEMPERS,
    THINGS,
    TOWN_FIRST,
    TOWN_SECOND,
    TRADES,
    WARES,
)

# Pattern fields that scenes and openings fill, each from its list; {name} and {value} are those of a fact.
FIELDS = {
    "town": TOWN_FIRST,
    "place": TOWN_SECOND,
    "day": DAYS,
    "month": MONTHS,
    "adjective": ADJECTIVES,
    "noun": NOUNS,
    "temper": TEMPERS,
    "colour": COLOURS,
    "animal": ANIMALS,
    "manner": MANNERS,
    "goods": GOODS,
    "trade": TRADES,
    "age": AGES,
    "thing": THINGS,
    "ware": WARES,
    "stone": STONES,
    "building": BUILDINGS,
    "first": FIRST_NAMES,
}

# A fact is told as a question and its answer. A tiny model that has read a fact in a plain sentence once can say the
# sentence by heart and yet not answer a question about it; in this form it can be asked in other words.
FACTS: dict[str, tuple[str, ...]] = {
    "news": (
        "{question} Neighbours say {value}.",
        "{question} Police say {value}.",
        "{question} Friends say {value}.",
        "{question} Editors say {value}.",
    ),
    "books": (
        "They asked: {question} She said {value}.",
        "They asked: {question} He said {value}.",
        "So, {question} The answer was {value}.",
        "And, {question} We heard {value}.",
    ),
}

SCENES: dict[str, tuple[str, ...]] = {
    "news": (
        "Police found {age} {thing} and {ware} near the {stone} {building}.",
        "A {manner} {trade} from {town} {place} lost {age} {thing}.",
        "The {temper} {colour} {animal} was seen in {town} {place}.",
        "In {month} the {adjective} {noun} was sold for {ware} and {thing}.",
        "Mayor {first} of {town} {place} opened a {stone} {building}.",
    ),
    "books": (
        "Beyond the {adjective} {noun} a {temper} {colour} {animal} slept.",
        "A {manner} {goods} {trade} carried {age} {thing} to the {building}.",
        "Old {first} dreamed of {ware} and of the {adjective} {noun}.",
        "Rain fell on the {stone} {building} and the {adjective} {noun}.",
        "By {month} the {colour} {animal} had hidden {age} {thing}.",
    ),
}

OPENINGS = {
    "news": "{town} {place}, {day} {month}.",
    "books": "Then came the {adjective} {noun} of {month}.",
}
