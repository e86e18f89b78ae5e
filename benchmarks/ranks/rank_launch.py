"""Starts the ranks of a benchmark, on this host or on hosts made of network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.machines import netns
from tests.support.machines.fork_server import Forked
from tests.support.machines.ranks import free_port

#: Size of tc's token bucket, by rate. A faster link needs a larger bucket.
BURSTS = {"1gbit": "128kb", "10gbit": "1mb"}
#: BBR paces packets with timers. On busy cores, timers fire late and leave the link idle. Sockets
#: took 13.4 and 14.4 ms for 12.5 MB each way at 10 Gbit/s with BBR, and 10.3 and 12.3 ms with Reno.
CONGESTION = "reno"


def on_this_host(
    script: Path, count: int, arguments: dict[str, Any], *, forked: bool = False
) -> Any:
    """Runs ``count`` ranks of a script with a JSON argument; returns rank 0's last JSON line.

    With ``forked``, ranks are forks of a process that has imported torch. Parts that measure times
    must not use it.
    """
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    words = [str(script), json.dumps(arguments)]
    environments = [{**os.environ, **common, **_rank(rank, count)} for rank in range(count)]
    if forked:
        return _result([Forked(words, environment) for environment in environments])
    processes = [
        subprocess.Popen(
            [sys.executable, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in environments
    ]
    return _result(processes)


def on_hosts(
    script: Path, hosts: int, ranks_per_host: int, rate: str, arguments: dict[str, Any]
) -> Any:
    """Runs ranks like ``on_this_host``, but on hosts joined by links of a given rate."""
    if reason := netns.unavailable():
        raise SystemExit(f"no network namespaces here: {reason}")
    count = hosts * ranks_per_host
    burst = BURSTS.get(rate, "1mb")
    with netns.Hosts(hosts, rate, burst, congestion=CONGESTION) as places:
        common = {
            "MASTER_ADDR": places.address(0),
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        processes = []
        for rank in range(count):
            host = rank // ranks_per_host
            own = {"COMMPROF_HOST": f"host{host}", **common, **_rank(rank, count)}
            command = [sys.executable, str(script), json.dumps(arguments)]
            processes.append(places.popen(host, command, own))
        return _result(processes)


def _rank(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }


def _result(processes: Sequence[subprocess.Popen[str] | Forked]) -> Any:
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            sys.exit(f"a rank failed with {process.returncode}:\n{output}")
    return json.loads(outputs[0].strip().splitlines()[-1])
