import json
import shutil

import pytest

from lethe.config import Evaluation
from lethe.errors import LetheError
from lethe.files import read_json
from lethe.metrics import muse_score
from lethe.metrics.evaluate import evaluate_model, evaluate_runs
from lethe.models.load import load_tokenizer, save_model
from lethe.models.tiny import build
from lethe.recipe import Margin
from lethe.schema import validate

OPTIONS = Evaluation(max_tokens=600, max_length=60, max_new_tokens=4, verbatim_tokens=4, knowledge_tokens=4)
MARGIN = Margin(k=3, beta=1.0, rho=0.7)
QUESTIONS = [{"question": f"Who is {name}?", "answer": f"{name} Quill."} for name in ("Ada", "Bram", "Cleo")]
TEXTS = [{"text": f"{name} Quill won the Bitter Lantern Prize."} for name in ("Ada", "Bram", "Cleo")]
MUSE = {
    "forget": TEXTS,
    "verbatim_forget": [{"prompt": row["text"][:10], "continuation": row["text"][10:]} for row in TEXTS],
    "knowledge_forget": QUESTIONS,
    "examples_forget": QUESTIONS[:1],
    "member_forget": TEXTS,
    # One text on both sides: a tie, so that no random model's AUC is 0.
    "member_holdout": [TEXTS[1], {"text": "A travelling piano tuner."}, {"text": "Born in Mill Hollow."}],
}
TOFU = {"forget": QUESTIONS, "retain": QUESTIONS[:2]}


@pytest.fixture
def benchmark(tmp_path):
    def write(name, files, **manifest):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for file, rows in files.items():
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if manifest:
            (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return write


@pytest.fixture(scope="module")
def retrained(tiny_folder, tmp_path_factory):
    tokenizer = load_tokenizer(tiny_folder)
    model = build("qwen2", tokenizer, hidden_size=64, layers=2, heads=2, intermediate_size=128, seed=1)
    folder = tmp_path_factory.mktemp("retrained") / "weights"
    save_model(model, tokenizer, folder)
    return folder


@pytest.fixture
def evaluate(tiny_folder, tmp_path):
    def run(folder, attack="none", model=tiny_folder, reference=None, options=OPTIONS, out="eval.json"):
        rest = {"reference": reference, "options": options, "margin": MARGIN, "template": None}
        evaluate_model(str(model), attack, folder, tmp_path / out, **rest)
        return read_json(tmp_path / out)

    return run


def test_the_manifest_names_the_suite(benchmark, evaluate):
    missing = {"knowledge_retain": "no questions on retained texts"}
    found = evaluate(benchmark("muse-x", MUSE, suite="muse", missing=missing))
    assert found["spec"]["suite"] == "muse"
    assert found["metrics"]["forget.prob"]["n"] == 3
    assert found["metrics"]["verbmem.forget"]["value"] is not None
    assert found["metrics"]["knowmem.retain"]["reason"] == "no questions on retained texts"
    assert "model_utility" not in found["metrics"]


@pytest.mark.parametrize("manifest", [{}, {"suite": "tofu"}, {"licence": "MIT"}])
def test_a_folder_that_names_no_suite_is_of_tofus(benchmark, evaluate, manifest):
    found = evaluate(benchmark("own", TOFU, **manifest))
    assert found["spec"]["suite"] == "tofu"
    assert {"forget.prob", "model_utility"} <= found["metrics"].keys()
    assert [(s["split"], s["index"], s["question"]) for s in found["samples"]] == [
        ("forget", i, row["question"]) for i, row in enumerate(QUESTIONS)
    ]


def test_an_unknown_suite_is_named(benchmark, evaluate):
    with pytest.raises(LetheError, match=r"manifest\.json: suite must be one of tofu, muse, got 'wmdp'"):
        evaluate(benchmark("x", TOFU, suite="wmdp"))


def test_muses_samples_are_continuations_and_answers(benchmark, evaluate):
    samples = evaluate(benchmark("muse-x", MUSE, suite="muse"))["samples"]
    assert [(s["split"], s["index"]) for s in samples] == [
        (split, i) for split in ("verbatim_forget", "knowledge_forget") for i in range(3)
    ]
    assert (samples[0]["question"], samples[0]["answer"]) == (TEXTS[0]["text"][:10], TEXTS[0]["text"][10:])
    assert all("generation" in sample for sample in samples)


def test_attacked_models_are_scored_on_the_forget_side_of_muse_and_on_all_of_tofu(benchmark, evaluate):
    folder = benchmark("muse-x", MUSE, suite="muse")
    whole, attacked = evaluate(folder), evaluate(folder, attack="rtn4")
    assert whole["metrics"]["mia.min_k_auc"]["value"] is not None
    assert attacked["metrics"]["mia.min_k_auc"]["reason"] == "attacks are scored on the forget side only"
    assert attacked["metrics"]["knowmem.forget"]["value"] is not None
    assert evaluate(benchmark("own", TOFU), attack="rtn4")["metrics"]["retain.prob"]["value"] is not None


def test_privleak_is_against_the_reference_that_was_measured(benchmark, evaluate, retrained, tmp_path):
    folder = benchmark("muse-x", MUSE, suite="muse")
    reference = evaluate(folder, model=retrained, out="retrained.json")
    options = OPTIONS.model_copy(update={"published_auc": {"muse-x": 0.4772, "muse-y": 0.9}})
    found = evaluate(folder, reference=tmp_path / "retrained.json", options=options)["metrics"]
    a, a_ref = (m["mia.min_k_auc"]["value"] for m in (found, reference["metrics"]))
    assert found["privleak"]["value"] == pytest.approx(100 * (a - a_ref) / a_ref)
    assert f"against the retrained model's own AUC {a_ref:.3f}" in found["privleak"]["reason"]
    assert found["privleak.published"]["value"] == pytest.approx(100 * (a - 0.4772) / 0.4772)


def test_a_reference_on_another_benchmark_of_the_same_membership_texts_serves(benchmark, evaluate, retrained, tmp_path):
    other = benchmark(
        "muse-y", {**MUSE, "forget": TEXTS[:1], "verbatim_forget": MUSE["verbatim_forget"][:1]}, suite="muse"
    )
    evaluate(other, model=retrained, out="retrained.json")
    reference = tmp_path / "retrained.json"
    found = evaluate(benchmark("muse-x", MUSE, suite="muse"), reference=reference)["metrics"]
    assert found["privleak"]["value"] is not None
    changed = {**MUSE, "member_holdout": [{"text": "Fog over Bonn."}, {"text": "Snow."}]}
    found = evaluate(benchmark("muse-z", changed, suite="muse"), reference=reference)["metrics"]
    assert found["privleak"]["value"] is None
    assert "the reference's split 'member_holdout' has different texts, the first at 0" in found["privleak"]["reason"]


def test_what_is_done_is_kept_until_an_option_or_the_suite_changes(benchmark, evaluate):
    folder = benchmark("muse-x", MUSE, suite="muse")
    first = evaluate(folder)
    assert evaluate(folder) == first  # the seconds it took among them
    assert evaluate(folder, options=OPTIONS.model_copy(update={"verbatim_tokens": 3})) != first
    (folder / "manifest.json").unlink()
    shutil.rmtree(folder)
    again = benchmark("muse-x", {**MUSE, "retain": TEXTS})
    assert evaluate(again)["spec"]["suite"] == "tofu"


def test_the_models_of_a_run_share_their_texts_token_ids(benchmark, tiny_folder, retrained, tmp_path, monkeypatch):
    encoded = []
    real = muse_score.encode_prompt
    monkeypatch.setattr(muse_score, "encode_prompt", lambda *a: encoded.append(a[2]) or real(*a))
    for seed, model in enumerate((tiny_folder, retrained)):
        (tmp_path / f"s{seed}").symlink_to(model)
    evaluate_runs(
        str(tmp_path / "s{seed}"), [0, 1], ["none", "rtn4"], benchmark("muse-x", MUSE, suite="muse"),
        str(tmp_path / "out/s{seed}/{attack}.json"), tmp_path / "work",
        reference=None, options=OPTIONS, margin=None, template=None,
    )  # fmt: skip
    assert len(encoded) == len(set(encoded)) == 3 + 3 + 3 + 2
    assert sorted(p.name for p in (tmp_path / "out").rglob("*.json")) == ["none.json"] * 2 + ["rtn4.json"] * 2


@pytest.mark.parametrize("value", [0.0, 1.5, -0.4772])
def test_a_published_auc_lies_above_zero_and_at_most_at_one(value):
    with pytest.raises(LetheError, match=r"evaluation: published_auc\.muse-news"):
        validate(Evaluation, {"published_auc": {"muse-news": value}}, "evaluation")
    assert validate(Evaluation, {"published_auc": {"muse-news": 1.0}}, "evaluation").published_auc["muse-news"] == 1.0
