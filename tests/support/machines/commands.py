from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.machines.fork_server import Forked

RUN = ("-m", "commprof.run", "--all")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
_TRAINING = (
    *("commprof.run", "commprof.microbench", "commprof.wrap", "commprof.launch.worker"),
    "torch.distributed.run",
)
#: The slowest commands take 10 s on an idle machine, and 60 s on a busy machine.
_HANGS_S = 180


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fork(
    *arguments: str, directory: Path | None = None, spare_count: int = 3, **environment: str
) -> Forked:
    """Starts a command as a fork of a Python that has imported torch, which saves seconds."""
    together = {**os.environ, "COLUMNS": "100", **environment}
    return Forked(arguments, together, directory, split=True, spare_count=spare_count)


def without_gloo(output: str) -> str:
    """Removes the lines that gloo itself prints with torch 2.10."""
    return re.sub(r"^\[Gloo\] .*\n", "", output, flags=re.MULTILINE)


def finish(
    process: subprocess.Popen[str] | Forked, timeout_s: float = _HANGS_S
) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def call(
    *arguments: str, timeout_s: float = _HANGS_S, cold: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    trains = arguments[0] == "-m" and arguments[1] in _TRAINING
    return finish((fork if trains and not cold else start)(*arguments, **environment), timeout_s)
