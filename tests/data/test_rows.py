import pytest
import torch

from lethe.data.rows import encode_rows
from lethe.data.text import get_template
from lethe.errors import LetheError
from lethe.files import write_jsonl
from lethe.models.load import load_tokenizer


def answers(tokenizer, encoded):
    return [tokenizer.decode(e.ids[e.start :], skip_special_tokens=True).strip() for e in encoded]


def shuffled(tiny_folder, path, seed):
    tokenizer = load_tokenizer(tiny_folder)
    generator = torch.Generator().manual_seed(seed)
    return answers(tokenizer, encode_rows(tokenizer, get_template("chat"), path, 64, generator))


def test_shuffled_answers_are_the_same_answers_and_none_stays(tiny_folder, tmp_path):
    rows = [{"question": f"Who was number {i}?", "answer": f"It was {i}."} for i in range(7)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    for seed in range(5):
        found = shuffled(tiny_folder, tmp_path / "rows.jsonl", seed)
        assert sorted(found) == sorted(row["answer"] for row in rows)
        assert all(answer != row["answer"] for answer, row in zip(found, rows, strict=True))
    orders = {tuple(shuffled(tiny_folder, tmp_path / "rows.jsonl", seed)) for seed in (0, 0, 1)}
    assert len(orders) == 2


@pytest.mark.parametrize("rows", [[{"question": "Who?", "answer": "She."}], [{"text": "One two."}, {"text": "Three."}]])
def test_answers_that_cannot_be_shuffled_are_an_error(tiny_folder, tmp_path, rows):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(LetheError, match=r"rows.jsonl: shuffled answers need at least two rows with an 'answer'"):
        shuffled(tiny_folder, tmp_path / "rows.jsonl", 0)
