"""The workflow with its real stages, on models so small that their numbers mean nothing. Minutes."""

import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from workflow_project import Project

from lethe.config import load_scale

pytestmark = pytest.mark.slow

FEW = """
title: three recipes on one model
runs:
  - {benchmarks: tofu, models: main, recipes: [target, retrain, masc]}
tables: []
figures: []
"""

KEY = ["benchmark", "model", "recipe", "seed", "attack", "metric"]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory, repo):
    """The MASC study at scale smoke, from nothing to figures."""
    project = Project(tmp_path_factory.mktemp("smoke") / "project", repo)
    project.run("--cores", "2", "--config", "scale=smoke")
    return project


def test_smoke_makes_every_artefact_and_its_numbers(smoke):
    tables = smoke.root / "paper_tables/smoke/masc"
    figures = smoke.root / "figures/smoke/masc"
    for folder, ids, suffixes in (
        (tables, ["table1", "table9"], ("csv", "md", "tex")),
        (figures, ["fig1", "fig5"], ("png", "pdf", "csv")),
    ):
        assert all((folder / f"{id}.{suffix}").stat().st_size for id in ids for suffix in suffixes)
    runs = pd.read_csv(smoke.root / "results/smoke/summary/runs.csv")
    assert {"base", "target", "retrain", "masc", "simnpo"} <= set(runs["recipe"])
    assert not smoke.jobs("--config", "scale=smoke")


def test_smoke_keeps_the_contract_of_its_files(smoke, shared):
    contract = [sys.executable, shared / "tools/contract.py", "--scale", "smoke"]
    done = subprocess.run(contract, cwd=smoke.root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "bitsandbytes"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
"""


def test_shipped_results_give_the_same_tables_without_torch(smoke):
    """In an environment where importing torch or transformers fails, and with every result gone."""
    lethe = [sys.executable, "-m", "lethe.cli"]
    subprocess.run([*lethe, "accept", "--scale", "smoke"], cwd=smoke.root, env=smoke.env, check=True)
    reviewer = Project(
        smoke.root.with_name("reviewer"),
        smoke.root,
        ("Snakefile", "workflow", "config", "profiles", "envs", "expected"),
    )
    (reviewer.root / "workflow/sitecustomize.py").write_text(WITHOUT_TORCH)
    reviewer.run("--profile", "profiles/figures", "--config", "scale=smoke", "source=shipped")
    ours, shipped = smoke.root / "paper_tables/smoke/masc", reviewer.root / "paper_tables/smoke-shipped/masc"
    assert {p.name: p.read_bytes() for p in ours.glob("*.csv")} == {
        p.name: p.read_bytes() for p in shipped.glob("*.csv")
    }
    assert not (reviewer.root / "results/smoke").exists()


def test_a_killed_and_restarted_run_gives_the_numbers_of_an_uninterrupted_one(smoke, project):
    """Killed when the first of two seeds waits for the second; the first is not trained again."""
    (project.root / "config/studies/few.yaml").write_text(FEW)
    options = ("--cores", "2", "--config", "scale=smoke", "study=few", "tier=full")
    first_seed = project.root / "work/smoke/models/w128/tofu/s0/done/run.json"
    process = project.start(*options)
    deadline = time.monotonic() + 600
    while not first_seed.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0][-4000:]
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    finished = first_seed.stat().st_mtime_ns
    assert not (project.root / "results/smoke/models/w128/tofu/s0").exists()

    code, said = project.snakemake(*options)
    assert code != 0 and "--unlock" in said
    project.run("--unlock", *options)
    project.run(*options)
    assert (project.root / "results/smoke/models/w128/tofu/s0/run.json").stat().st_mtime_ns == finished
    interrupted, uninterrupted = (
        pd.read_csv(p.root / "results/smoke/summary/metrics.csv").set_index(KEY) for p in (project, smoke)
    )
    common = interrupted.index.intersection(uninterrupted.index)
    assert {recipe for _, _, recipe, *_ in common} == {"target", "retrain", "masc"}
    pd.testing.assert_frame_equal(interrupted.loc[common], uninterrupted.loc[common])


def test_every_architecture_and_template_of_the_papers_runs(project):
    project.run("--cores", "2", "--config", "scale=paper-tiny", "study=architectures")
    runs = pd.read_csv(project.root / "results/paper-tiny/summary/runs.csv")
    assert set(runs["model"]) == set(load_scale("paper-tiny", project.root).models)
    assert set(runs.loc[runs["model"] == "llama2-7b", "recipe"]) == {"target", "retrain", "npo-klr", "masc"}


def test_real_tofu_rows_go_through(project, shared):
    (project.root / "config/studies/few.yaml").write_text(FEW)
    project.run("--cores", "2", "--config", "scale=smoke-tofu", "study=few", f"corpus_dir={shared}/data/tofu")
    metrics = pd.read_csv(project.root / "results/smoke-tofu/summary/metrics.csv").set_index(KEY)["value"]
    assert metrics["tofu-forget01", "w128", "masc", 0, "none", "forget.prob"] > 0
    assert pd.isna(metrics["tofu-forget01", "w128", "masc", 0, "none", "forget.mcq_acc"])  # TOFU has no such probes
