import copy

import pytest
import torch
from accelerate import Accelerator

from lethe.data.rows import default_template, encode_rows
from lethe.data.text import collate, pad_token_id
from lethe.errors import LetheError
from lethe.models.load import SupervisedLM, activations_at, layer_at, load_model, load_tokenizer
from lethe.models.tiny import build
from lethe.recipe import Recipe, load_recipes, resolve, set_values
from lethe.schema import validate
from lethe.unlearn import losses
from lethe.unlearn.loop import train
from lethe.unlearn.objective import select_trained
from lethe.unlearn.reference import Reference
from lethe.unlearn.stopping import Budget
from lethe.unlearn.streams import Stream
from lethe.unlearn.training import add_adapter

ARCHITECTURES = ["qwen2", "llama", "phi", "mistral"]


def recipe(name="rmu", *settings) -> Recipe:
    return validate(Recipe, set_values(resolve(load_recipes(), name).model_dump(mode="json"), settings), name)


@pytest.fixture
def encoded(tiny_folder, rows):
    tokenizer = load_tokenizer(tiny_folder)
    return encode_rows(tokenizer, default_template(tokenizer), rows["retain"], 64), pad_token_id(tokenizer)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_the_layers_output_though_later_layers_do_not_run(
    tiny_folder, encoded, architecture, checkpointing
):
    model = build(
        architecture, load_tokenizer(tiny_folder), hidden_size=64, layers=3, heads=2, intermediate_size=128, seed=0
    )
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    batch = collate(*encoded)
    states = model(input_ids=batch.ids, output_hidden_states=True).hidden_states
    ran = []
    hook = model.get_decoder().layers[2].register_forward_hook(lambda *_: ran.append(1))
    for layer in (1, 2):  # the last of hidden_states is normalised, so the third layer is not compared
        found = activations_at(model, batch, layer)
        torch.testing.assert_close(found, states[layer][batch.rows, batch.cols + 1])
        found.sum().backward()
    hook.remove()
    assert not ran and len(model.get_decoder().layers) == 3
    assert model.get_decoder().layers[0].self_attn.q_proj.weight.grad is not None
    assert all(p.grad is None for p in model.get_decoder().layers[2].parameters())


def test_a_wrapped_model_gives_the_same_activations(tiny_folder, encoded):
    model, batch = load_model(tiny_folder), collate(*encoded)
    found = SupervisedLM(model)(batch.ids, batch.rows, batch.cols + 1, 1)
    torch.testing.assert_close(found, activations_at(model, batch, 1))


def test_an_adapter_is_part_of_the_activations_but_not_of_the_reference(tiny_folder, encoded):
    model, (examples, pad) = load_model(tiny_folder), encoded
    batch = collate(examples, pad)
    before = activations_at(model, batch, 1).detach()
    settings = "adapter={r: 4, alpha: 8, dropout: 0.0, targets: [q_proj, v_proj]}"
    adapter = add_adapter(model, recipe("rmu", settings))
    reference = Reference(model, adapter, recipe("rmu", settings), examples, pad)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.add_(0.1)
    now = SupervisedLM(model)(batch.ids, batch.rows, batch.cols + 1, 1)
    assert not torch.allclose(now, before, atol=1e-3)
    torch.testing.assert_close(reference.outputs(batch), before)
    now.sum().backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None}
    assert trained and all("layers.0." in n and "lora_" in n for n in trained)


def test_an_error_in_the_forward_pass_leaves_all_layers_in_place(tiny_folder):
    model = load_model(tiny_folder)
    with pytest.raises(IndexError):
        SupervisedLM(model)(torch.tensor([[10**6]]), torch.tensor([0]), torch.tensor([0]), 1)
    assert len(model.get_decoder().layers) == 2 and not model.get_decoder().layers[0]._forward_hooks


def test_a_share_of_the_depth_names_a_layer():
    class Model:
        def __init__(self, layers):
            self.layers = [None] * layers

        def get_decoder(self):
            return self

    assert [layer_at(Model(32), depth) for depth in (0.25, 1.0, 0.001)] == [8, 32, 1]
    assert [layer_at(Model(2), depth) for depth in (0.25, 0.5, 0.75, 1.0)] == [1, 1, 2, 2]


def test_the_distance_worked_by_hand():
    found = losses.squared_distance(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]))
    assert found.tolist() == [2.0, 0.5]
    assert losses.squared_distance(torch.ones(1, 2).bfloat16(), torch.zeros(2)).dtype == torch.float32


def test_the_direction_has_length_one_and_is_that_of_its_seed(tiny_folder, encoded):
    model, (examples, pad) = load_model(tiny_folder), encoded
    made = [
        Reference(
            model, None, recipe("rmu", "forget.coefficient=3", "forget.unit=absolute"), examples, pad, seed
        ).steering
        for seed in (0, 0, 1)
    ]
    assert made[0].norm().item() == pytest.approx(3) and (made[0] >= 0).all()
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_a_coefficient_in_units_of_activations_follows_their_length(tiny_folder, encoded):
    model, (examples, pad) = load_model(tiny_folder), encoded
    relative = recipe("rmu", "forget.coefficient=2", "forget.unit=activations")
    steering = Reference(model, None, relative, examples, pad).steering
    lengths = activations_at(model, collate(examples, pad), 1).norm(dim=-1)
    assert steering.norm().item() == pytest.approx(2 * lengths.mean().item(), rel=1e-4)


def test_only_the_named_weights_of_the_layers_up_to_rmus_are_trained(tiny_folder):
    model = build(
        "llama", load_tokenizer(tiny_folder), hidden_size=64, layers=4, heads=2, intermediate_size=128, seed=0
    )
    select_trained(model, recipe("rmu-down", "forget.depth=0.75", "trained={modules: [down_proj, q_proj], layers: 2}"))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {
        f"model.layers.{layer}.{name}.weight" for layer in (1, 2) for name in ("mlp.down_proj", "self_attn.q_proj")
    }


def test_more_layers_than_there_are_is_all_of_them(tiny_folder):
    model = load_model(tiny_folder)
    select_trained(model, recipe("rmu-down", "trained.layers=3"))
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"model.layers.0.mlp.down_proj.weight"}


def test_phi_calls_its_down_projection_fc2(tiny_folder):
    model = build("phi", load_tokenizer(tiny_folder), hidden_size=64, layers=2, heads=2, intermediate_size=128, seed=0)
    select_trained(model, recipe("rmu-down", "trained.modules=[fc2]", "forget.depth=1.0"))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {f"model.layers.{i}.mlp.fc2.{part}" for i in (0, 1) for part in ("weight", "bias")}


def test_a_module_that_is_not_there_is_named(tiny_folder):
    with pytest.raises(LetheError, match=r"rmu-down: trained.modules: no module is called w2"):
        select_trained(load_model(tiny_folder), recipe("rmu-down", "trained.modules=[w2]"))


@pytest.mark.parametrize("change", ["trained={modules: [q_proj], layers: 1}", "retain={loss: activation_match}"])
def test_what_belongs_to_rmu_is_refused_elsewhere(change):
    with pytest.raises(LetheError, match=r"goes with the forget loss rmu"):
        recipe("graddiff", change)


def test_the_reference_of_a_later_model_is_still_the_start(tiny_folder, encoded):
    model, (examples, pad) = load_model(tiny_folder), encoded
    before, batch = copy.deepcopy(model), collate(examples, pad)
    reference = Reference(model, None, recipe(), examples, pad)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1.0)
    torch.testing.assert_close(reference.outputs(batch), activations_at(before, batch, 1))


@pytest.mark.parametrize("retain", ["{loss: kl, reduction: per_token}", "{loss: ce, reduction: per_token}"])
def test_a_retain_loss_of_logits_is_refused_as_rmu_computes_none(retain):
    with pytest.raises(LetheError, match=r"its retain loss is activation_match"):
        recipe("rmu", f"retain={retain}")


def test_chosen_weights_and_an_adapter_exclude_each_other():
    with pytest.raises(LetheError, match=r"trained goes without an adapter"):
        recipe("rmu-down", "adapter={r: 4, alpha: 8, dropout: 0.0, targets: [q_proj]}")


def test_two_processes_are_told_that_later_layers_get_no_gradient(tiny_folder, encoded, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "lethe.unlearn.loop.Accelerator", lambda **options: seen.update(options) or Accelerator(cpu=True)
    )
    for name in ("rmu", "graddiff"):
        one = recipe(name, "batch.rows=2", "batch.accumulate=1", "batch.effective=2")
        examples, pad = encoded
        streams = {term: Stream(examples, 2, seed=0, name=term) for term in ("forget", "retain")}
        model = load_model(tiny_folder)
        train(model, one, streams, Budget(0), seed=0, pad_id=pad)
        assert seen["kwargs_handlers"][0].find_unused_parameters == (name == "rmu")
