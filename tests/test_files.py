import hashlib
import json
import multiprocessing
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lethe import files
from lethe.errors import LetheError


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a" / "x.txt"
    files.write_text(path, "old")
    with pytest.raises(ZeroDivisionError), files.atomic(path) as tmp:
        tmp.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_new_file_can_be_read_by_others(tmp_path):
    files.write_text(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


@given(st.lists(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text())))
def test_rows_come_back_as_they_were(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "x.jsonl"
    files.write_jsonl(path, rows)
    assert files.read_jsonl(path) == rows


def test_numbers_that_json_lacks_are_refused(tmp_path):
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"question": "q", "answer": "a"}\n\n{"question": "q", "anwser": "a"}\n',
         "x.jsonl line 3: no field 'answer' (has: question, anwser)"),
        ('{"question": "q"\n', "x.jsonl line 1: not JSON"),
        ('["q"]\n', "x.jsonl line 1: expected an object, got list"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named_by_its_line(tmp_path, text, line):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(LetheError) as e:
        files.read_jsonl(tmp_path / "x.jsonl", require=("question", "answer"))
    assert line in str(e.value)


def test_a_separator_inside_a_text_is_no_end_of_line(tmp_path):
    rows = [{"text": "one\u2028two\x85three\x0bfour\rfive"}]
    files.write_jsonl(tmp_path / "x.jsonl", rows)
    assert files.read_jsonl(tmp_path / "x.jsonl") == rows


@pytest.mark.parametrize("read", [files.read_json, files.read_jsonl])
def test_a_file_that_is_not_there_is_named(tmp_path, read):
    with pytest.raises(LetheError, match=r"x\.json: no such file"):
        read(tmp_path / "x.json")


def test_what_is_not_json_is_named_with_its_line(tmp_path):
    (tmp_path / "x.json").write_text('{\n"a": }\n')
    with pytest.raises(LetheError, match=r"x.json line 2: not JSON"):
        files.read_json(tmp_path / "x.json")


def test_sha256_is_of_the_bytes(tmp_path):
    (tmp_path / "x").write_bytes(b"lethe")
    assert files.sha256_file(tmp_path / "x") == hashlib.sha256(b"lethe").hexdigest()


def _append(folder, name):
    with files.lock(folder / "lock"):
        for _ in range(3):
            with open(folder / "log", "a") as f:
                f.write(json.dumps(name) + "\n")
            time.sleep(0.02)


def test_two_processes_do_not_write_at_once(tmp_path):
    processes = [multiprocessing.get_context("fork").Process(target=_append, args=(tmp_path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    names = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert names in ([*"aaabbb"], [*"bbbaaa"])
