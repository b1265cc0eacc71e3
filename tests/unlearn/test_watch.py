import csv
from types import SimpleNamespace

import pytest

from lethe.data.rows import encode_rows
from lethe.data.text import get_template
from lethe.errors import LetheError
from lethe.files import read_json, read_jsonl, write_jsonl
from lethe.metrics.scores import MarginSpec
from lethe.models.load import load_model, load_tokenizer
from lethe.recipe import Margin, Recipe, load_recipes, resolve, set_values
from lethe.schema import validate
from lethe.unlearn.costs import Costs
from lethe.unlearn.loop import violation_rate
from lethe.unlearn.run import train_single
from lethe.unlearn.training import Run, Sources
from lethe.unlearn.watch import COLUMNS, Watch, WatchOptions, watch_seeds

SMALL = ["batch={rows: 2, accumulate: 1, effective: 2}", "optimizer.lr=0.01", "epochs=3", "max_length=64"]
MARGIN = MarginSpec(k=10, beta=1.0, rho=0.7)


def recipe(name, *settings) -> Recipe:
    raw = resolve(load_recipes(), name).model_dump(mode="json")
    return validate(Recipe, set_values(raw, [*SMALL, *settings]), name)


@pytest.fixture
def sources(tiny_folder, rows) -> Sources:
    return Sources(start=str(tiny_folder), forget=rows["forget"], retain=rows["retain"])


def options(**changes):
    return WatchOptions(**{"every": 2, "rows": 2, "past": 4, "max_new_tokens": 8, "margin": MARGIN} | changes)


def curve(path):
    return list(csv.DictReader(path.open()))


def test_a_curve_has_the_start_and_every_watched_step_of_the_budget(sources, tmp_path):
    watch_seeds(recipe("graddiff"), sources, [0, 1], options(), tmp_path / "out", tmp_path / "work")
    for seed in (0, 1):
        found = curve(tmp_path / f"out/s{seed}.csv")
        assert list(found[0]) == COLUMNS
        assert [row["step"] for row in found] == ["0", "2"]  # two forget rows a batch of two: a step an epoch, three
        assert found[0]["forget_tokens"] == "0" and int(found[1]["forget_tokens"]) > 0
        assert 0 <= float(found[0]["steps_cpu_s"]) < float(found[1]["steps_cpu_s"])
        assert found[0]["forget_value_recall"] == ""
    assert not (tmp_path / "work/s0").exists()


def test_a_recipe_with_a_stop_rule_goes_on_past_it(sources, tmp_path):
    stopping = recipe("masc", "stop.alpha=1")
    watch_seeds(stopping, sources, [0], options(past=4), tmp_path / "out", tmp_path / "work")
    assert [row["step"] for row in curve(tmp_path / "out/s0.csv")] == ["0", "2", "4"]


def test_a_watched_run_takes_the_steps_of_the_run_itself(sources, tmp_path):
    method = recipe("masc", "stop={rule: budget}", "epochs=2")
    train_single(method, sources, 0, tmp_path / "run", tmp_path / "w")
    steps = read_json(tmp_path / "run/run.json")["steps"]
    watch_seeds(method, sources, [0], options(every=1, rows=2), tmp_path / "out", tmp_path / "work")
    last = curve(tmp_path / "out/s0.csv")[-1]
    tokenizer = load_tokenizer(sources.start)
    final = encode_rows(tokenizer, get_template("chat"), sources.forget, 64)
    rate = violation_rate(load_model(tmp_path / "run/weights"), final, Margin(k=10, beta=1.0, rho=0.7), 0)
    assert int(last["step"]) == steps
    assert float(last["violation_rate"]) == pytest.approx(rate, abs=1e-6)


def test_the_start_is_scored_as_an_evaluation_would(sources, tiny_folder, rows):
    model, tokenizer = load_model(tiny_folder), load_tokenizer(tiny_folder)
    look = Watch(Run.load(recipe("graddiff"), sources, 0), Costs(), options(rows=9))
    found = look(SimpleNamespace(step=0, costs=Costs()))
    encoded = encode_rows(tokenizer, get_template("chat"), rows["forget"], 64)
    assert found["violation_rate"] == pytest.approx(violation_rate(model, encoded, Margin(k=10, beta=1.0, rho=0.7), 0))
    assert 0 < found["forget_prob"] < 1 and 0 <= found["forget_rouge"] <= 1 and found["rows"] == 2
    assert look(SimpleNamespace(step=1, costs=Costs())) == {}


def test_the_recall_of_values_is_of_the_rows_that_have_one(sources, rows):
    written = read_jsonl(rows["forget"])
    write_jsonl(rows["forget"], [{**written[0], "value": "Old Harbour"}, written[1]])
    look = Watch(Run.load(recipe("graddiff"), sources, 0), Costs(), options())
    assert look(SimpleNamespace(step=0, costs=Costs()))["forget_value_recall"] in (0.0, 0.5, 1.0)


def test_rows_without_questions_cannot_be_watched(sources, tmp_path):
    write_jsonl(sources.retain, [{"text": "Only a text of some words."}])
    with pytest.raises(LetheError, match=r"retain.jsonl: watching needs rows with a 'question'"):
        watch_seeds(recipe("graddiff"), sources, [0], options(), tmp_path / "out", tmp_path / "work")


def test_only_gradient_methods_are_watched(sources, tmp_path):
    with pytest.raises(LetheError, match=r"only a gradient method"):
        watch_seeds(recipe("target"), sources, [0], options(), tmp_path / "out", tmp_path / "work")
