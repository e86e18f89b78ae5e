"""Runs modules as processes of their own and keeps what they said and left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.machines.ranks import free_port

_TIMEOUT_S = 60
_SCENARIOS = "tests.support.ranks.scenarios"


@dataclass(frozen=True)
class Ended:
    """One process after its end."""

    pid: int
    returncode: int
    said: list[dict[str, Any]]
    stderr: str

    def rings(self) -> list[str]:
        """Its ring files that are still there."""
        return rings_of(self.pid)


def rings_of(pid: int) -> list[str]:
    """Ring files of a process in /dev/shm."""
    return sorted(path.name for path in Path("/dev/shm").glob(f"commprof-{os.getuid()}-{pid}-*"))


def start(
    module: str, arguments: list[str], world_size: int = 1, *, native: bool = True
) -> list[subprocess.Popen[str]]:
    """Starts ``python -m module`` as every rank of a job; alone, it is no job."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not native:
        env["COMMPROF_NATIVE"] = "0"
    if world_size > 1:
        env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        env["WORLD_SIZE"] = str(world_size)
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**env, "RANK": str(rank)} if world_size > 1 else env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def finish(process: subprocess.Popen[str]) -> Ended:
    """Waits for the end of a process."""
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    said = [json.loads(line) for line in stdout.splitlines()]
    return Ended(process.pid, process.returncode, said, stderr)


def run_module(
    module: str, arguments: list[str], world_size: int = 1, *, native: bool = True
) -> list[Ended]:
    """Runs a module to its end, by rank."""
    return [finish(process) for process in start(module, arguments, world_size, native=native)]


def start_scenario(name: str, directory: Path, world_size: int) -> list[subprocess.Popen[str]]:
    """Starts one of ``tests/support/ranks/scenarios.py``."""
    return start(_SCENARIOS, [name, str(directory)], world_size)


def run_scenario(
    name: str, directory: Path, world_size: int = 1, *, native: bool = True
) -> list[Ended]:
    """Runs one of ``tests/support/ranks/scenarios.py`` to its end, by rank."""
    return run_module(_SCENARIOS, [name, str(directory)], world_size, native=native)
