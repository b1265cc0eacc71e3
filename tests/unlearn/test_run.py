import csv
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from lethe.errors import LetheError
from lethe.files import read_json, read_jsonl, write_jsonl
from lethe.models.load import load_model, weights_sha256
from lethe.recipe import Recipe, load_recipes, resolve, set_values
from lethe.schema import validate
from lethe.unlearn import run
from lethe.unlearn.run import train_seeds, train_single
from lethe.unlearn.training import Sources

SMALL = ["batch.rows=2", "batch.accumulate=1", "batch.effective=2", "optimizer.lr=0.01", "epochs=2", "max_length=64"]


def recipe(name, *settings) -> Recipe:
    raw = resolve(load_recipes(), name).model_dump(mode="json")
    return validate(Recipe, set_values(raw, [*SMALL, *settings]), name)


@pytest.fixture
def sources(tiny_folder, rows) -> Sources:
    return Sources(start=str(tiny_folder), forget=rows["forget"], retain=rows["retain"])


def test_a_run_leaves_weights_that_plain_transformers_loads_and_a_record_of_them(sources, tmp_path):
    train_single(recipe("graddiff"), sources, 0, tmp_path / "out", tmp_path / "work")
    record = read_json(tmp_path / "out/run.json")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out/weights")
    assert weights_sha256(model) == record["weights_sha256"] != record["start_sha256"]
    assert record["start_sha256"] == weights_sha256(load_model(sources.start))
    assert record["steps"] == 2 and record["stop_reason"] == "budget"
    assert record["spec"]["forget"]["loss"] == "ga" and record["effective_batch"] == 2
    assert record["forget_tokens"] > 0 and record["flops"] > 0 and record["peak_rss_mb"] > 0
    trace = list(csv.DictReader((tmp_path / "out/trace.csv").open()))
    assert [row["step"] for row in trace] == ["1", "2"]
    assert not (tmp_path / "work/run").exists()


def test_a_lora_run_keeps_its_adapter_and_saves_merged_weights(sources, tmp_path):
    train_single(recipe("masc", "stop={rule: budget}"), sources, 0, tmp_path / "out", tmp_path / "work")
    start = load_model(sources.start).state_dict()
    merged = load_model(tmp_path / "out/weights").state_dict()
    changed = {name for name in start if not torch.equal(start[name], merged[name])}
    assert changed and all(".self_attn." in name for name in changed)
    assert (tmp_path / "out/adapter/adapter_model.safetensors").exists()
    assert merged.keys() == start.keys()


def test_a_run_that_changes_no_weight_fails_with_that_reason(sources, tmp_path):
    with pytest.raises(LetheError, match=r"no parameter changed in 2 steps"):
        train_single(recipe("graddiff", "optimizer.lr=0"), sources, 0, tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "out").exists()


def test_a_run_that_already_satisfies_its_stop_rule_is_a_result(sources, tmp_path):
    train_single(recipe("masc", "stop.alpha=1"), sources, 0, tmp_path / "out", tmp_path / "work")
    record = read_json(tmp_path / "out/run.json")
    assert record["stop_reason"] == "already-satisfied" and record["steps"] == 0


def test_a_loss_that_is_not_finite_leaves_nothing_that_looks_finished(sources, tmp_path):
    with pytest.raises(LetheError, match=r"not finite at step"):
        train_single(recipe("ga", "optimizer.lr=1e30", "epochs=5"), sources, 0, tmp_path / "out", tmp_path / "work")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_call_keeps_its_finished_seeds(sources, tmp_path, monkeypatch):
    train_one, trained = run.train_one, []

    def kill_on_second(recipe, sources, seed, work, **options):
        if seed == 1:
            raise KeyboardInterrupt
        trained.append(seed)
        train_one(recipe, sources, seed, work, **options)

    monkeypatch.setattr(run, "train_one", kill_on_second)
    with pytest.raises(KeyboardInterrupt):
        train_seeds(recipe("graddiff"), sources, [0, 1], tmp_path / "out", tmp_path / "work")
    assert trained == [0] and not (tmp_path / "out").exists()
    kept = read_json(tmp_path / "work/s0/done/run.json")
    monkeypatch.setattr(run, "train_one", train_one)
    train_seeds(recipe("graddiff"), sources, [0, 1], tmp_path / "out", tmp_path / "work")
    assert read_json(tmp_path / "out/s0/run.json") == kept
    assert read_json(tmp_path / "out/s1/run.json")["weights_sha256"] != kept["weights_sha256"]


def test_a_finished_seed_of_other_settings_is_not_taken_over(sources, tmp_path):
    for name, lr in (("a", 0.01), ("b", 0.02)):
        run.train_one(recipe("graddiff", f"optimizer.lr={lr}"), sources, 0, tmp_path / "work", flat=False)
        train_single(recipe("graddiff", f"optimizer.lr={lr}"), sources, 0, tmp_path / name, tmp_path / f"w{name}")
        kept = read_json(tmp_path / "work/done/run.json")
        assert kept["weights_sha256"] == read_json(tmp_path / name / "run.json")["weights_sha256"]


def test_alpha_retrain_is_the_retrained_models_violation_rate(sources, tmp_path, tiny_folder):
    retrained = Sources(**{**vars(sources), "retrain": str(tiny_folder)})
    train_single(recipe("masc", "stop.alpha=retrain"), retrained, 0, tmp_path / "out", tmp_path / "work")
    record = read_json(tmp_path / "out/run.json")
    # The retrained model given here is the start itself, so its own rate is met before the first step.
    assert record["stop_reason"] == "already-satisfied" and 0 <= record["alpha"] <= 1


def test_a_finished_seed_calibrated_by_another_retrained_model_is_not_taken_over(sources, tmp_path, tiny_folder):
    retrained = tmp_path / "retrained"
    shutil.copytree(tiny_folder, retrained)
    options = Sources(**{**vars(sources), "retrain": str(retrained)})
    before = run.run_identity(recipe("masc", "stop.alpha=retrain"), options, 0)
    (retrained / "model.safetensors").write_bytes(b"other weights")
    assert run.run_identity(recipe("masc", "stop.alpha=retrain"), options, 0) != before


def test_alpha_retrain_without_a_retrained_model_is_refused_before_loading(sources, tmp_path):
    missing = Sources(**{**vars(sources), "start": "./not/there"})
    with pytest.raises(LetheError, match=r"stop.alpha 'retrain' needs the retrained model"):
        train_single(recipe("masc", "stop.alpha=retrain"), missing, 0, tmp_path / "out", tmp_path / "work")


def test_rows_that_are_only_texts_can_be_unlearned(sources, tmp_path, rows):
    texts = [{"text": f"{row['question']} {row['answer']}"} for row in read_jsonl(rows["forget"])]
    write_jsonl(rows["forget"], texts)
    train_single(recipe("npo-klr"), sources, 0, tmp_path / "out", tmp_path / "work")
    assert read_json(tmp_path / "out/run.json")["steps"] == 2


def test_an_adapter_on_modules_the_model_lacks_is_one_clear_line(sources, tmp_path):
    with pytest.raises(LetheError, match=r"adapter.targets"):
        train_single(recipe("masc", "adapter.targets=[nothing_like_it]"), sources, 0, tmp_path / "o", tmp_path / "w")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can run it")
def test_a_device_only_optimiser_on_a_cpu_is_refused_before_loading(sources, tmp_path):
    missing = Sources(**{**vars(sources), "start": "./not/there"})
    with pytest.raises(LetheError, match=r"paged_adamw_32bit needs a CUDA device"):
        train_single(recipe("npo", "optimizer.name=paged_adamw_32bit"), missing, 0, tmp_path / "o", tmp_path / "w")


def test_a_start_on_the_grid_is_where_the_run_begins(sources, tmp_path):
    from lethe.models.quantise import rounded_weights, toward_grid

    on_grid = recipe("graddiff", "start={grid: bnb-nf4, residue: 0.0}", "optimizer.lr=1e-9")
    train_single(on_grid, sources, 0, tmp_path / "out", tmp_path / "work")
    record = read_json(tmp_path / "out/run.json")
    start = load_model(sources.start)
    assert record["start_sha256"] == weights_sha256(start)
    toward_grid(start, "bnb-nf4", 0.0)
    final = rounded_weights(load_model(tmp_path / "out/weights"))
    for name, weight in rounded_weights(start).items():
        torch.testing.assert_close(final[name], weight, rtol=0, atol=1e-7)
    assert record["update_over_step"] < 1e-3  # counted from the grid, not from the target


def test_an_untouched_start_is_saved_as_it_is(sources, tmp_path):
    kept = resolve(load_recipes(), "untouched+nf4")
    train_single(kept, sources, 0, tmp_path / "out", tmp_path / "work")
    record = read_json(tmp_path / "out/run.json")
    assert record["steps"] == 0 and record["stop_reason"] == "untouched"
    assert record["weights_sha256"] != record["start_sha256"] and record["update_norm"] == 0
    assert (tmp_path / "out/trace.csv").read_text() == "step\n"


def test_the_operations_of_rmu_are_those_of_the_layers_it_runs(sources, tmp_path):
    model = load_model(sources.start)
    whole = sum(p.numel() for p in model.parameters())
    part = sum(p.numel() for m in (model.get_input_embeddings(), model.model.layers[0]) for p in m.parameters())
    assert run.parameters_run(model, recipe("graddiff")) == whole
    assert run.parameters_run(model, recipe("rmu", "forget.depth=0.5")) == part < whole


def test_a_task_vector_goes_the_other_way(sources, tmp_path):
    """start - strength (learned - start), where `learned` is fine-tuning on the forget rows with the same settings."""
    assert sources.forget is not None
    settings = ("epochs=2", "batch={rows: 4, accumulate: 1, effective: 4}", "optimizer.lr=1e-3")
    vector = recipe("task-vector", "strength=3.0", *settings)
    train_single(vector, sources, 0, tmp_path / "out", tmp_path / "w0")
    learning = {**vector.model_dump(mode="json"), "method": "finetune", "data": "retain", "strength": None}
    learn = Sources(**{**vars(sources), "forget": None, "retain": sources.forget})
    train_single(validate(Recipe, learning, "test"), learn, 0, tmp_path / "learned", tmp_path / "w1")
    start, learned, final = (
        dict(load_model(path).named_parameters())
        for path in (sources.start, tmp_path / "learned/weights", tmp_path / "out/weights")
    )
    for name, weight in start.items():
        torch.testing.assert_close(final[name], weight - 3 * (learned[name] - weight), rtol=1e-4, atol=1e-5)
    record = read_json(tmp_path / "out/run.json")
    assert record["forget_tokens"] > 0 and record["retain_tokens"] == 0


def test_a_task_vector_needs_rows_to_forget_and_none_to_retain(sources, tmp_path):
    lacking = Sources(**{**vars(sources), "forget": None})
    with pytest.raises(LetheError, match=r"task-vector: needs forget rows"):
        train_single(recipe("task-vector"), lacking, 0, tmp_path / "out", tmp_path / "work")


def test_texts_longer_than_the_context_are_refused(sources, tmp_path):
    context = load_model(sources.start).config.max_position_embeddings
    long = tmp_path / "long.jsonl"
    write_jsonl(long, [{"text": "One day a fox met a crow. " * context}])
    longer = Sources(**{**vars(sources), "forget": long})
    with pytest.raises(LetheError, match=rf"chunks.window must be at most the model's context, {context}, got "):
        train_single(recipe("graddiff"), longer, 0, tmp_path / "out", tmp_path / "work")
    train_single(recipe("graddiff", "chunks.window=64"), longer, 0, tmp_path / "out", tmp_path / "work")
    assert read_json(tmp_path / "out/run.json")["truncated"] == 0


def test_runs_may_start_from_the_run_of_their_seed(sources, tmp_path):
    train_seeds(recipe("graddiff"), sources, [0, 1], tmp_path / "first", tmp_path / "w0")
    further = Sources(**{**vars(sources), "start": str(tmp_path / "first/s{seed}/weights")})
    train_seeds(recipe("graddiff"), further, [0, 1], tmp_path / "second", tmp_path / "w1")
    for seed in (0, 1):
        before, after = (read_json(tmp_path / f"{name}/s{seed}/run.json") for name in ("first", "second"))
        assert after["start_sha256"] == before["weights_sha256"]


def test_method_none_without_a_start_trains_nothing(sources, tmp_path):
    with pytest.raises(LetheError, match=r"method none trains nothing"):
        train_single(resolve(load_recipes(), "base"), sources, 0, tmp_path / "out", tmp_path / "work")


def test_a_run_like_another_takes_its_steps_or_its_norm(sources, tmp_path):
    train_seeds(recipe("masc", "stop={rule: budget}"), sources, [0, 1], tmp_path / "masc", tmp_path / "w0")
    like = Sources(**{**vars(sources), "like": tmp_path / "masc/s{seed}"})
    shuffled = recipe("masc", "shuffle_answers=true", "like=masc", "stop={rule: matched}")
    train_seeds(shuffled, like, [0, 1], tmp_path / "shuffled", tmp_path / "w1")
    train_seeds(resolve(load_recipes(), "masc-random"), like, [0, 1], tmp_path / "random", tmp_path / "w2")
    for seed in (0, 1):
        ours = read_json(tmp_path / f"masc/s{seed}/run.json")
        assert read_json(tmp_path / f"shuffled/s{seed}/run.json")["steps"] == ours["steps"] > 0
        norm = read_json(tmp_path / f"random/s{seed}/run.json")["update_norm"]
        assert norm == pytest.approx(ours["update_norm"], rel=1e-4) and norm > 0


def test_a_recipe_like_another_needs_that_run(sources, tmp_path):
    with pytest.raises(LetheError, match=r"masc-random: needs the run of recipe 'masc' \(--like\)"):
        train_single(resolve(load_recipes(), "masc-random"), sources, 0, tmp_path / "out", tmp_path / "work")


def test_a_system_prompt_changes_what_unlearning_sees(sources, tmp_path):
    shas = set()
    for name, settings in (("plain", ()), ("system", ("system=Be brief.",))):
        train_single(recipe("graddiff", *settings), sources, 0, tmp_path / name, tmp_path / f"w{name}")
        shas.add(read_json(tmp_path / name / "run.json")["weights_sha256"])
    assert len(shas) == 2


def test_a_recipe_with_an_order_of_its_own_is_another_run_though_it_stops_at_the_same_step(sources, tmp_path):
    records = []
    for name, settings in (("plain", ()), ("again", ()), ("own", ("own_order=true",))):
        method = recipe("graddiff", "batch={rows: 1, accumulate: 1, effective: 1}", *settings)
        train_single(method, sources, 0, tmp_path / name, tmp_path / f"w{name}")
        records.append(read_json(tmp_path / name / "run.json"))
    assert records[0]["steps"] == records[2]["steps"]
    assert records[0]["weights_sha256"] == records[1]["weights_sha256"] != records[2]["weights_sha256"]
