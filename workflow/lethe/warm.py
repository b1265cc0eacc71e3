"""Short jobs without seconds of imports: one process that has imported the heavy packages forks a child for each.

Importing torch and transformers takes longer than most jobs of the small scales. With LETHE_WARM and HF_HUB_OFFLINE set
(the server is offline), `lethe` passes its arguments, environment and standard streams to a server of the same user,
Python and folder, and waits for the exit code. The first call starts the server; it ends by itself when nothing has
asked for a while. Children import `lethe` anew, so an edited source is never stale. A child ends with its caller,
however that dies: nothing is left behind that still writes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

IDLE_SECONDS = 20.0
PRELOAD = (
    "torch",
    "transformers.modeling_utils",
    "transformers.models.qwen2.modeling_qwen2",
    "accelerate",
    "bitsandbytes",
    "peft",
    "pandas",
    "pyarrow",
    "scipy.stats",
    "rouge_score.rouge_scorer",
)


def call(argv: Sequence[str]) -> int:
    """Run `lethe argv...` in a child of the server and return its exit code."""
    with _connect() as connection:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: os._exit(128 + number))  # closes the connection: the child ends
        socket.send_fds(connection, [b"!"], [0, 1, 2])
        request = {"argv": list(argv), "cwd": os.getcwd(), "env": dict(os.environ)}
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = connection.makefile("rb").readline()
    if not answer:
        print("lethe: the stage's process died (killed, or out of memory)", file=sys.stderr)
        return 1
    return int(answer)


def _socket_path() -> Path:
    """In a folder that only this user can enter."""
    folder = Path(tempfile.gettempdir()) / f"lethe-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    key = json.dumps([sys.executable, os.getcwd(), os.environ.get("PYTHONPATH", "")])
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.sock"


def _connect() -> socket.socket:
    """To the server, started first where there is none; a lock keeps two callers from starting two."""
    path = _socket_path()
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (connection := _try(path)) is not None:
            return connection
        path.unlink(missing_ok=True)
        with open(path.with_suffix(".log"), "w") as log:
            subprocess.Popen(
                [sys.executable, "-m", "lethe.warm", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
        for _ in range(600):
            if (connection := _try(path)) is not None:
                return connection
            time.sleep(0.1)
    raise TimeoutError(f"no server at {path}: see {path.with_suffix('.log')}")


def _try(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
        return connection
    except OSError:
        connection.close()
        return None


def serve(path: Path) -> None:
    """Listen, import, and fork a child a connection until nobody has asked for IDLE_SECONDS."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(64)
    for name in PRELOAD:
        __import__(name)
    server.settimeout(IDLE_SECONDS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children report their own exit code; nobody waits for them
    closing = False
    while True:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            if closing:
                return
            if not _has_children():
                path.unlink(missing_ok=True)
                server.settimeout(0.5)  # who connected before the name was gone is still served
                closing = True
            continue
        if os.fork() == 0:
            server.close()
            _run(connection)
        connection.close()


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _run(connection: socket.socket) -> NoReturn:
    """The child: become the caller in all that a program can see, run the command, send its exit code."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.settimeout(None)
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        request: dict[str, Any] = json.loads(connection.makefile("rb").readline())
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update({name: value for name, value in request["env"].items() if name != "LETHE_WARM"})
        threading.Thread(target=_end_with_caller, args=[connection], daemon=True).start()
        code = _command(request["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(f"{code}\n".encode())
        os._exit(code)


def _command(argv: Sequence[str]) -> int:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    from lethe.cli import main

    try:
        return main(argv)
    except SystemExit as e:  # argparse
        return e.code if isinstance(e.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1


def _end_with_caller(connection: socket.socket) -> None:
    """The caller sends nothing more: the end of its stream means that it is gone."""
    if not connection.recv(1):
        os._exit(1)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
