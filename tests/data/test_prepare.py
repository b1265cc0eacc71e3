import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from lethe.data import muse, prepare
from lethe.data.prepare import prepare_benchmark, prepare_corpus, prepare_world
from lethe.data.text import encode_chunks, encode_pair, get_template
from lethe.errors import LetheError
from lethe.files import read_json, read_jsonl, sha256_file

WORLD = {"source": {"world": {"seed": 1}}}


def pairs(path):
    return [(row["question"], row["answer"]) for row in read_jsonl(path, ("question", "answer"))]


def assert_manifest_is_true(folder):
    manifest = read_json(folder / "manifest.json")
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(manifest["files"]) == found
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == sha256_file(folder / name)
        if name.endswith(".jsonl"):
            assert entry["rows"] == len(read_jsonl(folder / name))
    return manifest


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "world"
    prepare_world({"world": {"seed": 1}}, out)
    return out


def test_the_worlds_words_are_single_tokens(world):
    tokenizer = AutoTokenizer.from_pretrained(world / "tokenizer")
    row = {"question": "Where was Amara Abara born?", "answer": "Born in Upper Barrow."}
    pair = encode_pair(tokenizer, get_template("chat"), row["question"], row["answer"], 64)
    assert tokenizer.convert_ids_to_tokens(pair.ids[pair.start :]) == [
        *("ĠBorn", "Ġin", "ĠUpper", "ĠBarrow", "."),
        "<|end|>",
    ]
    assert tokenizer.convert_ids_to_tokens(pair.ids[: pair.start])[0] == "<|user|>"


def test_preparing_twice_gives_the_same_files(world, tmp_path):
    prepare_world({"world": {"seed": 1}}, tmp_path / "again")
    manifest = assert_manifest_is_true(world)
    assert read_json(tmp_path / "again/manifest.json") == manifest
    assert manifest["source"] == {"world": {"seed": 1}} and manifest["licence"] == "MIT (generated)"


def test_the_corpus_of_the_world_has_rows_to_replay(tmp_path):
    prepare_corpus(WORLD, tmp_path / "tofu")
    manifest = assert_manifest_is_true(tmp_path / "tofu")
    assert {name: entry["rows"] for name, entry in manifest["files"].items()} == {
        "full.jsonl": 800,
        "replay.jsonl": 3360,
    }


@pytest.mark.parametrize("forget, size", [("forget01", 10), ("forget05", 40), ("forget10", 80)])
def test_every_file_of_a_benchmark_follows_from_the_name_of_its_forget_set(tmp_path, forget, size):
    prepare_benchmark({"corpus": WORLD, "forget": forget}, tmp_path / "b")
    manifest = assert_manifest_is_true(tmp_path / "b")
    assert manifest["suite"] == "tofu"
    assert {name: entry["rows"] for name, entry in manifest["files"].items()} == {
        "forget.jsonl": size,
        "retain.jsonl": 800 - size,
        "retrain.jsonl": 800 - size,
        "eval_forget.jsonl": size,
        "eval_retain.jsonl": 144,
        "real_authors.jsonl": 80,
        "world_facts.jsonl": 40,
        "holdout.jsonl": 200,
        "mcq_forget.jsonl": size,
        "mcq_retain.jsonl": 144,
        "idk.jsonl": 20,
    }
    assert not set(pairs(tmp_path / "b/forget.jsonl")) & set(pairs(tmp_path / "b/retain.jsonl"))
    assert (tmp_path / "b/retrain.jsonl").read_bytes() == (tmp_path / "b/retain.jsonl").read_bytes()


def test_real_rows_keep_a_question_that_occurs_twice(shared, tmp_path):
    corpus = {"source": {"local": str(shared / "data/tofu")}}
    prepare_benchmark({"corpus": corpus, "forget": "forget10"}, tmp_path / "b")
    manifest = assert_manifest_is_true(tmp_path / "b")
    assert manifest["licence"] == "MIT (TOFU)"
    assert {name: entry["rows"] for name, entry in manifest["files"].items()} == {
        "forget.jsonl": 400,
        "retain.jsonl": 3600,
        "retrain.jsonl": 3600,
        "eval_forget.jsonl": 400,
        "eval_retain.jsonl": 400,
        "real_authors.jsonl": 100,
        "world_facts.jsonl": 117,
        "idk.jsonl": 100,
    }
    assert pairs(tmp_path / "b/retain.jsonl") == pairs(shared / "data/tofu/retain90.json")


def test_a_subset_is_its_forget_rows_and_the_plain_rows_of_its_retain_split(shared, tmp_path):
    corpus = {
        "source": {"local": str(shared / "data/tofu")},
        "subset": {"forget": "forget05", "retain": "retain_perturbed"},
    }
    prepare_corpus(corpus, tmp_path / "c")
    full = read_jsonl(tmp_path / "c/full.jsonl")
    assert len(full) == 600 and all(set(row) == {"question", "answer"} for row in full)
    prepare_benchmark({"corpus": corpus, "forget": "forget01"}, tmp_path / "b")
    forget, retain = pairs(tmp_path / "b/forget.jsonl"), pairs(tmp_path / "b/retain.jsonl")
    assert (len(forget), len(retain)) == (40, 560)
    assert set(pairs(tmp_path / "b/eval_retain.jsonl")) <= set(retain)
    with pytest.raises(LetheError, match=r"forget10 must be part of its corpus, got .* outside"):
        prepare_benchmark({"corpus": corpus, "forget": "forget10"}, tmp_path / "b2")


def texts(path):
    return [row["text"] for row in read_jsonl(path, ("text",))]


@pytest.fixture(scope="module")
def novels(shared, tmp_path_factory):
    """The spec of a corpus of three novels."""
    folder = tmp_path_factory.mktemp("novels")
    for name, book in {"forget": "northangerabbey", "retain": "persuasion", "holdout": "sensesensibility"}.items():
        (folder / f"{name}.txt").symlink_to(shared / f"data/books/{book}.txt")
    return {"family": "muse", "source": {"local": str(folder)}, "excerpts": {"member": 750}}


def test_plain_texts_become_a_corpus_and_a_benchmark_without_questions(novels, tmp_path):
    prepare_corpus(novels, tmp_path / "c")
    manifest = assert_manifest_is_true(tmp_path / "c")
    assert {name: entry["rows"] for name, entry in manifest["files"].items()} == {"full.jsonl": 2}
    assert manifest["source"] == novels["source"] and manifest["licence"] == "as in the folder"

    prepare_benchmark({"corpus": novels, "forget": "forget"}, tmp_path / "b")
    manifest = assert_manifest_is_true(tmp_path / "b")
    assert {name: entry["rows"] for name, entry in manifest["files"].items()} == {
        "forget.jsonl": 1,
        "retain.jsonl": 1,
        "retrain.jsonl": 1,
        "verbatim_forget.jsonl": 100,
        "member_forget.jsonl": 100,
        "member_retain.jsonl": 100,
        "member_holdout.jsonl": 100,
    }
    assert (manifest["suite"], manifest["forget"], manifest["skipped"]) == ("muse", "forget", {})
    assert manifest["excerpts"] == {"count": 100, "prompt": 650, "continuation": 80, "member": 750}
    assert manifest["missing"]["knowledge_forget"] == "plain text has no questions"
    assert not {f"{name}.jsonl" for name in manifest["missing"]} & set(manifest["files"])
    assert texts(tmp_path / "c/full.jsonl") == texts(tmp_path / "b/forget.jsonl") + texts(tmp_path / "b/retrain.jsonl")


@pytest.mark.parametrize(
    "source, licence",
    [
        ({"library": {"seed": 1, "style": "news"}}, "MIT (generated)"),
        ({"hub": "org/muse", "revision": "abc"}, "CC BY 4.0 (MUSE)"),
    ],
)
def test_rows_to_replay_and_the_licence_follow_from_the_source(monkeypatch, tmp_path, source, licence):
    splits = {name: [{"text": name}] for name in ("forget", "retain1", "retain2", "replay")}
    monkeypatch.setitem(sys.modules, "lethe.data.library", SimpleNamespace(muse_splits=lambda seed, style: splits))
    monkeypatch.setattr(muse, "read_hub", lambda name, revision: muse.Source(splits, skipped={"raw/forget": 2}))
    prepare_corpus({"family": "muse", "source": source}, tmp_path / "c")
    manifest = assert_manifest_is_true(tmp_path / "c")
    assert (manifest["licence"], manifest["source"]) == (licence, source)
    assert manifest["skipped"] == ({"raw/forget": 2} if "hub" in source else {})
    assert texts(tmp_path / "c/full.jsonl") == ["forget", "retain1", "retain2"]
    assert texts(tmp_path / "c/replay.jsonl") == ["replay"]


@pytest.mark.parametrize("bos, overlap, unsupervised", [(False, 0, 0), (False, 16, 1), (True, 16, 0)])
def test_chunks_of_a_whole_novel_lose_no_token(novels, world, bos, overlap, unsupervised):
    tokenizer = AutoTokenizer.from_pretrained(world / "tokenizer")
    if bos and tokenizer.bos_token_id is None:
        tokenizer.bos_token = tokenizer.eos_token
    text = (Path(novels["source"]["local"]) / "forget.txt").read_text()
    ids = tokenizer(text, add_special_tokens=False).input_ids
    chunks = encode_chunks(tokenizer, text, window=256, overlap=overlap, bos=bos, tail="keep")
    if overlap:
        assert [i for chunk in chunks for i in chunk.ids[chunk.start :]] == ids[unsupervised:]
    else:
        assert [i for chunk in chunks for i in chunk.ids] == ids
        assert sum(len(chunk.ids) - chunk.start for chunk in chunks) == len(ids) - len(chunks)
    assert tokenizer.decode(ids) == text and {len(chunk.ids) for chunk in chunks[:-1]} == {256}


def test_what_cannot_be_prepared_is_said(tmp_path):
    with pytest.raises(LetheError, match="family must be one of tofu, muse, got 'wmdp'"):
        prepare_corpus({**WORLD, "family": "wmdp"}, tmp_path / "c")
    with pytest.raises(LetheError, match="source of family muse must be one of library, local, hub, got world"):
        prepare_benchmark({"corpus": {**WORLD, "family": "muse"}, "forget": "forget"}, tmp_path / "b")
    with pytest.raises(LetheError, match="forget must be one of forget01, forget05, forget10, got 'forget20'"):
        prepare_benchmark({"corpus": WORLD, "forget": "forget20"}, tmp_path / "b")
    with pytest.raises(LetheError, match="no split 'forget7'"):
        prepare_corpus({**WORLD, "subset": {"forget": "forget7", "retain": "retain90"}}, tmp_path / "c")
    alone = {**WORLD, "subset": {"forget": "forget05", "retain": "forget01"}}
    with pytest.raises(LetheError, match="no set may be empty, got 40 to forget, 0 to retain"):
        prepare_benchmark({"corpus": alone, "forget": "forget05"}, tmp_path / "d")


def test_perturbed_rows_of_other_questions_are_refused(monkeypatch, tmp_path):
    splits = prepare.read_splits(WORLD["source"])
    splits["forget01_perturbed"].reverse()
    monkeypatch.setattr(prepare, "read_splits", lambda source: splits)
    with pytest.raises(LetheError, match="forget01_perturbed must have the rows of forget01 in its order"):
        prepare_benchmark({"corpus": WORLD, "forget": "forget01"}, tmp_path / "b")


def test_a_failure_midway_leaves_what_was_there(monkeypatch, tmp_path):
    out = tmp_path / "b"
    prepare_benchmark({"corpus": WORLD, "forget": "forget01"}, out)
    before = json.dumps(read_json(out / "manifest.json"))

    def full_disk(path, rows):
        raise OSError("no space left")

    monkeypatch.setattr(prepare, "write_jsonl", full_disk)
    with pytest.raises(OSError, match="no space left"):
        prepare_benchmark({"corpus": WORLD, "forget": "forget10"}, out)
    assert json.dumps(read_json(out / "manifest.json")) == before and len(pairs(out / "forget.jsonl")) == 10
