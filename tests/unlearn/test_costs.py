import pytest

from lethe.unlearn.costs import Costs


def test_the_first_step_counts_as_an_average_one():
    costs = Costs({"first": [9.0, 8.0], "steps": [3.0, 2.0], "probes": [0.5, 0.25], "reference": [1.0, 0.5]})
    report = costs.report(steps=4)  # three later steps of 1 s wall, 2/3 s CPU
    assert report["steps_cpu_s"] == pytest.approx(8 / 3)
    assert report["wall_s"] == pytest.approx(4.0 + 0.5 + 1.0)
    assert report["cpu_s"] == pytest.approx(8 / 3 + 0.25 + 0.5)


def test_a_single_step_counts_as_it_is():
    assert Costs({"first": [2.0, 1.0]}).report(steps=1)["steps_cpu_s"] == 1.0


def test_no_step_costs_nothing():
    assert Costs({"probes": [0.5, 0.5]}).report(steps=0) == {
        "wall_s": 0.5, "cpu_s": 0.5, "steps_cpu_s": 0.0, "probes_cpu_s": 0.5, "reference_cpu_s": 0.0
    }  # fmt: skip


def test_flops_are_6n_a_trained_token_and_2n_a_scored_one():
    assert Costs(trained_tokens=10, forward_tokens=5).flops(100) == 6 * 100 * 10 + 2 * 100 * 5
