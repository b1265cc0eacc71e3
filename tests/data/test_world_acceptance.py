"""The embedded world is accepted only if models of the main size learn it, and models that never read it cannot guess.

Read from results of the scale mini: this checkout's own where they are complete, else the accepted ones in expected/.
"""

import csv
import math
from collections import defaultdict

import pytest
import yaml

pytestmark = pytest.mark.slow
CHANCE = 1 / 6  # six options


@pytest.fixture(scope="module")
def scores(repo):
    """{(recipe, metric): values over seeds} of the main size, without attacks."""
    files = [repo / folder / "mini/summary/metrics.csv" for folder in ("results", "expected")]
    path = next(file for file in files if file.exists())  # what was computed here, else what is accepted
    main = yaml.safe_load((repo / "config/scales/mini.yaml").read_text())["roles"]["models"]["main"][0]
    wanted = {"benchmark": "tofu-forget10", "model": main, "attack": "none"}
    found = defaultdict(list)
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if row["value"] and all(row[key] == value for key, value in wanted.items()):
            found[row["recipe"], row["metric"]].append((float(row["value"]), int(row["n"])))
    return found


def values(scores, recipe, metric):
    assert scores[recipe, metric], f"no {metric} of {recipe}"
    return [value for value, _ in scores[recipe, metric]]


@pytest.mark.parametrize("metric", ["forget.rouge_l_recall", "forget.value_recall", "forget.mcq_acc"])
def test_the_target_knows_what_it_will_have_to_forget(scores, metric):
    assert min(values(scores, "target", metric)) >= 0.95


def test_a_model_that_never_read_the_forget_set_cannot_guess_it(scores):
    assert max(values(scores, "retrain", "forget.value_recall")) <= 0.20
    assert max(values(scores, "retrain", "forget.rouge_l_recall")) <= 0.55


def test_a_model_that_never_read_the_forget_set_chooses_at_chance(scores):
    assert scores["retrain", "forget.mcq_acc"]
    for value, n in scores["retrain", "forget.mcq_acc"]:
        assert abs(value - CHANCE) <= 3 * math.sqrt(CHANCE * (1 - CHANCE) / n)


def test_knowledge_generalises_to_paraphrased_questions(scores):
    known = min(values(scores, "target", "forget.para_value_recall"))
    assert known >= max(values(scores, "retrain", "forget.para_value_recall")) + 0.3
