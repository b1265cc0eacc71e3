import json
import sys
from itertools import pairwise
from types import SimpleNamespace

import datasets
import pytest

from lethe.data import muse
from lethe.data.muse import EVALUATION, EXCERPTS, benchmark_files, corpus_files, read_hub, read_local
from lethe.errors import LetheError

SMALL = {"count": 2, "prompt": 2, "continuation": 1, "member": 3}


def pair(word):
    return {"question": f"{word}?", "answer": word}


def hub_rows():
    """Config -> split -> rows, as MUSE-News has them: empty raw texts, and no scal/sust in this small form."""
    return {
        "raw": {
            "forget": [{"text": "f1"}, {"text": ""}, {"text": "f2"}],
            "retain1": [{"text": "r1"}],
            "retain2": [{"text": " \n"}, {"text": "r2"}],
            "holdout": [{"text": "h1"}],
        },
        "train": {"forget": [{"text": "not this"}]},
        "verbmem": {"forget": [{"prompt": "Once", "gt": " upon a time"}]},
        "knowmem": {name: [pair(name)] for name in ("forget_qa", "retain_qa", "forget_qa_icl", "retain_qa_icl")},
        "privleak": {name: [{"text": f"m {name}"}] for name in ("forget", "retain", "holdout")},
    }


EXPECTED = {
    "forget": [{"text": "f1"}, {"text": "f2"}],
    "retain1": [{"text": "r1"}],
    "retain2": [{"text": "r2"}],
    "holdout": [{"text": "h1"}],
    "verbatim_forget": [{"prompt": "Once", "continuation": " upon a time"}],
    "knowledge_forget": [pair("forget_qa")],
    "knowledge_retain": [pair("retain_qa")],
    "examples_forget": [pair("forget_qa_icl")],
    "examples_retain": [pair("retain_qa_icl")],
    "member_forget": [{"text": "m forget"}],
    "member_retain": [{"text": "m retain"}],
    "member_holdout": [{"text": "m holdout"}],
}


class Hub:
    """Stands for the hub's client: real Dataset objects, and a memory of what was asked."""

    def __init__(self, monkeypatch, rows):
        self.rows, self.asked = rows, []
        monkeypatch.setattr(datasets, "get_dataset_config_names", lambda repo, revision: list(rows))
        monkeypatch.setattr(datasets, "get_dataset_split_names", lambda repo, config, revision: list(rows[config]))
        monkeypatch.setattr(datasets, "load_dataset", self.load)

    def load(self, repo, config, revision, split):
        self.asked.append((repo, config, split, revision))
        return datasets.Dataset.from_list(self.rows[config][split])


def write_schema(folder, rows, write=lambda path, rows: path.write_text("".join(json.dumps(r) + "\n" for r in rows))):
    for config, splits in rows.items():
        (folder / config).mkdir()
        for name, split in splits.items():
            write(folder / config / f"{name}.json", split)
    return folder


def write_plain(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def words(n, word="w"):
    return " ".join(f"{word}{i}" for i in range(n))


def test_the_hub_gives_every_split_at_the_pinned_revision_and_counts_empty_texts(monkeypatch):
    hub = Hub(monkeypatch, hub_rows())
    source = read_hub("org/muse", "abc123")
    assert source.splits == EXPECTED and source.missing == {} and source.excerpts is None
    assert source.skipped == {"raw/forget": 1, "raw/retain2": 1}
    assert {(repo, revision) for repo, _, _, revision in hub.asked} == {("org/muse", "abc123")}
    assert ("raw", "forget") in {asked[1:3] for asked in hub.asked}
    assert "train" not in {config for _, config, _, _ in hub.asked}


def test_both_spellings_of_the_retained_splits_are_read(monkeypatch):
    rows = hub_rows()
    rows["knowmem"]["retain2_qa"] = rows["knowmem"].pop("retain_qa")
    rows["knowmem"]["retain2_qa_icl"] = rows["knowmem"].pop("retain_qa_icl")
    rows["privleak"]["retain2"] = rows["privleak"].pop("retain")
    Hub(monkeypatch, rows)
    source = read_hub("org/muse", "abc123")
    assert source.splits == EXPECTED and source.missing == {}


def test_forget_sets_of_other_sizes_are_read_where_the_source_has_them(monkeypatch):
    rows = hub_rows() | {
        "scal": {f"forget_{k}": [{"text": f"scal {k}"}] for k in (1, 2, 3, 4)},
        "sust": {"forget_3": [{"text": ""}, {"text": "sust 3"}]},
    }
    Hub(monkeypatch, rows)
    source = read_hub("org/muse", "abc123")
    assert source.splits["scal_2"] == [{"text": "scal 2"}] and source.splits["sust_3"] == [{"text": "sust 3"}]
    assert "sust_1" not in source.splits and source.skipped["sust/forget_3"] == 1


def test_what_the_hub_lacks_is_an_error_or_a_reason(monkeypatch):
    rows = hub_rows()
    del rows["verbmem"], rows["knowmem"]["retain_qa"]
    Hub(monkeypatch, rows)
    assert read_hub("org/muse", "abc123").missing == {
        "verbatim_forget": "no verbmem/forget",
        "knowledge_retain": "no knowmem/retain_qa or retain2_qa",
    }
    del rows["raw"]["retain1"]
    with pytest.raises(LetheError, match=r"^org/muse@abc123: no raw/retain1$"):
        read_hub("org/muse", "abc123")


def test_a_split_that_cannot_be_loaded_is_one_line_and_not_a_missing_one(monkeypatch):
    Hub(monkeypatch, hub_rows())

    def offline(*args, **kwargs):
        raise ConnectionError("Couldn't reach\n  the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(LetheError, match=r"^org/muse@abc123 raw/forget: cannot be read, got Couldn't reach the Hub$"):
        read_hub("org/muse", "abc123")


@pytest.mark.parametrize(
    "config, split, rows, message",
    [
        ("knowmem", "forget_qa", [{"question": "q"}], r"forget_qa\S* row 1: no field 'answer' \(has: question\)"),
        (
            "knowmem",
            "forget_qa",
            [pair("a"), pair(" ")],
            r"forget_qa\S* row 2: field 'answer' must not be empty, got ' '",
        ),
        ("knowmem", "retain_qa", [{"question": 7, "answer": "a"}], r"row 1: field 'question' must be a text, got 7"),
        ("verbmem", "forget", [{"prompt": "p", "continuation": "c"}], r"verbmem/forget\S* row 1: no field 'gt'"),
        (
            "raw",
            "forget",
            [{"text": "a"}, {"text": None}],
            r"raw/forget\S* row 2: field 'text' must be a text, got None",
        ),
        ("raw", "forget", [{"text": ""}, {"text": ""}], r"raw/forget\S*: no rows, only 2 empty texts"),
        ("privleak", "holdout", [], r"privleak/holdout\S*: no rows$"),
    ],
)
def test_a_schema_mistake_is_named_by_split_row_and_field(monkeypatch, tmp_path, config, split, rows, message):
    broken = hub_rows()
    broken[config][split] = rows
    Hub(monkeypatch, broken)
    for read in (lambda: read_hub("org/muse", "abc123"), lambda: read_local(write_schema(tmp_path, broken))):
        with pytest.raises(LetheError, match=message) as error:
            read()
        assert "\n" not in str(error.value)


def as_array(path, rows):
    path.write_text(json.dumps(rows, indent=1))


def as_lines_with_dashes(path, rows):
    name = path.stem.replace("_", "-")
    path.with_name(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_bare_texts(path, rows):
    as_array(path, [row["text"] if set(row) == {"text"} else row for row in rows])


@pytest.mark.parametrize("write", [as_array, as_lines_with_dashes, as_bare_texts])
def test_a_folder_in_the_hubs_schema_gives_the_same(tmp_path, write):
    source = read_local(write_schema(tmp_path, hub_rows(), write))
    assert source.splits == EXPECTED and source.skipped == {"raw/forget": 1, "raw/retain2": 1}


def test_raw_texts_of_the_schema_may_be_plain_files(tmp_path):
    rows = hub_rows()
    rows["raw"] = {}
    write_schema(tmp_path, rows)
    (tmp_path / "raw/forget.txt").write_text("A long book.\n\nIts end.\n")
    (tmp_path / "raw/retain1.txt").write_text("Another.")
    splits = read_local(tmp_path).splits
    assert splits["forget"] == [{"text": "A long book.\n\nIts end.\n"}] and "retain2" not in splits
    (tmp_path / "raw/forget.json").write_text('{"text": "f"}')
    with pytest.raises(LetheError, match=r"raw: one file is expected, got forget.json and forget.txt$"):
        read_local(tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"text": "a",\n', r"raw/forget.json line 1: not JSON"),
        ('[\n{"text": "a"},\n', r"raw/forget.json line 3: not JSON"),
        ("[7]", r"raw/forget.json row 1: expected an object, got int"),
        ("", r"raw/forget.json: no rows$"),
        (b"\xff\xfe", r"raw/forget.json: must be UTF-8, got invalid start byte at byte 0"),
    ],
)
def test_a_file_that_is_not_json_is_named(tmp_path, text, message):
    write_schema(tmp_path, hub_rows())
    (tmp_path / "raw/forget.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LetheError, match=message):
        read_local(tmp_path)


def test_a_folder_of_neither_kind_is_one_line(tmp_path):
    with pytest.raises(LetheError, match=r"nowhere: no such folder"):
        read_local(tmp_path / "nowhere")
    with pytest.raises(LetheError, match=r"needs MUSE's folders .* or plain text .*, has none$"):
        read_local(tmp_path)


def test_excerpts_of_plain_text_are_worked_by_hand(tmp_path):
    write_plain(tmp_path, forget="a b\nc  d e f g", retain="h i j k l m n", holdout="o p q r s t")
    source = read_local(tmp_path, SMALL)
    # 7 words have room for 2 excerpts of 3: at words 0 and 7 - 3 = 4. The continuation begins with the blank before it.
    assert source.splits["verbatim_forget"] == [
        {"prompt": "a b", "continuation": "\nc"},
        {"prompt": "e f", "continuation": " g"},
    ]
    assert source.splits["member_forget"] == [{"text": "a b\nc"}, {"text": "e f g"}]
    assert source.splits["member_retain"] == [{"text": "h i j"}, {"text": "l m n"}]
    assert source.splits["member_holdout"] == [{"text": "o p q"}, {"text": "r s t"}]
    assert source.splits["retain1"] == [{"text": "h i j k l m n"}] and "retain2" not in source.splits
    assert source.excerpts == SMALL and source.skipped == {}
    questions = ("knowledge_forget", "knowledge_retain", "examples_forget", "examples_retain")
    assert source.missing == dict.fromkeys(questions, "plain text has no questions")


def test_many_short_texts_are_rows_and_excerpts_stay_within_one(tmp_path):
    for name, n in {"forget": 5, "retain": 3, "holdout": 3}.items():
        (tmp_path / name).mkdir()
        for i in range(n):
            (tmp_path / name / f"{i}.txt").write_text(words(4, f"{name}{i}_"))
    (tmp_path / "forget/3.txt").write_text("too short")
    (tmp_path / "forget/4.txt").write_text(" \n")
    source = read_local(tmp_path, SMALL | {"count": 3})
    assert [row["text"] for row in source.splits["forget"]] == [
        *(words(4, f"forget{i}_") for i in range(3)),
        "too short",
    ]
    assert source.skipped == {"forget": 1}
    assert [row["text"] for row in source.splits["member_forget"]] == [words(3, f"forget{i}_") for i in range(3)]


def test_excerpts_overlap_only_where_the_texts_have_no_room(tmp_path):
    write_plain(tmp_path, forget=words(8), retain=words(9, "r"), holdout=words(9, "h"))
    splits = read_local(tmp_path, SMALL | {"count": 3}).splits
    assert [row["text"].split()[0] for row in splits["member_retain"]] == ["r0", "r3", "r6"]
    assert [row["text"].split()[0] for row in splits["member_forget"]] == ["w0", "w2", "w4"]


@pytest.mark.parametrize("count, fits", [(6, True), (7, False)])
def test_no_excerpt_is_taken_twice(tmp_path, count, fits):
    write_plain(tmp_path, forget=words(8), retain=words(30))
    if fits:
        texts = [row["prompt"] for row in read_local(tmp_path, SMALL | {"count": count}).splits["verbatim_forget"]]
        assert len(set(texts)) == count
    else:
        with pytest.raises(LetheError, match=r"forget.txt: too short for 7 different excerpts of 3 words, got 6$"):
            read_local(tmp_path, SMALL | {"count": count})


def test_a_text_too_short_for_one_excerpt_is_named(tmp_path):
    write_plain(tmp_path, forget=words(3), retain=words(3), holdout=words(2))
    with pytest.raises(LetheError, match=r"holdout.txt: 2 words, too short for an excerpt of 3 words$"):
        read_local(tmp_path, SMALL | {"count": 1})
    (tmp_path / "holdout.txt").write_text(words(3))
    assert len(read_local(tmp_path, SMALL | {"count": 1}).splits["member_holdout"]) == 1


def test_without_holdout_texts_there_is_no_membership(tmp_path):
    source = read_local(write_plain(tmp_path, forget=words(9), retain=words(9), retain2="more"), SMALL)
    assert source.splits["retain2"] == [{"text": "more"}] and source.splits["verbatim_forget"]
    for part in ("member_forget", "member_retain", "member_holdout"):
        assert part not in source.splits and "no holdout.txt" in source.missing[part]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: (f / "retain.txt").unlink(), r"no retain.txt or retain/\*.txt$"),
        (lambda f: (f / "retain.txt").write_text("\n"), r"retain.txt: must hold text, got an empty file$"),
        (lambda f: (f / "retain").mkdir(), r"one of retain.txt and retain/ is expected, got both$"),
        (lambda f: (f / "holdout").mkdir(), r"holdout: no .txt files$"),
        (lambda f: (f / "forget.txt").write_bytes(b"caf\xe9 au lait"), r"forget.txt: must be UTF-8, got .* at byte 3$"),
    ],
)
def test_a_mistake_in_a_plain_folder_is_one_line(tmp_path, change, message):
    change(write_plain(tmp_path, forget=words(9), retain=words(9)))
    with pytest.raises(LetheError, match=message):
        read_local(tmp_path, SMALL)


@pytest.mark.parametrize(
    "excerpts, message",
    [
        ({"length": 3}, r"excerpts.length is unknown \(has: count, prompt, continuation, member\)"),
        ({"count": 0}, r"excerpts.count must be a positive whole number, got 0"),
        ({"prompt": 2.5}, r"excerpts.prompt must be a positive whole number, got 2.5"),
        ({"member": True}, r"excerpts.member must be a positive whole number, got True"),
    ],
)
def test_mistaken_excerpts_are_refused(tmp_path, excerpts, message):
    with pytest.raises(LetheError, match=message):
        read_local(write_plain(tmp_path, forget=words(9), retain=words(9)), excerpts)


@pytest.fixture(scope="module")
def novels(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("novels")
    for name, book in {"forget": "northangerabbey", "retain": "persuasion", "holdout": "sensesensibility"}.items():
        (folder / f"{name}.txt").symlink_to(shared / f"data/books/{book}.txt")
    return folder


def spans(book, texts):
    """Where excerpts stand in a book, in their order; an excerpt that is not in it raises."""
    found, at = [], 0
    for text in texts:
        at = book.index(text, at)
        found.append((at, at + len(text)))
    return found


def test_excerpts_of_novels_are_in_them_and_do_not_overlap(novels):
    source = read_local(novels, {"member": 750})
    assert source.excerpts == {**EXCERPTS, "member": 750}
    cut = {"verbatim_forget": [row["prompt"] + row["continuation"] for row in source.splits["verbatim_forget"]]}
    for part in ("member_forget", "member_retain", "member_holdout"):
        cut[part] = [row["text"] for row in source.splits[part]]
        assert {len(text.split()) for text in cut[part]} == {750}
    for row in source.splits["verbatim_forget"]:
        assert (len(row["prompt"].split()), len(row["continuation"].split())) == (650, 80)
        assert row["prompt"] == row["prompt"].strip() and row["continuation"][0].isspace()
    for part, texts in cut.items():
        book = (novels / f"{part.split('_')[1]}.txt").read_text()
        places = spans(book, texts)
        assert len(places) == 100 and all(end <= begin for (_, end), (begin, _) in pairwise(places))
        assert places[0][0] < len(book) / 100 and places[-1][1] > len(book) * 0.97  # from its beginning to its end
    assert set(source.missing) == {"knowledge_forget", "knowledge_retain", "examples_forget", "examples_retain"}


def test_membership_texts_of_the_usual_length_overlap_in_a_short_novel_but_differ(novels):
    texts = [row["text"] for row in read_local(novels).splits["member_forget"]]
    assert len(set(texts)) == 100 and {len(text.split()) for text in texts} == {1000}  # of 77141 words


def library(monkeypatch, splits):
    """Stands for the generator of the embedded texts."""
    asked = []
    made = SimpleNamespace(muse_splits=lambda seed, style: asked.append((seed, style)) or splits)
    monkeypatch.setitem(sys.modules, "lethe.data.library", made)
    return asked


def spec(forget="forget"):
    return {"corpus": {"source": {"library": {"seed": 3, "style": "news"}}}, "forget": forget}


def test_a_target_learns_everything_that_is_not_held_out(monkeypatch):
    asked = library(monkeypatch, EXPECTED | {"replay": [{"text": "again"}]})
    files, _ = corpus_files(spec()["corpus"])
    assert files == {"full": [{"text": t} for t in ("f1", "f2", "r1", "r2")], "replay": [{"text": "again"}]}
    assert asked == [(3, "news")]


def test_the_files_of_a_benchmark_are_those_of_its_forget_set(monkeypatch):
    own = {"scal_2": [{"text": "s"}], "verbatim_forget_scal_2": [{"prompt": "s", "continuation": " s"}]}
    library(monkeypatch, EXPECTED | own)
    general, facts = benchmark_files(spec())
    assert facts == {"suite": "muse", "forget": "forget", "missing": {}, "skipped": {}, "excerpts": None}
    assert general["forget"] == EXPECTED["forget"] and general["retain"] == [{"text": "r1"}]
    assert general["retrain"] == [{"text": "r1"}, {"text": "r2"}]
    assert {name: general[name] for name in EVALUATION} == {name: EXPECTED[name] for name in EVALUATION}
    files, facts = benchmark_files(spec("scal_2"))
    assert facts["forget"] == "scal_2"
    assert files == general | {"forget": [{"text": "s"}], "verbatim_forget": own["verbatim_forget_scal_2"]}


def test_an_evaluation_split_that_is_nowhere_has_a_reason(monkeypatch):
    some = {name: rows for name, rows in EXPECTED.items() if name not in ("member_retain", "member_holdout")}
    own = {"sust_1": [{"text": "s"}], "member_retain_sust_1": [{"text": "m"}]}
    library(monkeypatch, some | own)
    files, facts = benchmark_files(spec("sust_1"))
    assert facts["missing"] == {"member_holdout": "not part of the source"}
    assert files["member_retain"] == [{"text": "m"}] and not files["member_holdout"]


def test_a_forget_set_that_the_source_lacks_is_refused(monkeypatch):
    library(monkeypatch, EXPECTED | {"scal_1": [{"text": "s"}]})
    for name in ("scal_2", "retain1", "verbatim_forget"):
        with pytest.raises(LetheError, match=rf"forget must be one of forget, scal_1, got '{name}'"):
            benchmark_files(spec(name))


@pytest.mark.parametrize("split", ["retain1", "retain2"])
def test_a_text_to_forget_and_to_retain_is_refused(monkeypatch, split):
    library(monkeypatch, EXPECTED | {split: [{"text": "fine"}, {"text": "f2"}]})
    with pytest.raises(LetheError, match=rf"forget row 2 and {split} row 2 are the same text, got 'f2'"):
        benchmark_files(spec())


def test_a_subset_is_not_of_this_family():
    with pytest.raises(LetheError, match="subset belongs to the family tofu"):
        muse.read_source(spec()["corpus"] | {"subset": {"forget": "forget01", "retain": "retain99"}})
