"""The tables that the paper does not have, and those of MASC's settings."""

import json
import math

import pandas as pd
import pytest
from synthetic_summary import MUSE_ROLES, NAMES, SPEC, edit, seal, write_summary

from lethe.metrics.stats import paired_difference
from lethe.paper import masc
from lethe.paper.masc_checks import CONTROLS, POINTS, dominates

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
    assert set(tables["paired"].frame["recipe"]) >= {"simnpo-stop", "graddiff-stop", "masc-random", "masc-shuffled"}


def test_dominance_needs_both_objectives(load, tmp_path):
    folder = write_summary(tmp_path / "summary", ladder=[], attacks=["none"])

    def improve(frame):
        for recipe, utility in (("npo", 0.9), ("ga", 0.1)):
            frame.loc[(frame["recipe"] == recipe) & (frame["metric"] == "model_utility"), "value"] = utility
        return frame

    edit(folder, "metrics.csv", improve)
    table = masc.TABLES["paired"](load(folder))
    assert row(table, recipe="npo")["pareto"] == "dominates MASC"
    assert row(table, recipe="ga")["pareto"] == "dominated by MASC"
    assert row(table, recipe="graddiff")["pareto"] == "neither"  # farther from Retrain, utility not told apart
    (text,) = [note for note in table.notes if "reference point (0, 0)" in note]
    assert "over 1-ROUGE-L, 1-Prob, Truth Ratio, 1-Value recall, and MU" in text
    front = text.split("no other dominates: ")[1].split(". Area")[0].split(", ")
    assert "NPO" in front and "MASC" not in front and "GA" not in front


def test_dominance_is_decided_on_student_intervals():
    level = {0: (0.5, 0.5), 1: (0.5, 0.5), 2: (0.5, 0.5)}
    above = dict.fromkeys(level, (0.7, 0.5))
    wide = {0: (0.51, 0.5), 1: (0.6, 0.5), 2: (0.9, 0.5)}  # every seed above, the interval of three reaches below 0
    assert dominates(above, level) and not dominates(level, above)
    assert not dominates(wide, level)
    assert not dominates(level, level)
    assert not dominates(dict.fromkeys(level, (0.7, 0.4)), level)
    assert not dominates({0: (0.9, 0.9)}, {0: (0.1, 0.1)})  # one seed proves nothing


def test_areas_of_the_fronts_are_those_of_the_means(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "retrain", "npo", "masc"], ladder=[])

    def flat(frame):
        for recipe, utility in (("npo", 0.4), ("masc", 0.5)):
            frame.loc[(frame["recipe"] == recipe) & (frame["metric"] == "model_utility"), "value"] = utility
        first = frame[(frame["recipe"] == "retrain") & (frame["seed"] == 0)]
        retrained = first.set_index(["attack", "metric"])["value"]
        rows = frame["recipe"].isin(["npo", "masc"]) & frame["metric"].isin(NAMES)
        keys = pd.MultiIndex.from_frame(frame.loc[rows, ["attack", "metric"]])
        frame.loc[rows, "value"] = retrained.reindex(keys).to_numpy()
        return frame

    edit(folder, "metrics.csv", flat)
    (text,) = [note for note in masc.TABLES["paired"](load(folder)).notes if note.startswith("Pareto")]
    assert text.endswith("0.5000 with MASC and MASC (full), 0.4000 without.")  # both as close as can be: utility x 1


def test_one_seed_has_differences_without_intervals(load, tmp_path):
    table = masc.TABLES["paired"](load(write_summary(tmp_path / "summary", seeds=1, ladder=[], attacks=["none"])))
    found = row(table, recipe="npo")
    assert not math.isnan(found["1-forget.prob_minus_masc"]) and math.isnan(found["1-forget.prob_minus_masc_lo"])
    assert set(table.frame["pareto"]) == {"neither"}


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
    assert any(note.startswith("32 intervals at 95 %: about 2 would") for note in table.notes)  # 4 rows, 8 scores


def test_points_that_change_nothing_are_told_from_those_that_do(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc", "masc-base", "masc-alpha"], ladder=[])

    def same(frame):
        ours = frame[frame["recipe"] == "masc"].set_index(["model", "seed", "attack", "metric"])["value"]
        rows = frame["recipe"] == "masc-base"
        keys = pd.MultiIndex.from_frame(frame.loc[rows, ["model", "seed", "attack", "metric"]])
        frame.loc[rows, "value"] = ours.reindex(keys).to_numpy()
        return frame

    edit(folder, "metrics.csv", same)
    notes = masc.TABLES["discrepancies"](load(folder)).notes
    assert (
        f"Change a score beyond the spread over seeds ({TOFU}): MASC (the other alpha); change none: "
        "MASC (alternatives of the start)."
    ) in notes
    assert any(
        n.startswith(POINTS["masc-base"]) and "no score changes beyond the spread over seeds" in n for n in notes
    )


@pytest.fixture
def controlled(load, tmp_path):
    """Notes of `controls` with one metric of one recipe replaced."""

    def notes(recipe, metric, value, recipes=CONTROLS):
        folder = write_summary(tmp_path / "summary", recipes=recipes, ladder=[], attacks=["none"])

        def change(frame):
            frame.loc[(frame["recipe"] == recipe) & (frame["metric"] == metric), "value"] = value
            return frame

        edit(folder, "metrics.csv", change)
        return masc.TABLES["controls"](load(folder)).notes

    return notes


def one(notes, start):
    (text,) = [note for note in notes if note.startswith(start)]
    return text


def test_target_and_retrain_are_paired_with_nothing(tables):
    for recipe in ("target", "retrain"):
        assert math.isnan(row(tables["controls"], recipe=recipe)["model_utility_change"])
    assert not math.isnan(row(tables["controls"], recipe="simnpo")["model_utility_change"])


def test_controls_say_whether_a_random_update_harms(tables, controlled):
    random = "A random update of MASC's size"
    assert one(tables["controls"].notes, random).endswith("neither moves beyond the spread.")
    text = one(controlled("masc-random", "forget.value_recall", 0.2), random)
    assert text.endswith("beyond the spread it moves forget value recall.")


@pytest.mark.parametrize(
    ("recall", "words"),
    [(0.9, "forget less."), (0.05, "forget more."), ([0.0, 0.2, 0.5], "no difference beyond the spread.")],
)
def test_controls_say_whether_questions_and_answers_must_belong_together(controlled, recall, words):
    notes = controlled("masc-shuffled", "forget.value_recall", recall)
    assert one(notes, "MASC on shuffled answers").endswith(words)


def test_controls_separate_the_loss_from_the_stop(tables, controlled):
    text = one(tables["controls"].notes, "SimNPO with MASC's stop")
    assert "which did not fire within its budget in seed 0, leaves forget value recall" in text
    assert "Minus MASC: value recall -0.0" in text and "beyond the spread: seconds. Minus SimNPO to the end" in text
    assert "did not fire" not in one(tables["controls"].notes, "GradDiff with MASC's stop")
    text = one(controlled("simnpo-stop", "model_utility", 0.1), "SimNPO with MASC's stop")
    assert "beyond the spread: MU, seconds. Minus SimNPO" in text


def test_controls_that_did_not_run_are_not_spoken_of(controlled):
    notes = controlled("masc", "forget.prob", 0.4, recipes=["target", "retrain", "masc", "simnpo"])
    assert not any(n.startswith(("A random", "MASC on shuffled", "SimNPO with", "GradDiff with")) for n in notes)


def test_table_4_names_the_sign_of_the_paper_where_a_difference_is_decided(tables):
    text = one(tables["table4"].notes, "MASC (full) minus MASC")
    decided, open_ = text.split(" Not told apart: ")
    assert "1-Prob -0.0" in decided and "(paper -0.064, the same sign)" in decided
    assert "Time in s -0.3" in decided and "(paper +52.7, the opposite sign)" in decided
    assert "MU +0.0" in open_ and "sign" not in open_


def test_table_4_has_the_printed_names_of_both_forms(tables):
    assert row(tables["table4"], recipe="masc")["model_utility_paper"] == 0.666
    assert row(tables["table4"], recipe="masc-full")["time_wall_s_paper"] == 140.6


def test_table_5_takes_the_logits_change_from_the_target(tables, data):
    start = data.values(TOFU, "target", "forget.gold_logit")[0]
    after = data.values(TOFU, "masc-k100", "forget.gold_logit")
    found = row(tables["table5"], recipe="masc-k100")
    assert found["delta_zy_mean"] == pytest.approx(sum(after.values()) / 3 - start)
    assert found["delta_zy_paper"] == -13.24 and found["steps_paper"] == 76 and found["k"] == 100


@pytest.mark.parametrize(
    ("logit", "words"),
    [(0.6, "than with k 10: k 100; larger: none"), (-5.0, "than with k 10: none; larger: k 100")],
)
def test_table_5_says_whether_the_logit_falls_less_with_more_alternatives(load, tmp_path, logit, words):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc", "masc-k100"], ladder=[])

    def change(frame):
        frame.loc[(frame["recipe"] == "masc-k100") & (frame["metric"] == "forget.gold_logit"), "value"] = logit
        return frame

    edit(folder, "metrics.csv", change)
    text = one(masc.TABLES["table5"](load(folder)).notes, "Change of the gold logit")
    assert words in text and text.endswith("The paper prints -14.29, -13.24.")


def test_table_6_has_forget_quality_and_multiple_choice(tables):
    found = row(tables["table6"], recipe="ga")
    assert found["forget_quality.p_paper"] == 1.72e-17 and "forget.mcq_acc_mean" in found
    assert any(note.startswith("FQ above .05 in every seed") and "NPO (" in note for note in tables["table6"].notes)
    assert one(tables["table6"].notes, "log10 FQ").endswith(
        "In the paper its FQ, 3.0e-07, is number 1 of 7 from the top."
    )


def test_table_8_reads_the_recipe_of_the_run_and_keeps_printed_benchmarks_of_others(tables):
    found = row(tables["table8"], benchmark=TOFU)
    assert (found["lambda_fg"], found["stop_alpha"], found["alpha_used"]) == (0.05, "retrain", 0.55)
    assert found["stop_alpha_paper"] == 0.475
    text = " ".join(tables["table8"].notes)
    assert "other than the paper's: α retrain (paper 0.475), learning rate 0.001 (paper 0.0001)." in text
    assert "= 0.8473, retain loss kl with weight 1, batch 8" in text  # log(.7 / .3)


def test_table_8_of_a_full_run_without_retain_loss(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])
    spec = SPEC | {"retain": None, "adapter": None, "optimizer": {"lr": 1e-4, "weight_decay": 0.0}}
    edit(
        folder, "runs.csv", lambda frame: frame.assign(spec=frame["spec"].where(frame["spec"].isna(), json.dumps(spec)))
    )
    table = masc.TABLES["table8"](load(folder))
    assert row(table, benchmark="MUSE News")["beta_paper"] == 5
    text = " ".join(table.notes)
    assert "no retain loss" in text and "LoRA rank absent (paper 16)" in text and "learning rate" not in text


def test_table_11_shows_each_recipes_answer_to_the_same_question(tables):
    frame = tables["table11"].frame.query("benchmark == @TOFU")
    assert len(frame) == 4 and frame["target"].tolist() == frame["gold"].tolist()
    assert set(frame["masc"]) == {"50% & *more*\n<b>"}
    assert any("Base 12, Retrain 0" in note for note in tables["table11"].notes)


def test_a_summary_without_the_newer_columns_still_gives_every_table(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "retrain", "simnpo", "masc"], muse=True)
    edit(folder, "runs.csv", lambda frame: frame.drop(columns=["alpha", "spec", "update_norm", "update_over_step"]))
    (folder / "samples.jsonl").write_text(json.dumps({"recipe": "x", "attack": "none"}) + "\n")
    seal(folder)
    data = load(folder, MUSE_ROLES)
    for id, make in masc.TABLES.items():
        assert len(make(data).frame) or id == "table11", id
