"""A copy of the workflow that a test may edit, and snakemake in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PARTS = ("Snakefile", "workflow", "config", "profiles", "envs")


class Project:
    """A copy of the workflow in a folder of its own, where a test may edit files and run snakemake."""

    def __init__(self, root: Path, source: Path, parts: tuple[str, ...] = PARTS) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        for part in parts:
            copy = shutil.copytree if (source / part).is_dir() else shutil.copy2
            copy(source / part, root / part)
        paths = [root / "bin", Path(sys.executable).parent, os.environ["PATH"]]
        self.env = os.environ | {"PATH": ":".join(map(str, paths)), "PYTHONPATH": str(root / "workflow")}

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        path.write_text(text.replace(old, new))

    def append(self, file: str, text: str) -> None:
        path = self.root / file
        path.write_text(path.read_text() + text)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """snakemake in a process group of its own, its stdout and stderr together in stdout."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *args], cwd=self.root, env=self.env, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def snakemake(self, *args: str) -> tuple[int, str]:
        """(exit code, what it said)."""
        process = self.start(*args)
        said, _ = process.communicate()
        return process.returncode, said

    def run(self, *args: str) -> str:
        code, said = self.snakemake(*args)
        assert code == 0, said[-4000:]
        return said

    def jobs(self, *args: str) -> dict[str, int]:
        return job_counts(self.run("--dry-run", *args))


def job_counts(plan: str) -> dict[str, int]:
    """{rule: jobs} in the output of a dry run."""
    if "Job stats:" not in plan:
        return {}
    table = plan.split("Job stats:\n")[-1].split("\ntotal ")[0]
    return {rule: int(count) for rule, count in (line.split() for line in table.splitlines()[2:])}
