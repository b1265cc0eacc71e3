"""Sentences are decided by numbers: each test turns the numbers round and sees the sentence turn."""

import pandas as pd
import pytest
from synthetic_summary import edit, write_summary

from lethe.paper import findings
from lethe.paper.data import HEADLINE, SUITES
from lethe.paper.masc_scaling import exponents
from lethe.paper.masc_tables import restored

TOFU = "tofu-forget10"
UP, DOWN = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 0.1, 1: 0.2, 2: 0.0}


@pytest.fixture
def changed(load, tmp_path):
    """The synthetic summary with metrics or runs of one recipe replaced: changed(recipe, column=value or {seed: v})."""

    def change(recipe, **values):
        folder = write_summary(tmp_path / "summary", ladder=["w128"])

        def set_values(frame, metric, value):
            rows = (frame["recipe"] == recipe) & (frame.get("attack", "none") == "none")
            if "metric" in frame:
                frame.loc[rows & (frame["metric"] == metric), "value"] = value
            else:
                frame.loc[rows, metric] = value
            return frame

        for name, value in values.items():
            metric = name.replace("__", ".")
            file = "runs.csv" if name in ("steps_cpu_s", "probes_cpu_s", "alpha", "steps") else "metrics.csv"
            edit(folder, file, lambda frame, m=metric, v=value: set_values(frame, m, v))
        return load(folder)

    return change


def test_a_difference_counts_only_beyond_its_interval():
    assert findings.verdict(DOWN, UP) == "lower" and findings.verdict(UP, DOWN) == "higher"
    assert findings.verdict({0: 0.1, 1: 0.9, 2: 0.2}, {0: 0.2, 1: 0.1, 2: 0.3}) == "undecided"


def test_one_seed_decides_nothing():
    assert findings.verdict({0: 0.1}, {0: 9.0}) == "undecided"
    assert findings.interval(findings.difference({0: 0.1}, {0: 0.3}), 1) == "-0.2, n 1, no interval"
    assert findings.one_seed({0: 1.0}) and not findings.one_seed(UP)


def test_seeds_that_only_one_of_them_has_do_not_count():
    assert findings.difference({0: 1.0, 1: 5.0}, {0: 0.5}).mean == 0.5
    assert findings.difference({0: 1.0}, {1: 1.0}) is None
    assert findings.interval(None) == "no shared seed"


def test_a_spread_worked_by_hand():
    assert findings.spread({0: 1.0, 1: 3.0}, 2) == "2.00 ± 1.41 (n 2)"
    assert findings.spread({0: 1.0}, 2) == "1.00 (n 1)"
    assert findings.spread({}) == "no value"


@pytest.mark.parametrize(
    ("seconds", "sentence"), [(0.01, "it is the fastest."), (50.0, "here it is not the fastest of all.")]
)
def test_masc_is_called_the_fastest_only_if_it_is(changed, seconds, sentence):
    data = changed("masc", steps_cpu_s=seconds, probes_cpu_s=0.0)
    (text,) = findings.faster(data, TOFU, ["npo", "simnpo"], "Table 1", "TOFU")
    assert text.endswith(sentence) and "88 s for MASC and at least 542 s" in text
    faster_than, slower_than = text.split("less than ")[1].split("; ")[:2]
    names = "NPO, SimNPO"
    assert (faster_than, slower_than) == ((names, "more than none") if seconds < 1 else ("none", f"more than {names}"))


@pytest.mark.parametrize(("rouge", "place"), [(0.52, "number 1 of 2"), (0.05, "number 2 of 2")])
def test_closeness_ranks_by_distance_to_the_retrained_model(changed, rouge, place):
    same = {"forget__prob": 0.49, "forget__truth_ratio__geo": 0.85, "forget__rouge_l_recall": rouge}
    (text,) = findings.closeness(changed("masc", **same), TOFU, SUITES["tofu"].forget, ["retrain", "graddiff", "masc"])
    assert f"MASC is {place}" in text


@pytest.mark.parametrize(("recall", "where"), [(0.9, "fires early"), (0.01, "fires late"), (0.15, "cannot be told")])
def test_the_stop_is_early_or_late_by_what_is_left(changed, recall, where):
    data = changed("masc", forget__value_recall=[recall - 0.005, recall, recall + 0.006])
    (text,) = findings.stop_position(data, TOFU)
    assert where in text and "after 20.0 ± 0.0 (n 3) steps" in text and "alpha 0.550" in text


@pytest.mark.parametrize(("accuracy", "names"), [(0.9, "MASC"), (0.2, "none")])
def test_hiding_is_preferring_the_true_value_more_than_retrain_does(changed, accuracy, names):
    (text,) = findings.probes(changed("masc", forget__mcq_acc=accuracy), TOFU, ["retrain", "masc"])
    assert text.endswith(f"rather than forgetting it: {names}.")


@pytest.mark.parametrize(("kept", "words"), [(0.99, "more than NPO"), (0.1, "less than NPO")])
def test_utility_is_compared_seed_by_seed(changed, kept, words):
    (text,) = findings.utility(changed("masc", model_utility=kept), TOFU, SUITES["tofu"].utility[0], ["npo"])
    assert words in text


def test_restored_names_who_gets_recall_back_beyond_the_spread(data):
    (text,) = restored(data, TOFU, ["masc+nf4", "masc-full+nf4", "untouched+nf4"], ["bnb-nf4"])
    assert "MASC (full) (+0.6" in text and "MASC (+0.0" in text and "of 2 methods" in text
    (text,) = restored(data, TOFU, ["masc-full"], ["none"])
    assert "rises beyond the spread over seeds for none" in text


@pytest.mark.parametrize(
    ("alpha", "lo", "hi", "words"),
    [
        (0.3, 0.1, 0.5, "rises with size"),
        (-0.3, -0.5, -0.1, "falls with size"),
        (0.0, -0.2, 0.2, "has no trend beyond its interval with size"),
    ],
)
def test_a_trend_is_one_beyond_its_interval(data, alpha, lo, hi, words):
    row = {"recipe": "simnpo", "benchmark": TOFU, "metric": "model_utility", "stage": "unlearning", "n_kind": "total"}
    (text,) = exponents(pd.DataFrame([row | {"alpha": alpha, "alpha_lo": lo, "alpha_hi": hi}]), data)
    assert words in text
    inside = "inside" if lo <= 0.1489 <= hi else "outside"
    assert text.endswith(f"the paper's 0.149 lies {inside}.")


def test_nothing_is_said_of_methods_that_did_not_run(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", recipes=["target", "retrain", "ga"], ladder=[]))
    assert findings.faster(data, TOFU, ["ga"], "Table 1", "TOFU") == []
    assert findings.closeness(data, TOFU, SUITES["tofu"].forget, HEADLINE) == []
    assert findings.stop_position(data, TOFU) == []
    assert findings.utility(data, TOFU, SUITES["tofu"].utility[0], ["ga"]) == []
