import ast
import re
from pathlib import Path

import pytest
import yaml
from workflow_project import job_counts

from lethe import config
from lethe.plan import plan, recipe_of
from lethe.recipe import load_recipes

STUDY = yaml.safe_load((Path(__file__).parents[2] / "config/studies/masc.yaml").read_text())


@pytest.mark.parametrize("scale", ["smoke", "mini", "paper-tiny", "paper"])
def test_every_scale_plans_every_artefact_of_the_study(plan_of, scale):
    jobs = job_counts(plan_of(f"scale={scale}"))
    assert {f"draw_{id}" for id in STUDY["tables"] + STUDY["figures"]} <= set(jobs)
    assert ("pretrain" in jobs) == (scale != "paper")
    assert ("fetch_base" in jobs) == ("fetch_target" in jobs) == (scale == "paper")


def test_a_scale_may_read_its_corpus_from_a_folder(plan_of, tmp_path):
    plan = plan_of("scale=mini-tofu", f"corpus_dir={tmp_path}")
    assert f'{{"local": "{tmp_path}"}}' in plan and job_counts(plan)["prepare_benchmark"] == 2


def test_a_released_target_is_evaluated_once_and_never_trained(plan_of):
    lines = plan_of("scale=paper").splitlines()
    made = {word.strip(",") for line in lines if line.strip().startswith("output:") for word in line.split()}
    evaluation = "results/paper/runs/tofu-forget10/llama2-7b/{}/eval/none.json"
    assert "results/paper/models/llama2-7b/tofu/s0" in made
    assert "results/paper/models/llama2-7b/tofu/s1" not in made
    assert evaluation.format("target/s0") in made and evaluation.format("masc/s2") in made
    assert evaluation.format("target/s1") not in made
    assert "results/paper/models/qwen2.5-7b/tofu/s2" in made


def test_requests_in_sequence_start_from_the_run_of_the_same_recipe_and_seed(plan_of):
    jobs = plan_of("scale=mini").split("\n\n")
    job = next(job for job in jobs if "/runs/muse-news-sust-3/t128/simnpo/s0/weights" in job and "unlearn" in job)
    start = "results/mini/runs/muse-news-sust-2/t128/simnpo/s{}/weights"
    assert start.format(0) in re.search(r"input: (.*)", job)[1] and f"--model {start.format('{seed}')}" in job
    assert "--retrain" not in job  # SimNPO has no stop rule to calibrate
    masc = next(job for job in jobs if "/runs/muse-news-sust-3/t128/masc/s0/weights" in job and "unlearn" in job)
    assert "--retrain results/mini/runs/muse-news/t128/retrain/s0/weights" in masc


def test_a_released_retrained_model_is_fetched_and_a_benchmark_may_use_another_ones(plan_of):
    plan = plan_of("scale=paper")
    jobs = job_counts(plan)
    assert jobs["fetch_retrained"] == 2
    assert "results/paper/runs/muse-news/muse-7b/retrain/s0/weights" in plan
    assert "results/paper/runs/muse-news-scal-2/muse-7b/retrain" not in plan
    assert "results/paper/models/muse-7b/base" not in plan  # nothing is trained from it


def test_a_scale_of_large_models_has_one_job_a_seed_and_a_small_one_batches_them(plan_of):
    mini, paper = job_counts(plan_of("scale=mini")), job_counts(plan_of("scale=paper"))
    seeds = unlearning("mini")
    assert mini["unlearn_s0_1_2"] == sum(found == {0, 1, 2} for found in seeds.values()) > 40
    assert mini["unlearn_s0"] == sum(found == {0} for found in seeds.values()) == 1  # that start itself
    for seed in (0, 1, 2):
        assert paper[f"unlearn_s{seed}"] == sum(seed in found for found in unlearning("paper").values()) > 40
    assert "unlearn_s4" in job_counts(plan_of("scale=paper", "tier=full"))


def unlearning(scale):
    """{run: seeds} of the study's runs that start from the target."""
    found, recipes = config.load_scale(scale), load_recipes()
    seeds = {}
    for cell in plan(config.load_study("masc"), found, "core"):
        if recipe_of(recipes, found, cell.run).unlearns:
            seeds.setdefault(cell.run, set()).add(cell.seed)
    return seeds


def test_watched_runs_are_jobs_of_their_own_and_drawn_only_where_they_are(plan_of, tmp_path):
    mini, tofu = job_counts(plan_of("scale=mini")), job_counts(plan_of("scale=mini-tofu", f"corpus_dir={tmp_path}"))
    assert sum(n for rule, n in mini.items() if rule.startswith("watch_")) == 14
    assert {"draw_fig2", "draw_controls", "draw_table3-grid"} <= set(mini)
    assert not {rule for rule in tofu if rule.startswith("watch_") or rule in ("draw_fig2", "draw_controls")}
    assert {"draw_table1", "draw_paired", "draw_table6", "draw_fig4"} <= set(tofu)


@pytest.mark.parametrize(("scale", "online"), [("smoke", {"prepare"}), ("paper", {"prepare", "pretrain"})])
def test_after_data_and_downloads_every_command_is_offline(plan_of, scale, online):
    commands = re.findall(r"(HF_HUB_OFFLINE=1 )?lethe ([a-z]+) --", plan_of(f"scale={scale}"))
    assert {stage for offline, stage in commands if not offline} - {"summarise", "fit", "draw"} == online
    assert {stage for offline, stage in commands if offline} >= {"finetune", "unlearn", "evaluate"}


def test_requests_grow_with_the_model_and_gpus_are_left_to_profiles(plan_of):
    plan = plan_of("scale=paper")
    small, large = (
        int(
            re.search(rf"output: results/paper/runs/tofu-forget10/{model}/masc/s0/weights.*?mem_mb=(\d+)", plan, re.S)[
                1
            ]
        )
        for model in ("qwen2.5-0.5b", "qwen2.5-7b")
    )
    assert small < large
    assert "gpu" not in plan


@pytest.mark.parametrize(
    ("stage", "variables", "beside"),
    [
        ("unlearn/run.py", ["TRAINING_CODE"], ()),
        ("unlearn/watch.py", ["WATCHING_CODE"], ()),
        ("models/base.py", ["PRETRAINING_CODE"], ()),
        ("metrics/evaluate.py", ["SCORING_CODE", "ATTACKING_CODE"], ()),
        ("data/prepare.py", ["DATA_CODE"], ()),
        ("analysis/summarise.py", ["SUMMARY_CODE"], ("plan.py",)),
        ("analysis/powerlaw.py", ["FIT_CODE"], ()),
        ("paper/render.py", ["PAPER_CODE"], ()),
    ],
)
def test_the_digest_of_a_stage_covers_what_it_imports(repo, stage, variables, beside):
    """But for plumbing, whose edits rerun nothing: what it decides shows in a job's parameters or in an error."""
    plumbing = {
        "config.py",
        "errors.py",
        "files.py",
        "machine.py",
        "paths.py",
        "progress.py",
        "recipe.py",
        "schema.py",
        *beside,
    }
    covered = {file for name in variables for part in code_of(repo, name) for file in modules(repo, part)}
    assert imported(repo, stage, plumbing) <= covered


def code_of(repo: Path, name: str) -> tuple[str, ...]:
    """A tuple of module names in common.smk."""
    found = re.search(rf"^{name} = (\(.*?\))$", (repo / "workflow/rules/common.smk").read_text(), re.M | re.S)
    spelled = re.sub(r"\*([A-Z]+_CODE)", lambda m: ", ".join(map(repr, code_of(repo, m[1]))), found[1])
    return ast.literal_eval(spelled)


def modules(repo: Path, part: str) -> set[str]:
    root = repo / "workflow/lethe"
    assert (root / part).exists(), part
    files = [root / part] if part.endswith(".py") else (root / part).rglob("*.py")
    return {str(file.relative_to(root)) for file in files}


def imported(repo: Path, start: str, without: set[str]) -> set[str]:
    """Modules of the library that `start` imports, directly or not, other than through `without`."""
    root, seen, todo = repo / "workflow/lethe", set(), [start]
    while todo:
        module = todo.pop()
        if module in seen or module in without or not (root / module).is_file():
            continue
        seen.add(module)
        for node in ast.walk(ast.parse((root / module).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lethe":
                folder = "/".join(node.module.split(".")[1:])
                todo += [f"{folder}.py", *(f"{folder}/{alias.name}.py".lstrip("/") for alias in node.names)]
    return seen


def test_conda_environments_have_the_pins_of_the_requirements(repo):
    pins = {
        line
        for file in ("requirements-paper.txt", "requirements.txt")
        for line in (repo / "envs" / file).read_text().split("\n")
    }
    for name in ("paper", "compute"):
        packages = yaml.safe_load((repo / f"envs/{name}.yaml").read_text())["dependencies"][-1]["pip"]
        assert packages and set(packages) <= pins
