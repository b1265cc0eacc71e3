import pytest
import torch

from lethe.data.text import Encoded, collate
from lethe.errors import LetheError
from lethe.models import tiny
from lethe.models.load import (
    load_model,
    load_tokenizer,
    logits_at,
    parameter_counts,
    save_model,
    weights_sha256,
)

TEXTS = [Encoded([5, 6, 7, 8, 9, 10], 2), Encoded([11, 12, 13], 1), Encoded([14, 15, 16, 17], 3)]


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_logits_at_supervised_positions_equal_those_of_a_masked_full_pass(tiny_folder, architecture):
    tokenizer = load_tokenizer(tiny_folder)
    model = tiny.build(architecture, tokenizer, hidden_size=64, layers=2, heads=2, intermediate_size=128, seed=1).eval()
    batch = collate(TEXTS, pad_id=0)
    with torch.no_grad():
        full = model(input_ids=batch.ids, attention_mask=batch.attention_mask).logits[batch.rows, batch.cols]
        torch.testing.assert_close(logits_at(model, batch), full, rtol=1e-4, atol=1e-5)


def test_a_head_that_scales_its_logits_is_noticed(tiny_folder):
    model = load_model(tiny_folder)
    forward = model.forward

    def scaled(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = 2 * out.logits
        return out

    model.forward = scaled
    batch = collate(TEXTS, pad_id=0)
    with torch.no_grad():
        full = model(input_ids=batch.ids).logits[batch.rows, batch.cols]
        torch.testing.assert_close(logits_at(model, batch), full)


def test_padding_and_company_change_no_logit(tiny_folder):
    model = load_model(tiny_folder)
    with torch.no_grad():
        together = logits_at(model, collate(TEXTS, pad_id=3))
        alone = torch.cat([logits_at(model, collate([text], pad_id=0)) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_weights_hash_survives_saving_and_notices_one_changed_bit(tiny_folder, tmp_path):
    model = load_model(tiny_folder)
    before = weights_sha256(model)
    save_model(model, load_tokenizer(tiny_folder), tmp_path / "copy")
    assert weights_sha256(load_model(tmp_path / "copy")) == before
    with torch.no_grad():
        p = next(model.parameters())
        p.view(-1)[0] = torch.nextafter(p.view(-1)[0], torch.tensor(torch.inf))
    assert weights_sha256(model) != before


def test_saved_weights_are_safetensors_without_pickle(tiny_folder):
    names = {path.name for path in tiny_folder.iterdir()}
    assert "model.safetensors" in names
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in names)


def test_tied_weights_count_once(tiny_folder):
    model = load_model(tiny_folder)
    total, outside = parameter_counts(model)
    embedding = model.get_input_embeddings().weight.numel()
    assert total == sum(p.numel() for p in model.parameters()) == outside + embedding


@pytest.mark.parametrize("name", ["./no/such/folder", "/nowhere/at/all"])
def test_a_missing_folder_is_one_clear_line(name):
    with pytest.raises(LetheError, match=f"{name}: no such model folder"):
        load_model(name)


def test_a_hub_that_cannot_be_reached_is_one_clear_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(LetheError) as error:
        load_model("nobody/nothing-here")
    assert "nobody/nothing-here: cannot be loaded" in str(error.value) and "\n" not in str(error.value)


def test_pickled_weights_are_refused(tiny_folder, tmp_path):
    model = load_model(tiny_folder)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(LetheError, match="cannot be loaded"):
        load_model(tmp_path)
