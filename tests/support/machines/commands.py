"""Commands as processes: a new Python, or a fork of a Python that has imported torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.machines.fork_server import Forked

#: Start of a command that trains and prints the whole report.
RUN = ("-m", "commprof.run", "--all")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
_TRAINING = (
    *("commprof.run", "commprof.microbench", "commprof.wrap", "commprof.launch.worker"),
    "torch.distributed.run",
)
#: Seconds after which a command counts as hung. The slowest commands take 10 s on an idle machine,
#: and a minute on a busy one.
_HANGS_S = 180


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a command in a new Python, as users do."""
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
    """Starts a command from the fork server, which saves seconds for each Python that it starts."""
    together = {**os.environ, "COLUMNS": "100", **environment}
    return Forked(arguments, together, directory, split=True, spare_count=spare_count)


def without_gloo(output: str) -> str:
    """Returns a process's output without the lines that gloo itself prints with torch 2.10."""
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
    """Runs a command: a fork if it trains and ``cold`` is False, else a new Python."""
    trains = arguments[0] == "-m" and arguments[1] in _TRAINING
    return finish((fork if trains and not cold else start)(*arguments, **environment), timeout_s)
