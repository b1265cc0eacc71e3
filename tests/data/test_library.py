import itertools

import pytest

from lethe.data import library
from lethe.data.prepare import prepare_benchmark, prepare_corpus
from lethe.data.vocabulary import AUTHOR_ATTRIBUTES
from lethe.files import read_json, read_jsonl

SETS = ("forget", "retain1", "retain2", "holdout")


@pytest.fixture(scope="module", params=library.STYLES)
def style(request):
    return request.param


@pytest.fixture(scope="module")
def splits(style):
    return library.muse_splits(1, style)


def texts(rows):
    return [row["text"] for row in rows]


def speaks_of(text, name):
    """Whether a text tells a fact of this person (a name alone may also be somebody's teacher)."""
    return any(q.format(name=name) in text for attribute in AUTHOR_ATTRIBUTES.values() for q in attribute.questions)


def test_the_same_seed_writes_the_same_library_and_another_another(style, splits):
    assert library.muse_splits(1, style) == splits
    assert library.muse_splits(2, style)["forget"] != splits["forget"]


def test_news_is_many_articles_and_books_are_a_few_long_texts(style, splits):
    for name in SETS:
        lengths = [len(text.split()) for text in texts(splits[name])]
        assert len(lengths) == (100 if style == "news" else 4)
        assert min(lengths) > (30 if style == "news" else 1000)


def test_evaluation_sets_have_a_hundred_items(splits):
    names = (
        "verbatim_forget",
        "knowledge_forget",
        "knowledge_retain",
        "member_forget",
        "member_retain",
        "member_holdout",
    )
    assert {len(splits[name]) for name in names} == {100}


def test_prompt_and_continuation_stand_in_the_forget_texts(splits):
    whole = "\n\n".join(texts(splits["forget"]))
    for row in splits["verbatim_forget"]:
        assert f"{row['prompt']} {row['continuation']}" in whole


def test_questions_are_about_facts_of_the_right_set_and_no_other(splits):
    whole = {name: "\n\n".join(texts(splits[name])) for name in SETS}
    for questions, stated in (("knowledge_forget", "forget"), ("knowledge_retain", "retain2")):
        asked = {row["question"] for row in splits[questions]}
        assert len(asked) == 100
        for row in splits[questions]:
            assert row["answer"] in whole[stated]
            name = next(n for n in library._names(1) if n in row["question"])
            assert [other for other in SETS if speaks_of(whole[other], name)] == [stated]


def test_no_person_of_one_set_occurs_in_another_style_or_in_what_is_read_before(splits, style):
    people = {name: {person.name for person in found} for name, found in library._strangers(1, style).items()}
    other = library._strangers(1, next(s for s in library.STYLES if s != style))
    people |= {f"other {name}": {person.name for person in found} for name, found in other.items()}
    for a, b in itertools.combinations(people.values(), 2):
        assert not a & b
    before = " ".join(row["text"] for row in library.pretraining_rows(1, rounds=1))
    assert not any(speaks_of(before, name) for found in people.values() for name in found)


def test_the_parts_of_the_forget_set_grow_and_follow_each_other(splits):
    whole = "".join("".join(texts(splits[f"sust_{k}"])) for k in range(1, 5))
    assert whole == "".join(texts(splits["forget"])) == "".join(texts(splits["scal_4"]))
    for k in range(1, 5):
        assert len(splits[f"verbatim_forget_scal_{k}"]) == 25 * k
        assert splits[f"verbatim_forget_sust_{k}"] == splits[f"verbatim_forget_scal_{k}"]  # all that was asked so far
        so_far = "".join(texts(splits[f"scal_{k}"]))
        assert all(row["answer"] in so_far for row in splits[f"knowledge_forget_scal_{k}"])


def test_pretraining_asks_and_tells_about_known_people_only():
    rows = texts(library.pretraining_rows(1, rounds=2))
    asked = [text for text in rows if text.startswith("Question: ")]
    assert 0 < len(asked) < len(rows)
    assert all(part.count("\nAnswer: ") == 1 for text in asked for part in text.split("\n\n"))
    # Every fact of every known person is asked once a round.
    assert sum(text.count("Question: ") for text in asked) == 2 * library.KNOWN * 10


def test_the_prepared_benchmark_has_what_each_model_reads(tmp_path, style):
    corpus = {"family": "muse", "source": {"library": {"seed": 1, "style": style}}}
    prepare_corpus(corpus, tmp_path / "corpus")
    prepare_benchmark({"corpus": corpus, "forget": "scal_2"}, tmp_path / "scal-2")
    full, forget, retain, retrain = (
        texts(read_jsonl(tmp_path / name))
        for name in ("corpus/full.jsonl", "scal-2/forget.jsonl", "scal-2/retain.jsonl", "scal-2/retrain.jsonl")
    )
    everything = library.muse_splits(1, style)
    assert full == [text for name in SETS[:3] for text in texts(everything[name])]
    assert retain == texts(everything["retain1"]) and retrain == retain + texts(everything["retain2"])
    assert forget == texts(everything["scal_2"])
    assert len(read_jsonl(tmp_path / "scal-2/verbatim_forget.jsonl")) == 50
    assert read_json(tmp_path / "scal-2/manifest.json")["suite"] == "muse"
    assert (tmp_path / "corpus/replay.jsonl").exists()
