"""Sentences are decided by numbers: each test turns the numbers round and sees the sentence turn."""

import re

import pandas as pd
import pytest
from synthetic_summary import edit, write_summary

from lethe.paper import findings, masc
from lethe.paper.data import HEADLINE, SUITES, Score
from lethe.paper.masc_scaling import exponents

TOFU = "tofu-forget10"
UP, DOWN = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 0.1, 1: 0.2, 2: 0.0}


@pytest.fixture
def changed(load, tmp_path):
    """The synthetic summary with metrics or runs of one recipe replaced: changed(recipe, column=value or {seed: v})."""

    def change(recipe, **values):
        recipes = ["target", "retrain", "graddiff", "npo", "simnpo", "masc"]
        folder = write_summary(tmp_path / "summary", recipes=recipes, ladder=[], attacks=["none"])

        def set_values(frame, metric, value):
            rows = (frame["recipe"] == recipe) & (frame.get("attack", "none") == "none")
            if "metric" in frame:
                frame.loc[rows & (frame["metric"] == metric), "value"] = value
            else:
                frame.loc[rows, metric] = value
            return frame

        for name, value in values.items():
            metric = name.replace("__", ".")
            runs = ("steps_cpu_s", "probes_cpu_s", "alpha", "steps", "stop_reason")
            file = "runs.csv" if name in runs else "metrics.csv"
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


def test_an_ordering_names_each_group_that_has_members():
    between = {0: 0.5, 1: 0.61, 2: 0.38}
    assert findings.ordering(between, {"A": UP, "B": DOWN, "C": between}) == (
        "less than A; more than B; not told apart from C"
    )
    assert findings.ordering(between, {"A": UP}, "closer than") == "closer than A"


def test_a_number_without_seeds_is_held_against_each_seed():
    found = findings.versus({0: 1.0, 1: 3.0}, 1.0)
    assert (found.mean, found.n) == (1.0, 2) and findings.versus({}, 1.0) is None


@pytest.mark.parametrize(("n", "expected"), [(9, []), (60, ["about 3 would"])])
def test_many_intervals_come_with_what_chance_alone_shows(n, expected):
    assert [re.search("about . would", text).group() for text in findings.many_intervals(n)] == expected


@pytest.mark.parametrize(
    ("seconds", "order", "here"),
    [
        (0.01, "less than NPO, SimNPO", "here it is faster than all 2 of them."),
        (50.0, "more than NPO, SimNPO", "here it is slower than NPO, SimNPO."),
        ([0.1, 2.4, 9.0], "not told apart from NPO, SimNPO", "here it cannot be told apart from NPO, SimNPO."),
    ],
)
def test_masc_is_called_faster_slower_or_neither(changed, seconds, order, here):
    data = changed("masc", steps_cpu_s=seconds, probes_cpu_s=0.0)
    (text,) = findings.faster(data, TOFU, ["npo", "simnpo"], "Table 1", "TOFU")
    assert f" CPU s, {order}. Optimiser steps: 20.0 ± 0.0 (n 3), fewer than NPO, SimNPO." in text
    assert text.endswith(f"The paper prints 87.9 s for MASC and 541.7 to 856.3 s for the others; {here}")


def test_one_seed_is_warned_of_wherever_rows_are_held_against_masc(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", seeds=1, ladder=[]))
    (warning,) = findings.lone_seed(data, [TOFU])
    assert findings.faster(data, TOFU, ["npo"], "Table 1", "TOFU")[1:] == [warning]
    assert "does not say whether it fires early or late" in findings.stop_position(data, TOFU)[0]
    for id in ("table1", "paired", "table3-tofu", "table3-grid", "table4", "table5", "table6", "controls",
               "discrepancies"):  # fmt: skip
        assert masc.TABLES[id](data).notes.count(warning) == 1, id


def test_three_seeds_are_not_warned_of(data):
    assert findings.lone_seed(data, [TOFU]) == []


@pytest.mark.parametrize(("rouge", "place"), [(0.52, "number 1 of 2"), (0.05, "number 2 of 2")])
def test_closeness_ranks_by_distance_to_the_retrained_model(changed, rouge, place):
    same = {"forget__prob": 0.49, "forget__truth_ratio__geo": 0.85, "forget__rouge_l_recall": rouge}
    (text,) = findings.closeness(changed("masc", **same), TOFU, SUITES["tofu"].forget, ["retrain", "graddiff", "masc"])
    assert f"MASC, {place} with" in text and f"is {'closer' if rouge > 0.5 else 'farther'} than GradDiff." in text


@pytest.mark.parametrize(("recall", "where"), [(0.9, "fires early"), (0.01, "fires late"), (0.15, "cannot be told")])
def test_the_stop_is_early_or_late_by_what_is_left(changed, recall, where):
    data = changed("masc", forget__value_recall=[recall - 0.005, recall, recall + 0.006])
    (text,) = findings.stop_position(data, TOFU)
    assert where in text and "after 20.0 ± 0.0 (n 3) steps" in text and "alpha 0.550" in text
    assert "budget" not in text


def test_a_budget_that_ended_before_the_stop_is_told(changed):
    data = changed("masc", stop_reason=["satisfied", "budget", "budget"])
    assert findings.unstopped(data, TOFU, "masc") == [1, 2]
    assert "in seed 1, 2 the budget ended before the rule fired" in findings.stop_position(data, TOFU)[0]
    assert findings.unstopped(data, TOFU, "npo") == []  # a fixed budget is no rule that failed to fire


@pytest.mark.parametrize(
    ("accuracy", "group"),
    [
        (0.9, "offered: MASC 0.90"),
        (0.02, "below it: MASC 0.02"),
        ([0.1, 0.5, 0.1], "not told apart from it: MASC 0.23"),
    ],
)
def test_who_knows_the_value_is_decided_against_retrain(changed, accuracy, group):
    (text,) = findings.probes(changed("masc", forget__mcq_acc=accuracy), TOFU, ["retrain", "masc"])
    assert group in text and text.count("MASC") == 1


@pytest.mark.parametrize(("kept", "words"), [(0.99, "more than NPO"), (0.1, "less than NPO")])
def test_utility_is_compared_seed_by_seed(changed, kept, words):
    data = changed("masc", model_utility=kept)
    (text,) = findings.utility(data, TOFU, SUITES["tofu"].utility[0], ["npo"], "Table 1", "TOFU")
    start = data.values(TOFU, "target", "model_utility")[0]
    assert words in text and f"starts from {start:.3f} (difference {kept - start:+.3f} [" in text
    assert text.endswith("The paper prints 0.666 for MASC, 0.533 to 0.533 for the others, 0.628 before unlearning.")


@pytest.mark.parametrize(
    ("left", "words"), [(0.99, "more is left than with NPO"), (0.01, "less is left than with NPO")]
)
def test_what_is_left_is_compared_with_the_fixed_budgets(changed, left, words):
    (text,) = findings.amount(changed("masc", forget__value_recall=left), TOFU, ["npo"])
    assert text.endswith(f"{words}.") and text.startswith("Forget value recall")


def test_rouge_stands_in_where_the_data_have_no_values(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])
    edit(folder, "metrics.csv", lambda frame: frame[frame["metric"] != "forget.value_recall"])
    assert findings.recall(load(folder), TOFU) == Score("forget.rouge_l_recall", "ROUGE-L recall")


@pytest.mark.parametrize(
    ("alpha", "lo", "hi", "words"),
    [
        (0.3, 0.1, 0.5, "rises with size"),
        (-0.3, -0.5, -0.1, "falls with size"),
        (0.0, -0.2, 0.2, "neither rises nor falls with size beyond the interval, which holds 0"),
    ],
)
def test_a_trend_is_one_beyond_its_interval(data, alpha, lo, hi, words):
    row = {"recipe": "simnpo", "benchmark": TOFU, "metric": "model_utility", "stage": "unlearning", "n_kind": "total"}
    row |= {"n_sizes": 4, "n_seeds": 3}
    (text,) = exponents(pd.DataFrame([row | {"alpha": alpha, "alpha_lo": lo, "alpha_hi": hi}]), data)
    assert words in text
    inside = "inside" if lo <= 0.1489 <= hi else "outside"
    assert text.endswith(f"the paper's 0.149 lies {inside}.")


def test_nothing_is_said_of_methods_that_did_not_run(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", recipes=["target", "retrain", "ga"], ladder=[]))
    assert findings.faster(data, TOFU, ["ga"], "Table 1", "TOFU") == []
    assert findings.closeness(data, TOFU, SUITES["tofu"].forget, HEADLINE) == []
    assert findings.stop_position(data, TOFU) == []
    assert findings.utility(data, TOFU, SUITES["tofu"].utility[0], ["ga"], "Table 1", "TOFU") == []
    assert findings.amount(data, TOFU, ["ga"]) == []
