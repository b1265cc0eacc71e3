import os
import time

from lethe.analysis.share import compute_share
from lethe.files import write_json


def test_only_what_was_computed_since_the_start_counts(tmp_path):
    start = time.time() - 100
    seconds = {
        "models/w64/base/run.json": 30.0,
        "runs/t/w64/ga/s0/run.json": 40.0,
        "runs/t/w64/ga/s0/eval/none.json": 20.0,
    }
    for name, cpu in seconds.items():
        write_json(tmp_path / name, {"cpu_s": cpu})
    write_json(tmp_path / "runs/t/w64/old/s0/run.json", {"cpu_s": 999.0})
    os.utime(tmp_path / "runs/t/w64/old/s0/run.json", (start - 50, start - 50))
    assert compute_share(tmp_path, start, cores=2).startswith("1.7 minutes, of which stages computed 45% of 2 cores")
