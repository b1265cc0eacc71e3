import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lethe.analysis.pareto import dominates, front, front_beyond_noise, hypervolume
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
    a, b = paired((0.02, 0.01)), paired((0, 0))
    assert dominates(a, b) and not dominates(b, a)


def test_a_difference_within_its_spread_dominates_nothing():
    a = {0: np.array([0.6, 0.5]), 1: np.array([0.4, 0.5]), 2: np.array([0.53, 0.5])}
    b = {0: np.array([0.5, 0.5]), 1: np.array([0.5, 0.5]), 2: np.array([0.5, 0.5])}
    assert not dominates(a, b) and not dominates(b, a)
    assert front_beyond_noise({"a": a, "b": b}) == ["a", "b"]


@pytest.mark.parametrize(("level", "beats"), [(0.5, True), (0.99, False)])
def test_the_interval_is_students(level, beats):
    """Differences 1, 2, 3: mean 2, standard error .577, so t(2) = .816 at 50 % and 9.92 at 99 %."""
    a, b = {s: [1.0 + s, 0.0] for s in range(3)}, {s: [0.0, 0.0] for s in range(3)}
    assert dominates(a, b, level) == beats


def test_larger_in_one_and_smaller_in_another_objective_dominates_nothing():
    assert not dominates(paired((0.1, -0.1)), paired((0, 0)))
    assert dominates(paired((0.1, 0.0)), paired((0, 0)))


def test_equal_methods_single_seeds_and_other_seeds_dominate_nothing():
    assert not dominates(paired((0, 0)), paired((0, 0)))
    assert not dominates(paired((1, 1), noise=(0.0,)), paired((0, 0), noise=(0.0,)))
    assert not dominates({0: np.ones(2)}, {1: np.zeros(2)}) and not dominates({}, {})


def test_the_front_beyond_noise_keeps_the_order_given():
    samples = {"b": paired((0, 0)), "c": paired((0.1, -0.1)), "a": paired((0.02, 0.01))}
    assert front_beyond_noise(samples) == ["c", "a"]
