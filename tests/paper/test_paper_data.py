import copy
import math

import pytest
from synthetic_summary import ROLES, edit, write_summary

from lethe.errors import LetheError
from lethe.paper.data import SUITES, PaperData, Reported, Score, in_order, parameters

TOFU = "tofu-forget10"
PROB = Score("forget.prob", "1-Prob", top=1, overshoots=True)


def test_recipes_come_in_printed_order_and_unknown_ones_after_by_name():
    assert in_order(["zeta", "masc", "ga", "alpha", "retrain", "target", "ga"]) == [
        "target", "retrain", "ga", "masc", "alpha", "zeta",
    ]  # fmt: skip


def test_a_complement_is_named_and_taken():
    assert (PROB.name, PROB.of(0.2)) == ("1-forget.prob", 0.8)
    assert Score("model_utility", "MU").of(0.2) == 0.2


def test_values_per_seed_are_those_of_metrics_csv(data):
    rows = data.per_seed(TOFU, [PROB])
    row = rows[(rows["recipe"] == "masc") & (rows["seed"] == 2)]
    source = data.summary.select(recipe="masc", model="w128", seed=2, attack="none", metric="forget.prob")
    assert row[PROB.name].item() == 1 - source["value"].item()


def test_stages_of_the_scaling_study_are_not_compared_with_methods(data):
    assert {"base", "learn"} & set(data.per_seed(TOFU, [PROB])["recipe"]) == set()
    assert {"base", "learn"} <= set(data.summary.metrics["recipe"])


def test_the_reference_is_no_sample_of_the_retrain_row(data):
    rows = data.per_seed(TOFU, [PROB])
    assert rows.loc[rows["recipe"] == "retrain", "seed"].tolist() == [1, 2]
    first = data.summary.select(recipe="retrain", seed=0, attack="none", metric="forget.prob")["value"].item()
    assert data.reference(TOFU, PROB) == 1 - first


def test_a_single_retrained_seed_keeps_its_row_and_is_known_as_the_reference(load, tmp_path):
    data = load(write_summary(tmp_path / "summary", seeds=1, ladder=[]))
    rows = data.per_seed(TOFU, [PROB])
    assert rows.loc[data.is_reference(TOFU, rows), "recipe"].tolist() == ["retrain"]


def test_target_and_retrain_are_untimed(data):
    rows = data.with_times(TOFU, data.per_seed(TOFU, [PROB]))
    assert rows.groupby("recipe")["time_cpu_s"].count()[["target", "retrain", "masc"]].tolist() == [0, 0, 3]


def test_a_missing_score_is_told_with_its_reason(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])

    def lose(frame):
        frame["reason"] = frame["reason"].astype(object)
        lost = (frame["recipe"] == "masc") & (frame["seed"] == 1) & (frame["metric"] == "forget.prob")
        frame.loc[lost & (frame["attack"] == "none"), ["value", "reason"]] = [None, "generation ran dry"]
        return frame

    edit(folder, "metrics.csv", lose)
    assert load(folder).gaps(TOFU, [PROB]) == ["MASC: no 1-Prob for seed 1 (generation ran dry)"]


def test_printed_numbers_are_found_with_their_deviation(data):
    found = data.reported.find("Table 1", "1-ROUGE-L", benchmark="TOFU", method="MASC")
    assert (found.value, found.std, found.second_hand) == (0.629, 0.142, False)
    base = data.reported.find("Table 1", "1-ROUGE-L", benchmark="TOFU", method="Base")
    assert (base.value, base.std) == (0.024, None)
    assert data.reported.find("Table 1", "1-ROUGE-L", benchmark="TOFU", method="GROM") is None


def test_an_ambiguous_printed_number_is_refused(data):
    with pytest.raises(LetheError, match="one number expected, got 2"):
        data.reported.find("Table 10", "E-ROUGE:C_hat")


def test_a_second_hand_number_is_known_as_such(tmp_path):
    header = "paper,table_or_figure,benchmark,split,model,method,metric,value,unit,note,source_url"
    (tmp_path / "r.csv").write_text(f"{header}\nX,Table 2,TOFU,,,GROM,MU,0.5,,second-hand transcription,u\n")
    assert Reported(tmp_path / "r.csv").find("Table 2", "MU").second_hand


def test_the_reported_numbers_are_those_of_the_shared_file(repo, shared):
    assert (repo / "config/reported/masc.csv").read_bytes() == (shared / "reported/masc.csv").read_bytes()


def test_an_unknown_suite_and_an_unknown_model_are_named(data):
    with pytest.raises(LetheError, match="benchmark nose-1: no suite 'nose' \\(has: tofu, muse\\)"):
        data.suite("nose-1")
    with pytest.raises(LetheError, match="no rows for model 'w999'"):
        data.n_params("w999")


def test_every_score_of_a_suite_that_rewards_overshooting_is_marked():
    for suite in SUITES.values():
        assert all(s.overshoots for s in suite.forget)
        assert not any(s.overshoots for s in suite.utility)


def test_our_numbers_are_labelled_with_their_scale(data):
    assert data.place() == "mini, w128 (0.66M parameters)"
    assert parameters(7.62e9) == "7.62B parameters"


def test_scores_that_no_run_has_are_nan(data):
    assert data.per_seed(TOFU, [PROB, Score("absent", "Absent")])["absent"].map(math.isnan).all()


def test_loading_needs_the_fits(tmp_path, repo):
    folder = write_summary(tmp_path / "summary", recipes=["target"], ladder=[])
    with pytest.raises(LetheError, match=r"fits\.csv: no such file"):
        PaperData.load(folder, copy.deepcopy(ROLES), repo / "config/reported/masc.csv", tmp_path / "fits.csv")
