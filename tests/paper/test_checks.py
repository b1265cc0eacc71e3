"""The tables that the paper does not have, and those of MASC's settings."""

import json
import math

import pytest
from synthetic_summary import edit, write_summary

from lethe.metrics.stats import paired_difference
from lethe.paper import masc
from lethe.paper.masc_checks import GRID_ATTACKS, POINTS

TOFU = "tofu-forget10"


@pytest.fixture(scope="module")
def tables(data):
    return {id: make(data) for id, make in masc.TABLES.items()}


def row(table, **keys):
    frame = table.frame
    for column, value in keys.items():
        frame = frame[frame[column] == value]
    (record,) = frame.to_dict("records")
    return record


def test_a_paired_difference_is_that_of_the_seeds(tables, data):
    a, b = (data.values(TOFU, r, "forget.prob") for r in ("npo", "masc"))
    expected = paired_difference(b, a)  # the table has 1 - probability
    found = row(tables["paired"], recipe="npo")
    assert found["1-forget.prob_minus_masc"] == pytest.approx(expected.mean)
    assert found["1-forget.prob_minus_masc_lo"] == pytest.approx(expected.lo)
    assert found["1-forget.prob_minus_masc_hi"] == pytest.approx(expected.hi)
    assert not {"masc", "target", "retrain"} & set(tables["paired"].frame["recipe"])


def test_dominance_needs_both_objectives(load, tmp_path):
    folder = write_summary(tmp_path / "summary", ladder=[])

    def improve(frame):
        for recipe, utility in (("npo", 0.9), ("ga", 0.1)):
            frame.loc[(frame["recipe"] == recipe) & (frame["metric"] == "model_utility"), "value"] = utility
        return frame

    edit(folder, "metrics.csv", improve)
    table = masc.TABLES["paired"](load(folder))
    assert row(table, recipe="npo")["pareto"] == "dominates MASC"
    assert row(table, recipe="ga")["pareto"] == "dominated by MASC"
    assert any("reference point (0, 0)" in note for note in table.notes)


def test_one_seed_has_differences_without_intervals(load, tmp_path):
    table = masc.TABLES["paired"](load(write_summary(tmp_path / "summary", seeds=1, ladder=[])))
    found = row(table, recipe="npo")
    assert not math.isnan(found["1-forget.prob_minus_masc"]) and math.isnan(found["1-forget.prob_minus_masc_lo"])
    assert set(table.frame["pareto"]) == {""}


def test_every_point_that_ran_has_a_row_and_the_change_it_makes(tables, data):
    table = tables["discrepancies"]
    ran = {"masc", "masc-noretain", "masc-base", "masc-pooled", "masc-alpha"}
    assert set(table.frame["recipe"]) == ran
    assert [POINTS[r] for r in table.frame["recipe"]] == table.frame["point"].tolist()
    expected = paired_difference(*(data.values(TOFU, r, "model_utility") for r in ("masc-noretain", "masc")))
    assert row(table, recipe="masc-noretain")["model_utility_change"] == pytest.approx(expected.mean)
    assert math.isnan(row(table, recipe="masc")["model_utility_change"])
    assert any(note.startswith(POINTS["masc-noretain"]) and "MU -0.1" in note for note in table.notes)
    assert "model_utility.retain_mean" in table.frame


def test_controls_say_whether_a_random_update_forgets(tables, load, tmp_path):
    text = " ".join(tables["controls"].notes)
    assert "Random update of masc's size (tofu-forget10): forget value recall" in text
    assert "it leaves the forget set alone" in text
    folder = write_summary(tmp_path / "summary", ladder=[])

    def forget(frame):
        rows = (frame["recipe"] == "masc-random") & (frame["metric"] == "forget.value_recall")
        frame.loc[rows, "value"] = 0.2
        return frame

    edit(folder, "metrics.csv", forget)
    assert "it forgets by itself" in " ".join(masc.TABLES["controls"](load(folder)).notes)


def test_controls_compare_the_stopped_baselines_with_masc(tables):
    (text,) = [note for note in tables["controls"].notes if note.startswith("SimNPO with MASC's stop")]
    assert "leaves forget value recall" in text and "(not told apart from what MASC leaves)" in text


def test_the_grid_has_both_starts_under_both_quantisers(tables):
    frame = tables["table3-grid"].frame
    native = frame[frame["start"] == "4-bit-native"]
    assert set(native["recipe"]) == {"target", "npo-klr", "simnpo", "simnpo-small", "masc", "masc-full"}
    assert set(frame["attack"]) == {"none", *GRID_ATTACKS}
    small = row(tables["table3-grid"], recipe="simnpo-small", start="4-bit-native", attack="bnb-nf4")
    assert small["forget.value_recall_delta_mean"] == pytest.approx(0.79, abs=0.02)
    assert row(tables["table3-grid"], recipe="masc", start="as it is", attack="none")["update_over_step"] == 0.08
    assert any("constructed" in note for note in tables["table3-grid"].notes)


def test_table_4_has_the_printed_names_of_both_forms(tables):
    assert row(tables["table4"], recipe="masc")["model_utility_paper"] == 0.666
    assert row(tables["table4"], recipe="masc-full")["time_wall_s_paper"] == 140.6


def test_table_5_takes_the_logits_change_from_the_target(tables, data):
    start = data.values(TOFU, "target", "forget.gold_logit")[0]
    after = data.values(TOFU, "masc-k100", "forget.gold_logit")
    found = row(tables["table5"], recipe="masc-k100")
    assert found["delta_zy_mean"] == pytest.approx(sum(after.values()) / 3 - start)
    assert found["delta_zy_paper"] == -13.24 and found["steps_paper"] == 76 and found["k"] == 100


def test_table_6_has_forget_quality_and_multiple_choice(tables):
    found = row(tables["table6"], recipe="ga")
    assert found["forget_quality.p_paper"] == 1.72e-17 and "forget.mcq_acc_mean" in found
    assert any(note.startswith("FQ above .05 in every seed") and "NPO (" in note for note in tables["table6"].notes)


def test_table_8_reads_the_recipe_of_the_run_and_keeps_printed_benchmarks_of_others(tables):
    found = row(tables["table8"], benchmark=TOFU)
    assert (found["lambda_fg"], found["stop_alpha"], found["alpha_used"]) == (0.05, "retrain", 0.55)
    assert found["stop_alpha_paper"] == 0.475
    assert row(tables["table8"], benchmark="MUSE News")["beta_paper"] == 5


def test_table_11_shows_each_recipes_answer_to_the_same_question(tables):
    frame = tables["table11"].frame
    assert len(frame) == 4 and frame["target"].tolist() == frame["gold"].tolist()
    assert set(frame["masc"]) == {"50% & more"}
    assert any("Base 4, Retrain 0" in note for note in tables["table11"].notes)


def test_a_summary_without_the_newer_columns_still_gives_every_table(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "retrain", "simnpo", "masc"])
    edit(folder, "runs.csv", lambda frame: frame.drop(columns=["alpha", "spec", "update_norm", "update_over_step"]))
    (folder / "samples.jsonl").write_text(json.dumps({"recipe": "x", "attack": "none"}) + "\n")
    from synthetic_summary import seal

    seal(folder)
    data = load(folder)
    for id, make in masc.TABLES.items():
        assert len(make(data).frame) or id == "table11", id
