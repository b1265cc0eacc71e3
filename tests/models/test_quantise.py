import importlib.util
import json
import subprocess
import sys
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen2Config, Qwen2ForCausalLM

from lethe.errors import LetheError
from lethe.models import quantise
from lethe.models.codebooks import FP4, NF4
from lethe.models.quantise import ATTACKS, SCHEMES, check_attack, codes, quantise_model, quantise_tensor, step_size

needs_bnb = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None,
    reason="bitsandbytes is not installed: agreement with it is NOT tested",
)
REFERENCES = [name for name in SCHEMES if not name.startswith("bnb-")]
EVERY = [pytest.param(name, marks=needs_bnb if name.startswith("bnb-") else ()) for name in SCHEMES]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

TOY = [0.10, -0.03, 0.07, 0.0, 0.051, -0.10, 0.002, 0.033]
TOY_ROUNDED = {  # NF4 and FP4 levels times .1; multiples of .1/7
    "nf4": [0.1, -0.028444, 0.072296, 0.0, 0.056262, -0.1, 0.0, 0.033792],
    "fp4": [0.1, -0.033333, 0.066667, 0.0, 0.05, -0.1, 0.000521, 0.033333],
    "rtn4": [0.1, -0.028571, 0.071429, 0.0, 0.057143, -0.1, 0.0, 0.028571],
}


def toy(width: int = 64) -> torch.Tensor:
    return torch.tensor([TOY + [0.0] * (width - len(TOY))])


def gaussian(rows: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.03).to(dtype)


def tiny(tied: bool = True, **changes: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=96, num_key_value_heads=1, tie_word_embeddings=tied, **(sizes | changes))
    model = Qwen2ForCausalLM(config).eval()
    for p in model.parameters():  # weights large enough that 4 bits visibly move the logits
        p.data *= 5 if p.ndim == 2 else 1
    return model


# --- the rounding


@pytest.mark.parametrize("attack", TOY_ROUNDED)
def test_the_toy_vector_rounds_as_worked_by_hand(attack):
    expected = torch.tensor([TOY_ROUNDED[attack]])
    assert_close(quantise_tensor(toy(), attack)[:, :8], expected, atol=6e-7, rtol=0)
    assert_close(quantise_tensor(toy(8), attack), expected, atol=6e-7, rtol=0)  # one partial group


@needs_bnb
@pytest.mark.parametrize(("attack", "same_as"), [("bnb-nf4", "nf4"), ("bnb-fp4", "fp4")])
def test_bitsandbytes_rounds_the_toy_vector_to_the_same_numbers(attack, same_as):
    assert_close(quantise_tensor(toy(), attack)[0, :8], torch.tensor(TOY_ROUNDED[same_as]), atol=6e-7, rtol=0)


@given(signs=st.lists(st.sampled_from([-1, 1]), min_size=8, max_size=8))
def test_an_update_of_1e_5_changes_no_code_of_the_toy_vector(signs):
    update = torch.zeros(1, 64)
    update[0, :8] = 1e-5 * torch.tensor(signs)
    for attack in TOY_ROUNDED:
        assert torch.equal(codes(toy() + update, attack), codes(toy(), attack))


@needs_bnb
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_the_4_bit_references_equal_bitsandbytes_to_the_bit(quant_type, dtype):
    for seed, scale in enumerate([1e-3, 1.0, 30.0]):
        w = gaussian(96, 192, seed, dtype) * scale
        w[3], w[5, :64] = 0, 0  # an all-zero row, an all-zero block
        assert torch.equal(quantise_tensor(w, quant_type), quantise_tensor(w, f"bnb-{quant_type}"))


@needs_bnb
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_8_bit_reference_equals_bitsandbytes_to_the_last_place(dtype):
    w = gaussian(96, 100, dtype=dtype)
    w[3] = 0
    ours, theirs = quantise_tensor(w, "int8"), quantise_tensor(w, "bnb-int8")
    if dtype == torch.float32:
        assert_close(ours, theirs, rtol=2**-22, atol=0)
    else:
        assert torch.equal(ours, theirs)


@needs_bnb
def test_the_4_bit_levels_are_bitsandbytes_own():
    from bitsandbytes.functional import get_4bit_type

    for name, levels in (("nf4", NF4), ("fp4", FP4)):
        assert torch.equal(torch.tensor(levels), get_4bit_type(name, device="cpu").unique())


def test_nf4_levels_are_normal_quantiles_at_equally_spaced_probabilities():
    def tail(n: int) -> list[float]:  # n quantiles above the median, up to the probability .9677
        return [NormalDist().inv_cdf(0.5 + (0.9677083 - 0.5) * k / n) for k in range(1, n + 1)]

    largest = tail(8)[-1]
    expected = sorted([-q / largest for q in tail(7)] + [0.0] + [q / largest for q in tail(8)])
    assert pytest.approx(expected, abs=1e-6) == NF4


@pytest.mark.parametrize("width", [128, 100, 40])
@pytest.mark.parametrize("attack", REFERENCES)
def test_every_weight_goes_to_the_nearest_level_of_its_own_group(attack, width):
    w, scheme = gaussian(4, width).half().double(), SCHEMES[attack]  # float16 numbers, exact in every scheme
    size = scheme.block or width
    for before, after in zip(w, quantise_tensor(w.float(), attack).double(), strict=True):
        for x, q in zip(before.split(size), after.split(size), strict=True):
            levels = torch.tensor(scheme.levels, dtype=torch.float64) * x.abs().max()
            assert ((q[:, None] - levels).abs().amin(dim=1) < 1e-8).all()
            assert ((q - x).abs() < (x[:, None] - levels).abs().amin(dim=1) + 1e-8).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attack", EVERY)
def test_rounding_twice_is_rounding_once(attack, dtype):
    """Exact for every scheme and dtype: the largest weight of a group is a level, so the scale survives."""
    for seed in range(5):
        once = quantise_tensor(gaussian(32, 128, seed, dtype), attack)
        assert torch.equal(quantise_tensor(once, attack), once)


@pytest.mark.parametrize("attack", EVERY)
def test_the_order_of_the_rows_does_not_matter(attack):
    w, order = gaussian(32, 128), torch.randperm(32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(quantise_tensor(w[order], attack), quantise_tensor(w, attack)[order])


@pytest.mark.parametrize("attack", EVERY)
@settings(max_examples=20, deadline=None)
@given(power=st.integers(-3, 8), seed=st.integers(0, 99))
def test_scaling_by_a_power_of_two_and_by_minus_one_commutes_with_rounding(attack, power, seed):
    # float16 carries the 8-bit attacks only above 6e-5: numbers below lose their last bits.
    w = gaussian(4, 64, seed)
    w = w.sign() * w.abs().clamp_min(2**-10)
    assert torch.equal(quantise_tensor(w * 2**power, attack), quantise_tensor(w, attack) * 2**power)
    if attack not in ("nf4", "bnb-nf4"):  # whose levels are not symmetric
        assert torch.equal(quantise_tensor(-w, attack), -quantise_tensor(w, attack))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("attack", EVERY)
def test_dtype_shape_and_the_argument_are_kept_and_the_codes_fit_the_bits(attack, dtype):
    w = gaussian(16, 128, dtype=dtype)
    before = w.clone()
    rounded = quantise_tensor(w, attack)
    assert torch.equal(w, before) and rounded.dtype == dtype and rounded.shape == w.shape
    scheme = SCHEMES[attack]
    for group in rounded.reshape(-1, scheme.block or 128):
        assert len(group.unique()) <= 2**scheme.bits
    assert codes(w, attack).unique().numel() <= 2**scheme.bits


@pytest.mark.parametrize("attack", EVERY)
def test_16_bit_weights_round_as_the_same_numbers_in_32_bits(attack):
    w = gaussian(16, 128, dtype=torch.bfloat16)
    assert torch.equal(quantise_tensor(w, attack), quantise_tensor(w.float(), attack).bfloat16())


@pytest.mark.parametrize("attack", EVERY)
def test_zeros_stay_zeros(attack):
    assert torch.equal(quantise_tensor(torch.zeros(2, 64), attack), torch.zeros(2, 64))


# --- the step


def test_the_step_of_equally_spaced_levels_is_the_scale_over_the_largest_code():
    w = gaussian(3, 128)
    for attack, largest in (("rtn8", 127), ("rtn4", 7), ("rtn3", 3)):
        scale = w.reshape(3, 2, 64).abs().amax(dim=-1) / largest
        assert_close(step_size(w, attack), scale.repeat_interleave(64, dim=1))


@pytest.mark.parametrize(
    ("attack", "cells"),
    [
        # .051 rounds to .5626 of absmax, between .4407 and .7230; .1 is the top level, below it .7230; 0 lies between
        # -.0911 and .0796. FP4: .5 between .3333 and .6667; 1 above .6667; 0 between -.0052 and .0052.
        ("nf4", {4: 0.0141124, 0: 0.0277043, 3: 0.0085315}),
        ("fp4", {4: 0.0166667, 0: 0.0333333, 3: 0.0005208}),
    ],
)
def test_the_step_of_unequal_levels_is_the_width_of_the_cell(attack, cells):
    for at, width in cells.items():
        assert step_size(toy(), attack)[0, at].item() == pytest.approx(width, abs=1e-7)


@pytest.mark.parametrize("attack", [a for a in REFERENCES if a not in ("nf4", "fp4")])
def test_rounding_moves_a_weight_by_at_most_half_a_step(attack):
    w = gaussian(8, 100).half().float()
    assert ((quantise_tensor(w, attack) - w).abs() <= step_size(w, attack) / 2 * (1 + 1e-5)).all()


# --- a model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attack", EVERY)
def test_a_model_is_rounded_in_place_and_only_in_its_linear_layers(attack, dtype):
    model = tiny().to(dtype)
    before = {name: p.clone() for name, p in model.named_parameters()}
    report = quantise_model(model, attack)
    chosen = {f"{name}.weight" for name in report.quantised}
    assert len(chosen) == 14 and all("_proj" in name for name in chosen)
    change, n = 0.0, 0
    for name, p in model.named_parameters():
        if name in chosen:
            assert torch.equal(p, quantise_tensor(before[name], attack)) and not torch.equal(p, before[name])
            change, n = change + (p - before[name]).double().abs().sum().item(), n + p.numel()
        else:
            assert torch.equal(p, before[name])
    assert report.n_quantised == n == 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 192)
    assert report.mean_abs_change == pytest.approx(change / n, rel=1e-2 if dtype == torch.bfloat16 else 1e-6)
    assert report.skipped == {"model.embed_tokens": "embedding", "lm_head": "output embedding"}
    assert report.n_params == n + 96 * 64 + 5 * 64 + 2 * (64 + 32 + 32)  # embedding, norms, biases of q, k, v
    assert report.dtype == str(dtype).removeprefix("torch.")


def test_the_report_names_what_a_reader_must_know_and_is_json():
    report = json.loads(json.dumps(quantise_model(tiny(), "nf4").as_dict()))
    assert {k: report[k] for k in ("attack", "quantiser", "quant_type", "bits", "block", "double_quant")} == {
        "attack": "nf4",
        "quantiser": "torch",
        "quant_type": "nf4",
        "bits": 4,
        "block": 64,
        "double_quant": False,
    }
    assert report["version"] == torch.__version__


def test_the_attack_none_changes_nothing():
    model, same = tiny(), tiny()
    assert quantise_model(model, "none") is None
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
    w = gaussian(2, 64)
    assert torch.equal(quantise_tensor(w, "none"), w)


def test_an_untied_output_embedding_is_kept_too():
    model = tiny(tied=False)
    head = model.lm_head.weight.clone()
    assert "lm_head" not in quantise_model(model, "rtn4").quantised
    assert torch.equal(model.lm_head.weight, head)


def test_tied_linear_weights_are_kept_and_said_to_be():
    model = tiny()
    first, second = model.model.layers[0].self_attn.q_proj, model.model.layers[1].self_attn.q_proj
    second.weight = first.weight
    report = quantise_model(model, "rtn4")
    assert len(report.quantised) == 12
    assert report.skipped["model.layers.1.self_attn.q_proj"] == "weight tied to another module's"


def test_a_subclass_of_linear_is_left_alone_as_transformers_does():
    class Scaled(torch.nn.Linear):
        """May compute anything, or hold packed weights."""

    model = tiny()
    model.model.layers[0].mlp.up_proj.__class__ = Scaled
    assert "model.layers.0.mlp.up_proj" not in quantise_model(model, "rtn4").quantised


@needs_bnb
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quant_type", ["fp4", "nf4"])
def test_the_weights_equal_those_of_transformers_load_in_4bit(tmp_path, quant_type, dtype):
    """FP4 is what load_in_4bit gives when it is told nothing more.

    The packed weights are read before the first forward, which repacks them where the processor has AVX512-BF16. There
    it also multiplies in bfloat16 with bfloat16 scales, whatever the model's dtype, so the logits agree to a few
    hundredths only (against the whole effect of 4 bits, about 1 here); elsewhere they agree to rounding.
    """
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    tiny().save_pretrained(tmp_path)
    told = {} if quant_type == "fp4" else {"bnb_4bit_quant_type": quant_type}
    config = BitsAndBytesConfig(load_in_4bit=True, **told)
    real = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, quantization_config=config)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        full = ours(ids).logits
        report = quantise_model(ours, f"bnb-{quant_type}")
        theirs = {name: module.weight for name, module in real.named_modules() if isinstance(module, Linear4bit)}
        assert list(theirs) == report.quantised
        for name, packed in theirs.items():
            assert torch.equal(dequantize_4bit(packed.data, packed.quant_state), ours.get_submodule(name).weight)
        effect = (ours(ids).logits - full).abs().mean()
        assert (ours(ids).logits - real(ids).logits).abs().mean() < 0.1 * effect


@needs_bnb
def test_the_weights_equal_those_of_transformers_load_in_8bit(tmp_path):
    """The logits agree in training mode, where bitsandbytes on CPU multiplies dequantised weights.

    In evaluation mode it rounds the activations to 8 bits as well; this attack does not, so it is not LLM.int8().
    """
    from bitsandbytes.functional import int8_vectorwise_dequant
    from bitsandbytes.nn import Linear8bitLt

    tiny().save_pretrained(tmp_path)
    real = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    ours = AutoModelForCausalLM.from_pretrained(tmp_path)
    report = quantise_model(ours, "bnb-int8")
    theirs = {name: module.weight for name, module in real.named_modules() if isinstance(module, Linear8bitLt)}
    assert list(theirs) == report.quantised
    for name, rows in theirs.items():
        assert torch.equal(int8_vectorwise_dequant(rows.data, rows.SCB), ours.get_submodule(name).weight)
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert_close(real.train()(ids).logits, ours(ids).logits, atol=1e-4, rtol=0)


# --- refusals


@needs_bnb
def test_a_width_that_bitsandbytes_gets_wrong_on_cpu_is_refused_before_anything_changes():
    model, same = tiny(intermediate_size=96), tiny(intermediate_size=96)
    where = r"^model\.layers\.0\.mlp\.down_proj: .*multiple of 64, got 96$"
    with pytest.raises(LetheError, match=where):
        quantise_model(model, "bnb-fp4")
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
    with pytest.raises(LetheError, match="multiple of 64, got 96"):
        quantise_tensor(gaussian(64, 96), "bnb-nf4")
    for attack in ("bnb-int8", "fp4", "rtn4"):  # the others have no such limit
        assert len(quantise_model(tiny(intermediate_size=96), attack).quantised) == 14


def test_a_model_without_layers_to_round_is_refused():
    with pytest.raises(LetheError, match=r"nothing to quantise in Qwen2ForCausalLM.*lm_head \(output embedding\)"):
        quantise_model(tiny(num_hidden_layers=0), "rtn4")


def test_an_adapter_that_is_not_merged_is_refused():
    model = tiny()
    model.model.layers[0].mlp.up_proj.register_parameter("lora_A", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(LetheError, match=r"merge its LoRA adapter .*up_proj\.lora_A"):
        quantise_model(model, "rtn4")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(bad):
    model = tiny()
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = bad
    with pytest.raises(LetheError, match=r"^model\.layers\.1\.mlp\.up_proj: .*not finite, got 1 of them$"):
        quantise_model(model, "nf4")


def test_a_backend_that_keeps_more_than_16_values_in_a_block_is_caught(monkeypatch):
    monkeypatch.setattr(quantise, "_round", lambda w, scheme: w.clone())
    with pytest.raises(LetheError, match=r"q_proj: 4 bits allow 16 values in a group, got 64$"):
        quantise_model(tiny(), "nf4")


@pytest.mark.parametrize("w", [torch.zeros(64), torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 2, 64)])
def test_what_is_not_a_matrix_of_floats_is_refused(w):
    with pytest.raises(LetheError, match="expected a matrix"):
        quantise_tensor(w, "rtn4")


def test_an_unknown_attack_is_answered_with_the_known_ones():
    with pytest.raises(LetheError, match=r"one of none, bnb-fp4, .*rtn3, got 'gptq'"):
        check_attack("gptq")
    with pytest.raises(LetheError, match="got 'gptq'"):
        quantise_model(tiny(), "gptq")
    with pytest.raises(LetheError, match="needed here, got 'none'"):
        step_size(gaussian(2, 64), "none")


def test_without_bitsandbytes_its_attacks_are_refused_in_one_line_and_the_others_work(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for attack in ATTACKS:
        if attack.startswith("bnb-"):
            with pytest.raises(LetheError, match=rf"^attack {attack}: bitsandbytes is not installed[^\n]*$"):
                check_attack(attack)
        else:
            check_attack(attack)


def test_asking_whether_an_attack_can_run_imports_no_torch():
    code = "import sys, lethe.models.codebooks as c; c.check_attack('rtn4'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
