"""Tests always-on mode over a day's number of steps, with a clock set back and a full disk.

    PYTHONPATH=. python benchmarks/own_cost/long_day.py [STEPS] [--json FILE]

STEPS is 1,000,000 by default: a day has this many steps of 86 ms. Each step has a collective of the
fake backend, and a short pause follows after every hundred steps. After a minute, the wall clock is
set back by an hour. The traces are on a file system of 4 MB, which is filled after three quarters
of the steps. The summary can be written even then, because each trace reserves room for its
summary. The script needs root for the file system, and a C compiler for the clock. The exit code is
1 if a demand is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.demands import Demand, judged
from benchmarks.judging.results_file import write_json
from benchmarks.own_cost.long_run import MOST_BYTES, rss_bytes

STEPS = 1_000_000
_DISK_BYTES = 4 << 20
_PAUSE_STEPS, _PAUSE_S = 100, 0.001
_CLOCK = {"CLOCK_STEP_S": "-3600", "CLOCK_STEP_AFTER_S": "60"}


def fill(directory: Path) -> None:
    """Fills the file system of a directory."""
    with suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def train(directory: Path, steps: int) -> dict[str, Any]:
    """Runs the steps under capture; returns the figures."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import commprof
    from commprof.trace.reader import read_trace

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor, rss = torch.ones(4), {}
    wall_s, monotonic_s = time.time(), time.monotonic()
    with commprof.profile(directory, mode="always-on") as profiler:
        for step in range(steps):
            dist.all_reduce(tensor)
            profiler.step()
            if step % _PAUSE_STEPS == 0:
                time.sleep(_PAUSE_S)
            if step in (steps // 10, steps - 1):
                rss[step] = rss_bytes()
            if step == 3 * steps // 4:
                fill(directory)
    duration_s = time.monotonic() - monotonic_s
    stepped_s = time.time() - wall_s - duration_s
    dist.destroy_process_group()
    trace = read_trace(directory / "rank_0.trace")
    summary = trace.summary
    assert summary is not None
    return {
        "steps": steps,
        "duration_s": round(duration_s, 1),
        "clock_stepped_s": round(stepped_s),
        "steps_counted": summary.steps.count,
        "collectives_counted": sum(row.count for row in summary.operations),
        "dropped_records": summary.dropped,
        "longest_step_s": summary.steps.max_ns / 1e9,
        "summary_s": (summary.end_ns - summary.begin_ns) / 1e9,
        "rss_at_10_percent_bytes": min(rss.items())[1],
        "rss_growth_bytes": max(rss.items())[1] - min(rss.items())[1],
        "trace_bytes": trace.path.stat().st_size,
        "write_failed": str(trace.metadata.get("write_failed", {}).get("reason", "")),
    }


def demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks the demands on the figures of a run."""
    steps, counted = figures["steps"], figures["steps_counted"]
    grown, size, limit = (
        figures["rss_growth_bytes"],
        figures["trace_bytes"],
        f"below {MOST_BYTES:,} bytes",
    )
    longest, stepped = figures["longest_step_s"], figures["clock_stepped_s"]
    return [
        Demand("steps in always-on mode", f"{steps:,}", f"{STEPS:,}", steps >= STEPS),
        Demand(
            "steps that the summary counts, with a full disk in the last quarter of the steps",
            f"{counted:,}",
            "all but the first; one more may be missing for each dropped record",
            steps - 1 - counted <= figures["dropped_records"],
        ),
        Demand(
            "records dropped",
            f"{figures['dropped_records']:,}",
            "at most 1 in 1,000 steps",
            figures["dropped_records"] <= steps / 1000,
        ),
        Demand(
            "growth of memory after the first tenth of the steps",
            f"{grown:,} bytes",
            limit,
            grown < MOST_BYTES,
        ),
        Demand("size of the trace", f"{size:,} bytes", limit, size < MOST_BYTES),
        Demand(
            "longest step, with the wall clock set back by an hour",
            f"{longest:.2f} s (clock: {stepped} s)",
            "below 60 s",
            stepped < -3500 and longest < 60,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", type=int, nargs="?", default=STEPS)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(train(args.inside, args.steps)))
        return 0
    from tests.support.machines.faults import limits

    source = Path(limits.__file__).parent / "clock_step.c"
    with tempfile.TemporaryDirectory() as directory:
        shim = Path(directory, "clock_step.so")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source], check=True)
        with limits.small_disk(Path(directory, "disk"), _DISK_BYTES) as disk:
            command = [sys.executable, __file__, str(args.steps), "--inside", str(disk)]
            environment = {**os.environ, **_CLOCK, "LD_PRELOAD": str(shim)}
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    figures = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(figures, indent=1))
    write_json(args.json, figures)
    return judged(demands(figures))


if __name__ == "__main__":
    sys.exit(main())
