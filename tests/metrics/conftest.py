import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from lethe.data.text import TEMPLATES

SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% if m['role'] != 'user' %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer():
    """One token a character."""
    letters = [*map(chr, range(32, 127)), "\n", "宮", "部"]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.add_special_tokens(SPECIAL)
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=CHAT
    )


@pytest.fixture(scope="session")
def template():
    return TEMPLATES["chat"]


@pytest.fixture(scope="session")
def tiny_qwen():
    def build(seed=0, vocab=104, dropout=0.0):
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=vocab,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.2,
            attention_dropout=dropout,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        return Qwen2ForCausalLM(config).eval()

    return build


@pytest.fixture(scope="session")
def model(tiny_qwen):
    return tiny_qwen()
