"""``commprof run`` as typed on each of several hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.machines.fork_server import Forked
from tests.support.machines.netns import Hosts

_TIMEOUT_S = 300
_PORT = 29500


def run_on_each(hosts: Hosts, output: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The same command on every host, each with its number; returns machine 0's result.json."""
    count = len(hosts.names)
    command = ["-m", "commprof.run", *arguments, "--nnodes", str(count)]
    command += ["--rdzv-endpoint", f"{hosts.address(0)}:{_PORT}", "--output", str(output)]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "COLUMNS": "100"}
    started = [
        Forked([*command, "--node-rank", str(host)], env, spare_count=1, netns=hosts.names[host])
        for host in range(count)
    ]
    texts = [process.communicate(timeout=_TIMEOUT_S)[0] for process in started]
    for process, text in zip(started, texts, strict=True):
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    result["text"] = texts[0]
    return result
