import pandas as pd
import pytest
from synthetic_summary import ALPHA, STOP, WATCHED, curve, edit, write_summary

from lethe.errors import LetheError
from lethe.paper import masc
from lethe.paper.curves import crossings, curves, first_below, stopped
from lethe.paper.masc_dose import _dose_findings
from lethe.paper.masc_race import RACE, _complete, alpha_findings, race, race_findings, tradeoff_by_alpha

TOFU = "tofu-forget10"


def test_the_first_crossing_counts_equality_and_never_comes_back():
    path = pd.DataFrame({"step": [0, 2, 4, 6], "violation_rate": [0.9, 0.5, 0.6, 0.4]})
    assert first_below(path, 0.5)["step"] == 2
    assert first_below(path, 0.499)["step"] == 6
    assert first_below(path, 0.3) is None


def test_a_seed_that_never_meets_alpha_has_no_crossing():
    path = pd.DataFrame({"seed": [0, 0, 1, 1], "step": [0, 2, 0, 2], "violation_rate": [0.9, 0.5, 0.9, 0.6]})
    assert crossings(path.assign(forget_tokens=10 * path["step"]), 0.5, "forget_tokens") == {0: 20.0}
    assert crossings(path, 0.4, "step") == {}


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


def raced(**seconds):
    """One row a method and seed at level .3; None where it is not reached, after step 10 of 20."""
    rows = [
        {"recipe": recipe.replace("_", "-"), "seed": seed, "level": 0.3, "reached": s is not None, "clock": "CPU",
         "seconds": s, "step": 10, "retain_rouge": 0.9, "budget_seconds": 9.0, "budget_steps": 20}
        for recipe, values in seconds.items() for seed, s in enumerate(values)
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=RACE)
    return frame.astype({"seconds": float, "retain_rouge": float})


def test_the_race_gives_mascs_place_and_its_factor_to_the_fastest():
    slower = race_findings(raced(ga=[1.0, 1.1, 0.9], npo=[3.0, 3.1, 2.9], masc=[2.0, 2.1, 1.9]), "forget_rouge")
    assert "number 2 of 3" in slower[1] and "the fastest baseline is GA with 1.00 ± 0.10 (n 3) s" in slower[1]
    assert "MASC takes 2.00 times as long, beyond the spread" in slower[1]
    first = race_findings(raced(npo=[3.0, 3.3, 2.7], masc=[2.0, 2.1, 1.9]), "forget_rouge")
    assert "number 1 of 2" in first[1] and "the fastest of the others is NPO" in first[1]
    assert "1.50 times MASC's, beyond the spread" in first[1]
    level = race_findings(raced(npo=[1.0, 3.0, 2.6], masc=[2.0, 2.1, 1.9]), "forget_rouge")
    assert "within the spread" in level[1]


def test_a_method_that_arrives_in_some_seeds_is_named_so_and_not_ranked():
    sentences = race_findings(raced(ga=[1.0, 1.1, None], masc=[2.0, 2.1, 1.9]), "forget_rouge")
    assert "GA (reached in 2 of 3 seeds)" in sentences[0] and "never reached by none" in sentences[0]
    assert not any("By the means" in text for text in sentences)


def test_the_race_says_who_gets_there_only_past_the_stop_of_its_own_run():
    frame = raced(npo=[3.0, 3.1], masc=[2.0, 2.1], masc_full=[1.0, 1.1])
    assert not any("past the stop" in text for text in race_findings(frame, "forget_rouge"))
    frame.loc[(frame["recipe"] == "masc-full") & (frame["seed"] == 1), "budget_steps"] = 8
    assert "Reached only past the stop of the run itself: MASC (full) in 1 of 2 seeds." in race_findings(
        frame, "forget_rouge"
    )


def test_a_race_of_one_seed_warns():
    assert race_findings(raced(npo=[3.0], masc=[2.0]), "forget_rouge")[0].startswith("One seed")


def test_a_race_without_a_seed_that_both_stopped_and_was_watched_is_refused(load, tmp_path):
    folder = write_summary(tmp_path / "summary", recipes=["target", "masc"], ladder=[])

    def other_seeds(frame):
        return frame.assign(seed=frame["seed"] + 10)

    edit(folder, "curves.csv.gz", other_seeds)
    with pytest.raises(LetheError, match="no seed of MASC was both run to its stop and watched"):
        masc.FIGURES["time-to-forget"](load(folder))


def test_only_alphas_that_every_seed_meets_are_averaged():
    points = pd.DataFrame({
        "alpha": [0.9, 0.9, 0.5], "seed": [0, 1, 0], "forgotten": [0.2, 0.4, 0.9], "kept": [1.0, 0.8, 0.9]
    })  # fmt: skip
    assert _complete(points).round(6).to_dict("index") == {0.9: {"forgotten": 0.3, "kept": 0.9}}


def test_every_alpha_is_read_at_its_first_crossing_and_simnpo_at_the_same_step(data):
    frame = tradeoff_by_alpha(data, TOFU, "forget_value_recall")
    here = frame[(frame["alpha"] == 0.7) & (frame["seed"] == 0)].set_index("recipe")
    step = next(s for s in range(0, 62, 2) if 0.96 - WATCHED["masc"] * s <= 0.7)
    assert here.loc["masc", "step"] == here.loc["simnpo-lora", "step"] == step
    assert here.loc["masc", "forgotten"] == pytest.approx(1 - (0.96 - 0.02 * step - 0.05))
    assert here.loc["simnpo-lora", "forgotten"] < here.loc["masc", "forgotten"]
    full = next(s for s in range(0, 62, 2) if 0.96 - WATCHED["masc-full"] * s <= 0.7)
    assert here.loc["masc-full", "step"] == full < step  # at its own first crossing


def test_at_the_same_steps_more_less_and_not_told_apart_are_words_of_the_interval(data):
    frame = tradeoff_by_alpha(data, TOFU, "forget_value_recall")
    (text,) = [t for t in alpha_findings(data, TOFU, frame) if t.startswith("At alpha 0.7 ")]
    assert "(more); kept -" in text and text.endswith("(less).")
    other = frame.replace({"recipe": {"masc": "simnpo-lora", "simnpo-lora": "masc"}})
    (text,) = [t for t in alpha_findings(data, TOFU, other) if t.startswith("At alpha 0.7 ")]
    assert "(less); kept +" in text and text.endswith("(more).")
    same = frame.assign(forgotten=0.5 + 0.01 * frame["seed"] * (frame["recipe"] == "masc"))
    (text,) = [t for t in alpha_findings(data, TOFU, same) if t.startswith("At alpha 0.7 ")]
    assert "(not told apart); kept" in text


def test_the_sentence_about_the_retrained_models_rate_turns_with_it(data, load, tmp_path):
    frame = tradeoff_by_alpha(data, TOFU, "forget_value_recall")
    assert "above the paper's alpha of 0.475" in alpha_findings(data, TOFU, frame)[0]
    folder = write_summary(tmp_path / "summary", ladder=["w128"])

    def lower(frame):
        rows = (frame["recipe"] == "retrain") & (frame["metric"] == "violation_rate")
        frame.loc[rows, "value"] = 0.2
        return frame

    edit(folder, "metrics.csv", lower)
    assert "below the paper's alpha" in alpha_findings(load(folder), TOFU, frame)[0]

    def wide(frame):
        rows = (frame["recipe"] == "retrain") & (frame["metric"] == "violation_rate")
        frame.loc[rows, "value"] = 0.3 + 0.2 * frame.loc[rows, "seed"]
        return frame

    edit(folder, "metrics.csv", wide)
    assert "not told apart from the paper's alpha" in alpha_findings(load(folder), TOFU, frame)[0]


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
        "Learning rate 0.0005", "Learning rate 0.001", "Learning rate 0.002",
        "At half MASC's learning rate: alpha is met later", "At twice MASC's learning rate: alpha is met sooner",
    ]  # fmt: skip
    assert all("in 3 of 3 seeds" in text for text in figure.findings[:3])


def test_figure_6_does_not_order_learning_rates_that_cross_together(load, tmp_path):
    folder = write_summary(tmp_path / "summary", ladder=["w128"])

    def alike(frame):
        base = frame[frame["recipe"] == "masc"]
        return pd.concat([frame[~frame["recipe"].str.startswith("masc-lr")], base.assign(recipe="masc-lr-half")])

    edit(folder, "curves.csv.gz", alike)
    assert "sooner or later cannot be told apart" in masc.FIGURES["fig6"](load(folder)).findings[-1]


def test_figure_2_counts_the_seeds_that_reach_alpha_and_compares_over_shared_ones(data):
    text = masc.FIGURES["fig2"](data).findings[2]
    assert "in 3 of 3 seeds; GradDiff" in text
    assert "MASC's number is less than GradDiff (MASC's training), SimNPO (MASC's training)." in text


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


def test_the_dose_figure_orders_by_update_size_and_says_what_the_target_as_it_is_shows():
    def dosed(sizes, natural=0.0):
        rows = [
            {"recipe": recipe, "benchmark": "b", "residue": dose, "seed": seed, "before": 0.2 + 0.01 * seed,
             "after": 0.2 + 0.01 * seed + (natural if dose == 1 else gain) + 0.001 * seed,
             "update_over_step": size / 2, "update_over_step_touched": size}
            for recipe, size, gain in sizes for dose in (0.0, 1.0) for seed in range(3)
        ]  # fmt: skip
        return _dose_findings(pd.DataFrame(rows))

    falls = dosed([("masc", 0.3, 0.0), ("simnpo-small", 0.1, 0.7)])
    assert "SimNPO (small steps) 0.10 (0.05 over all matrices): +0.70; MASC 0.30" in falls[2]
    assert falls[2].endswith("it falls as updates grow.")
    assert "MASC (b): quantising raises what is left, beyond the spread over seeds, at no residue" in falls[0]
    assert "quantising restores none beyond the spread" in falls[3]
    mixed = dosed([("masc", 0.1, 0.0), ("simnpo-small", 0.3, 0.7)], natural=0.5)
    assert mixed[2].endswith("it does not simply fall as updates grow.")
    assert "quantising restores MASC, SimNPO (small steps) beyond" in mixed[3]


def test_a_dose_of_one_seed_restores_nothing_and_warns(load, tmp_path):
    figure = masc.FIGURES["quantisation-dose"](load(write_summary(tmp_path / "summary", seeds=1, ladder=[])))
    assert figure.findings[0].startswith("One seed") and "at no residue" in figure.findings[1]
