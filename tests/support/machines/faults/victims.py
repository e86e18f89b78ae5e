from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.machines.commands import without_gloo
from tests.support.machines.fork_server import Forked
from tests.support.machines.ranks import free_port

_TIMEOUT_S = 60
_SCENARIOS = "tests.support.ranks.scenarios"


@dataclass(frozen=True)
class Ended:
    pid: int
    returncode: int
    said: list[dict[str, Any]]
    stderr: str

    def rings(self) -> list[str]:
        return rings_of(self.pid)


def rings_of(pid: int) -> list[str]:
    return sorted(_rings(pid) - _OLDER)


def _rings(pid: int | str) -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"commprof-{os.getuid()}-{pid}-*")}


#: Killed processes may have left files before these tests, and the kernel reuses process IDs.
_OLDER = _rings("*")


def start(
    module: str, arguments: list[str], world_size: int = 1, *, native: bool = True
) -> list[Forked]:
    words = ["-m", module, *arguments]
    return [Forked(words, env, split=True) for env in _environments(world_size, native)]


def _environments(world_size: int, native: bool) -> list[dict[str, str]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not native:
        env["COMMPROF_NATIVE"] = "0"
    if world_size == 1:
        return [env]
    env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    env["WORLD_SIZE"] = str(world_size)
    return [{**env, "RANK": str(rank)} for rank in range(world_size)]


def finish(process: subprocess.Popen[str] | Forked) -> Ended:
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode is not None
    said = [json.loads(line) for line in without_gloo(stdout).splitlines()]
    return Ended(process.pid, process.returncode, said, stderr)


def run_module(
    module: str, arguments: list[str], world_size: int = 1, *, native: bool = True
) -> list[Ended]:
    return [finish(process) for process in start(module, arguments, world_size, native=native)]


def start_scenario(name: str, directory: Path, world_size: int) -> list[Forked]:
    return start(_SCENARIOS, [name, str(directory)], world_size)


def run_scenario(
    name: str, directory: Path, world_size: int = 1, *, native: bool = True
) -> list[Ended]:
    return run_module(_SCENARIOS, [name, str(directory)], world_size, native=native)


def run_scenario_cold(name: str, directory: Path, *, native: bool) -> Ended:
    """Runs a scenario in a new Python, for scenarios that limit the size of files.

    The limit would also stop the output of a forked Python, which goes to files.
    """
    (environment,) = _environments(1, native)
    process = subprocess.Popen(
        [sys.executable, "-m", _SCENARIOS, name, str(directory)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return finish(process)
