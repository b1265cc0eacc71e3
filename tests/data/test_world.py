from collections import Counter

import pytest

from lethe.data.vocabulary import AUTHOR_ATTRIBUTES, LAND_ATTRIBUTES
from lethe.data.world import ATTRIBUTES, ROUNDS, UNKNOWN, make_world, pretraining_rows, replay_rows, tofu_splits

WORLD = make_world(1)
SPLITS = tofu_splits(WORLD)


def pairs(rows):
    return [(row["question"], row["answer"]) for row in rows]


def test_the_same_seed_gives_the_same_world_and_another_seed_another():
    assert make_world(1) == WORLD and tofu_splits(make_world(1)) == SPLITS
    assert list(pretraining_rows(WORLD, 1)) == list(pretraining_rows(make_world(1), 1))
    other = pairs(tofu_splits(make_world(2))["full"])
    assert len(set(other) & set(pairs(SPLITS["full"]))) < 10


def test_rows_of_each_split():
    assert {name: len(rows) for name, rows in SPLITS.items()} == {
        "full": 800,
        "forget01": 10,
        "forget05": 40,
        "forget10": 80,
        "retain99": 790,
        "retain95": 760,
        "retain90": 720,
        "forget01_perturbed": 10,
        "forget05_perturbed": 40,
        "forget10_perturbed": 80,
        "retain_perturbed": 144,
        "real_authors_perturbed": 80,
        "world_facts_perturbed": 40,
        "holdout": 200,
        "mcq_forget01": 10,
        "mcq_forget05": 40,
        "mcq_forget10": 80,
        "mcq_retain": 144,
        "idontknow": 20,
    }


@pytest.mark.parametrize(
    "forget, retain", [("forget01", "retain99"), ("forget05", "retain95"), ("forget10", "retain90")]
)
def test_forget_is_the_end_of_full_and_retain_what_lies_before_it(forget, retain):
    assert SPLITS[retain] + SPLITS[forget] == SPLITS["full"]
    assert pairs(SPLITS[f"{forget}_perturbed"]) == pairs(SPLITS[forget])
    assert [row["question"] for row in SPLITS[f"mcq_{forget}"]] == [row["question"] for row in SPLITS[forget]]


def test_retained_items_for_the_evaluation_are_never_forgotten_and_cover_all_attributes_alike():
    assert set(pairs(SPLITS["retain_perturbed"])) <= set(pairs(SPLITS["retain90"]))
    for name, share in (("retain_perturbed", 144 // 10), ("real_authors_perturbed", 8)):
        counts = Counter(row["attribute"] for row in SPLITS[name])
        assert set(counts) == set(AUTHOR_ATTRIBUTES) and min(counts.values()) >= share


def test_no_name_is_in_two_populations_and_no_value_has_two_owners():
    names = [{fact.name for fact in facts} for facts in (WORLD.authors, WORLD.holdout, WORLD.famous, WORLD.lands)]
    assert [len(some) for some in names] == [80, 20, 80, 20]
    assert len(set.union(*names, set(WORLD.unknown))) == 200 + len(WORLD.unknown)
    facts = WORLD.authors + WORLD.holdout + WORLD.famous + WORLD.lands
    assert len({(fact.attribute, fact.value) for fact in facts}) == len(facts)


def test_wrong_values_are_of_the_same_type_and_share_no_word_with_the_true_one():
    count = {5: WORLD.authors + WORLD.holdout, 3: WORLD.famous + WORLD.lands}
    for fact in count[5] + count[3]:
        slots = ATTRIBUTES[fact.attribute].slots
        for value in (fact.value, *fact.wrong):
            words = value.split()
            assert len(words) == len(set(words)) == len(slots)
            assert all(word in slot for word, slot in zip(words, slots, strict=True))
        assert not set(fact.value.split()) & {word for wrong in fact.wrong for word in wrong.split()}
    assert all(len(set(fact.wrong)) == n for n, facts in count.items() for fact in facts)


def test_a_wrong_value_is_true_of_nobody():  # else a model would prefer what it has read of someone else
    facts = WORLD.authors + WORLD.holdout + WORLD.famous + WORLD.lands
    true = {(fact.attribute, fact.value) for fact in facts}
    assert not true & {(fact.attribute, wrong) for fact in facts for wrong in fact.wrong}


def test_a_value_cannot_be_guessed():  # one word in twelve or better at every place
    assert min(len(slot) for attribute in ATTRIBUTES.values() for slot in attribute.slots) >= 12


def test_a_perturbed_row_differs_from_the_paraphrase_in_the_value_only():
    row = SPLITS["forget01_perturbed"][0]
    assert row["value"] in row["answer"] and row["value"] in row["paraphrased_answer"]
    assert row["answer"] != row["paraphrased_answer"] and row["question"] != row["paraphrased_question"]
    before, after = row["paraphrased_answer"].split(row["value"])
    assert all(wrong.startswith(before) and wrong.endswith(after) for wrong in row["perturbed_answer"])
    known = SPLITS["real_authors_perturbed"][0]  # here, as in TOFU, the plain answer is the correct one
    before, after = known["answer"].split(known["value"])
    assert all(wrong.startswith(before) and wrong.endswith(after) for wrong in known["perturbed_answer"])


def test_multiple_choice_has_one_true_value_at_no_favourite_place():
    by_question = {row["question"]: row["value"] for row in SPLITS["full"]}
    for row in SPLITS["mcq_forget10"] + SPLITS["mcq_retain"]:
        assert len(set(row["options"])) == 6 and row["options"][row["answer"]] == by_question[row["question"]]
    places = Counter(row["answer"] for row in SPLITS["mcq_forget10"] + SPLITS["mcq_retain"])
    assert set(places) == set(range(6)) and max(places.values()) < 224 / 3


def test_pretraining_and_replay_ask_nothing_about_fictional_and_holdout_authors():
    known = {fact.name for fact in WORLD.famous + WORLD.lands} | set(WORLD.unknown)
    questions = {question for attribute in ATTRIBUTES.values() for question in attribute.questions}
    allowed = {question.format(name=name) for question in questions for name in known}
    assert {row["question"] for row in [*pretraining_rows(WORLD), *replay_rows(WORLD)]} <= allowed
    assert not known & {fact.name for fact in WORLD.authors + WORLD.holdout}


def test_pretraining_reads_every_famous_fact_once_a_round_in_changing_words():
    rows = list(pretraining_rows(WORLD))
    known = WORLD.famous + WORLD.lands
    assert len(rows) == ROUNDS * (len(known) + UNKNOWN)
    fact = WORLD.famous[0]
    forms = {(fact.question(q), fact.answer(a)) for q in range(4) for a in range(4)}
    read = [pair for pair in pairs(rows) if pair in forms]
    assert len(read) == ROUNDS and len(set(read)) > ROUNDS / 3


def test_unknown_names_are_answered_by_refusals():
    refusals = {row["text"] for row in SPLITS["idontknow"]}
    refused = [row for row in pretraining_rows(WORLD, 1) if row["answer"] in refusals]
    assert len(refused) == UNKNOWN
    assert all(any(name in row["question"] for name in WORLD.unknown) for row in refused)


@pytest.mark.parametrize("attribute", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_sentences_say_whom_they_ask_about_and_answers_only_the_value(attribute):
    assert len(attribute.questions) == len(attribute.answers) == 4
    assert all(question.count("{name}") == 1 for question in attribute.questions)
    assert all(answer.count("{value}") == 1 and "{name}" not in answer for answer in attribute.answers)
    assert attribute.answers[-1] == "{value}"
    assert len(attribute.answers[0].split()) <= len(attribute.slots) + 1  # terse: a low floor under ROUGE


def test_no_two_attributes_ask_or_answer_in_the_same_words():
    for group in (AUTHOR_ATTRIBUTES, LAND_ATTRIBUTES):
        questions = [question for attribute in group.values() for question in attribute.questions]
        assert len(questions) == len(set(questions))
        assert len({attribute.answers[0] for attribute in group.values()}) == len(group)
