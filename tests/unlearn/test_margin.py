import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lethe.errors import LetheError
from lethe.unlearn.losses import token_nll
from lethe.unlearn.margin import (
    active_positions,
    hinge,
    margin_hinge,
    proposition1_slack,
    restricted_margin,
    threshold,
    token_log_bound,
    top_alternatives,
    violation_rates,
    violations,
)

VOCAB = 9
LABELS = torch.tensor([0, 3, 8, 4, 4, 1])
logits_of_six = arrays(np.float32, (6, VOCAB), elements=st.floats(-30, 30, width=32)).map(torch.from_numpy)


def test_threshold_is_the_log_odds_of_rho():
    assert threshold(0.7) == pytest.approx(0.84730, abs=1e-5)
    assert threshold(0.5) == 0


@pytest.mark.parametrize("rho", [0.0, 1.0, 1.7])
def test_rho_outside_the_open_unit_interval_is_refused(rho):
    with pytest.raises(LetheError, match=rf"rho must lie in \(0, 1\), got {rho}"):
        threshold(rho)


def test_margin_of_hand_worked_logits():
    """Gold log 6, the two best rivals log 2 and log 1: m = log(6 / 3) at beta 1, log(36 / 5) at beta 2."""
    logits, gold = torch.tensor([[2.0, 6.0, 0.5, 1.0]]).log(), torch.tensor([1])
    assert float(restricted_margin(logits, gold, k=2, beta=1.0)) == pytest.approx(math.log(2))
    assert float(restricted_margin(logits, gold, k=2, beta=2.0)) == pytest.approx(math.log(36 / 5))


@settings(deadline=None)
@given(logits=logits_of_six, k=st.integers(1, VOCAB - 1), beta=st.floats(0.1, 5))
def test_sigmoid_of_the_margin_is_the_restricted_probability(logits, k, beta):
    others = logits.double().scatter(-1, LABELS[:, None], -torch.inf).topk(k).values
    both = beta * torch.cat([logits.double().gather(-1, LABELS[:, None]), others], dim=-1)
    got = torch.sigmoid(restricted_margin(logits, LABELS, k=k, beta=beta).double())
    torch.testing.assert_close(got, both.softmax(-1)[:, 0], rtol=1e-4, atol=1e-7)


@settings(deadline=None)
@given(logits=logits_of_six)
def test_all_other_tokens_at_beta_one_give_the_full_probability(logits):
    margin = restricted_margin(logits, LABELS, k=VOCAB - 1, beta=1.0)
    torch.testing.assert_close(-torch.nn.functional.logsigmoid(margin), token_nll(logits, LABELS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("beta", [1.0, 5.0])
def test_lemma_1_on_both_sides_of_rho(rho, beta):
    """Two tokens with beta (z_y - z_v) = log-odds of a restricted probability just below, or just above, rho."""
    for p, violated in ((rho - 0.001, False), (rho + 0.001, True)):
        logits = torch.tensor([[math.log(p / (1 - p)) / beta, 0.0]])
        margin = restricted_margin(logits, torch.tensor([0]), k=1, beta=beta)
        assert float(torch.sigmoid(margin)) == pytest.approx(p, abs=1e-6)
        assert violations(margin, rho).tolist() == [violated]


def test_a_margin_at_the_threshold_is_not_a_violation():
    tau = torch.tensor(threshold(0.7))
    above = torch.nextafter(tau, torch.tensor(1.0))
    assert violations(torch.stack([tau, above]), rho=0.7).tolist() == [False, True]


def test_a_margin_that_is_not_a_number_is_a_violation():
    assert violations(torch.tensor([math.nan]), rho=0.7).tolist() == [True]


@given(logits=logits_of_six, k=st.integers(1, VOCAB - 1))
def test_alternatives_are_the_best_tokens_without_the_gold_one(logits, k):
    tokens, keep = top_alternatives(logits, LABELS, k)
    assert keep.all() and (tokens != LABELS[:, None]).all()
    assert all(len(set(row)) == k for row in tokens.tolist())
    expected = logits.scatter(-1, LABELS[:, None], -torch.inf).topk(k).values
    torch.testing.assert_close(logits.gather(-1, tokens), expected, rtol=0, atol=0)


@pytest.mark.parametrize("k", [0, VOCAB])
def test_more_alternatives_than_the_vocabulary_has_are_refused(k):
    with pytest.raises(LetheError, match=f"k must lie between 1 and {VOCAB - 1}, .* got {k}"):
        restricted_margin(torch.zeros(6, VOCAB), LABELS, k=k, beta=1.0)


def test_alternatives_of_the_base_model_within_half_a_logit_of_its_best_rival():
    """The base's rivals of token 0: 3, 2.5 (exactly .5 below: kept), 2.4 (dropped). The current logits decide m."""
    base, gold = torch.tensor([[9.0, 2.5, 3.0, 2.4, -1.0]]), torch.tensor([0])
    alternatives = top_alternatives(base, gold, k=3, within=0.5)
    assert (alternatives.tokens.tolist(), alternatives.keep.tolist()) == ([[2, 1, 3]], [[True, True, False]])
    current = torch.tensor([[6.0, 1.0, 2.0, 50.0, 90.0]]).log()
    margin = restricted_margin(current, gold, k=3, beta=1.0, alternatives=alternatives)
    assert float(margin) == pytest.approx(math.log(6 / 3))


def test_hinge_is_one_at_tau_and_zero_from_tau_minus_eta_down():
    tau = threshold(0.7)
    margin = torch.tensor([tau, tau - 0.25, tau - 3, tau + 0.5, tau - 0.125])
    torch.testing.assert_close(hinge(margin, rho=0.7, eta=0.25), torch.tensor([1.0, 0.0, 0.0, 3.0, 0.5]))


@given(margin=st.floats(-30, 30, width=32), rho=st.floats(0.01, 0.99), eta=st.floats(0.01, 5))
def test_hinge_bounds_the_violation_from_above(margin, rho, eta):
    m = torch.tensor([margin])
    assert float(violations(m, rho)) <= float(hinge(m, rho=rho, eta=eta)) + 1e-3


def test_gradient_of_the_hinge_per_logit():
    """Appendix C: +beta/eta on the gold token, -(beta/eta) softmax over S, 0 elsewhere and once suppressed."""
    k, beta, eta = 3, 2.0, 0.25
    logits = torch.tensor([[1.0, 2.0, 1.5, 0.0, 1.8, -1.0], [-9.0, 2.0, 1.5, 0.0, 1.8, -1.0]], requires_grad=True)
    loss = margin_hinge(logits, torch.tensor([0, 0]), k=k, beta=beta, rho=0.01, eta=eta)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    weights = torch.softmax(beta * torch.tensor([2.0, 1.5, 1.8]), dim=-1).tolist()
    active = [1.0, -weights[0], -weights[1], 0.0, -weights[2], 0.0]
    torch.testing.assert_close(gradient, torch.tensor([active, [0.0] * 6]) * beta / eta)
    assert gradient[0, [3, 5]].tolist() == [0.0, 0.0] and loss[1] == 0


def test_tokens_dropped_from_the_base_models_set_get_no_gradient():
    base, gold = torch.tensor([[9.0, 2.5, 3.0, 2.4, -1.0]]), torch.tensor([0])
    logits = torch.randn(1, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = margin_hinge(
        logits, gold, k=3, beta=1.0, rho=0.01, eta=0.5, alternatives=top_alternatives(base, gold, k=3, within=0.5)
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert (gradient[0] != 0).tolist() == [True, True, True, False, False]


def test_violation_rates_are_fractions_of_each_sequence():
    margin = torch.tensor([1.0, 2.0, -1.0, 0.5, 0.9])
    item = torch.tensor([0, 0, 2, 2, 2])
    rates = violation_rates(margin, item, 3, rho=0.7)
    assert rates[[0, 2]].tolist() == [1.0, 1 / 3] and rates[1].isnan()


def active(counts: list[int], cut: tuple[float, float], seed: int = 0) -> list[bool]:
    generator = torch.Generator().manual_seed(seed)
    return active_positions(torch.tensor(counts), cut=cut, min_prefix=2, min_suffix=3, generator=generator).tolist()


@pytest.mark.parametrize(
    ("ratio", "start"), [(0.6, 6), (0.55, 5), (0.1, 2), (0.9, 7)], ids=["cut", "rounded down", "prefix", "suffix"]
)
def test_a_long_row_loses_its_first_tokens_and_a_short_one_is_used_whole(ratio, start):
    row = [i >= start for i in range(10)]
    assert active([4, 10, 1], cut=(ratio, ratio)) == [True] * 4 + row + [True]


def test_a_row_of_exactly_prefix_plus_suffix_keeps_the_suffix():
    assert active([5], cut=(0.6, 0.6)) == [False, False, True, True, True]


def test_cuts_are_drawn_over_their_whole_range_from_the_generator_alone():
    starts = {active([100], cut=(0.2, 0.6), seed=seed).index(True) for seed in range(200)}
    assert min(starts) in range(20, 24) and max(starts) in range(56, 60)
    assert active([100], cut=(0.2, 0.6), seed=7) == active([100], cut=(0.2, 0.6), seed=7)


def test_micro_batches_are_cut_like_the_large_batch():
    counts, cut = torch.tensor([40, 3, 90, 25, 60]), (0.2, 0.6)
    parts, whole = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    split = [active_positions(c, cut=cut, min_prefix=2, min_suffix=3, generator=parts) for c in counts.split(2)]
    at_once = active_positions(counts, cut=cut, min_prefix=2, min_suffix=3, generator=whole)
    assert torch.cat(split).tolist() == at_once.tolist()


def test_the_bound_of_a_token_at_known_settings():
    assert math.exp(token_log_bound(rho=0.7, beta=1.0, k=10)) == pytest.approx(0.7)
    assert math.exp(token_log_bound(rho=0.7, beta=5.0, k=2)) == pytest.approx(0.5423, abs=1e-4)
    assert math.exp(token_log_bound(rho=0.3, beta=5.0, k=2)) == pytest.approx(0.458, abs=1e-3)


@settings(max_examples=300, deadline=None)
@given(
    logits=logits_of_six,
    rho=st.floats(0.01, 0.99),
    beta=st.floats(0.05, 8),
    k=st.integers(1, VOCAB - 1),
    scale=st.sampled_from([0.05, 0.3, 1.0]),
)
def test_proposition_1_is_never_violated(logits, rho, beta, k, scale):
    z, item = logits * scale, torch.tensor([0, 0, 0, 1, 1, 1])
    margin = restricted_margin(z, LABELS, k=k, beta=beta)
    slack = proposition1_slack(margin, -token_nll(z, LABELS), item, 2, rho=rho, beta=beta, k=k)
    assert slack.shape == (2,) and slack.min() > -1e-3


@pytest.mark.parametrize(("beta", "k"), [(0.25, 8), (1.0, 8), (5.0, 1)])
@pytest.mark.parametrize("rho", [0.3, 0.7])
def test_the_bound_is_reached_by_equal_alternatives_at_the_threshold(beta, k, rho):
    """beta z_y - log k = tau with all k other tokens at 0: no smaller b would hold. At rho .3 and beta 5, rho would
    not."""
    gold = (threshold(rho) - 1e-5 + math.log(k)) / beta
    logits, labels = torch.tensor([[gold] + [0.0] * k] * 3), torch.tensor([0, 0, 0])
    margin, logp = restricted_margin(logits, labels, k=k, beta=beta), -token_nll(logits, labels)
    slack = proposition1_slack(margin, logp, torch.tensor([0, 0, 0]), 1, rho=rho, beta=beta, k=k)
    assert float(slack) == pytest.approx(0, abs=3e-4)


def test_slack_counts_suppressed_tokens_only():
    """rho .5: two suppressed tokens of three allow pi = 1/4; pi = 1/2 * 1/8 * 1/4 leaves log 16 nats."""
    margin, logp = torch.tensor([-1.0, 3.0, -2.0]), -torch.tensor([2.0, 8.0, 4.0]).log()
    slack = proposition1_slack(margin, logp, torch.tensor([0, 0, 0]), 1, rho=0.5, beta=1.0, k=2)
    assert float(slack) == pytest.approx(math.log(16))


def test_log_probabilities_above_the_bound_are_a_bug():
    with pytest.raises(AssertionError, match=r"0\.693 nats above the bound"):
        proposition1_slack(torch.tensor([-1.0]), torch.tensor([0.0]), torch.tensor([0]), 1, rho=0.5, beta=1.0, k=2)
