"""Measures the time and memory of reports on large recordings.

    PYTHONPATH=. python benchmarks/own_cost/recording_size.py [--gigabytes 2] [--place FOLDER]

Writes two recordings like torch.profiler's: one has eight ranks with 100,000 events each, and one
has a single rank and the given gigabytes. `commprof report` reads each recording in a new process.
Demands: at most 10 s of processor time for the eight ranks, and at most 1 GB of memory for the
single rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.judging.demands import Demand, at_most, judged
from tests.support.builders.profiler_traces import Event, document, kernel, rank_events

EVENTS = 100_000
#: Number of events in a step of ``rank_events``.
PER_STEP = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument(
        "--place", type=Path, help="folder for the traces, which are deleted afterwards"
    )
    args = parser.parse_args()
    demands: list[Demand] = []
    with tempfile.TemporaryDirectory(dir=args.place) as place:
        job = Path(place) / "job"
        job.mkdir()
        for rank in range(8):
            (job / f"rank{rank}.json").write_text(document(_events(rank), rank, 8))
        seconds, wall_s, _ = _report(job)
        print(f"8 ranks of {EVENTS:,} events: {seconds:.1f} s CPU time, {wall_s:.1f} s wall time")
        demands.append(at_most(f"8 ranks of {EVENTS:,} events", seconds, 10, " s"))
        large = Path(place) / "large.json"
        size = _write_large(large, args.gigabytes * 1e9)
        seconds, wall_s, most_bytes = _report(large)
        print(
            f"{size / 1e9:.2f} GB: {seconds:.0f} s CPU time, {wall_s:.0f} s wall time, "
            f"{most_bytes / 1e9:.2f} GB of memory"
        )
        demands.append(at_most(f"memory for {size / 1e9:.2f} GB", most_bytes / 1e9, 1, " GB"))
    return judged(demands)


def _events(rank: int) -> list[Event]:
    """Returns EVENTS events, of which commprof ignores six sevenths."""
    steps = EVENTS // (7 * PER_STEP)
    own = rank_events(min(rank, 1), steps=steps)
    passed = {**kernel("gemm", 0, 1), "cat": "ac2g", "id": 1}
    return [*own, *[passed] * (EVENTS - len(own))]


def _write_large(path: Path, size: float) -> int:
    """Writes the steps of one rank again and again, with later times and higher numbers."""
    steps = 1000
    events = rank_events(0, steps=steps)
    noise = [
        {**kernel(f"a kernel of the model, number {i}", 0, 1), "cat": "ac2g"} for i in range(40)
    ]
    filler = json.dumps(noise)[1:-1]
    with path.open("w") as file:
        head = document([], 0, 2)
        file.write(head[: head.rindex("]")])
        turn = 0
        while file.tell() < size:
            shift_us, texts = 1000.0 * steps * turn, []
            for number, event in enumerate(events):
                moved = {**event, "ts": event["ts"] + shift_us}
                if event["name"].startswith("ProfilerStep"):
                    step = int(event["name"].rpartition("#")[2]) + steps * turn
                    moved["name"] = f"ProfilerStep#{step}"
                texts += [json.dumps(moved), *[filler] * (number % PER_STEP == 0)]
            file.write("," * (turn > 0) + ",".join(texts))
            turn += 1
        file.write("]}")
    return path.stat().st_size


def _report(path: Path) -> tuple[float, float, int]:
    """Runs the report; returns CPU seconds, wall seconds, and largest resident set in bytes."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "commprof", "report", str(path)], stdout=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"commprof report ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, time.monotonic() - began, used.ru_maxrss * 1024


if __name__ == "__main__":
    raise SystemExit(main())
