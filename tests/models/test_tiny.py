import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lethe.data.text import encode_pair, encode_prompt, get_template
from lethe.errors import LetheError
from lethe.models.tiny import ARCHITECTURES, build, train_tokenizer

TEXTS = ["Where was Amara born?", "Born in Upper Ford.", "It was in Upper Marsh."] * 5
TOKENIZER = train_tokenizer(TEXTS, vocab_size=330)


def small(architecture="qwen2", seed=0, **sizes):
    return build(architecture, TOKENIZER, **{"hidden_size": 64, "layers": 2, "heads": 2, "seed": seed, **sizes})


@given(st.text(max_size=30))
def test_any_text_can_be_encoded_and_comes_back(text):
    ids = TOKENIZER(text).input_ids
    decoded = TOKENIZER.decode(ids)
    assert decoded == unicodedata.normalize("NFC", text)


def test_the_chat_template_is_user_assistant_end():
    pair = encode_pair(TOKENIZER, get_template("chat"), "Where was Amara born?", "Born in Upper Ford.", 64)
    text = TOKENIZER.decode(pair.ids).replace("|> ", "|>")
    assert text == "<|user|>Where was Amara born?<|assistant|>Born in Upper Ford.<|end|>"
    assert pair.ids[: pair.start] == encode_prompt(TOKENIZER, get_template("chat"), "Where was Amara born?")
    assert pair.ids[-1] == TOKENIZER.eos_token_id != TOKENIZER.pad_token_id


def test_a_word_is_the_same_token_at_the_beginning_of_an_answer_as_within_it():
    chat = get_template("chat")
    bare = encode_pair(TOKENIZER, chat, "Where?", "Upper Ford", 64)
    within = encode_pair(TOKENIZER, chat, "Where?", "Born in Upper Ford", 64)
    assert bare.ids[bare.start :] == within.ids[-len(bare.ids) + bare.start :]


def test_the_tokenizer_is_the_same_every_time():
    assert train_tokenizer(TEXTS, vocab_size=330).get_vocab() == TOKENIZER.get_vocab()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_computes_and_has_quantisable_layers(architecture):
    model = small(architecture)
    logits = model(input_ids=torch.tensor([[1, 5, 9]])).logits
    assert logits.shape == (1, 3, 320) and torch.isfinite(logits).all()  # fewer tokens, rounded up
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert all(m.in_features % 64 == 0 and m.out_features % 64 == 0 for m in linears)
    assert model.config.model_type == architecture and model.dtype == torch.float32
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == (architecture == "qwen2")
    assert (model.config.eos_token_id, model.config.pad_token_id) == (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id)


def test_the_seed_alone_decides_the_weights_and_the_global_state_is_left_alone():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = small(seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(8)
    second, other = small(seed=3).state_dict(), small(seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_weights_start_at_the_stated_size():
    state = small(hidden_size=128).state_dict()
    assert state["model.embed_tokens.weight"].std() == pytest.approx(1.4 / 128**0.5, rel=0.02)
    assert state["model.layers.0.mlp.down_proj.weight"].std() == pytest.approx(0.6 / 128**0.5, rel=0.02)


def test_a_dimension_that_4_bit_blocks_do_not_divide_is_refused():
    with pytest.raises(LetheError, match="multiples of 64, got 96 x 64"):
        small(intermediate_size=96)
    with pytest.raises(LetheError, match="multiples of 64, got 32 x 64"):
        small(kv_heads=1)
    with pytest.raises(LetheError, match="one of qwen2, llama, mistral, phi, got 'gpt'"):
        small("gpt")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_transformers_loads_the_same_tokenizer_from_a_model_folder(tmp_path, architecture):
    """AutoTokenizer picks a class by the model's type, and such a class may bring a splitting of its own."""
    tokenizer = train_tokenizer(["Born on 13 November 1948 in Mill Hollow.", "Where was Ada Quill born?"] * 9, 320)
    model = build(architecture, tokenizer, hidden_size=64, layers=1, heads=2, intermediate_size=64, seed=0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(tokenizer)
    chat = [
        {"role": "user", "content": "Where was Ada born?"},
        {"role": "assistant", "content": "On 3 May 1931, née Ó."},
    ]
    for text in (
        "Born on 13 November 1948.",
        " Mill Hollow",
        "née 宮部 -- 12%\n\n x",
        tokenizer.apply_chat_template(chat, tokenize=False),
    ):
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded.decode(loaded(text)["input_ids"]) == text
    assert loaded.apply_chat_template(chat, tokenize=False) == tokenizer.apply_chat_template(chat, tokenize=False)
