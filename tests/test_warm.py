"""The fork server, through real processes; its preloads are replaced by nothing, so that it starts at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = "import sys; from lethe import cli; sys.exit(cli.main())"


@pytest.fixture
def warm(tmp_path):
    """Environment of callers with a server of their own."""
    env = {**os.environ, "LETHE_WARM": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}

    def start(*argv, **options):
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, argv)], env={**env, **options}, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    yield start
    subprocess.run(["pkill", "-f", f"lethe.warm {tmp_path}"], check=False)


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_streams_exit_codes_and_errors_are_those_of_the_command(warm, tiny_folder, tmp_path):
    good = warm("attack", "--model", tiny_folder, "--attack", "rtn4", "--out", "q")  # a path relative to the caller
    wrong = warm("attack", "--model", tiny_folder, "--attack", "rtn5", "--out", "p")
    usage = warm("attack")
    assert finish(good)[0] == 0 and (tmp_path / "q/model.safetensors").exists()
    code, out, err = finish(wrong)
    assert code == 2 and out == "" and err.startswith("lethe: ") and "rtn5" in err
    code, _, err = finish(usage)
    assert code == 2 and "usage: lethe attack" in err


def test_a_child_sees_the_callers_environment(warm, tmp_path):
    code, out, _ = finish(warm("--help", COLUMNS="200"))
    assert code == 0 and "usage: lethe" in out


def test_a_killed_caller_takes_its_child_along(warm, tiny_folder, rows, tmp_path):
    forever = ["--set", "epochs=1000000", "batch.rows=2", "batch.effective=2", "batch.accumulate=1"]
    files = ["--model", tiny_folder, "--forget", rows["forget"], "--retain", rows["retain"]]
    process = warm("unlearn", *files, "--recipe", "npo", "--out", tmp_path / "out", *forever)
    assert wait_for(lambda: (tmp_path / ".out.work/run/identity").exists())
    children = children_of_server(tmp_path)
    assert len(children) == 1
    process.send_signal(signal.SIGKILL)
    assert wait_for(lambda: not children_of_server(tmp_path))
    assert not (tmp_path / "out").exists()


def children_of_server(tmp_path) -> list[str]:
    pids = subprocess.run(["pgrep", "-f", f"lethe.warm {tmp_path}"], capture_output=True, text=True).stdout.split()
    parents = {pid: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1] for pid in pids}
    return [pid for pid in pids if parents[pid] in pids]


def wait_for(condition, seconds=120) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False
