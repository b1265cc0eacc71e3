import copy

import pytest
import torch

from lethe.models.load import load_model
from lethe.models.quantise import codes, quantise_model, rounded_weights, step_size, toward_grid
from lethe.unlearn.change import random_update, update_size


@pytest.fixture
def model(tiny_folder):
    return load_model(tiny_folder)


def test_the_size_of_an_update_worked_by_hand(model):
    moved = copy.deepcopy(model)
    weight = next(iter(rounded_weights(moved).values()))
    step = step_size(weight, "rtn4")
    away = torch.zeros_like(weight)
    away[:, 0] = 0.25 * step[:, 0]  # one column, a quarter of a step each
    weight += away
    size = update_size(model, moved, seed=0)
    total = sum(w.numel() for w in rounded_weights(model).values())
    assert size["update_norm"] == pytest.approx(float(away.norm()), rel=1e-5)
    assert size["update_over_step_touched"] == pytest.approx(0.25 / weight.shape[1], rel=1e-4)
    assert size["update_over_step"] == pytest.approx(0.25 * weight.shape[0] / total, rel=1e-4)


def test_no_update_has_no_size(model):
    size = update_size(model, copy.deepcopy(model), seed=0)
    assert size.pop("update_over_step_touched") is None
    assert len(size) == 5 and set(size.values()) == {0.0}


def test_codes_change_where_weights_cross_an_edge_and_at_random_too(model):
    moved = copy.deepcopy(model)
    weights = rounded_weights(moved)
    weight = next(iter(weights.values()))
    changed = torch.zeros_like(weight)
    inner = codes(weight, "rtn4")
    changed[(inner > 2) & (inner < 12)] = 1.0  # not the outermost, whose move could change the scale of their group
    weight += changed * step_size(weight, "rtn4")
    size = update_size(model, moved, seed=0)
    total = sum(w.numel() for w in weights.values())
    assert size["codes_changed"] == pytest.approx(float(changed.sum()) / total, abs=1e-6)
    assert size["update_over_step"] == pytest.approx(float(changed.sum()) / total, rel=1e-4)
    # A normal direction of that length: E|x| = sqrt(2/pi) rms, against the share of ones times 1.
    share = float(changed.mean())
    assert size["update_over_step_random"] / size["update_over_step"] == pytest.approx(
        (2 / torch.pi) ** 0.5 * share**0.5 / share, rel=0.1
    )
    assert 0 < size["codes_changed_random"] < 1
    assert size == update_size(model, moved, seed=0) != update_size(model, moved, seed=1)


def test_an_update_of_parameters_that_are_not_rounded_counts_in_the_norm_alone(model):
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.get_input_embeddings().weight[0] += 1.0
    size = update_size(model, moved, seed=0)
    assert size["update_norm"] == pytest.approx(moved.config.hidden_size**0.5)
    assert size["update_over_step"] == 0 and size["update_over_step_touched"] is None


def test_a_random_update_has_the_norm_of_each_matrix_and_another_direction(model):
    like = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    names = list(dict(like.named_parameters()))[:3]
    with torch.no_grad():
        for name in names:
            parameter = like.get_parameter(name)
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    moved = copy.deepcopy(model)
    random_update(moved, like, seed=0)
    for name, start in model.named_parameters():
        ours, theirs = moved.get_parameter(name) - start, like.get_parameter(name) - start
        assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=1e-4, abs=1e-9)
        if name in names and ours.ndim == 2:
            assert abs(torch.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)) < 0.1


def test_a_random_update_is_that_of_its_seed(model):
    like = copy.deepcopy(model)
    with torch.no_grad():
        like.model.norm.weight += 0.5
    moved = [copy.deepcopy(model) for _ in range(3)]
    for one, seed in zip(moved, (0, 0, 1), strict=True):
        random_update(one, like, seed)
    weights = [one.model.norm.weight for one in moved]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_start_on_the_grid_is_held_by_the_quantiser_without_loss(model):
    toward_grid(model, "bnb-nf4", residue=0.0)
    again = copy.deepcopy(model)
    quantise_model(again, "bnb-nf4")
    for name, weight in rounded_weights(model).items():
        torch.testing.assert_close(rounded_weights(again)[name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("residue", [0.25, 1.0])
def test_part_of_the_rounding_residue_is_kept(model, residue):
    before = {name: weight.clone() for name, weight in rounded_weights(model).items()}
    on_grid = copy.deepcopy(model)
    toward_grid(on_grid, "rtn4", residue=0.0)
    toward_grid(model, "rtn4", residue=residue)
    for name, weight in rounded_weights(model).items():
        grid = rounded_weights(on_grid)[name]
        torch.testing.assert_close(weight, grid + residue * (before[name] - grid))
