import itertools
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from lethe.errors import LetheError
from lethe.metrics import stats

values = st.floats(-50, 50, allow_nan=False, width=32)


@pytest.mark.parametrize(
    ("n", "m", "p"),
    [
        (40, 40, 1.860340365603627e-23),
        (200, 200, 1.9426434495222354e-119),
        (300, 300, 1.4802978791996799e-179),
        (400, 400, 1.0635896769518578e-239),
    ],
)
def test_completely_separated_samples_reach_the_floor_that_depends_on_n(n, m, p):
    test = stats.ks_two_sample(np.arange(n), np.arange(m) + 1000)
    assert (test.D, test.n, test.m, test.method) == (1.0, n, m, "exact")
    assert test.p == pytest.approx(p, rel=1e-6)
    assert test.log10p == pytest.approx(math.log10(p), abs=1e-6)


def test_the_floor_of_unequal_samples_is_exact_too():
    test = stats.ks_two_sample(np.arange(300), np.arange(400) + 1000)
    assert test.log10p == pytest.approx(math.log10(1.618e-206), abs=1e-3)
    assert test.method == "exact"


@given(st.integers(1, 5), st.integers(1, 5), st.data())
@settings(deadline=None, max_examples=40)
def test_p_is_the_share_of_equally_likely_orderings_that_are_at_least_as_far_apart(n, m, data):
    def distance(first):
        steps = [Fraction(1, n) if i in first else -Fraction(1, m) for i in range(n + m)]
        return max(abs(sum(steps[: k + 1])) for k in range(n + m))

    orderings = [distance(set(first)) for first in itertools.combinations(range(n + m), n)]
    first = data.draw(st.permutations(range(n + m)))[:n]
    test = stats.ks_two_sample(first, [i for i in range(n + m) if i not in first])
    assert (test.D, test.n, test.m) == (pytest.approx(float(distance(set(first)))), n, m)
    assert test.p == pytest.approx(sum(d >= distance(set(first)) for d in orderings) / len(orderings), rel=1e-9)


@pytest.mark.parametrize(("n", "m"), [(12, 30), (100, 37), (200, 200), (300, 400)])
def test_p_equals_scipys_exact_p(n, m):
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=n), rng.normal(size=m) + 0.5
    expected = ks_2samp(x, y, method="exact")
    assert stats.ks_two_sample(x, y).p == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize(("h", "n"), [(1, 7), (3, 7), (7, 7), (25, 200), (180, 200)])
def test_path_counting_and_closed_form_agree_on_equal_samples(h, n):
    assert stats._log_p_paths(h * n, n, n) == pytest.approx(stats._log_p_equal(h, n), rel=1e-9)


def test_log10_p_outlives_the_underflow_of_p():
    test = stats.ks_two_sample(np.arange(1000), np.arange(1000) + 5000)
    # 2 / C(2000, 1000)
    expected = math.log10(2) - (math.lgamma(2001) - 2 * math.lgamma(1001)) / math.log(10)
    assert test.p == 0.0
    assert test.log10p == pytest.approx(expected, rel=1e-9)


def test_large_samples_use_the_limit_and_say_so():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=10_001), rng.normal(size=9_000) + 0.03
    test = stats.ks_two_sample(x, y)
    assert test.method == "asymptotic"
    assert test.p == pytest.approx(ks_2samp(x, y, method="asymp").pvalue, rel=0.03)
    far = stats.ks_two_sample(np.arange(10_001), np.arange(10_001) + 1e6)
    t = math.sqrt(10_001 / 2)
    assert far.log10p == pytest.approx((math.log(2) - 2 * t * t) / math.log(10))


def test_identical_samples_have_p_one_and_log10_p_zero():
    test = stats.ks_two_sample([1.0, 2.0, 5.0], [1.0, 2.0, 5.0])
    assert (test.D, test.p, test.log10p) == (0.0, 1.0, 0.0)
    assert test.warnings == ("ties: p is conservative",)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
def test_a_sample_that_is_empty_or_not_finite_is_refused(bad):
    with pytest.raises(LetheError, match="Kolmogorov-Smirnov"):
        stats.ks_two_sample(bad, [1.0, 2.0])


@given(st.lists(values, min_size=1, max_size=20), st.lists(values, min_size=1, max_size=20))
def test_ks_ignores_order_and_any_monotone_change_of_scale(x, y):
    a = stats.ks_two_sample(x, y)
    b = stats.ks_two_sample([8 * v for v in y[::-1]], [8 * v for v in x[::-1]])  # a power of two: exact
    assert (a.D, a.p) == (b.D, pytest.approx(b.p, rel=1e-9))


def test_ks_of_resamples_equals_ks_of_the_repeated_pairs():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=15), np.round(rng.normal(size=15) + 0.7, 1)
    y[3] = x[4]  # a tie across samples
    counts = stats.resample_counts(15, 20, rng)
    d, log_p = stats.ks_resampled(x, y, counts)
    for row, (d_row, log_p_row) in enumerate(zip(d, log_p, strict=True)):
        test = stats.ks_two_sample(np.repeat(x, counts[row]), np.repeat(y, counts[row]))
        assert (d_row, log_p_row / math.log(10)) == (pytest.approx(test.D), pytest.approx(test.log10p))


def test_auc_counts_ties_half():
    assert stats.auc([1, 2], [1, 3]) == 0.375  # 1~1 half, 1<3, 2>1, 2<3
    assert stats.auc([5], [5, 5]) == 0.5


@given(st.lists(st.integers(0, 5), min_size=1, max_size=15), st.lists(st.integers(0, 5), min_size=1, max_size=15))
def test_auc_equals_the_share_of_won_pairs_and_turns_with_its_arguments(p, q):
    wins = sum((a > b) + 0.5 * (a == b) for a in p for b in q) / (len(p) * len(q))
    assert stats.auc(p, q) == pytest.approx(wins)
    assert stats.auc(q, p) == pytest.approx(1 - wins)


def test_auc_of_resamples_equals_auc_of_the_repeated_items():
    rng = np.random.default_rng(2)
    p, q = rng.integers(0, 6, 9).astype(float), rng.integers(0, 6, 7).astype(float)
    cp, cq = stats.resample_counts(9, 10, rng), stats.resample_counts(7, 10, rng)
    expected = [stats.auc(np.repeat(p, a), np.repeat(q, b)) for a, b in zip(cp, cq, strict=True)]
    assert stats.auc_resampled(p, q, cp, cq) == pytest.approx(expected)


def test_a_harmonic_mean_is_zero_as_soon_as_one_member_is():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stats.harmonic_mean([0.5, 0.0, 1.0]) == 0
        assert stats.harmonic_mean([0.0, -0.0]) == 0
    assert stats.harmonic_mean([0.5, 1.0]) == pytest.approx(2 / 3)


def test_a_harmonic_mean_works_along_the_first_axis_and_refuses_negative_members():
    assert stats.harmonic_mean([[0.5, 1.0], [1.0, 0.0]]) == pytest.approx([2 / 3, 0])
    with pytest.raises(LetheError, match="harmonic mean"):
        stats.harmonic_mean([0.5, -0.1])


def test_resampled_means_skip_items_without_a_value():
    counts = np.array([[2, 0, 1], [0, 3, 0], [1, 1, 1]])
    means = stats.resampled_means(np.array([1.0, np.nan, 4.0]), counts)
    assert means[[0, 2]] == pytest.approx([2.0, 2.5])
    assert np.isnan(means[1])


def test_a_bootstrap_interval_is_reproducible_and_has_the_width_of_the_standard_error():
    x = np.random.default_rng(3).normal(size=400)
    mean, lo, hi = stats.bootstrap_mean(x, resamples=2000, seed=7)
    assert stats.bootstrap_mean(x, resamples=2000, seed=7) == (mean, lo, hi)
    assert stats.bootstrap_mean(x, resamples=2000, seed=8) != (mean, lo, hi)
    assert hi - lo == pytest.approx(2 * 1.96 * x.std() / 20, rel=0.1)


def test_one_item_or_no_resamples_give_no_interval():
    assert stats.bootstrap_mean([0.5]) == (0.5, None, None)
    assert stats.bootstrap_mean([0.0, 1.0], resamples=0) == (0.5, None, None)
    assert stats.interval(None) == (None, None)


def test_paired_differences_use_the_shared_seeds():
    found = stats.paired_difference({0: 0.5, 1: 0.7, 2: 0.9, 5: 9.0}, {0: 0.4, 1: 0.5, 2: 0.6, 7: 0.0})
    # differences .1 .2 .3: mean .2, s .1, t_{.975, 2} = 4.302653
    assert (found.n, found.mean, found.std) == (3, pytest.approx(0.2), pytest.approx(0.1))
    assert (found.lo, found.hi) == (
        pytest.approx(0.2 - 4.302653 * 0.1 / 3**0.5),
        pytest.approx(0.2 + 4.302653 * 0.1 / 3**0.5),
    )


def test_a_single_shared_seed_has_no_spread_and_none_is_an_error():
    assert stats.paired_difference({0: 1.0}, {0: 0.25}) == stats.PairedDifference(0.75, None, None, None, 1)
    with pytest.raises(LetheError, match="shared seeds"):
        stats.paired_difference({0: 1.0}, {1: 1.0})
