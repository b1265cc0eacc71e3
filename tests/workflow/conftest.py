import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from workflow_project import Project

HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs the stages themselves, for minutes")


@pytest.fixture
def project(tmp_path: Path, repo: Path) -> Project:
    return Project(tmp_path / "project", repo)


@pytest.fixture(scope="session")
def plan_of(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Callable[..., str]:
    """What a dry run prints for some options, in a project that nobody edits."""
    untouched = Project(tmp_path_factory.mktemp("plans") / "project", repo)
    return cache(lambda *options: untouched.run("--dry-run", "--printshellcmds", "--config", *options))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Project:
    """A small study that has been run with stages which only make files."""
    project = Project(tmp_path_factory.mktemp("small") / "project", repo)
    (project.root / "config/studies/small.yaml").write_text(SMALL)
    (project.root / "config/reported/small.csv").write_text("paper\n")
    project.edit("config/config.yaml", "scale: mini ", "scale: smoke")
    project.edit("config/config.yaml", "study: masc ", "study: small")
    command = project.root / "bin" / "lethe"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_lethe.py"} "$@"\n')
    command.chmod(0o755)
    project.run("--cores", "2")
    return project


@pytest.fixture
def done(tmp_path: Path, finished: Project) -> Project:
    """A copy of the finished study."""
    return Project(tmp_path / "project", finished.root, tuple(path.name for path in finished.root.iterdir()))


SMALL = """
title: four recipes
runs:
  - {benchmarks: tofu, models: main, recipes: [target, retrain, simnpo, masc], attacks: [none, rtn4]}
tables: [table1]
figures: [fig5]
"""
