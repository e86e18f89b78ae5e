from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress

from tests.support.machines.faults.faults import Fault, Job


def kill_from_outside(job: Job) -> None:
    job.await_step(20)
    os.kill(job.ranks[-1].pid, signal.SIGKILL)


def kill_in_always_on(job: Job) -> None:
    job.await_step(100)
    job.keep_until_now()
    # In always-on mode, a killed rank may lose the last second.
    time.sleep(1.0)
    os.kill(job.ranks[-1].pid, signal.SIGKILL)


def remove_directory(job: Job) -> None:
    job.await_step(20)
    subprocess.run(["rm", "-rf", str(job.traces)], check=True)


def link_down(job: Job) -> None:
    job.await_step(20)
    subprocess.run(["ip", "-n", job.hosts[-1], "link", "set", "eth0", "down"], check=True)


def link_flaps(job: Job) -> None:
    for step in (15, 30, 45):
        job.await_step(step)
        for state, pause_s in (("down", 0.06), ("up", 0.0)):
            command = ["ip", "-n", job.hosts[-1], "link", "set", "eth0", state]
            subprocess.run(command, check=True)
            time.sleep(pause_s)


def link_loses(job: Job) -> None:
    job.await_step(15)
    before = _dropped(job)
    # The queue has room for one frame, so all other frames of a message are dropped and sent again.
    _limit_link(job, "rate", "4mbit", "burst", "9200", "limit", "9200")
    job.await_step(25)
    lost = _dropped(job) - before
    _limit_link(job, "rate", "1gbit", "burst", "128kb", "latency", "100ms")
    assert lost > 0, "nothing was lost"


def _limit_link(job: Job, *limit: str) -> None:
    command = ["tc", "-n", job.hosts[-1], "qdisc", "change", "dev", "eth0", "root", "tbf", *limit]
    subprocess.run(command, check=True)


def _dropped(job: Job) -> int:
    command = ["tc", "-n", job.hosts[-1], "-s", "qdisc", "show", "dev", "eth0"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.search(r"dropped (\d+)", said)
    assert found is not None, said
    return int(found[1])


def fill_disk(job: Job) -> None:
    job.await_step(300)
    if not job.traces.is_dir():
        return  # without commprof there are no traces
    with suppress(OSError), (job.traces / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def make_read_only(job: Job) -> None:
    job.await_step(20)
    if job.traces.is_dir():
        job.traces.chmod(0o555)


_GONE = r"rank 1 never closed its trace: its process \d+ is gone"

FAULTS: tuple[Fault, ...] = (
    Fault("no fault", cause="Step boundaries were inferred"),
    Fault("SIGKILL", "kill", cause=_GONE),
    Fault("SIGKILL at any moment", outside=kill_from_outside, steps=100_000, cause=_GONE),
    Fault(
        "SIGKILL in always-on mode",
        outside=kill_in_always_on,
        steps=100_000,
        environment={"COMMPROF_MODE": "always-on"},
        watched_pause_s=0.02,
        cause=_GONE,
    ),
    Fault("SIGSEGV", "segfault", cause=_GONE),
    Fault(
        "SIGSTOP, SIGCONT",
        "stop",
        cause=r"rank 1 did not run for 1\.\d s \(once, \d+\.\d s after its start\)",
    ),
    Fault(
        "exception",
        "raise",
        cause=r"rank 1 failed: it raised LookupError: the user's own <b>mistake</b>\\x1b\[31m",
    ),
    Fault("sys.exit(3)", "exit", cause=r"rank 0 failed: it raised \w+Error: .*gloo"),
    Fault("os._exit(9)", "exit_at_once", cause=_GONE),
    Fault(
        "no memory left (RLIMIT_AS)",
        "exhaust_memory",
        memory_bytes=6 << 30,
        cause=r"rank 1 failed: it raised RuntimeError: .*alloc",
    ),
    Fault("fork in the job", "fork", cause="Step boundaries were inferred"),
    Fault("mp.spawn in the job", "spawn", cause="Step boundaries were inferred"),
    Fault(
        "DataLoader workers in always-on mode",
        "workers",
        environment={"COMMPROF_MODE": "always-on"},
        cause="Step boundaries were inferred",
    ),
    Fault(
        "run directory deleted",
        outside=remove_directory,
        steps=400,
        watched_pause_s=0.02,
        cause="Step boundaries were inferred",
    ),
)

NETWORK_FAULTS: tuple[Fault, ...] = (
    Fault(
        "partitioned host",
        outside=link_down,
        steps=100_000,
        environment={"PATIENCE": "8"},
        cause=r"(rank 1 failed: it|ranks 0, 1 failed: each) raised \w+Error: "
        r".*(Timed out|timed out|gloo)",
    ),
    Fault("lossy host", outside=link_loses, steps=60, cause="Step boundaries were inferred"),
    Fault("flapping link", outside=link_flaps, steps=60, cause="Step boundaries were inferred"),
)

DISK_FAULTS: tuple[Fault, ...] = (
    Fault(
        "full disk",
        outside=fill_disk,
        steps=500,
        watched_pause_s=0.02,
        disk_bytes=4 << 20,
        # The disk is full after step 300, and the traces are flushed every 0.2 s.
        may_lose=400,
        cause=r"(rank [01] could not write its trace|ranks 0, 1 could not write their traces) "
        r"\d+\.\d s after (its start|their starts): No space left",
    ),
    Fault(
        "read-only run directory",
        outside=make_read_only,
        steps=200,
        watched_pause_s=0.02,
        disk_bytes=8 << 20,
        uid=65534,
        cause="Step boundaries were inferred",
    ),
)

OUT_OF_MEMORY = Fault("out of memory (cgroup)", "grow", cause=_GONE)
