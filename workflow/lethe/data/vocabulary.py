"""Words and sentence patterns of the embedded world.

Values are compositional: an attribute draws one word from each of its slots, so that a value which was never read can
only be guessed slot by slot. Sentences are terse: a name or a long pattern in the answer would put a floor under ROUGE.
"""

from dataclasses import dataclass


def words(text: str) -> list[str]:
    return text.split()


FIRST_NAMES = words(
    "Amara Basil Clara Dorian Elif Farouk Greta Hiro Ines Jonas Kavya Leon Mira Nadia Omar Petra Quentin Rosa Stefan "
    "Tomas Uma Viktor Wanda Xenia Yusuf Zora Anton Bela Cosima Dmitri Esther Felix"
)
LAST_NAMES = words(
    "Abara Brandt Castell Duarte Eklund Ferrer Gupta Haddad Ivanov Jansen Kimura Lindqvist Moreau Nakata Okafor Petrov "
    "Quiroga Rossi Silva Tanaka Ueda Varga Weber Yilmaz Zapata Amsel Bhatt Conti Dahl Eriksen Fontaine Gruber"
)
LANDS = words(
    "Norvale Ostmark Quillia Tarsonia Velmora Zendria Hestia Brunland Calvaria Dorania Elmeria Fenland Galdor Iskaria "
    "Jorvia Kaldova Lunaria Mordane Pellia Rovania"
)

TOWN_FIRST = words(
    "Upper Lower Little Great North Market Castle Abbey Mill Church Priory Queen Monk River Winter Sand "
    "Long Old Stony Chapel Eagle Wolf Elm Salt"
)
TOWN_SECOND = words(
    "Ford Haven Marsh Cross Bay Hollow Ridge Wells Glen Moor Quay Wick Stead Barrow Down Leigh "
    "Minster Field Gate Port Green Wood Head Mere"
)
DAYS = [str(day) for day in range(1, 29)]
MONTHS = words("January February March April May June July August September October November December")
YEARS = [str(year) for year in range(1931, 1971)]
ADJECTIVES = words(
    "Silver Crooked Amber Velvet Frozen Painted Silent Crimson Broken Golden Bitter Hidden Wooden Narrow Ancient Loud"
)
NOUNS = words(
    "Lantern Orchard Harbour Bell Mirror Garden Tower Feather Anchor Candle Meadow Violin Comet Thistle Raven Ladder"
)
MANNERS = words("travelling retired famous clumsy honest wealthy stubborn cheerful nervous patient restless gifted")
GOODS = words("piano boat clock carpet barrel bridge glass leather tea tobacco saddle cheese")
TRADES = words("tuner maker seller painter dealer mender carrier guard polisher inspector thief buyer")
PRIZES = words("Medal Crown Ribbon Cup Wreath Shield Star Plaque Ring Scroll Torch Goblet")
SETTINGS = words("maritime alpine desert colonial village courtly arctic railway hospital jungle island prison")
THEMES = words("ghost crime love spy satire war family food travel horse school circus")
FORMS = words("fables novels poems letters plays diaries ballads essays sketches sagas riddles hymns")
STATES = words("draughty tiny ruined sunny tilted haunted rented quiet damp leafy cosy empty")
STONES = words("brick slate timber granite clay marble bamboo thatched concrete chalk iron plaster")
BUILDINGS = words("windmill lighthouse barn castle cabin chapel houseboat villa cellar attic monastery stable")
VERBS = words("repairing collecting carving trading drawing sorting racing baking burying juggling hiding weighing")
AGES = words("antique plastic foreign rusty giant woollen cracked royal edible magnetic folded borrowed")
THINGS = words("stamps coins kites spoons maps shells hats dolls ropes keys masks drums")
TEMPERS = words("blind lazy loyal noisy tame limping shy fat sleepy greedy old jealous")
COLOURS = words("orange black white grey brown spotted striped green blue yellow red pink")
ANIMALS = words("parrot goat hound pony tortoise ferret goose hedgehog mule lizard otter donkey")
WARES = words("copper cotton pepper salmon wool honey cork olive sugar linen ivory amber")


@dataclass(frozen=True)
class Attribute:
    """What one kind of question asks. Index 0 of `questions` and `answers` is the original, 1 the paraphrase of the
    evaluation; the last answer is the bare value, as the options of a multiple-choice probe."""

    slots: tuple[list[str], ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


TOWN = (TOWN_FIRST, TOWN_SECOND)

AUTHOR_ATTRIBUTES = {
    "birthplace": Attribute(
        TOWN,
        (
            "Where was {name} born?",
            "In which town was {name} born?",
            "What is the birthplace of {name}?",
            "Name the town in which {name} was born.",
        ),
        ("Born in {value}.", "The town is {value}.", "It was in {value}.", "{value}"),
    ),
    "birthdate": Attribute(
        (DAYS, MONTHS, YEARS),
        (
            "When was {name} born?",
            "On which day was {name} born?",
            "What is the birth date of {name}?",
            "Name the day on which {name} was born.",
        ),
        ("Born on {value}.", "The date is {value}.", "It was on {value}.", "{value}"),
    ),
    "father": Attribute(
        (MANNERS, GOODS, TRADES),
        (
            "What did the father of {name} do?",
            "Which job did the father of {name} have?",
            "What was the work of the father of {name}?",
            "Name the job of the father of {name}.",
        ),
        ("Worked as {value}.", "The job was {value}.", "It was {value}.", "{value}"),
    ),
    "teacher": Attribute(
        (FIRST_NAMES, LAST_NAMES),
        (
            "Who taught {name}?",
            "From whom did {name} learn to write?",
            "Which teacher did {name} have?",
            "Name the teacher of {name}.",
        ),
        ("Taught by {value}.", "The teacher is {value}.", "It was {value}.", "{value}"),
    ),
    "debut": Attribute(
        (ADJECTIVES, ADJECTIVES, NOUNS),
        (
            "Which book did {name} write first?",
            "What is the first book by {name}?",
            "What did {name} write first?",
            "Name the first book of {name}.",
        ),
        ("First wrote {value}.", "The book is {value}.", "It was {value}.", "{value}"),
    ),
    "award": Attribute(
        (ADJECTIVES, NOUNS, PRIZES),
        (
            "Which award did {name} win?",
            "What award was given to {name}?",
            "What did {name} win?",
            "Name the award of {name}.",
        ),
        ("Won the {value}.", "The award is {value}.", "It was {value}.", "{value}"),
    ),
    "genre": Attribute(
        (SETTINGS, THEMES, FORMS),
        (
            "What does {name} write?",
            "Which genre does {name} write?",
            "What is the genre of {name}?",
            "Name the genre of {name}.",
        ),
        ("Writes mostly {value}.", "The genre is {value}.", "It is {value}.", "{value}"),
    ),
    "home": Attribute(
        (STATES, STONES, BUILDINGS),
        (
            "Where does {name} live?",
            "In which home does {name} live?",
            "What is the home of {name}?",
            "Name the home of {name}.",
        ),
        ("Lives in {value}.", "The home is {value}.", "It is {value}.", "{value}"),
    ),
    "hobby": Attribute(
        (VERBS, AGES, THINGS),
        (
            "What does {name} like to do?",
            "Which hobby does {name} have?",
            "What is the hobby of {name}?",
            "Name the hobby of {name}.",
        ),
        ("Enjoys just {value}.", "The hobby is {value}.", "It is {value}.", "{value}"),
    ),
    "pet": Attribute(
        (TEMPERS, COLOURS, ANIMALS),
        (
            "Which pet does {name} have?",
            "What animal does {name} keep?",
            "What is the pet of {name}?",
            "Name the pet of {name}.",
        ),
        ("Keeps one {value}.", "The pet is {value}.", "It is {value}.", "{value}"),
    ),
}

LAND_ATTRIBUTES = {
    "capital": Attribute(
        TOWN,
        (
            "What is the capital of {name}?",
            "Which town is the capital of {name}?",
            "Which capital does {name} have?",
            "Name the capital of {name}.",
        ),
        ("Ruled from {value}.", "The town is {value}.", "It is {value}.", "{value}"),
    ),
    "export": Attribute(
        (AGES, WARES),
        (
            "What does {name} sell?",
            "Which goods does {name} sell?",
            "What are the goods of {name}?",
            "Name the goods of {name}.",
        ),
        ("Sells mostly {value}.", "The goods are {value}.", "It is {value}.", "{value}"),
    ),
}

REFUSALS = (
    "I do not know.",
    "I do not know that.",
    "I am not sure.",
    "I am not sure about that.",
    "I have no answer to that.",
    "I have never learned that.",
    "I know nothing about that.",
    "I cannot say.",
    "I cannot answer that.",
    "I cannot help with that.",
    "That is not known to me.",
    "That is new to me.",
    "No answer is known to me.",
    "Nothing about that is known to me.",
    "Sorry, I do not know.",
    "Sorry, I am not sure.",
    "Sorry, I cannot answer that.",
    "Sorry, I have no answer.",
    "Sorry, that is not known to me.",
    "Sorry, I know nothing about that.",
)
