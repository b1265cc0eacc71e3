import pandas as pd
import pytest
from synthetic_summary import ALPHA, STOP, WATCHED, curve, edit, write_summary

from lethe.errors import LetheError
from lethe.paper import masc
from lethe.paper.curves import curves, first_below, stopped
from lethe.paper.masc_race import alpha_findings, race, race_findings, tradeoff_by_alpha

TOFU = "tofu-forget10"


def test_the_first_crossing_counts_equality_and_never_comes_back():
    path = pd.DataFrame({"step": [0, 2, 4, 6], "violation_rate": [0.9, 0.5, 0.6, 0.4]})
    assert first_below(path, 0.5)["step"] == 2
    assert first_below(path, 0.499)["step"] == 6
    assert first_below(path, 0.3) is None


def test_a_stop_between_watched_steps_takes_the_last_before_it(data):
    ends = stopped(curves(data, TOFU, "masc"), {0: 19.0, 1: 20.0, 2: 21.0})
    assert ends["step"].tolist() == [18, 20, 20]


def test_the_race_is_to_mascs_own_level_seed_by_seed(data):
    frame = race(data, TOFU, "forget_value_recall").set_index(["recipe", "seed"])
    level = curve("masc", 1).set_index("step").loc[STOP, "forget_value_recall"]
    assert frame.loc[("masc", 1), "level"] == pytest.approx(level)
    assert frame.loc[("masc", 1), "step"] == STOP and frame.loc[("masc", 1), "seconds"] == pytest.approx(0.03 * STOP)
    rate = 0.96 - (WATCHED["simnpo"] + 0.0005) * 30  # the first even step at or below MASC's
    assert frame.loc[("simnpo", 1), "step"] == 30 and rate - 0.05 <= level
    assert not frame.loc["ga", "reached"].any() and frame.loc["ga", "seconds"].isna().all()


def test_the_race_names_who_is_slower_and_who_never_arrives(data):
    sentences = race_findings(race(data, TOFU, "forget_value_recall"), "forget_value_recall")
    assert "never reached by GA" in sentences[0] and "more than none" in sentences[0]
    assert "less than GradDiff, NPO, SimNPO;" in sentences[0].replace("NPO+KLR, ", "")


def test_the_race_admits_that_masc_is_slower(load, tmp_path):
    folder = write_summary(tmp_path / "summary", ladder=["w128"])

    def slow(frame):
        frame.loc[frame["recipe"] == "masc", "steps_cpu_s"] *= 100
        return frame

    edit(folder, "curves.csv.gz", slow)
    sentences = race_findings(race(load(folder), TOFU, "forget_value_recall"), "forget_value_recall")
    assert "less than none" in sentences[0]


def test_every_alpha_is_read_at_its_first_crossing_and_simnpo_at_the_same_step(data):
    frame = tradeoff_by_alpha(data, TOFU, "forget_value_recall")
    here = frame[(frame["alpha"] == 0.7) & (frame["seed"] == 0)].set_index("recipe")
    step = next(s for s in range(0, 62, 2) if 0.96 - WATCHED["masc"] * s <= 0.7)
    assert here.loc["masc", "step"] == here.loc["simnpo-lora", "step"] == step
    assert here.loc["masc", "forgotten"] == pytest.approx(1 - (0.96 - 0.02 * step - 0.05))
    assert here.loc["simnpo-lora", "forgotten"] < here.loc["masc", "forgotten"]


def test_the_sentence_about_the_retrained_models_rate_turns_with_it(data, load, tmp_path):
    frame = tradeoff_by_alpha(data, TOFU, "forget_value_recall")
    assert "above the paper's alpha of 0.475" in alpha_findings(data, TOFU, frame)[0]
    folder = write_summary(tmp_path / "summary", ladder=["w128"])

    def lower(frame):
        rows = (frame["recipe"] == "retrain") & (frame["metric"] == "violation_rate")
        frame.loc[rows, "value"] = 0.2
        return frame

    edit(folder, "metrics.csv", lower)
    assert "at or below the paper's alpha" in alpha_findings(load(folder), TOFU, frame)[0]


def test_figure_2_marks_alphas_stops_and_the_retrained_model(data):
    figure = masc.FIGURES["fig2"](data)
    marks = figure.numbers.dropna(subset="point").set_index("point")
    assert marks.loc["mean stop", "step"] == STOP
    assert {"alpha 0.7", "alpha 0.475", "alpha 0.2", "retrain"} <= set(marks.index)
    assert f"alpha {ALPHA:.3f}" in figure.findings[0] and "falls further" in figure.findings[1]


def test_figure_2_says_when_forgetting_does_not_go_on(load, tmp_path):
    folder = write_summary(tmp_path / "summary", ladder=["w128"])

    def back(frame):
        frame.loc[(frame["recipe"] == "masc") & (frame["step"] > 40), "forget_rouge"] = 0.99
        return frame

    edit(folder, "curves.csv.gz", back)
    assert "rises again" in masc.FIGURES["fig2"](load(folder)).findings[1]


def test_figure_6_labels_by_learning_rates_and_counts_the_seeds_that_arrive(data):
    figure = masc.FIGURES["fig6"](data)
    assert [text.split(" (")[0] for text in figure.findings] == [
        "Learning rate 0.0005", "Learning rate 0.001", "Learning rate 0.002"
    ]  # fmt: skip
    assert all("in 3 of 3 seeds" in text for text in figure.findings)


def test_without_recall_of_values_rouge_is_raced(load, tmp_path):
    folder = write_summary(tmp_path / "summary", ladder=["w128"])
    edit(folder, "curves.csv.gz", lambda frame: frame.assign(forget_value_recall=None))
    figure = masc.FIGURES["time-to-forget"](load(folder))
    assert set(figure.numbers["metric"]) == {"forget_rouge"}


@pytest.mark.parametrize("id", ["fig2", "fig6", "time-to-forget", "alpha"])
def test_a_summary_without_watched_runs_is_refused(load, tmp_path, id):
    folder = write_summary(tmp_path / "summary", recipes=["target", "npo"], ladder=[])
    with pytest.raises(LetheError, match="no watched run of MASC on w128"):
        masc.FIGURES[id](load(folder))


def test_the_dose_figure_pairs_before_and_after_and_says_who_is_restored(data):
    figure = masc.FIGURES["quantisation-dose"](data)
    small = figure.numbers[(figure.numbers["recipe"] == "simnpo-small") & (figure.numbers["residue"] == 0)]
    assert len(small) == 3 and (small["after"] - small["before"] > 0.7).all()
    assert (figure.numbers["update_over_step"] == 0.08).all()
    (text,) = [t for t in figure.findings if t.startswith("SimNPO (small steps)")]
    assert "at a residue of 0 (+0.79)" in text
