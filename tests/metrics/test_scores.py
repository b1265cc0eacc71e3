import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lethe.data.text import Encoded
from lethe.errors import LetheError
from lethe.metrics import scores
from lethe.metrics.scores import MarginSpec, PairScore, score_pairs

SPEC = MarginSpec(k=5, beta=1.5, rho=0.6)


def random_pairs(n=9, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Encoded(rng.integers(1, 104, size=length).tolist(), int(rng.integers(1, length)))
        for length in rng.integers(2, 25, size=n)
    ]


def alone(model, pair):
    """Log-probabilities of every next token at the supervised positions, one pair, no batch. (L, V)"""
    with torch.no_grad():
        logits = model(torch.tensor([pair.ids])).logits[0].double()
    return logits[pair.start - 1 : -1].log_softmax(-1).numpy()


def close(a, b):
    return np.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_logit_of_a_label_is_recorded_as_the_model_gives_it(model):
    pairs = random_pairs()
    for pair, score in zip(pairs, score_pairs(model, pairs, max_tokens=60, margin=SPEC), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([pair.ids])).logits[0, pair.start - 1 : -1]
        assert close(score.logit, logits.gather(1, torch.tensor(pair.ids[pair.start :])[:, None])[:, 0].numpy())


def test_a_pair_scores_as_in_a_forward_pass_of_its_own(model):
    pairs = random_pairs()
    for pair, score in zip(pairs, score_pairs(model, pairs, max_tokens=60, margin=SPEC), strict=True):
        logp, labels = alone(model, pair), pair.ids[pair.start :]
        gold = logp[np.arange(len(labels)), labels]
        assert score.logp.dtype == np.float32
        assert close(score.logp, gold)
        assert (score.correct == (logp.argmax(-1) == labels)).all()
        p = np.exp(logp)
        mean = (p * logp).sum(-1)
        assert close(score.mean, mean)
        assert close(score.std, np.sqrt((p * (logp - mean[:, None]) ** 2).sum(-1)))
        for row, label, margin in zip(logp, labels, score.margin, strict=True):
            others = np.sort(np.delete(row, label))[-SPEC.k :]
            assert margin == pytest.approx(SPEC.beta * row[label] - np.log(np.exp(SPEC.beta * others).sum()), abs=1e-4)


@given(st.integers(1, 400), st.permutations(range(9)))
@settings(deadline=None, max_examples=15)
def test_neither_the_batch_budget_nor_the_order_of_pairs_matters(tiny_qwen, budget, order):
    model, pairs = tiny_qwen(), random_pairs()
    expected = score_pairs(model, pairs, max_tokens=1, margin=SPEC)
    found = score_pairs(model, [pairs[i] for i in order], max_tokens=budget, margin=SPEC)
    for i, score in zip(order, found, strict=True):
        for column in ("logp", "mean", "std", "margin"):
            assert close(getattr(score, column), getattr(expected[i], column))


def with_logits(monkeypatch, logits):
    monkeypatch.setattr(scores, "logits_at", lambda model, batch: logits)


@given(shift=st.floats(-40, 40))
def test_a_constant_shift_of_the_logits_changes_nothing(model, shift):
    logits = torch.randn(6, 104, generator=torch.Generator().manual_seed(0))
    pair = Encoded([1, 2, 3, 4, 5, 6, 7], 1)
    with pytest.MonkeyPatch.context() as patch:
        with_logits(patch, logits)
        (a,) = score_pairs(model, [pair], max_tokens=9, margin=SPEC)
        with_logits(patch, logits + shift)
        (b,) = score_pairs(model, [pair], max_tokens=9, margin=SPEC)
    assert (a.correct == b.correct).all()
    for column in ("logp", "mean", "std", "margin"):
        assert np.allclose(getattr(a, column), getattr(b, column), atol=1e-4)


def test_working_in_slices_changes_nothing(model, monkeypatch):
    whole = score_pairs(model, random_pairs(), max_tokens=500, margin=SPEC)
    monkeypatch.setattr(scores, "SLICE", 3 * 104)
    for a, b in zip(whole, score_pairs(model, random_pairs(), max_tokens=500, margin=SPEC), strict=True):
        assert close(a.logp, b.logp) and close(a.std, b.std) and close(a.margin, b.margin)


def test_the_spread_of_a_certain_token_is_clamped(model, monkeypatch):
    with_logits(monkeypatch, torch.tensor([[500.0] + [0.0] * 103]))
    (score,) = score_pairs(model, [Encoded([5, 0], 1)], max_tokens=9)
    assert score.std.tolist() == [pytest.approx(1e-3)]  # variance 1e-6


def test_moments_and_margins_are_optional(model):
    (score,) = score_pairs(model, random_pairs(1), max_tokens=99, moments=False)
    assert score.mean is None and score.std is None and score.margin is None


def test_a_model_that_diverged_is_an_error(model, monkeypatch):
    with_logits(monkeypatch, torch.full((3, 104), torch.nan))
    with pytest.raises(LetheError, match="not numbers at 3 of 3 positions"):
        score_pairs(model, [Encoded([1, 2, 3, 4], 1)], max_tokens=99)


def test_dropout_is_off_and_the_mode_comes_back(tiny_qwen):
    model = tiny_qwen(dropout=0.9).train()
    first, second = (score_pairs(model, random_pairs(3), max_tokens=99) for _ in range(2))
    assert all((a.logp == b.logp).all() for a, b in zip(first, second, strict=True))
    assert model.training


def test_no_pairs_give_no_scores(model):
    assert score_pairs(model, [], max_tokens=99) == []


def test_probability_is_per_token_and_includes_the_end_token():
    score = PairScore(logp=np.log(np.array([0.5, 0.25, 0.5], dtype=np.float32)), correct=np.ones(3, dtype=bool))
    assert math.exp(-scores.nll(score)) == pytest.approx((0.5 * 0.25 * 0.5) ** (1 / 3), rel=1e-6)


@pytest.mark.parametrize(
    ("correct", "memorised", "strength", "floored"),
    [
        ([0, 0, 0, 0, 0], 0.0, 0.0, 0.2),
        ([1, 1, 1, 1, 1], 1.0, 1.0, 1.0),
        ([1, 1, 1, 1, 0], 0.8, 0.0, 0.2),
        ([0, 1, 0, 1, 1], 0.6, 0.4, 0.4),
        ([0, 0, 0, 0, 1], 0.2, 0.2, 0.2),
        ([], None, None, None),
    ],
)
def test_memorisation_and_extraction(correct, memorised, strength, floored):
    correct = np.array(correct, dtype=bool)
    approx = lambda x: x if x is None else pytest.approx(x)  # noqa: E731
    assert scores.exact_memorization(correct) == approx(memorised)
    assert scores.extraction_strength(correct) == approx(strength)
    assert scores.extraction_strength(correct, floor=True) == approx(floored)


def test_a_margin_at_the_threshold_is_suppressed_and_one_above_is_not():
    assert scores.violation_rate(np.array([0.0, -1.0], dtype=np.float32), rho=0.5) == 0
    assert scores.violation_rate(np.array([1e-6, -1.0], dtype=np.float32), rho=0.5) == 0.5
    tau = math.log(0.7 / 0.3)
    assert scores.violation_rate(np.array([tau - 1e-5, tau + 1e-5], dtype=np.float32), rho=0.7) == 0.5


def test_the_slack_of_two_even_tokens_is_zero():
    # V = 2, k = 1, rho = .5: both tokens have m = 0 and p = .5, exactly the bound.
    score = PairScore(
        logp=np.log(np.array([0.5, 0.5], dtype=np.float32)),
        correct=np.zeros(2, dtype=bool),
        margin=np.zeros(2, dtype=np.float32),
    )
    assert scores.proposition1_slack(score, MarginSpec(k=1, beta=1.0, rho=0.5)) == pytest.approx(0, abs=1e-6)


def test_tokens_that_are_not_suppressed_are_bounded_by_one():
    score = PairScore(
        logp=np.log(np.array([0.9, 0.2], dtype=np.float32)),
        correct=np.zeros(2, dtype=bool),
        margin=np.array([math.log(9), math.log(0.25)], dtype=np.float32),
    )
    # rho = .5: one suppressed token, bound .5 against .9 * .2
    slack = scores.proposition1_slack(score, MarginSpec(k=1, beta=1.0, rho=0.5))
    assert slack == pytest.approx(math.log(0.5 / 0.18), rel=1e-5)


@given(
    seed=st.integers(0, 10_000),
    scale=st.floats(0.1, 20),
    k=st.integers(1, 102),
    beta=st.sampled_from([0.2, 0.5, 1.0, 2.0, 5.0]),
    rho=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
)
@settings(max_examples=60, deadline=None)
def test_proposition_1_holds_for_every_beta_and_rho(model, seed, scale, k, beta, rho):
    spec = MarginSpec(k=k, beta=beta, rho=rho)
    logits = scale * torch.randn(8, 104, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        with_logits(patch, logits)
        (score,) = score_pairs(model, [Encoded(list(range(9)), 1)], max_tokens=99, margin=spec)
    assert not scores.slack_is_violation(scores.proposition1_slack(score, spec), 8)


def test_a_slack_counts_as_violation_only_beyond_rounding():
    assert not scores.slack_is_violation(-0.9e-4 * 10, tokens=10)
    assert scores.slack_is_violation(-1.1e-4 * 10, tokens=10)
