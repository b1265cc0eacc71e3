import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lethe.data.rows import default_template
from lethe.errors import LetheError
from lethe.files import write_jsonl
from lethe.models.load import load_tokenizer
from lethe.recipe import IdkDPO
from lethe.schema import validate
from lethe.unlearn import losses
from lethe.unlearn.objective import TERMS, View
from lethe.unlearn.refusals import Refusals
from lethe.unlearn.streams import Stream


@pytest.fixture
def refusals(tiny_folder, rows, tmp_path):
    write_jsonl(tmp_path / "idk.jsonl", [{"text": f"I do not know {i}."} for i in range(5)])
    tokenizer = load_tokenizer(tiny_folder)

    def make(seed=0):
        return Refusals(rows["forget"], tmp_path / "idk.jsonl", tokenizer, default_template(tokenizer), 64, seed)

    return make


def test_the_loss_starts_at_two_over_beta_log_two():
    logp = torch.tensor([-3.0, -40.0])
    found = losses.dpo(logp, logp, logp - 5, logp - 5, beta=0.1)
    assert found.tolist() == pytest.approx([20 * math.log(2)] * 2)


def test_the_loss_worked_by_hand():
    """Margin 2 + 1 = 3 nats at beta .5: -(2/.5) log sigmoid(1.5)."""
    found = losses.dpo(*(torch.tensor([x]) for x in (-1.0, -3.0, -2.0, -1.0)), beta=0.5)
    assert found.item() == pytest.approx(4 * math.log(1 + math.exp(-1.5)))


@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.05, 2))
def test_preferring_the_refusal_more_lowers_the_loss(chosen, rejected, beta):
    zero = torch.zeros(1)
    loss = losses.dpo(torch.tensor([chosen]), zero, torch.tensor([rejected]), zero, beta)
    assert losses.dpo(torch.tensor([chosen + 1]), zero, torch.tensor([rejected]), zero, beta) <= loss
    assert losses.dpo(torch.tensor([chosen]), zero, torch.tensor([rejected - 1]), zero, beta) <= loss


@settings(max_examples=25, deadline=None)
@given(arrays(np.float32, 7, elements=st.floats(-50, 50, width=32)).map(torch.from_numpy))
def test_a_constant_added_to_the_logits_changes_nothing(shifts):
    """Positions 0-3 are those of two answers, 4-6 those of the refusals to them."""
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    options = validate(IdkDPO, {"loss": "idk_dpo", "beta": 0.5}, "forget")

    def loss(logits):
        refusal = View(logits[4:], torch.tensor([3, 1, 9]), torch.tensor([0, 0, 1]), None, None, torch.tensor([-4, -3]))
        answer = View(logits[:4], torch.tensor([0, 5, 2, 7]), torch.tensor([0, 1, 1, 1]), None, None, torch.zeros(2))
        return TERMS["idk_dpo"](replace(answer, preferred=refusal), options)

    (total, count), (shifted, _) = loss(logits), loss(logits + shifts[:, None])
    assert count == 2
    torch.testing.assert_close(shifted, total, rtol=1e-4, atol=1e-3)


def test_a_refusal_depends_on_seed_step_and_row_alone(refusals):
    one, again, other = refusals(), refusals(), refusals(seed=1)
    drawn = [one.keys([0, 1], step) for step in range(20)]
    assert drawn == [again.keys([0, 1], step) for step in range(20)]
    assert drawn != [other.keys([0, 1], step) for step in range(20)]
    assert one.keys([1], 7) == [one.keys([0, 1], 7)[1]]
    assert len({refusal for keys in drawn for _, refusal in keys}) == 5


def test_what_a_run_will_see_is_all_drawn_before(refusals):
    made = refusals()
    stream = Stream(made.examples([(0, 0), (1, 0)]), 2, seed=0, name="forget")
    drawn = made.drawn(stream, 6)
    for step in range(6):
        assert set(made.keys(stream[step], step)) <= drawn.keys()
    assert all(made.examples([key])[0] == encoded for key, encoded in drawn.items())


def test_a_file_without_refusals_is_an_error(tiny_folder, rows, tmp_path):
    (tmp_path / "idk.jsonl").write_text("")
    tokenizer = load_tokenizer(tiny_folder)
    with pytest.raises(LetheError, match=r"idk.jsonl: no rows"):
        Refusals(rows["forget"], tmp_path / "idk.jsonl", tokenizer, default_template(tokenizer), 64, 0)


@pytest.mark.parametrize("text", ["", "  ", 5, None])
def test_a_refusal_that_is_no_text_is_named_before_anything_is_trained(tiny_folder, rows, tmp_path, text):
    write_jsonl(tmp_path / "idk.jsonl", [{"text": "I do not know."}, {"text": text}])
    tokenizer = load_tokenizer(tiny_folder)
    with pytest.raises(LetheError, match=r"idk.jsonl row 2: 'text' must be a text that is not empty, got"):
        Refusals(rows["forget"], tmp_path / "idk.jsonl", tokenizer, default_template(tokenizer), 64, 0)


def test_a_question_without_room_for_a_refusal_is_named(tiny_folder, rows, tmp_path):
    write_jsonl(tmp_path / "idk.jsonl", [{"text": "I do not know."}])
    tokenizer = load_tokenizer(tiny_folder)
    made = Refusals(rows["forget"], tmp_path / "idk.jsonl", tokenizer, default_template(tokenizer), 4, 0)
    with pytest.raises(LetheError, match=r"forget.jsonl row 2 with .*idk.jsonl row 1: max_length 4 leaves no room"):
        made.examples([(1, 0)])
