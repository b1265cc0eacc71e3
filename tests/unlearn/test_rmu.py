import copy

import pytest
import torch

from lethe.data.rows import default_template, encode_rows
from lethe.data.text import collate, pad_token_id
from lethe.errors import LetheError
from lethe.models.load import SupervisedLM, activations_at, layer_at, load_model, load_tokenizer
from lethe.models.tiny import build
from lethe.recipe import Recipe, load_recipes, resolve, set_values
from lethe.schema import validate
from lethe.unlearn import losses
from lethe.unlearn.objective import select_trained
from lethe.unlearn.reference import Reference

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
