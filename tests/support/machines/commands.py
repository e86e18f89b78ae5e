"""Commands as real processes."""

from __future__ import annotations

import os
import subprocess
import sys

#: With everything that it can print.
RUN = ("-m", "commprof.run", "--all")


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(
    process: subprocess.Popen[str], timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def call(
    *arguments: str, timeout_s: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    return finish(start(*arguments, **environment), timeout_s)
