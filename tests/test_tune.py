import json
import math

import pandas as pd
import pytest
import yaml

from lethe import config, tune
from lethe.errors import LetheError
from lethe.plan import recipe_of
from lethe.recipe import load_recipes

TOFU, MUSE = tune.CRITERIA["tofu"], tune.CRITERIA["muse"]
LOGS = {"tofu-forget10": "w128", "muse-news": "t128", "muse-books": "t128"}


def scores(forget, utility):
    return dict.fromkeys(TOFU.forget, forget) | {TOFU.utility: utility}


ANCHOR = scores(0.5, 0.8)


def test_the_objective_is_distance_plus_lost_utility():
    assert tune.objective(TOFU, scores(0.5, 0.8), ANCHOR, ANCHOR) == 0
    assert tune.objective(TOFU, scores(0.3, 0.7), ANCHOR, ANCHOR) == pytest.approx(0.2 + 0.1)
    assert tune.objective(TOFU, scores(0.7, 0.7), ANCHOR, ANCHOR) == pytest.approx(0.2 + 0.1)  # too little is as bad


def test_scores_of_100_count_as_those_of_1():
    retrain = {"verbmem.forget": 20, "knowmem.forget": 10, "mia.min_k_auc": 0.5, "knowmem.retain": 40}
    ours = {"verbmem.forget": 50, "knowmem.forget": 40, "mia.min_k_auc": 0.2, "knowmem.retain": 30}
    assert tune.objective(MUSE, ours, retrain, retrain) == pytest.approx(0.3 + 0.1)


def test_utility_above_the_targets_is_no_merit():
    assert tune.objective(TOFU, scores(0.4, 0.95), ANCHOR, ANCHOR) == pytest.approx(0.1)


def test_the_lowest_wins_the_first_of_equals_and_never_one_that_diverged():
    assert tune.choose([0.3, 0.2, 0.2]) == 1
    assert tune.choose([None, 0.9, math.nan]) == 1
    assert tune.choose([None, None]) is None


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize("name", [TOFU.forget[0], TOFU.utility])
def test_a_run_that_lacks_a_score_has_no_objective(name, value):
    assert tune.objective(TOFU, scores(0.5, 0.8) | {name: value}, ANCHOR, ANCHOR) is None


@pytest.mark.parametrize("counts", [(8, 7), (9, 9)])
def test_every_method_has_the_same_number_of_trials_and_at_most_eight(tmp_path, counts):
    file = tmp_path / "tuning.yaml"
    file.write_text(yaml.safe_dump({"tofu": {f"m{i}": [{"epochs": 1}] * n for i, n in enumerate(counts)}}))
    with pytest.raises(LetheError, match=r"the same number of trials for each, at most 8"):
        tune.read_trials(file, "tofu")


def test_the_world_of_the_trials_is_one_that_no_other_scale_has(repo):
    scales = {file.stem: config.load_scale(file.stem, repo) for file in (repo / "config/scales").glob("*.yaml")}
    worlds = {name: scale.world.world.seed for name, scale in scales.items() if scale.world}
    assert worlds[tune.SCALE] not in {seed for name, seed in worlds.items() if name != tune.SCALE}
    tuning = scales[tune.SCALE]
    seeds = {tuning.library.world.seed, tuning.corpora["tofu"].source.world.seed}
    seeds |= {tuning.corpora[style].source.library.seed for style in ("news", "books")}
    assert seeds == {worlds[tune.SCALE]}


def test_a_world_that_another_scale_has_is_refused(repo):
    mini, tuning = config.load_scale("mini", repo), config.load_scale(tune.SCALE, repo)
    tune.check_world(tuning, {"mini": mini})
    with pytest.raises(LetheError, match=r"a world of its own, got seed 1 of scale mini"):
        tune.check_world(mini.model_copy(update={"name": "other"}), {"mini": mini})


@pytest.fixture(scope="module", params=LOGS)
def benchmark(request):
    return request.param


@pytest.fixture(scope="module")
def suite(repo, benchmark):
    return config.load_scale(tune.SCALE, repo).benchmarks[benchmark].suite


@pytest.fixture(scope="module")
def log(repo, benchmark):
    return pd.read_csv(repo / f"config/tuning/{benchmark}.csv")


def test_the_log_has_every_trial_that_was_named(repo, log, suite):
    trials = tune.read_trials(repo / "config/tuning.yaml", suite)
    for recipe, settings in trials.items():
        rows = log[log["recipe"] == recipe].sort_values("trial")
        assert [json.loads(text) for text in rows["settings"]] == settings


def test_what_was_chosen_follows_from_the_log(log, suite):
    anchors = {r: log[log["recipe"] == r].iloc[0] for r in ("retrain", "target")}
    trials = log[log["trial"].notna()]
    for _, rows in trials.groupby("recipe"):
        js = [tune.objective(tune.CRITERIA[suite], row, **anchors) for row in rows.to_dict("records")]
        assert js == pytest.approx(rows["J"].tolist(), abs=1e-4)
        assert rows["chosen"].tolist() == [i == tune.choose(rows["J"].tolist()) for i in range(len(rows))]


def test_mini_uses_what_was_chosen(repo, log, benchmark):
    recipes, mini = load_recipes(repo / "config/recipes.yaml"), config.load_scale("mini", repo)
    for row in log[log["chosen"] == True].itertuples():  # noqa: E712
        resolved = recipe_of(recipes, mini, f"{benchmark}/{LOGS[benchmark]}/{row.recipe}").model_dump()
        for key, value in json.loads(row.settings).items():
            found = resolved
            for part in key.split("."):
                found = found[part]
            assert found == value, (row.recipe, key)


@pytest.fixture
def three_trials(monkeypatch, tmp_path):
    """A file with three trials of npo, and the scores of the target and the retrained model."""
    file = tmp_path / "tuning.yaml"
    file.write_text(yaml.safe_dump({"tofu": {"npo": [{"epochs": 1}, {"epochs": 2}, {"epochs": 3}]}}))
    evaluation = {"metrics": {name: {"value": value} for name, value in ANCHOR.items()}}
    monkeypatch.setattr(tune.paths, "evaluation", lambda *_: str(tmp_path / "eval.json"))
    (tmp_path / "eval.json").write_text(json.dumps(evaluation))
    return file


def test_a_trial_that_diverges_is_logged_without_scores(monkeypatch, tmp_path, three_trials):
    """The stage itself, with training replaced: three trials, one of which breaks."""
    outcome = {1: {"reason": "not finite"}, 2: scores(0.6, 0.8) | {"steps": 5}, 3: scores(0.55, 0.8) | {"steps": 5}}
    ran = []

    def run_trial(scale, benchmark, model, name, settings, work):
        ran.append(settings["epochs"])
        return outcome[settings["epochs"]]

    monkeypatch.setattr(tune, "run_trial", run_trial)
    for _ in range(2):  # the second time everything is there
        tune.tune("tofu-forget10", three_trials, tmp_path / "log.csv", tmp_path / "work")
    assert ran == [1, 2, 3]
    log = pd.read_csv(tmp_path / "log.csv")
    assert log["recipe"].tolist() == ["retrain", "target", "npo", "npo", "npo"]
    assert log["chosen"].tolist()[2:] == [False, False, True] and log["reason"].tolist()[2] == "not finite"
    assert log["J"].isna().tolist()[2:] == [True, False, False]


def test_the_log_numbers_trials_as_the_file_does_and_leaves_out_other_settings(tmp_path, three_trials):
    records = {0: {"epochs": 9}, 2: {"epochs": 3}}  # the first of an older file, the second not run yet
    for i, settings in records.items():
        (tmp_path / "work/npo").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"work/npo/{i}.json").write_text(json.dumps({"settings": settings, **scores(0.6, 0.8)}))
    tune.tune("tofu-forget10", three_trials, tmp_path / "log.csv", tmp_path / "work", only=[])
    log = pd.read_csv(tmp_path / "log.csv").iloc[2:]
    assert log[["trial", "settings", "chosen"]].to_numpy().tolist() == [[2, '{"epochs": 3}', True]]


def test_a_recipe_without_trials_is_refused(tmp_path, three_trials):
    with pytest.raises(LetheError, match=r"no trials of npoo \(has: npo\)"):
        tune.tune("tofu-forget10", three_trials, tmp_path / "log.csv", tmp_path / "work", only=["npoo"])


@pytest.mark.parametrize(
    "message, diverged", [("loss is not finite at step 3", True), ("f.jsonl: no such file", False)]
)
def test_only_a_run_that_diverged_counts_as_a_trial(monkeypatch, repo, tmp_path, message, diverged):
    def fail(*_):
        raise LetheError(message)

    monkeypatch.setattr("lethe.unlearn.run.train_single", fail)
    run = (config.load_scale(tune.SCALE, repo), "tofu-forget10", "w128", "ga", {"epochs": 1}, tmp_path)
    if diverged:
        assert tune.run_trial(*run) == {"reason": message}
    else:
        with pytest.raises(LetheError, match=message):
            tune.run_trial(*run)
