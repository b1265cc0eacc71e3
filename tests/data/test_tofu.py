import json

import datasets
import pytest

from lethe.data.tofu import COLUMNS, PAIR, read_hub, read_local
from lethe.errors import LetheError


def write_tofu(folder):
    """A folder of TOFU's shape with two rows a file."""
    for name, columns in COLUMNS.items():
        rows = [{c: ["a", "b"] if c == "perturbed_answer" else f"{c} {i}" for c in columns} for i in range(2)]
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "idontknow.jsonl").write_text("I don't know.\n\nNo idea.\n")
    return folder


def test_the_real_files_have_their_published_sizes(shared):
    splits = read_local(shared / "data/tofu")
    assert {name: len(rows) for name, rows in splits.items()} == {
        "full": 4000,
        "forget01": 40,
        "forget05": 200,
        "forget10": 400,
        "retain99": 3960,
        "retain95": 3800,
        "retain90": 3600,
        "forget01_perturbed": 40,
        "forget05_perturbed": 200,
        "forget10_perturbed": 400,
        "retain_perturbed": 400,
        "real_authors_perturbed": 100,
        "world_facts_perturbed": 117,
        "idontknow": 100,
    }
    assert splits["forget05"] == splits["forget10"][200:]
    assert "paraphrased_answer" not in splits["real_authors_perturbed"][0]  # no column leaks from one file to another


def test_plain_lines_of_refusals_become_rows(tmp_path):
    assert read_local(write_tofu(tmp_path))["idontknow"] == [{"text": "I don't know."}, {"text": "No idea."}]


def test_a_holdout_file_is_read_where_there_is_one(tmp_path):
    write_tofu(tmp_path)
    assert "holdout10" not in read_local(tmp_path)
    (tmp_path / "holdout10.json").write_text('{"question": "q", "answer": "a"}\n')
    assert read_local(tmp_path)["holdout10"] == [{"question": "q", "answer": "a"}]


@pytest.mark.parametrize(
    "file, text, message",
    [
        ("full.json", None, r"full.json: no such file"),
        ("idontknow.jsonl", None, r"idontknow.jsonl: no such file"),
        ("full.json", "", r"full.json: no rows"),
        ("full.json", '{"question": "q"}\n', r"full.json line 1: no field 'answer' \(has: question\)"),
        ("full.json", '{"question": "q",\n', r"full.json line 1: not JSON"),
        ("full.json", '{"question": "q", "answer": 7}', r"full.json row 1: field 'answer' must be a text .*, got 7"),
        (
            "world_facts_perturbed.json",
            '{"question": "q", "answer": "a", "perturbed_answer": "b"}',
            r"world_facts_perturbed.json row 1: field 'perturbed_answer' must be a list of texts, got 'b'",
        ),
    ],
)
def test_a_schema_mistake_is_named_by_file_row_and_field(tmp_path, file, text, message):
    path = write_tofu(tmp_path) / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(LetheError, match=message):
        read_local(tmp_path)


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(LetheError, match="no such folder"):
        read_local(tmp_path / "nowhere")


class Hub:
    """Stands for the hub's client: answers from a dict of splits and remembers what it was asked."""

    def __init__(self, monkeypatch, splits):
        self.splits, self.revisions = splits, set()
        monkeypatch.setattr(datasets, "get_dataset_config_names", self.names)
        monkeypatch.setattr(datasets, "load_dataset", self.load)

    def names(self, repo, revision):
        return list(self.splits)

    def load(self, repo, name, revision, split):
        self.revisions.add(revision)
        if name not in self.splits:
            raise ValueError(f"BuilderConfig '{name}' not found.\nAvailable: ...")
        return self.splits[name]


def tofu_rows():
    row = {c: ["x"] if c == "perturbed_answer" else c for columns in COLUMNS.values() for c in columns}
    return {name: [{c: row[c] for c in columns}] for name, columns in COLUMNS.items()}


def test_the_hub_gives_the_same_splits_at_the_pinned_revision(monkeypatch):
    hub = Hub(monkeypatch, tofu_rows() | {"holdout10": [dict.fromkeys(PAIR, "h")]})
    splits = read_hub("org/tofu", "abc123")
    assert {name: rows for name, rows in splits.items() if name != "idontknow"} == hub.splits
    assert splits["idontknow"] and hub.revisions == {"abc123"}


def test_what_the_hub_lacks_is_one_line(monkeypatch):
    rows = tofu_rows()
    Hub(monkeypatch, {name: rows[name] for name in rows if name != "retain95"})
    with pytest.raises(LetheError, match=r"^org/tofu@abc123 retain95: cannot be read, got BuilderConfig .* Available"):
        read_hub("org/tofu", "abc123")
    Hub(monkeypatch, rows | {"forget01_perturbed": [{"question": "q", "answer": "a"}]})
    with pytest.raises(LetheError, match="forget01_perturbed row 1: no field 'perturbed_answer'"):
        read_hub("org/tofu", "abc123")


def test_an_unreachable_hub_is_one_line(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("Couldn't reach\n  'org/tofu' on the Hub")

    monkeypatch.setattr(datasets, "get_dataset_config_names", offline)
    with pytest.raises(
        LetheError, match=r"^org/tofu@abc123: cannot be read, got Couldn't reach 'org/tofu' on the Hub$"
    ):
        read_hub("org/tofu", "abc123")
