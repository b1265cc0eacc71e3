import json

import pytest
from transformers import AutoTokenizer

from lethe.data import prepare
from lethe.data.prepare import prepare_benchmark, prepare_corpus, prepare_world
from lethe.data.text import encode_pair, get_template
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


def test_real_rows_keep_a_question_that_occurs_twice(shared, tmp_path):
    corpus = {"source": {"local": str(shared / "data/tofu")}}
    prepare_benchmark({"corpus": corpus, "forget": "forget10"}, tmp_path / "b")
    manifest = assert_manifest_is_true(tmp_path / "b")
    assert manifest["licence"] == "MIT (TOFU)"
    assert {name: entry["rows"] for name, entry in manifest["files"].items()} == {
        "forget.jsonl": 400,
        "retain.jsonl": 3600,
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


def test_what_cannot_be_prepared_is_said(tmp_path):
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
