import math

import pytest

from lethe.errors import LetheError
from lethe.interop.score_log import read_log
from lethe.metrics.tofu import tofu_metrics

PUBLISHED = {  # of the OpenUnlearning log
    "forget.prob": 0.1478513312060386,
    "forget.rouge_l_recall": 0.39943619182768636,
    "forget.truth_ratio.geo": 0.6808417286151672,
    "retain.prob": 0.9889203828573226,
    "retain.rouge_l_recall": 0.9759454384034817,
    "retain.truth_ratio.geo": 0.4572323830817167,
    "ra.prob": 0.4459381981681224,
    "ra.rouge_l_recall": 0.9155,
    "ra.truth_ratio.geo": 0.5848386806116221,
    "wf.prob": 0.4117809097044924,
    "wf.rouge_l_recall": 0.9017094017094017,
    "wf.truth_ratio.geo": 0.5329362343163795,
    "model_utility": 0.6130190411998432,
    "model_utility.arith": 0.5750339361387284,
}


def test_metrics_of_a_published_log(shared):
    items = read_log(shared / "golden" / "open_unlearning_llama2_retain90.json").items
    found = tofu_metrics(items, bootstrap=200)
    for name, expected in PUBLISHED.items():
        assert found[name]["value"] == pytest.approx(expected, rel=1e-6), name
        assert found[name]["lo"] < expected < found[name]["hi"]
    assert (found["forget.prob"]["n"], found["ra.prob"]["n"], found["model_utility"]["n"]) == (400, 100, 617)


def test_arithmetic_truth_ratios_of_a_published_log(shared):
    found = tofu_metrics(read_log(shared / "golden" / "open_unlearning_llama2_retain90.json").items, bootstrap=0)
    printed = {"retain": 0.4351637, "ra": 0.4925910, "wf": 0.4140635}  # seven digits
    for split, expected in printed.items():
        assert found[f"{split}.truth_ratio.arith"]["value"] == pytest.approx(expected, abs=6e-8)


def test_forget_quality_of_a_published_log_against_its_retrained_model(shared):
    model, retrained = (
        read_log(shared / "golden" / f"tofu_llama2_{run}_wd0.01.json").items for run in ("full", "retain90")
    )
    found = tofu_metrics(model, retrained, bootstrap=100)
    assert found["forget_quality.p"]["value"] == pytest.approx(1.834066410994743e-21, rel=1e-6)
    assert found["forget_quality.log10p"]["value"] == pytest.approx(math.log10(1.834066410994743e-21), rel=1e-6)
    assert found["forget_quality.D"]["value"] == pytest.approx(0.396667, abs=1e-6)
    assert found["forget_quality.D"]["n"] == 300
    assert "KS exact, n 300/300" in found["forget_quality.p"]["reason"]


def test_a_reference_with_other_questions_is_refused_by_name(shared):
    model, other = (
        read_log(shared / "golden" / f"tofu_llama2_{run}_wd0.01.json").items for run in ("full", "retain95")
    )
    with pytest.raises(LetheError, match=r"a\.parquet and b\.parquet: different questions, the first at 0: 'What is"):
        tofu_metrics(model, other, name="a.parquet", reference_name="b.parquet")
