from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from commprof.launch.job import Job
from commprof.trace.run.run_directory import WorldRun, read_world, world_directory
from tests.support.machines.fork_server import Forked
from tests.support.machines.netns import Hosts

_TIMEOUT_S = 240
_EACH_RANK = """
for RANK in $RANKS; do export RANK; "$@" & started="$started $!"; done
for pid in $started; do wait $pid || failed=1; done
exit ${failed:-0}
"""


def run_on_hosts(
    hosts: Hosts,
    run: Path,
    workload: str,
    steps: int,
    ahead_ms: Sequence[float] = (),
    ranks_per_host: int = 1,
    **job: Any,
) -> WorldRun:
    world_size = ranks_per_host * len(hosts.names)
    job_path = _save(run, workload, world_size, steps, **job)
    run_module_on_hosts(hosts, "commprof.launch.worker", [str(job_path)], ahead_ms, ranks_per_host)
    return read_world(run, world_size)


def run_module_on_hosts(
    hosts: Hosts,
    module: str,
    arguments: list[str],
    ahead_ms: Sequence[float] = (),
    ranks_per_host: int = 1,
) -> None:
    env = {"MASTER_ADDR": hosts.address(0), "GLOO_SOCKET_IFNAME": "eth0"}
    world_size = ranks_per_host * len(hosts.names)
    environments = [{**env, **rank_env(rank, world_size, 29500)} for rank in range(world_size)]
    if not any(ahead_ms):
        here = dict(os.environ)
        words = ["-m", module, *arguments]
        _wait(
            [
                Forked(words, {**here, **own}, netns=hosts.names[rank // ranks_per_host])
                for rank, own in enumerate(environments)
            ]
        )
        return
    shifted = [sys.executable, "-m", "tests.support.machines.faults.clock_shift"]
    processes = []
    for host, ms in enumerate(ahead_ms):
        ranks = range(host * ranks_per_host, (host + 1) * ranks_per_host)
        # One shell starts all ranks of a host, so that the ranks share a time namespace.
        each = ["sh", "-c", _EACH_RANK, "sh", sys.executable, "-m", module, *arguments]
        command = [*shifted, str(ms), *each] if ms else each
        environment = {**environments[ranks[0]], "RANKS": " ".join(map(str, ranks))}
        processes.append(hosts.popen(host, command, environment))
    _wait(processes)


def run_here(run: Path, workload: str, world_size: int, steps: int) -> WorldRun:
    from commprof.launch.elastic import launch

    job = _job(run, workload, world_size, steps)
    launch(job, job.directory / "logs")
    return read_world(run, world_size)


def run_module(module: str, arguments: list[str], world_size: int) -> list[str]:
    port = free_port()
    here = {**os.environ, "MASTER_ADDR": "localhost"}
    processes = [
        Forked(["-m", module, *arguments], {**here, **rank_env(rank, world_size, port)})
        for rank in range(world_size)
    ]
    return _wait(processes)


def free_port() -> int:
    """Returns a free TCP port that is not in the range from which the kernel picks ports.

    The kernel may soon give a port of its range to another process.
    """
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(10_000, handed_out), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("localhost", port))
            return port
    raise OSError(f"no free port of 100 from 10000 to {handed_out - 1}")


def _job(run: Path, workload: str, world_size: int, steps: int, **job: Any) -> Job:
    directory = world_directory(run, world_size)
    directory.mkdir(parents=True, exist_ok=True)
    return Job(workload, world_size, directory, steps=steps, hook=False, **job)


def _save(run: Path, workload: str, world_size: int, steps: int, **given: Any) -> Path:
    job = _job(run, workload, world_size, steps, **given)
    path = job.directory / "job.json"
    job.save(path)
    return path


def rank_env(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def _wait(processes: Sequence[subprocess.Popen[str] | Forked]) -> list[str]:
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=_TIMEOUT_S)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            outputs.append(f"timed out; {_rest(process)}")
    failed = [text for process, text in zip(processes, outputs, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)
    return outputs


def _rest(killed: subprocess.Popen[str] | Forked) -> str:
    """Waits at most 5 s, because children of the process may hold the pipe."""
    try:
        return killed.communicate(timeout=5)[0]
    except subprocess.TimeoutExpired:
        return "and left children that go on"
