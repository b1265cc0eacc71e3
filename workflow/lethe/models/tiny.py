"""Small models that are trained from nothing: a tokenizer, and a decoder of a given architecture and size."""

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from lethe.errors import LetheError

ARCHITECTURES = ("qwen2", "llama", "mistral", "phi")
SPECIAL_TOKENS = ["<|endoftext|>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>"]
# The blank before each text gives its first word the token that the word has elsewhere.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|> {{ message['content'] }}<|end|>"
    "{% else %}<|user|> {{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Standard deviations times sqrt(hidden_size). At these widths the usual .02 wastes a short pretraining: a width of 128
# then recalls .37 of the famous facts, with these .98.
LINEAR_STD, EMBEDDING_STD = 0.6, 1.4
MULTIPLE = 64  # the block of 4-bit quantisation; bitsandbytes on CPU is silently wrong for other last dimensions


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE (any text can be encoded), with a chat template `<|user|> q<|assistant|> a<|end|>` (EOS).

    Texts are split as Qwen2 splits them: transformers loads the tokenizer in a folder with a Qwen2 model as Qwen2's,
    whatever its file says, and would silently cut any other into other tokens.
    """
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((f" {text}" for text in texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<|endoftext|>",
        pad_token="<pad>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build(
    architecture: str,
    tokenizer: Any,
    *,
    hidden_size: int,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    intermediate_size: int | None = None,
    max_positions: int = 512,
    seed: int,
) -> PreTrainedModel:
    """A randomly initialised decoder in float32, the same for the same seed; the global random state is left alone.

    intermediate_size defaults to 4 hidden_size, kv_heads to heads. The embedding has a multiple of 64 rows; qwen2 ties
    it to the head (as the small Qwen2.5 models do), the others do not. LetheError: an unknown architecture, or a linear
    layer with a dimension that is not a multiple of 64.
    """
    if architecture not in ARCHITECTURES:
        raise LetheError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {architecture!r}")
    config = AutoConfig.for_model(
        architecture,
        vocab_size=-(-len(tokenizer) // MULTIPLE) * MULTIPLE,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size or 4 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=architecture == "qwen2",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _initialise(model, hidden_size)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and (module.in_features % MULTIPLE or module.out_features % MULTIPLE):
            shape = f"{module.out_features} x {module.in_features}"
            raise LetheError(f"{architecture}: the dimensions of {name} must be multiples of {MULTIPLE}, got {shape}")
    return model


def _initialise(model: PreTrainedModel, hidden_size: int) -> None:
    """Normal weights whose size follows the width; norms and biases stay as the architecture sets them."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=EMBEDDING_STD / hidden_size**0.5)
        elif isinstance(module, torch.nn.Linear) and name != "lm_head":
            torch.nn.init.normal_(module.weight, std=LINEAR_STD / hidden_size**0.5)
