import json
import subprocess
import sys

import pytest

from lethe.cli import main
from lethe.files import read_json, write_jsonl

STAGES = ["prepare", "pretrain", "finetune", "unlearn", "evaluate", "attack", "summarise", "fit", "draw", "score-log"]


def error(capsys, *argv) -> str:
    """The one line that a wrong call ends with."""
    assert main([str(a) for a in argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("lethe: ") and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_explains_itself(capsys, stage):
    with pytest.raises(SystemExit) as done:
        main([stage, "--help"])
    assert done.value.code == 0 and "usage: lethe" in capsys.readouterr().out


def test_help_imports_no_heavy_package():
    code = "import sys; from lethe.cli import parser; parser(); print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_a_persons_own_model_and_files_are_unlearned_and_evaluated(capsys, tiny_folder, rows, tmp_path):
    out = tmp_path / "forgotten"
    small = ["batch.rows=2", "batch.effective=2", "batch.accumulate=1", "epochs=2", "optimizer.lr=0.01"]
    call = ["unlearn", "--model", tiny_folder, "--forget", rows["forget"], "--retain", rows["retain"]]
    assert main([str(a) for a in [*call, "--recipe", "npo-klr", "--out", out, "--set", *small]]) == 0
    assert read_json(out / "run.json")["recipe"] == "npo-klr"
    report = tmp_path / "eval.json"
    call = ["evaluate", "--model", out / "weights", "--benchmark", tmp_path, "--attack", "rtn4", "--out", report]
    assert main([str(a) for a in [*call, "--options", '{"max_new_tokens": 4, "bootstrap": 50}']]) == 0
    result = read_json(report)
    assert 0 < result["metrics"]["forget.prob"]["value"] < 1 and result["metrics"]["forget.prob"]["n"] == 2
    assert result["quantised"]["bits"] == 4 and len(result["quantised"]["quantised"]) == 14
    lacking = result["metrics"]["forget_quality.p"]
    assert lacking["value"] is None and lacking["reason"]


def test_an_attacked_model_is_a_model_folder(tiny_folder, tmp_path):
    assert main(["attack", "--model", str(tiny_folder), "--attack", "rtn3", "--out", str(tmp_path / "q")]) == 0
    assert read_json(tmp_path / "q/attack.json")["bits"] == 3
    assert (tmp_path / "q/model.safetensors").exists()


def test_a_recipe_may_be_given_whole_as_json(capsys, tiny_folder, rows, tmp_path):
    whole = json.dumps({"name": "mine", "method": "gradient", "forget": {"loss": "nopo"}})
    line = error(
        capsys, "unlearn", "--model", tiny_folder, "--forget", rows["forget"], "--recipe", whole, "--out", tmp_path
    )
    assert "forget" in line and "nopo" in line


def test_an_unknown_recipe_names_the_known_ones(capsys, tiny_folder, rows, tmp_path):
    line = error(
        capsys, "unlearn", "--model", tiny_folder, "--forget", rows["forget"], "--recipe", "mask", "--out", tmp_path
    )
    assert "no recipe 'mask'" in line and "masc" in line


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("forget.rho=1.7", "forget.margin_hinge.rho"),
        ("forget.roh=0.7", "unknown key"),
        ("optimiser.lr=1", "optimiser: unknown key"),
        ("optimizer.lr=fast", "'fast'"),
        ("lr", "expected key=value"),
    ],
)
def test_a_wrong_setting_names_its_key(capsys, tiny_folder, rows, tmp_path, setting, says):
    call = ["unlearn", "--model", tiny_folder, "--forget", rows["forget"], "--recipe", "masc", "--out", tmp_path / "o"]
    assert says in error(capsys, *call, "--set", setting)


def test_a_missing_file_is_named_before_the_model_is_loaded(capsys, tmp_path, rows):
    call = ["unlearn", "--model", "./no/model", "--recipe", "npo", "--out", tmp_path / "o", "--retain", rows["retain"]]
    assert f"{tmp_path}/nothing.jsonl: no such file" in error(capsys, *call, "--forget", tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "Q?", "anwser": "A."}, "forget.jsonl row 1: no field 'answer' (has: question, anwser)"),
        ({"question": "Q?", "answer": "  "}, "forget.jsonl row 1: 'answer' must be a text that is not empty"),
        (None, "forget.jsonl: no rows"),
    ],
)
def test_a_wrong_row_is_named(capsys, tiny_folder, rows, tmp_path, row, says):
    write_jsonl(rows["forget"], [row] if row else [])
    call = [
        "unlearn",
        "--model",
        tiny_folder,
        "--forget",
        rows["forget"],
        "--retain",
        rows["retain"],
        "--recipe",
        "npo",
    ]
    assert says in error(capsys, *call, "--out", tmp_path / "o")


def test_a_retain_loss_without_retain_rows_is_refused(capsys, rows, tmp_path):
    call = ["unlearn", "--model", "./no/model", "--forget", rows["forget"], "--recipe", "npo", "--out", tmp_path / "o"]
    assert "needs retain rows (--retain)" in error(capsys, *call)


def test_an_unknown_attack_names_the_known_ones(capsys, tiny_folder, tmp_path):
    call = ["evaluate", "--model", tiny_folder, "--benchmark", tmp_path, "--out", tmp_path / "e.json"]
    line = error(capsys, *call, "--attack", "rtn5")
    assert "rtn5" in line and "rtn4" in line


def test_an_evaluation_is_not_its_own_reference(capsys, tiny_folder, tmp_path):
    write_jsonl(tmp_path / "forget.jsonl", [{"question": "Q?", "answer": "A."}])
    out = tmp_path / "e.json"
    call = ["evaluate", "--model", tiny_folder, "--benchmark", tmp_path, "--out", out, "--reference", out]
    assert "cannot be its own reference" in error(capsys, *call)
