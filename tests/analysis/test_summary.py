import copy
import math

import pandas as pd
import pytest
from synthetic_summary import ROLES, edit, seal, write_summary

from lethe.analysis.summary import Roles, load_summary, over_seeds
from lethe.errors import LetheError


@pytest.fixture
def folder(tmp_path):
    return write_summary(tmp_path / "summary", recipes=["target", "retrain", "masc"], seeds=2, ladder=["w64"])


def test_the_attack_named_none_is_read_as_a_word(folder):
    assert "none" in set(load_summary(folder).metrics["attack"])


def test_a_file_that_differs_from_the_manifest_is_refused(folder):
    with (folder / "runs.csv").open("a") as f:
        f.write("\n")
    with pytest.raises(LetheError, match=r"runs\.csv: sha256 must be"):
        load_summary(folder)


@pytest.mark.parametrize("name", ["metrics.csv", "traces.csv.gz", "manifest.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(LetheError, match=f"{name}: no such file"):
        load_summary(folder)


def test_the_manifest_of_accepted_results_lies_one_folder_up(folder):
    listed = (folder / "manifest.json").read_text()
    for name in ("metrics.csv", "runs.csv", "traces.csv.gz", "curves.csv.gz", "samples.jsonl"):
        listed = listed.replace(name, f"summary/{name}")
    (folder / "manifest.json").unlink()
    (folder.parent / "manifest.json").write_text(listed)
    assert len(load_summary(folder).runs)
    (folder / "samples.jsonl").write_text("{}\n")
    with pytest.raises(LetheError, match=r"samples\.jsonl: sha256"):
        load_summary(folder)


@pytest.mark.parametrize("name", ["metrics.csv", "runs.csv"])
def test_two_rows_for_one_key_are_refused(folder, name):
    edit(folder, name, lambda frame: pd.concat([frame, frame.tail(1)]))
    with pytest.raises(LetheError, match=f"{name}: two rows for tofu-forget10/"):
        load_summary(folder)


def test_a_lacking_column_is_named(folder):
    edit(folder, "runs.csv", lambda frame: frame.drop(columns="steps_cpu_s"))
    with pytest.raises(LetheError, match="no column 'steps_cpu_s'"):
        load_summary(folder)


@pytest.mark.parametrize("bad", ["inf", "nan", "high"])
def test_a_value_that_is_no_finite_number_is_refused(folder, bad):
    def spoil(frame):
        frame["value"] = frame["value"].astype(object)
        frame.loc[0, "value"] = bad
        return frame

    edit(folder, "metrics.csv", spoil)
    with pytest.raises(LetheError, match=f"value must be a finite number or empty, got '{bad}'"):
        load_summary(folder)


def test_an_empty_value_needs_a_reason(folder):
    def empty(frame):
        frame["reason"] = frame["reason"].astype(object)
        frame.loc[0, "value"] = None
        return frame

    edit(folder, "metrics.csv", empty)
    with pytest.raises(LetheError, match="neither value nor reason for tofu-forget10/w128/target/0/none/"):
        load_summary(folder)
    edit(folder, "metrics.csv", lambda f: f.assign(reason=["no reference"] + [None] * (len(f) - 1)))
    assert math.isnan(load_summary(folder).metrics["value"].iloc[0])


def test_a_metric_without_its_run_is_refused(folder):
    edit(folder, "runs.csv", lambda frame: frame[frame["recipe"] != "masc"])
    with pytest.raises(LetheError, match=r"runs\.csv: no row for tofu-forget10/w128/masc/0"):
        load_summary(folder)


def test_a_model_has_one_size(folder):
    def grow(frame):
        frame.loc[0, "n_params"] += 1
        return frame

    edit(folder, "metrics.csv", grow)
    with pytest.raises(LetheError, match="model w128 has more than one n_params"):
        load_summary(folder).sizes()


def test_time_is_steps_probes_and_reference_and_what_is_not_done_costs_nothing(folder):
    def price(frame):
        frame["reference_cpu_s"] = [None] * len(frame)
        frame.loc[frame["recipe"] == "masc", "reference_cpu_s"] = 0.25
        return frame

    plain = load_summary(folder).times().set_index(["model", "recipe", "seed"])
    edit(folder, "runs.csv", price)
    summary = load_summary(folder)
    times = summary.times().set_index(["model", "recipe", "seed"])
    runs = summary.runs.set_index(["model", "recipe", "seed"])
    run = ("w128", "masc", 0)
    assert plain.loc[run, "time_cpu_s"] == runs.loc[run, "steps_cpu_s"] + runs.loc[run, "probes_cpu_s"]
    assert times.loc[run, "time_cpu_s"] == pytest.approx(plain.loc[run, "time_cpu_s"] + 0.25)
    learn = ("w64", "learn", 0)
    assert math.isnan(runs.loc[learn, "probes_cpu_s"])
    assert times.loc[learn, "time_cpu_s"] == runs.loc[learn, "steps_cpu_s"]
    assert times.loc[run, "time_wall_s"] == runs.loc[run, "wall_s"]


def test_runs_are_compared_by_cpu_seconds_until_a_gpu_takes_part(folder):
    assert load_summary(folder).time_kind() == "time_cpu_s"
    edit(folder, "runs.csv", lambda f: f.assign(device=[None] + ["cpu"] * (len(f) - 1)))  # a downloaded target
    assert load_summary(folder).time_kind() == "time_cpu_s"
    edit(folder, "runs.csv", lambda f: f.assign(device=["cuda:0"] + ["cpu"] * (len(f) - 1)))
    assert load_summary(folder).time_kind() == "time_wall_s"


def test_traces_and_samples_are_read(folder):
    summary = load_summary(folder)
    assert summary.traces()["step"].tolist() == [1, 2]
    assert {sample["recipe"] for sample in summary.samples()} == {"target", "retrain", "simnpo", "masc"}
    assert summary.curves().groupby(["recipe", "seed"])["step"].max().eq(60).all()


def test_the_deviation_over_seeds_is_the_samples():
    wide = pd.DataFrame({"recipe": ["a", "a", "b"], "seed": [0, 1, 0], "score": [1.0, 3.0, 5.0]})
    found = over_seeds(wide, by=["recipe"])
    assert found["score_mean"].tolist() == [2.0, 5.0]
    assert found["score_std"].iloc[0] == pytest.approx(math.sqrt(2))  # ddof = 1; the population's would be 1
    assert math.isnan(found["score_std"].iloc[1])
    assert found["n_seeds"].tolist() == [2, 1]


def test_a_benchmarks_suite_is_its_prefix_unless_declared():
    roles = Roles.from_json(copy.deepcopy(ROLES) | {"suites": {"other-x": "tofu"}})
    assert (roles.suite("muse-news"), roles.suite("other-x")) == ("muse", "tofu")


def test_roles_without_a_key_or_with_two_main_models_are_refused():
    with pytest.raises(LetheError, match="roles: no key 'headline'"):
        Roles.from_json({k: v for k, v in ROLES.items() if k != "headline"})
    with pytest.raises(LetheError, match=r"models\.main must be one model's name, got \['w128'\]"):
        Roles.from_json(ROLES | {"models": {"main": ["w128"]}})


def test_resealing_an_untouched_folder_keeps_it_valid(folder):
    seal(folder)
    assert len(load_summary(folder).metrics)
