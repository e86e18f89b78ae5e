"""Compares measured exposed time with a simulation of the schedule, on links of known rate.

    PYTHONPATH=. python benchmarks/attribution/known_schedules.py --schedules 20

The `timed` workload sleeps for known times and exchanges buckets of known size, one bucket per
layer. Hosts are network namespaces with a rate limit, and need root. The true exposed time comes
from a simulation of the schedule. Errors are in percent of the step. If a rank ends backward before
the last rank, this lead is subtracted from the rank's measured time. Schedules in the results file
are not run again. The exit code is 1 if a demand is not met or schedules are missing.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.medians import median_interval
from benchmarks.judging.results_file import Lines, read_rows
from benchmarks.judging.simulate import Bucket, Link, simulate
from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.matching import match
from commprof.analysis.step.breakdown import breakdown
from commprof.trace import columns
from commprof.trace.run.run_directory import WorldRun
from tests.support.machines import netns
from tests.support.machines.ranks import run_on_hosts

SCHEDULES = 20
#: Allowed errors in percent of the step: median, and worst.
MEDIAN, WORST = 1.0, 3.0
STEPS, WARMUP = 12, 3
BURST_KIB = 128
DATA_MS, FORWARD_MS = 10.0, 2.0
#: Range of link rates in Mbit/s by number of hosts. More hosts have slower links, because all hosts
#: share this machine's processor.
RATES = {2: (150, 500), 3: (120, 350), 4: (100, 250)}
#: Shortest and longest time in which the link may transfer the bytes of a step.
TRANSFER_MS = (100, 450)


@dataclass(frozen=True)
class Schedule:
    """A schedule; the values of layers are in the order of backward."""

    seed: int
    hosts: int
    rate_mbit: int
    backward_ms: tuple[float, ...]
    gradient_mb: tuple[float, ...]

    @property
    def workload(self) -> str:
        forward_order = [values[::-1] for values in (self.backward_ms, self.gradient_mb)]
        backward, gradient = ("/".join(f"{x:g}" for x in values) for values in forward_order)
        return (
            f"timed:layers={len(self.backward_ms)},data_ms={DATA_MS:g},forward_ms={FORWARD_MS:g},"
            f"backward_ms={backward},gradient_mb={gradient},bucket_cap_mb=0.01"
        )

    def simulated_exposed_s(self) -> float:
        """Returns the simulated exposed time, for a link that is idle when backward begins."""
        ready_s = np.cumsum(self.backward_ms) / 1e3
        link = Link(
            bytes_per_s=self.rate_mbit * 1e6 / 8 * netns.PAYLOAD_SHARE,
            burst_bytes=BURST_KIB * 1024 * netns.PAYLOAD_SHARE,
        )
        buckets = [
            Bucket(float(ready), size * 1e6)
            for ready, size in zip(ready_s, self.gradient_mb, strict=True)
        ]
        return simulate(buckets, float(ready_s[-1]), self.hosts, link).exposed_s


def draw(seed: int) -> Schedule:
    """Draws a schedule with 2 to 6 layers of 0.5 to 6 MB.

    Backward takes about 0.2 to 1.2 times as long as the exchange of all gradients.
    """
    random_ = random.Random(seed)
    hosts = random_.choice((2, 2, 3, 4))
    rate = random_.randrange(*RATES[hosts], 10)
    while True:
        layers = random_.randint(2, 6)
        sizes = tuple(round(random_.uniform(0.5, 6), 1) for _ in range(layers))
        sent = 2 * (hosts - 1) / hosts * sum(sizes)
        transfer_ms = sent * 8 / rate * 1e3
        if TRANSFER_MS[0] <= transfer_ms <= TRANSFER_MS[1]:
            break
    share = random_.uniform(0.2, 1.2) * transfer_ms / layers
    lengths = tuple(round(random_.uniform(0.3, 1.7) * share, 1) for _ in range(layers))
    return Schedule(seed, hosts, rate, lengths, sizes)


def measure(schedule: Schedule) -> tuple[float, float, float]:
    """Returns three medians in seconds: exposed time minus lead, lead, and step.

    A rank's lead is the time from its end of backward to the last rank's end of backward. Leads
    come from late wake-ups, which are not part of the schedule.
    """
    with (
        tempfile.TemporaryDirectory(prefix="commprof-known-") as directory,
        netns.Hosts(schedule.hosts, f"{schedule.rate_mbit}mbit", f"{BURST_KIB}kb") as hosts,
    ):
        run = run_on_hosts(hosts, Path(directory), schedule.workload, STEPS)
    traces = [run.traces[rank] for rank in range(run.world_size)]
    tables = [columns.collectives(trace) for trace in traces]
    parts = [
        breakdown(trace, table, arrivals, run.world_size)
        for trace, table, arrivals in zip(
            traces, tables, match_arrivals(match(traces, tables), traces, tables), strict=True
        )
    ]
    ended = np.array([_backward_end_ns(run, rank) for rank in range(run.world_size)])
    lead = ended.max(axis=0) - ended
    exposed = np.array([part.exposed_ns for part in parts])
    wall = np.array([part.wall_ns for part in parts])
    exposed_s, lead_s, step_s = (
        float(np.median(values[:, WARMUP:])) / 1e9 for values in (exposed - lead, lead, wall)
    )
    return exposed_s, lead_s, step_s


def _backward_end_ns(run: WorldRun, rank: int) -> np.ndarray:
    truth = run.results[rank]["truth"]
    return np.array(truth["backward_begin_ns"]) + np.array(truth["backward_ns"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10, help="time limit for new schedules")
    parser.add_argument(
        "--results", type=Path, help="JSON lines; earlier schedules are not repeated"
    )
    args = parser.parse_args()
    if reason := netns.unavailable():
        raise SystemExit(f"no network namespaces here: {reason}")
    end = time.monotonic() + 60 * args.minutes
    wanted = range(args.first_seed, args.first_seed + args.schedules)
    rows, kept = (
        [row for row in read_rows(args.results) if row["seed"] in wanted],
        Lines(args.results),
    )
    done = {row["seed"] for row in rows}
    for seed in wanted:
        if seed in done or time.monotonic() > end:
            continue
        rows.append(_row(draw(seed)))
        kept.append(rows[-1])
    print(tabulate(rows, headers="keys", floatfmt=".2f"))
    return judged(demands(rows))


def _row(schedule: Schedule) -> dict[str, Any]:
    measured, lead, step = measure(schedule)
    simulated = schedule.simulated_exposed_s()
    return {
        "seed": schedule.seed,
        "hosts": schedule.hosts,
        "Mbit/s": schedule.rate_mbit,
        "backward ms": "/".join(f"{x:g}" for x in schedule.backward_ms),
        "buckets MB": "/".join(f"{x:g}" for x in schedule.gradient_mb),
        "step ms": step * 1e3,
        "lead ms": lead * 1e3,
        "simulated ms": simulated * 1e3,
        "measured ms": measured * 1e3,
        "error %": (measured - simulated) / step * 100,
    }


def demands(rows: list[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on all schedules together."""
    if not rows:
        return []
    errors = np.abs([row["error %"] for row in rows])
    what = "error of exposed time, in percent of the step"
    median = float(np.median(errors))
    return [
        of_all("schedules measured", len(rows), len(rows), SCHEDULES),
        at_most(f"{what}: median", median, MEDIAN, " %", median_interval(errors)),
        at_most(f"{what}: worst", float(errors.max()), WORST, " %"),
    ]


if __name__ == "__main__":
    sys.exit(main())
