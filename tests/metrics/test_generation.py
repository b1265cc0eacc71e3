import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from lethe.metrics.generation import greedy

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ARCHITECTURES = {
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE, num_key_value_heads=2)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, num_key_value_heads=2)),
    "phi": lambda: transformers.PhiForCausalLM(transformers.PhiConfig(**SHAPE)),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=8)
    ),
}
STOPS = [5, 6, 7, 8]
NEW = 12


def random_prompts(n=14, seed=1):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 25, (n,), generator=generator).tolist()
    return [torch.randint(4, 97, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_batched_decoding_equals_generating_one_prompt_at_a_time(architecture):
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture]().eval()
    prompts = random_prompts()
    found = greedy(model, prompts, max_new_tokens=NEW, stop_ids=STOPS, max_tokens=200)
    for prompt, tokens in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=STOPS,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        assert tokens == [token for token in expected if token not in STOPS]
    # Both ends occur, so that rows do leave a batch early.
    assert {len(tokens) == NEW for tokens in found} == {True, False}


@given(st.integers(1, 2000), st.permutations(range(14)))
@settings(deadline=None, max_examples=12)
def test_neither_the_batch_budget_nor_the_order_of_prompts_matters(tiny_qwen, budget, order):
    model, prompts = tiny_qwen(vocab=97), random_prompts()
    options = {"max_new_tokens": 6, "stop_ids": STOPS}
    expected = greedy(model, prompts, max_tokens=1, **options)
    assert greedy(model, [prompts[i] for i in order], max_tokens=budget, **options) == [expected[i] for i in order]


def test_a_row_never_holds_its_stop_token_or_more_than_the_limit(tiny_qwen):
    found = greedy(tiny_qwen(vocab=97), random_prompts(), max_new_tokens=5, stop_ids=STOPS, max_tokens=500)
    assert all(len(tokens) <= 5 and not set(tokens) & set(STOPS) for tokens in found)


def test_without_stop_tokens_every_row_runs_to_the_limit(tiny_qwen):
    found = greedy(tiny_qwen(vocab=97), random_prompts(4), max_new_tokens=3, stop_ids=(), max_tokens=500)
    assert [len(tokens) for tokens in found] == [3] * 4


def test_dropout_is_off_while_decoding_and_the_mode_comes_back(tiny_qwen):
    model = tiny_qwen(vocab=97, dropout=0.9)
    expected = greedy(model, random_prompts(3), max_new_tokens=5, stop_ids=(), max_tokens=500)
    model.train()
    assert greedy(model, random_prompts(3), max_new_tokens=5, stop_ids=(), max_tokens=500) == expected
    assert model.training


def test_progress_counts_prompts(tiny_qwen):
    seen = []
    greedy(
        tiny_qwen(vocab=97),
        random_prompts(5),
        max_new_tokens=1,
        stop_ids=(),
        max_tokens=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(i, 5) for i in range(1, 6)]
