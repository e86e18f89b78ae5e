"""Measures the processor time and the memory of a commprof command."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Program that runs a command. It writes the command's CPU time in s, largest resident set in KiB
#: and exit code to the file descriptor in its first argument. The program must be small, because
#: Linux counts a parent's resident set in the child's largest resident set.
_STARTER = """
import json, os, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(child.pid, 0)
child.returncode = os.waitstatus_to_exitcode(status)
cost = usage.ru_utime + usage.ru_stime, usage.ru_maxrss, child.returncode
os.write(int(sys.argv[1]), json.dumps(cost).encode())
"""


@dataclass(frozen=True)
class CommandCost:
    """Cost and output of a command."""

    wall_s: float
    #: User and system time.
    cpu_s: float
    #: Largest resident set.
    memory_mb: float
    exit_code: int = 0
    #: Standard output and standard error.
    text: str = ""


def command_cost(tree: Path, arguments: Sequence[str | Path], directory: Path) -> CommandCost:
    """Runs a ``commprof`` command in a new process; returns the command's cost.

    The modules are compiled before the measurement, as pip compiles modules.

    Args:
        tree: the checkout whose commprof runs; its modules must be built.
        arguments: the command's arguments.
        directory: the command's working directory.
    """
    _compile_modules(tree)
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "commprof", *map(str, arguments)]
    reading, writing = os.pipe()
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(writing)]
    begin_s = time.perf_counter()
    child = subprocess.Popen(
        starter + command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[writing],
    )
    os.close(writing)
    text = child.communicate()[0].decode()
    wall_s = time.perf_counter() - begin_s
    with open(reading) as result:
        cpu_s, memory_kib, exit_code = json.loads(result.read())
    return CommandCost(wall_s, cpu_s, memory_kib * 1024 / 1e6, exit_code, text)


@functools.cache
def _compile_modules(tree: Path) -> None:
    command = [sys.executable, "-m", "compileall", "-q", str(tree / "commprof")]
    subprocess.run(command, check=True)


def sound_cost(tree: Path, arguments: Sequence[str | Path], directory: Path) -> CommandCost:
    """Like :func:`command_cost`, but ends the benchmark if the command fails."""
    cost = command_cost(tree, arguments, directory)
    if cost.exit_code:
        raise SystemExit(f"{cost.text}\n{arguments} in {tree}: exit code {cost.exit_code}")
    return cost


def median_cost(costs: Sequence[CommandCost]) -> CommandCost:
    """Returns the median of each figure."""
    return CommandCost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.memory_mb for cost in costs),
    )


def written_apart(write: Callable[[], int]) -> int:
    """Calls a function that writes an input; returns the function's result.

    The function runs in another process, whose memory is free when the commands run.
    """
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=lambda: results.put(write()))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the input could not be written: exit code {process.exitcode}")
    return int(results.get())
