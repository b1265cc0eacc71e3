import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lethe.metrics.items import padded
from lethe.metrics.tofu import log_truth_ratio, normalised_prob, truth_ratio_score


def test_the_three_truth_ratios_of_one_item():
    correct, perturbed = np.array([1.0]), np.array([[1.2, 2.2]])
    geo, arith, prob = (log_truth_ratio(correct, perturbed, v) for v in ("geo", "arith", "prob_mean"))
    assert np.exp(geo) == pytest.approx([math.exp(1 - 1.7)])
    assert np.exp(geo) == pytest.approx([0.4966], abs=5e-5)
    assert np.exp(arith) == pytest.approx([(math.exp(-1.2) + math.exp(-2.2)) / 2 / math.exp(-1)])
    assert np.exp(arith) == pytest.approx([0.5600], abs=5e-5)
    assert truth_ratio_score(prob, "forget", "prob_mean") == pytest.approx([0.6682], abs=5e-5)
    assert truth_ratio_score(geo, "forget") == pytest.approx([0.4966], abs=5e-5)
    assert truth_ratio_score(geo, "retain") == pytest.approx([1 - 0.4966], abs=5e-5)


@pytest.mark.parametrize("loss", [40.0, 400.0, 4000.0])
@pytest.mark.parametrize("variant", ["geo", "arith"])
def test_a_collapsed_model_gets_forget_truth_ratio_one_and_retain_zero(loss, variant):
    log_ratio = log_truth_ratio(np.array([loss]), np.full((1, 5), loss), variant)
    assert truth_ratio_score(log_ratio, "forget", variant) == pytest.approx([1.0])
    assert truth_ratio_score(log_ratio, "retain", variant) == pytest.approx([0.0], abs=1e-12)


def test_scores_on_both_sides_of_a_ratio_of_one():
    below, above = np.array([math.log(0.5)]), np.array([math.log(2.0)])
    assert truth_ratio_score(below, "forget") == pytest.approx(truth_ratio_score(above, "forget"))
    assert truth_ratio_score(below, "wf") == pytest.approx([0.5])
    assert truth_ratio_score(above, "wf") == [0.0]
    assert truth_ratio_score(np.array([2000.0]), "ra") == [0.0]


@given(
    st.lists(st.floats(0.01, 60), min_size=1, max_size=6),
    st.floats(0.01, 60),
    st.floats(0, 30),
    st.sampled_from(["geo", "arith", "prob_mean"]),
)
def test_a_loss_added_to_every_answer_leaves_the_truth_ratio(perturbed, correct, added, variant):
    before = log_truth_ratio(np.array([correct]), np.array([perturbed]), variant)
    after = log_truth_ratio(np.array([correct + added]), np.array([perturbed]) + added, variant)
    assert after == pytest.approx(before, abs=1e-9)


def test_items_may_differ_in_how_many_perturbed_answers_they_have():
    perturbed = padded(pd.Series([[1.2, 2.2], [3.0], None], dtype=object))
    geo = log_truth_ratio(np.array([1.0, 1.0, 1.0]), perturbed)
    assert geo[:2] == pytest.approx([-0.7, -2.0])
    assert np.isnan(geo[2])
    arith = log_truth_ratio(np.array([1.0, 1.0, 1.0]), perturbed, "arith")
    assert arith[1] == pytest.approx(-2.0)
    assert np.isnan(arith[2])
    normalised = normalised_prob(np.array([1.0] * 3), perturbed)
    assert normalised[1] == pytest.approx(math.exp(-1) / (math.exp(-1) + math.exp(-3)))
    assert np.isnan(normalised[2])


def test_normalised_probability_of_a_collapsed_model_stays_finite():
    assert normalised_prob(np.array([900.0]), np.full((1, 3), 900.0)) == pytest.approx([0.25])
