"""Context of a sweep's result: machine, versions and method of the measurement."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Hashable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from commprof._version import __version__
from commprof.capture.job.metadata import machine
from commprof.forecast.microbench.measure import WARMUP_RULE, loop_language
from commprof.forecast.microbench.operations import HOOK_PREFIX
from commprof.forecast.microbench.plan import BenchPlan

_START = {
    "barrier": "each sample after a barrier of the measured group; the barrier is not timed",
    "none": "samples follow each other without a barrier",
}


def _arguments() -> list[str]:
    words = sys.argv[1:]
    return words[1:] if words[:1] == ["microbench"] else words


def context(
    plan: BenchPlan, clocks: Sequence[Hashable], hosts: Sequence[Hashable]
) -> dict[str, Any]:
    """Describes machine, versions and method.

    `clocks` identifies the CLOCK_MONOTONIC clock that each rank reads. `hosts` identifies each
    rank's host.
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["commprof", "microbench", *_arguments()]),
        "commprof": __version__,
        "git_commit": git_commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "backend": plan.backend,
        "backend_version": _backend_version(plan.backend),
        "threads_per_rank": torch.get_num_threads(),
        "loop": _loops(plan),
        "hosts": len(numbers),
        "rank_hosts": [numbers[host] for host in hosts],
        "world_size": len(hosts),
        "machine": {**machine(), "numa_nodes": _numa_nodes(), "interfaces": interfaces()},
        "sync": plan.sync,
        "start": _START[plan.sync],
        "time": _time(plan, one_clock=len(set(clocks)) == 1),
        "rounds": 1 if plan.overlap else plan.rounds,
        "warmup": WARMUP_RULE if plan.warmup is None else f"{plan.warmup} calls per row and round",
        "check": plan.check,
    }


def _loops(plan: BenchPlan) -> str:
    may_be_native = plan.backend != "nccl" and not plan.overlap
    hooks = {op.startswith(HOOK_PREFIX) for op in plan.ops}
    return " and ".join(sorted({loop_language(may_be_native and not each) for each in hooks}))


def _time(plan: BenchPlan, *, one_clock: bool) -> str:
    if plan.overlap:
        return (
            "for each sample, times of the rank with the largest t_ovrl (from issue, through the "
            "compute, to the end of the wait), by that rank's clock"
        )
    if one_clock:
        return "from the latest begin to the latest end of any rank"
    return (
        "if the measured ranks are on machines that share no clock: the slowest rank's own time, "
        "including its wait for late ranks; "
        "otherwise: from the latest begin to the latest end of any rank"
    )


def interfaces(root: Path = Path("/sys/class/net")) -> list[dict[str, Any]]:
    """Returns the network interfaces that are not down; the speed is None if it is unknown."""
    found = []
    for entry in sorted(root.iterdir()) if root.is_dir() else []:
        is_interface = entry.is_dir()  # bonding_masters is a file of the bonding driver
        if not is_interface or _text(entry / "operstate") == "down":
            continue
        speed = _text(entry / "speed")
        known = speed.isdecimal() and int(speed) > 0
        found.append({"name": entry.name, "speed_mbit_per_s": int(speed) if known else None})
    return found


def _numa_nodes() -> int:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1


def git_commit() -> str:
    """Returns the git commit of the current directory; empty outside of git.

    "-dirty" follows the commit if files were changed.
    """
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _backend_version(backend: str) -> str:
    if backend == "nccl":
        return ".".join(map(str, torch.cuda.nccl.version()))
    return __version__ if backend == "commprof" else f"of torch {torch.__version__}"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the interface has no speed
        return ""
