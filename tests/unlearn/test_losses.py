import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from lethe.unlearn import losses
from lethe.unlearn.losses import REDUCTIONS, ce, ga, kl, npo, per_sequence, per_token, sequence_nll, simnpo, token_nll
from lethe.unlearn.margin import margin_hinge

VOCAB = 11
LENGTHS = [1, 4, 2, 7]  # supervised tokens of the four rows of a batch


def logits_of(n: int, bound: float = 20) -> st.SearchStrategy[Tensor]:
    elements = st.floats(-bound, bound, width=32)
    return arrays(np.float32, (n, VOCAB), elements=elements).map(torch.from_numpy)


@dataclass
class Rows:
    """Rows of a padded batch: logits (B, T, V) under the model and under the reference, labels (B, T), lengths."""

    logits: Tensor
    reference: Tensor
    labels: Tensor
    lengths: list[int]

    @staticmethod
    def example(width: int) -> "Rows":
        g = torch.Generator().manual_seed(0)
        shape = (len(LENGTHS), max(LENGTHS))
        logits, reference = torch.randn(*shape, VOCAB, generator=g) * 2, torch.randn(*shape, VOCAB, generator=g) * 2
        labels = torch.randint(VOCAB, shape, generator=g)
        pad = width - max(LENGTHS)
        return Rows(
            F.pad(logits, (0, 0, 0, pad), value=3.0).requires_grad_(),
            F.pad(reference, (0, 0, 0, pad), value=-1.0).requires_grad_(),
            F.pad(labels, (0, pad)),
            LENGTHS,
        )

    def take(self, rows: list[int]) -> "Rows":
        return Rows(self.logits[rows], self.reference[rows], self.labels[rows], [self.lengths[i] for i in rows])

    @property
    def supervised(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(n, V) logits and reference logits, (n,) labels and item."""
        counts = torch.tensor(self.lengths)
        item = torch.arange(len(counts)).repeat_interleave(counts)
        cols = torch.cat([torch.arange(c) for c in self.lengths])
        return self.logits[item, cols], self.reference[item, cols], self.labels[item, cols], item


def of_tokens(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Rows], tuple[Tensor, Tensor]]:
    def values(rows: Rows) -> tuple[Tensor, Tensor]:
        logits, reference, labels, item = rows.supervised
        return loss(logits, reference, labels), item

    return values


def of_sequences(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Rows], tuple[Tensor, Tensor]]:
    def values(rows: Rows) -> tuple[Tensor, Tensor]:
        logits, reference, labels, item = rows.supervised
        n = len(rows.lengths)
        nll, reference_nll = sequence_nll(logits, labels, item, n), sequence_nll(reference, labels, item, n)
        return loss(nll, reference_nll, torch.tensor(rows.lengths)), torch.arange(n)

    return values


# name -> (rows -> values and the item each belongs to), uses the reference
LOSSES = {
    "ce": (of_tokens(lambda z, r, y: ce(z, y)), False),
    "ga": (of_tokens(lambda z, r, y: ga(z, y)), False),
    "kl": (of_tokens(lambda z, r, y: kl(r, z)), True),
    "margin_hinge": (of_tokens(lambda z, r, y: margin_hinge(z, y, k=3, beta=2.0, rho=0.3, eta=30.0)), False),
    "npo": (of_sequences(lambda nll, ref, n: npo(-nll, -ref, beta=0.1)), True),
    "simnpo": (of_sequences(lambda nll, ref, n: simnpo(nll, n, beta=2.5, delta=0.1)), False),
}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)


def mean_and_gradient(name: str, reduction: str, parts: list[list[int]], width: int) -> tuple[Tensor, Tensor]:
    """Loss of the effective batch, and its gradient at the real positions, accumulated over the parts."""
    rows = Rows.example(width)
    total, count = torch.zeros(()), 0
    for part in parts:
        values, item = LOSSES[name][0](rows.take(part))
        s, c = REDUCTIONS[reduction](values, item)
        total, count = total + s, count + c
    (gradient,) = torch.autograd.grad(total / count, rows.logits)
    assert gradient[:, max(LENGTHS) :].abs().sum() == 0
    return total / count, gradient[:, : max(LENGTHS)]


@every_loss
@every_reduction
@pytest.mark.parametrize("parts", [[[0], [1], [2], [3]], [[0, 1, 2], [3]], [[3, 0], [2, 1]]])
def test_micro_batches_of_unequal_lengths_equal_the_large_batch(name, reduction, parts):
    whole, accumulated = (mean_and_gradient(name, reduction, p, width=7) for p in ([[0, 1, 2, 3]], parts))
    torch.testing.assert_close(accumulated, whole, rtol=1e-5, atol=1e-6)


@every_loss
@every_reduction
def test_padding_changes_nothing(name, reduction):
    tight, padded = (mean_and_gradient(name, reduction, [[0, 1, 2, 3]], width=w) for w in (7, 13))
    torch.testing.assert_close(padded, tight, rtol=0, atol=0)


@every_loss
def test_every_loss_depends_on_every_input(name):
    values, uses_reference = LOSSES[name]
    rows = Rows.example(width=7)
    inputs = [rows.logits, rows.reference] if uses_reference else [rows.logits]
    for gradient in torch.autograd.grad(values(rows)[0].sum(), inputs):
        assert all(gradient[b, :n].abs().sum(-1).min() > 0 for b, n in enumerate(LENGTHS))


@every_loss
def test_half_precision_logits_give_float32_losses(name):
    rows = Rows.example(width=7)
    half = Rows(rows.logits.bfloat16(), rows.reference.bfloat16(), rows.labels, rows.lengths)
    rounded = Rows(half.logits.float(), half.reference.float(), rows.labels, rows.lengths)
    got, expected = LOSSES[name][0](half)[0], LOSSES[name][0](rounded)[0]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@every_loss
@settings(max_examples=25, deadline=None)
@given(
    logits=logits_of(5),
    reference=logits_of(5),
    shifts=arrays(np.float32, 5, elements=st.floats(-50, 50, width=32)).map(torch.from_numpy),
)
def test_a_constant_added_to_the_logits_changes_nothing(name, logits, reference, shifts):
    labels = torch.tensor([[0, 3, 7, 10, 2]])
    plain = Rows(logits[None], reference[None], labels, [5])
    shifted = Rows((logits + shifts[:, None])[None], (reference - shifts[:, None])[None], labels, [5])
    torch.testing.assert_close(LOSSES[name][0](shifted)[0], LOSSES[name][0](plain)[0], rtol=1e-5, atol=2e-4)


def test_reductions_of_hand_worked_values():
    values, item = torch.tensor([1.0, 2.0, 6.0, 3.0]), torch.tensor([0, 1, 1, 1])
    assert per_token(values, item) == (12.0, 4)
    total, count = per_sequence(values, item)  # 1 + (2 + 6 + 3) / 3
    assert (float(total), count) == (pytest.approx(1 + 11 / 3), 2)


def test_per_sequence_does_not_count_a_row_without_values():
    total, count = per_sequence(torch.tensor([2.0, 4.0]), torch.tensor([0, 2]))
    assert (float(total), count) == (6.0, 2)


def test_reductions_agree_where_a_loss_has_one_value_a_sequence():
    values = torch.tensor([1.0, 4.0, 2.5])
    assert per_token(values, torch.arange(3)) == per_sequence(values, torch.arange(3)) == (7.5, 3)


def test_nll_of_hand_worked_probabilities():
    logits = torch.tensor([[1.0, 3.0], [1.0, 1.0], [4.0, 1.0]]).log() + 5  # p = 1/4, 3/4; 1/2, 1/2; 4/5, 1/5
    labels, item = torch.tensor([0, 1, 1]), torch.tensor([0, 2, 2])
    torch.testing.assert_close(token_nll(logits, labels), torch.tensor([4.0, 2.0, 5.0]).log())
    torch.testing.assert_close(sequence_nll(logits, labels, item, 3), torch.tensor([math.log(4), 0, math.log(10)]))


def test_gradient_ascent_descends_the_likelihood():
    """d/dz of +log p_y is onehot - p: a step against it lowers the gold logit and raises all others."""
    logits = torch.tensor([[1.0, 3.0]]).log().requires_grad_()
    (gradient,) = torch.autograd.grad(ga(logits, torch.tensor([0])).sum(), logits)
    torch.testing.assert_close(gradient, torch.tensor([[0.75, -0.75]]))


def test_npo_at_the_reference_is_two_over_beta_log_two():
    logp = torch.tensor([-3.0, -40.0])
    torch.testing.assert_close(npo(logp, logp, beta=0.1), torch.tensor([13.8629, 13.8629]), rtol=0, atol=1e-4)


def test_npo_equals_its_closed_form():
    """ratio pi / pi_ref = e^-2, beta = .5: -(4) log sigma(1) = 4 log(1 + 1/e); its gradient in log pi is 2 (1 - p)."""
    logp = torch.tensor([-7.0], requires_grad=True)
    loss = npo(logp, torch.tensor([-5.0]), beta=0.5)
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    assert loss.item() == pytest.approx(4 * math.log(1 + math.exp(-1)))
    assert gradient.item() == pytest.approx(2 / (1 + math.e))


def test_simnpo_equals_its_closed_form():
    """12 nats over 4 tokens with delta 1 and beta 2.5: -(2/2.5) log sigma(2.5 (3 - 1)) = .8 log(1 + e^-5)."""
    loss = simnpo(torch.tensor([12.0]), torch.tensor([4]), beta=2.5, delta=1.0)
    assert float(loss) == pytest.approx(0.8 * math.log(1 + math.exp(-5)), rel=1e-5)


def test_simnpo_depends_on_the_mean_nll_not_on_the_length():
    short, long = simnpo(torch.tensor([2.0, 20.0]), torch.tensor([2, 20]), beta=4.5)
    assert short == long == pytest.approx(2 / 4.5 * math.log(1 + math.exp(-4.5)), rel=1e-5)


@given(logp=st.floats(-200, 0), drop=st.floats(0.01, 50), beta=st.floats(0.05, 5))
def test_npo_and_simnpo_fall_as_the_forget_likelihood_falls(logp, drop, beta):
    lp = torch.tensor([logp, logp - drop], dtype=torch.float64)
    remembered, forgotten = npo(lp, torch.tensor([-20.0, -20.0]), beta).tolist()
    assert forgotten <= remembered and (forgotten < remembered or remembered < 1e-6)
    remembered, forgotten = simnpo(-lp, torch.tensor([10, 10]), beta).tolist()
    assert forgotten <= remembered and (forgotten < remembered or remembered < 1e-6)


def test_kl_of_hand_worked_distributions():
    """ref = (1/2, 1/2), model = (1/4, 3/4): KL(ref || model) = log(2 / sqrt 3); the other direction differs."""
    ref, model = torch.tensor([[1.0, 1.0]]).log(), torch.tensor([[1.0, 3.0]]).log()
    assert float(kl(ref, model)) == pytest.approx(math.log(2 / math.sqrt(3)), rel=1e-5)
    assert float(kl(model, ref)) == pytest.approx(0.75 * math.log(3) - math.log(2), rel=1e-5)


@settings(deadline=None)
@given(reference=logits_of(3), logits=logits_of(3))
def test_kl_is_never_negative_and_zero_at_equality(reference, logits):
    assert kl(reference, logits).min() >= -1e-6
    assert kl(reference, reference).tolist() == [0.0] * 3


@settings(deadline=None)
@given(reference=logits_of(3), logits=logits_of(3))
def test_kl_takes_logits_or_log_probabilities_of_the_reference(reference, logits):
    torch.testing.assert_close(kl(reference.log_softmax(-1), logits), kl(reference, logits), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_kl_is_the_difference_of_probabilities():
    rows = Rows.example(width=7)
    logits, reference, _, _ = rows.supervised
    (gradient,) = torch.autograd.grad(kl(reference.detach(), logits).sum(), logits)
    torch.testing.assert_close(gradient, logits.softmax(-1) - reference.softmax(-1), rtol=1e-4, atol=1e-6)


def test_kl_in_chunks_equals_kl_at_once_and_keeps_no_distribution_for_the_backward_pass(monkeypatch):
    logits, reference, _, _ = Rows.example(width=7).supervised
    reference = reference.detach()
    (whole_gradient,) = torch.autograd.grad(kl(reference, logits).sum(), logits, retain_graph=True)
    whole = kl(reference, logits)
    monkeypatch.setattr(losses, "KL_CHUNK", 4)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        chunked = kl(reference, logits)
    (gradient,) = torch.autograd.grad(chunked.sum(), logits)
    torch.testing.assert_close((chunked, gradient), (whole, whole_gradient), rtol=0, atol=0)
    inputs = {logits.untyped_storage().data_ptr(), reference.untyped_storage().data_ptr()}
    assert all(t.untyped_storage().data_ptr() in inputs for t in saved if t.numel() > 0)
