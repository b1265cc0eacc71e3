import json
import math
import zlib

import numpy as np
import pytest

from lethe.errors import LetheError
from lethe.metrics import privacy


@pytest.mark.parametrize("metric", ["mia_loss", "mia_min_k", "mia_min_k_plus_plus", "mia_zlib", "mia_gradnorm"])
def test_our_auc_is_one_minus_that_of_a_published_log(shared, metric):
    log = json.loads((shared / "golden" / "open_unlearning_llama2_retain90.json").read_text())[metric]
    forget, holdout = (
        np.array([item["score"] for item in log[group]["value_by_index"].values()]) for group in ("forget", "holdout")
    )
    assert privacy.membership_auc(forget, holdout) == pytest.approx(1 - log["auc"], rel=1e-6)


def test_privleak_of_the_published_log_is_against_a_reference_of_one_half():
    assert privacy.privleak(1 - 0.38666875, 0.5) == pytest.approx(22.666249995466746, rel=1e-6)


def test_a_memorised_target_is_near_minus_100():
    assert privacy.privleak(privacy.membership_auc(np.array([0.1, 0.2]), np.array([2.0, 3.0])), 0.5) == -100


def test_an_over_unlearned_model_is_labelled_and_not_clipped():
    # OpenUnlearning's orientation: AUC .00002 against a reference of .9812
    a, reference = 1 - 0.00002, 1 - 0.9812
    assert privacy.privleak(a, reference) == pytest.approx(5219, abs=0.5)
    assert "over-unlearned" in privacy.auc_note(a)
    assert "far from .5" in privacy.reference_note(reference)


def test_notes_begin_beyond_their_thresholds():
    assert privacy.auc_note(0.95) is None
    assert privacy.auc_note(0.9501) is not None
    inside = {a: privacy.reference_note(a) is None for a in (0.299, 0.3, 0.5, 0.7, 0.701)}
    assert inside == {0.299: False, 0.3: True, 0.5: True, 0.7: True, 0.701: False}


def test_privleak_needs_a_reference_above_zero():
    with pytest.raises(LetheError, match="reference AUC"):
        privacy.privleak(0.5, 0.0)


def test_min_k_averages_the_lowest_tokens():
    logp = np.log([0.5, 0.1, 0.9, 0.2, 0.8])  # 40 % of 5 tokens: the two at .1 and .2
    assert privacy.min_k(logp) == pytest.approx(-(math.log(0.1) + math.log(0.2)) / 2)


def test_min_k_takes_at_least_one_token_and_nothing_from_no_tokens():
    assert privacy.min_k(np.log([0.5, 0.25])) == pytest.approx(-math.log(0.25))  # int(.8) = 0
    assert privacy.min_k(np.array([])) is None


def test_min_k_pp_standardises_each_token_first():
    logp, mean, std = np.array([-2.0, -8.0]), np.array([-1.0, -8.0]), np.array([0.5, 1.0])
    assert privacy.min_k_pp(logp, mean, std) == pytest.approx(2.0)  # (-2 - -1) / .5 = -2, below 0


def test_zlib_divides_by_the_compressed_bytes():
    assert privacy.zlib_score(3.0, "Hé") == pytest.approx(3.0 / len(zlib.compress("Hé".encode())))
