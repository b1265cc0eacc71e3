import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lethe.analysis.pareto import dominance, front, front_beyond_noise, hypervolume
from lethe.errors import LetheError

points = arrays(float, st.tuples(st.integers(1, 8), st.just(2)), elements=st.integers(0, 4).map(float))


def test_a_worked_front():
    #          best x   trade-off  dominated  best y
    assert front([[3, 0], [2, 2], [1, 1], [0, 3]]).tolist() == [True, True, False, True]


def test_equal_points_are_both_on_the_front():
    assert front([[1, 1], [1, 1], [0, 1]]).tolist() == [True, True, False]


def test_a_tie_in_one_objective_is_decided_by_the_other():
    assert front([[1, 2], [1, 1]]).tolist() == [True, False]


def test_a_point_with_a_missing_objective_neither_stands_nor_dominates():
    assert front([[np.nan, 9], [1, 1]]).tolist() == [False, True]


@given(points)
def test_what_is_off_the_front_is_dominated_by_something_on_it(cloud):
    on = front(cloud)
    assert on.any()
    for point in cloud[~on]:
        assert any((p >= point).all() and (p > point).any() for p in cloud[on])


def test_a_worked_hypervolume():
    # above (0, 0): [3, 1] covers 3, [1, 2] adds 1 x 1, [1, 1] adds nothing
    assert hypervolume([[3, 1], [1, 2], [1, 1]], reference=(0, 0)) == 4.0
    assert hypervolume([[3, 1], [1, 2]], reference=(0, 1)) == 1.0  # [3, 1] does not lie above the reference
    assert hypervolume(np.empty((0, 2)), reference=(0, 0)) == 0.0


@given(points)
def test_the_front_alone_has_the_whole_hypervolume(cloud):
    assert hypervolume(cloud, (-1, -1)) == pytest.approx(hypervolume(cloud[front(cloud)], (-1, -1)))


def test_a_hypervolume_in_three_objectives_is_refused():
    with pytest.raises(LetheError, match=r"shape \(n, 2\), got \(1, 3\)"):
        hypervolume([[1, 2, 3]], (0, 0))


def paired(offset, noise=(0.0, 0.1, -0.1)):
    return {seed: np.array([0.5, 0.5]) + n + np.array(offset) for seed, n in enumerate(noise)}


def test_dominance_is_judged_on_paired_differences():
    # The seeds differ by far more than the methods do, but alike for both.
    pairs = dominance({"a": paired((0.02, 0.01)), "b": paired((0, 0))}).set_index(["better", "worse"])
    assert pairs.loc[("a", "b"), "dominates"] and not pairs.loc[("b", "a"), "dominates"]
    assert pairs.loc[("a", "b"), "lo"] == pytest.approx((0.02, 0.01))


def test_a_difference_within_its_spread_dominates_nothing():
    a = {0: np.array([0.6, 0.5]), 1: np.array([0.4, 0.5]), 2: np.array([0.53, 0.5])}
    b = {0: np.array([0.5, 0.5]), 1: np.array([0.5, 0.5]), 2: np.array([0.5, 0.5])}
    assert not dominance({"a": a, "b": b})["dominates"].any()
    assert front_beyond_noise({"a": a, "b": b}) == ["a", "b"]


def test_equal_methods_and_single_seeds_dominate_nothing():
    assert not dominance({"a": paired((0, 0)), "b": paired((0, 0))})["dominates"].any()
    assert not dominance({"a": paired((1, 1), noise=(0.0,)), "b": paired((0, 0), noise=(0.0,))})["dominates"].any()


def test_methods_that_share_no_seed_are_not_compared():
    assert dominance({"a": {0: np.ones(2)}, "b": {1: np.zeros(2)}}).empty


def test_the_front_beyond_noise_keeps_the_order_given():
    samples = {"b": paired((0, 0)), "c": paired((0.1, -0.1)), "a": paired((0.02, 0.01))}
    assert front_beyond_noise(samples) == ["c", "a"]
