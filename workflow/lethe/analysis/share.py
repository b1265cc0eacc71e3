"""How much of what a workflow held of the machine went into its stages' own work."""

import time
from pathlib import Path

from lethe.files import read_json


def compute_share(results: Path, since: float, cores: int) -> str:
    """One line: CPU seconds inside training, unlearning and scoring over wall seconds x cores, since a time.

    What is missing is imports, process starts, loading and saving, Snakemake, tables and figures, and idle cores.
    """
    wall = time.time() - since
    patterns = ("models/**/run.json", "runs/**/run.json", "runs/**/eval/*.json")
    records = [path for pattern in patterns for path in results.glob(pattern)]
    cpu = sum(read_json(path).get("cpu_s", 0.0) for path in records if path.stat().st_mtime >= since)
    return f"{wall / 60:.1f} minutes, of which stages computed {cpu / (wall * cores):.0%} of {cores} cores"
