"""An edit reruns what depends on it, and nothing else."""

import json

from lethe.files import sha256_file

PAPER = {"draw_table1", "draw_fig5"}


def test_nothing_is_done_twice(done):
    assert done.jobs() == {}


def test_an_edited_plot_reruns_only_drawing(done):
    done.append("workflow/lethe/paper/figures.py", "# edited")
    assert set(done.jobs()) - {"all"} == PAPER


def test_an_edited_fit_reruns_fits_and_what_is_drawn_from_them(done):
    done.append("workflow/lethe/analysis/powerlaw.py", "# edited")
    assert set(done.jobs()) - {"all"} == {"fit"} | PAPER


def test_an_edited_evaluation_trains_nothing(done):
    done.append("workflow/lethe/metrics/tofu.py", "# edited")
    assert {rule.split("_")[0] for rule in done.jobs()} == {"evaluate", "summarise", "fit", "draw", "all"}


def test_a_changed_learning_rate_reruns_that_recipe_alone(done):
    done.edit(
        "config/recipes.yaml",
        "optimizer: {lr: 8.0e-4}\n      news: {epochs: 4, optimizer: {lr: 1.6e-3}, forget: {weight: 1.0}}",
        "optimizer: {lr: 9.0e-4}\n      news: {epochs: 4, optimizer: {lr: 1.6e-3}, forget: {weight: 1.0}}",
    )
    jobs = done.jobs()
    assert jobs["unlearn_s0"] == jobs["evaluate_s0_none_rtn4"] == 1
    assert set(jobs) - {"all"} == {"unlearn_s0", "evaluate_s0_none_rtn4", "summarise", "fit"} | PAPER


def test_a_changed_comment_reruns_nothing(done):
    for file in ("config/recipes.yaml", "config/scales/mini.yaml", "config/studies/small.yaml"):
        done.append(file, "\n# a comment\n")
    assert done.jobs() == {}


def test_paper_stages_alone_cannot_compute(done):
    """source=summary reads the summary that is there, even though all that it came from is gone."""
    write_manifest(done.root / "results/smoke/summary", "")
    (done.root / "results/smoke/runs").rename(done.root / "elsewhere")
    done.append("workflow/lethe/paper/figures.py", "# edited")
    assert set(done.jobs("--config", "source=summary")) - {"all", "fit"} == PAPER


def ship(project):
    """Put a summary into expected/, as somebody who accepts results does."""
    folder = project.root / "expected/smoke"
    folder.mkdir(parents=True)
    (project.root / "results/smoke/summary").rename(folder / "summary")
    (folder / "summary/manifest.json").unlink()
    write_manifest(folder, "summary/")


def write_manifest(folder, prefix):
    names = [
        f"{prefix}{name}" for name in ("metrics.csv", "runs.csv", "traces.csv.gz", "curves.csv.gz", "samples.jsonl")
    ]
    manifest = {"files": {name: {"sha256": sha256_file(folder / name)} for name in names}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_shipped_results_are_drawn_without_compute_rules_and_beside_ones_own(done):
    ship(done)
    profile = ("--profile", "profiles/figures", "--config", "source=shipped")
    assert set(done.jobs(*profile)) == {"fit", "all"} | PAPER
    done.run("--profile", "profiles/figures")
    assert (done.root / "figures/smoke-shipped/small/fig5.png").is_file()
    assert "unlearn" not in done.run("--list-rules", *profile)


def test_a_shipped_file_that_is_missing_or_changed_is_named_before_any_job(done):
    ship(done)
    samples = done.root / "expected/smoke/summary/samples.jsonl"
    samples.write_text("changed\n")
    changed = done.snakemake("--profile", "profiles/figures")
    samples.unlink()
    missing = done.snakemake("--profile", "profiles/figures")
    for code, said in (changed, missing):
        assert code != 0
        assert said.splitlines()[-1].startswith("lethe: expected/smoke/summary/samples.jsonl: ")
    assert not (done.root / "figures/smoke-shipped").exists()
