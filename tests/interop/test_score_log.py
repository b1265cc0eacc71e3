import copy
import json
import math
import shutil
import subprocess
import sys

import pytest

from lethe.errors import LetheError
from lethe.interop.score_log import read_log, score_log

KEYS = {
    *(f"{split}_{score}" for split in ("forget", "retain", "ra", "wf") for score in ("prob", "rouge", "truth_ratio")),
    "model_utility",
    "forget_quality_p",
    "forget_quality_log10p",
    "ks_d",
    "n_forget",
    "notes",
}


@pytest.fixture
def golden(shared):
    names = {
        "full": "tofu_llama2_full_wd0.01",
        "retain90": "tofu_llama2_retain90_wd0.01",
        "retain95": "tofu_llama2_retain95_wd0.01",
        "ou": "open_unlearning_llama2_retain90",
    }
    return {short: shared / "golden" / f"{name}.json" for short, name in names.items()}


def tofu_log(questions=("Who?", "Where?"), tag="[INST] {} [/INST]", perturbed=(1.2, 2.2)):
    n = {str(i) for i in range(len(questions))}
    task = {
        "avg_gt_loss": dict.fromkeys(n, 0.5),
        "avg_paraphrased_loss": dict.fromkeys(n, 1.0),
        "average_perturb_loss": {i: list(perturbed) for i in n},
        "rougeL_recall": dict.fromkeys(n, 0.25),
        "generated_text": {str(i): [tag.format(q), "He.", "She."] for i, q in enumerate(questions)},
    }
    names = ("eval_log", "eval_real_author_wo_options", "eval_real_world_wo_options", "eval_log_forget")
    return {f"{name}.json": copy.deepcopy(task) for name in names}


def ou_log(questions=("Who?", "Where?"), tag="[INST] {} [/INST]", perturbed=(1.2, 2.2)):
    log = {}
    for split in ("forget", "retain", "ra", "wf"):
        items = {
            "Prob": {"prob": math.exp(-0.5), "avg_loss": 0.5},
            "PARA_Prob": {"prob": math.exp(-1.0), "avg_loss": 1.0},
            "PERT_Prob": {"prob": [math.exp(-x) for x in perturbed], "avg_loss": list(perturbed)},
        }
        for suffix, item in items.items():
            log[f"{split}_Q_A_{suffix}"] = {
                "agg_value": 0.0,
                "value_by_index": {str(i): item for i in range(len(questions))},
            }
        log[f"{split}_Q_A_ROUGE"] = {
            "agg_value": 0.25,
            "value_by_index": {
                str(i): {"rougeL_recall": 0.25, "input": tag.format(q), "ground_truth": "She.", "generation": "He."}
                for i, q in enumerate(questions)
            },
        }
    return log


@pytest.fixture
def write(tmp_path):
    def to(name, log):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(log if isinstance(log, str) else json.dumps(log))
        return path

    return to


# ---------------------------------------------------------------------------------------------- published values


@pytest.mark.parametrize(
    ("log", "geo", "arith"),
    [
        ("full", 0.6226773637427151, 0.585886035092722),
        ("retain90", 0.613744995233942, 0.5752399175318537),
        ("retain95", 0.6005765316813114, 0.5612961515626379),
        ("ou", 0.6130190411998432, 0.5750339361387284),
    ],
)
def test_model_utility_of_published_logs(golden, log, geo, arith):
    assert score_log(golden[log])["model_utility"] == pytest.approx(geo, rel=1e-6)
    assert score_log(golden[log], truth_ratio="arith")["model_utility"] == pytest.approx(arith, rel=1e-6)


def test_every_score_of_a_published_open_unlearning_log(golden):
    found = score_log(golden["ou"])
    expected = {
        "forget_prob": 0.1478513312060386,
        "forget_rouge": 0.39943619182768636,
        "forget_truth_ratio": 0.6808417286151672,
        "retain_prob": 0.9889203828573226,
        "retain_rouge": 0.9759454384034817,
        "retain_truth_ratio": 0.4572323830817167,
        "ra_prob": 0.4459381981681224,
        "ra_rouge": 0.9155,
        "ra_truth_ratio": 0.5848386806116221,
        "wf_prob": 0.4117809097044924,
        "wf_rouge": 0.9017094017094017,
        "wf_truth_ratio": 0.5329362343163795,
        "n_forget": 400,
    }
    assert set(found) == KEYS
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6), key
    assert found["forget_quality_p"] is found["forget_quality_log10p"] is found["ks_d"] is None
    assert "forget_quality_p: no retain log given" in found["notes"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("log", "retain", "p"),
    [
        ("full", "retain90", 1.834066410994743e-21),
        ("full", "ou", 4.91499090479225e-20),
        ("retain90", "ou", 0.996366687488538),
    ],
)
def test_forget_quality_within_and_across_schemas(golden, log, retain, p):
    found = score_log(golden[log], golden[retain])
    assert found["forget_quality_p"] == pytest.approx(p, rel=1e-6)
    assert found["forget_quality_log10p"] == pytest.approx(math.log10(p), abs=1e-6)
    assert found["n_forget"] == 300
    assert "forget quality: KS exact, n 300/300" in found["notes"]
    cut = "forget quality: the first 300 questions, which both logs have, of 400" in found["notes"]
    assert cut == (retain == "ou")
    if retain == "retain90":
        assert found["ks_d"] == pytest.approx(0.396667, abs=1e-6)


def test_another_forget_set_is_refused_with_both_files_and_the_first_question(golden):
    with pytest.raises(LetheError) as error:
        score_log(golden["full"], golden["retain95"])
    message = str(error.value)
    assert "tofu_llama2_full_wd0.01.json" in message and "tofu_llama2_retain95_wd0.01.json" in message
    assert "different questions, the first at 0: 'What is the full name of the author born in Taipei" in message
    assert "\n" not in message


# ---------------------------------------------------------------------------------------------- references


def test_a_log_is_not_its_own_reference_under_any_name(write, tmp_path):
    log = write("log.json", tofu_log())
    copied, linked = tmp_path / "copy.json", tmp_path / "link.json"
    shutil.copy(log, copied)
    linked.symlink_to(log)
    for reference in (log, copied, linked, str(tmp_path / "." / "log.json")):
        with pytest.raises(LetheError, match=r"log\.json and retain log .*: the same log"):
            score_log(log, reference)


def test_questions_are_compared_without_their_template_tags(write):
    a = write("a.json", tofu_log(tag="[INST] {} [/INST]"))
    b = write("b.json", ou_log(tag="system\nBe kind.\nuser\n{}\nassistant\n"))
    assert score_log(a, b)["forget_quality_p"] == 1.0


def test_a_common_prefix_is_compared_in_either_direction(write):
    a, b = write("a.json", tofu_log(("Who?", "Where?", "When?"))), write("b.json", tofu_log(("Who?", "Where?")))
    for log, retain in ((a, b), (b, a)):
        assert "forget quality: the first 2 questions, which both logs have, of 3" in score_log(log, retain)["notes"]


def test_a_prefix_that_breaks_off_later_is_refused(write):
    a, b = write("a.json", tofu_log(("Who?", "Where?"))), write("b.json", tofu_log(("Who?", "Whence?", "When?")))
    with pytest.raises(LetheError, match=r"the first at 1: 'Where\?' against 'Whence\?'"):
        score_log(a, b)


def test_a_log_without_questions_cannot_be_compared_but_scores(write):
    bare = tofu_log()
    for task in bare.values():
        del task["generated_text"]
    found = score_log(write("a.json", tofu_log(perturbed=(3.0, 3.0))), write("b.json", bare))
    assert found["forget_quality_p"] is None
    assert any("no questions in" in note and "b.json" in note for note in found["notes"])
    assert found["model_utility"] is not None


# ---------------------------------------------------------------------------------------------- forms and variants


@pytest.mark.parametrize(("variant", "r"), [("geo", 0.4966), ("arith", 0.5600)])
@pytest.mark.parametrize("make", [tofu_log, ou_log])
def test_truth_ratios_by_hand(write, make, variant, r):
    found = score_log(write("a.json", make()), truth_ratio=variant)
    assert found["forget_truth_ratio"] == pytest.approx(r, abs=5e-5)
    assert found["retain_truth_ratio"] == pytest.approx(1 - r, abs=5e-5)
    assert f"truth ratio: {variant}" in found["notes"]


def test_prob_mean_by_hand_and_its_forget_quality_is_that_of_geo(write):
    a, b = write("a.json", tofu_log()), write("b.json", tofu_log(perturbed=(3.0, 1.0)))
    found = score_log(a, b, truth_ratio="prob_mean")
    assert found["forget_truth_ratio"] == found["retain_truth_ratio"] == pytest.approx(0.6682, abs=5e-5)
    assert found["forget_quality_p"] == score_log(a, b)["forget_quality_p"]


@pytest.mark.parametrize("make", [tofu_log, ou_log])
def test_a_collapsed_model_gets_no_perfect_retain_score(write, make):
    collapsed = json.loads(json.dumps(make(perturbed=(40.0,) * 5)).replace(": 1.0", ": 40.0"))
    found = score_log(write("a.json", collapsed))
    assert found["forget_truth_ratio"] == pytest.approx(1.0)
    assert found["retain_truth_ratio"] == pytest.approx(0.0, abs=1e-9)
    assert found["model_utility"] == 0


def test_older_logs_keep_lists_instead_of_objects(write):
    old = {
        name: {field: [values[str(i)] for i in range(2)] for field, values in task.items()}
        for name, task in tofu_log().items()
    }
    a, b = score_log(write("old.json", old)), score_log(write("new.json", tofu_log()))
    assert a == b


def test_the_order_of_keys_in_a_log_is_not_the_order_of_items(write):
    log = tofu_log(tuple(f"Question {i}?" for i in range(12)))
    for i in range(12):
        log["eval_log_forget.json"]["avg_paraphrased_loss"][str(i)] = 1.0 + i / 10
    turned = {
        name: {field: dict(sorted(values.items(), reverse=True)) for field, values in task.items()}
        for name, task in log.items()
    }
    frames = [read_log(write(name, each)).items.sort_values(["split", "index"]) for name, each in
              (("a.json", log), ("b.json", turned))]  # fmt: skip
    assert frames[0].reset_index(drop=True).equals(frames[1].reset_index(drop=True))


def test_one_of_tofus_four_logs_can_be_scored_alone(write):
    found = score_log(write("run/eval_log_forget.json", tofu_log()["eval_log_forget.json"]))
    assert found["forget_prob"] == pytest.approx(math.exp(-0.5))
    assert found["model_utility"] is None
    assert any(note.startswith("model_utility: needs retain_prob") for note in found["notes"])
    assert any(note.startswith("ra_prob: no eval_real_author_wo_options.json") for note in found["notes"])


def test_a_score_that_an_open_unlearning_log_lacks_is_null_and_named(write):
    log = ou_log()
    del log["retain_Q_A_PARA_Prob"]
    found = score_log(write("a.json", log))
    assert found["retain_truth_ratio"] is None
    assert "retain_truth_ratio: no retain_Q_A_PARA_Prob in the log" in found["notes"]
    assert found["retain_prob"] == pytest.approx(math.exp(-0.5))


def test_an_unknown_variant_is_refused(write):
    with pytest.raises(LetheError, match="truth ratio must be one of geo, arith, prob_mean, got 'mean'"):
        score_log(write("a.json", tofu_log()), truth_ratio="mean")


# ---------------------------------------------------------------------------------------------- broken files


def broken(log, *keys, value=None):
    log = copy.deepcopy(log)
    *path, last = keys
    inner = log
    for key in path:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return log


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("{", r"bad\.json line 1: not JSON"),
        ("[1, 2]", r"bad\.json: neither a TOFU nor an OpenUnlearning evaluation log, got list"),
        ({"forget_Q_A_Prob": 0.1, "model_utility": 0.6}, r"neither .* got forget_Q_A_Prob, model_utility"),
        ({}, r"neither .* got nothing"),
        (
            broken(tofu_log(), "eval_log.json", "average_perturb_loss"),
            r"bad\.json: eval_log\.json: no field 'average_perturb_loss' \(has: avg_gt_loss",
        ),
        (
            broken(tofu_log(), "eval_log.json", "avg_gt_loss", "1"),
            r"bad\.json: eval_log\.json: avg_paraphrased_loss and avg_gt_loss differ in items, the first 1",
        ),
        (
            broken(tofu_log(), "eval_log.json", "rougeL_recall", "0", value="high"),
            r"bad\.json: eval_log\.json: rougeL_recall: 0: expected a number, got 'high'",
        ),
        (
            broken(tofu_log(), "eval_log.json", "average_perturb_loss", "0", value=1.5),
            r"average_perturb_loss: 0: expected a list of numbers, got 1\.5",
        ),
        (
            broken(tofu_log(), "eval_log.json", "avg_gt_loss", value={"first": 1.0}),
            r"avg_gt_loss: expected values by index, got the key 'first'",
        ),
        (broken(tofu_log(), "eval_log.json", value=[1]), r"bad\.json: eval_log\.json: expected an object, got list"),
        (
            broken(tofu_log(), "eval_log.json", "generated_text", "0", value="He."),
            r"generated_text: 0: expected \[prompt, generation, answer\]",
        ),
        (
            broken(ou_log(), "forget_Q_A_Prob", "value_by_index", "1", value={"prob": 0.1}),
            r"bad\.json: forget_Q_A_Prob: 1: no field 'avg_loss' \(has: prob\)",
        ),
        (
            broken(ou_log(), "forget_Q_A_PERT_Prob", "value_by_index"),
            r"bad\.json: forget_Q_A_PERT_Prob: no field 'value_by_index' \(has: agg_value\)",
        ),
        (
            broken(ou_log(), "wf_Q_A_PERT_Prob", "value_by_index", "1"),
            r"bad\.json: wf_Q_A_PERT_Prob and wf_Q_A_Prob differ in items, the first 1",
        ),
        (
            broken(ou_log(), "ra_Q_A_Prob", "value_by_index", "0", value={"avg_loss": float("nan")}),
            r"ra_Q_A_Prob: 0: avg_loss: expected a number, got nan",
        ),
    ],
)
def test_a_broken_log_is_one_line_that_names_file_and_field(write, log, message):
    with pytest.raises(LetheError, match=message) as error:
        score_log(write("bad.json", log))
    assert "\n" not in str(error.value)


def test_scoring_a_log_loads_neither_torch_nor_rouge():
    code = "import sys, lethe.interop.score_log; print({'torch', 'transformers', 'nltk'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_a_missing_file_is_named(tmp_path, write):
    with pytest.raises(LetheError, match=r"none\.json: no such file"):
        score_log(tmp_path / "none.json")
    with pytest.raises(LetheError, match=r"none\.json: no such file"):
        score_log(write("a.json", tofu_log()), tmp_path / "none.json")
