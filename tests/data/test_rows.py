import pytest
import torch

from lethe.data.rows import encode_rows
from lethe.data.text import encode_chunks, encode_pair, encode_text, get_template
from lethe.errors import LetheError
from lethe.files import write_jsonl
from lethe.models.load import load_tokenizer
from lethe.recipe import Chunks


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


CHUNKS = Chunks(window=8, overlap=2, bos=False, tail="keep")
TEXT = "Ada Quill was born in Old Harbour, and won the Bitter Lantern Prize there."


def test_a_text_gives_as_many_items_as_it_has_chunks_and_an_answer_one(tiny_folder, tmp_path):
    tokenizer, template = load_tokenizer(tiny_folder), get_template("chat")
    write_jsonl(tmp_path / "rows.jsonl", [{"text": TEXT}, {"question": "Who?", "answer": "She."}, {"text": "Foxes."}])
    found = encode_rows(tokenizer, template, tmp_path / "rows.jsonl", 64, chunks=CHUNKS)
    first = encode_chunks(tokenizer, TEXT, 8, 2, False, "keep")
    last = encode_chunks(tokenizer, "Foxes.", 8, 2, False, "keep")
    assert len(first) > 1
    assert found == [*first, encode_pair(tokenizer, template, "Who?", "She.", 64), *last]


def test_without_chunks_a_text_is_one_item_cut_at_max_length(tiny_folder, tmp_path):
    tokenizer, template = load_tokenizer(tiny_folder), get_template("chat")
    write_jsonl(tmp_path / "rows.jsonl", [{"text": TEXT}])
    found = encode_rows(tokenizer, template, tmp_path / "rows.jsonl", 8)
    assert found == [encode_text(tokenizer, TEXT, 8)] and found[0].truncated


def test_mistaken_chunks_name_the_row(tiny_folder, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"question": "Who?", "answer": "She."}, {"text": TEXT}])
    chunks = Chunks(window=8, overlap=8, bos=False, tail="keep")
    with pytest.raises(LetheError, match=r"rows.jsonl row 2: chunks: .* got window 8, overlap 8$"):
        encode_rows(load_tokenizer(tiny_folder), get_template("chat"), tmp_path / "rows.jsonl", 64, chunks=chunks)
