"""Measures how much longer a job's step takes with a monitor of live metrics.

One job per world size trains all the time. Each round has three blocks of ten seconds in random
order: one block with a monitor, and two blocks without. The monitor has an endpoint, which is
scraped every two seconds, and writes JSON lines. The first three seconds of a block are not
counted, because the monitor loads in that time.

A step takes as long as on the slowest rank, and a block's figure is its median step. In each round,
the figure with the monitor is divided by the mean of the two figures without. The ratio of the two
figures without a monitor is the A/A control, which shows the noise.

    PYTHONPATH=. python benchmarks/own_cost/live_overhead.py [--ranks 2,4] [--rounds 12]
        [--json FILE]

A round takes half a minute. With --json, rounds in the file are not repeated. The exit code is 1 if
a demand is not met.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import CONTEXT, read_json, write_json
from commprof.monitor.monitor import address_file
from commprof.stats.intervals import Interval, signed_rank_ratio
from commprof.trace import columns
from commprof.trace.reader import read_trace

BLOCK_S, LEFT_OUT_S = 10.0, 3.0
ON, OFF_A, OFF_B = "on", "off_a", "off_b"
#: Largest allowed ratio of a step with a monitor to a step without a monitor.
MOST = 1.01
#: World sizes that must be measured.
RANKS = (2, 4)
OUTPUTS = ("--metrics-address", "127.0.0.1:0", "--metrics-jsonl", "m.jsonl")
MORE_STEPS_THAN_IT_LASTS = "100000000"


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job ends too
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4", help="world sizes (default: 2,4)")
    parser.add_argument(
        "--rounds", type=int, default=12, help="rounds of three blocks (default: 12)"
    )
    parser.add_argument("--workload", default="mlp", help="what the job trains (default: mlp)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the blocks' order")
    parser.add_argument("--json", type=Path, help="file for the figures of the blocks")
    args = parser.parse_args()
    found = read_json(args.json)
    found.pop(CONTEXT, None)
    for ranks in map(int, args.ranks.split(",")):
        rounds = found.setdefault(f"{args.workload} {ranks}", [])
        if len(rounds) < args.rounds:
            rounds += measure(ranks, args.workload, args.rounds - len(rounds), args.seed)
            write_json(args.json, found)
    print(f"\n{len(os.sched_getaffinity(0))} cores; load {os.getloadavg()[0]:.1f}\n")
    print(table(found))
    return judged(demands(found))


def measure(ranks: int, workload: str, rounds: int, seed: int) -> list[dict[str, float]]:
    """Returns each round's median step by block, in ms, and the monitor's share of a core."""
    order = random.Random(f"{seed} {ranks}")
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        command = ["-m", "commprof.run", "--world-sizes", str(ranks), "--workload", workload]
        command += ["--steps", MORE_STEPS_THAN_IT_LASTS, "--overhead-steps", "0"]
        job = subprocess.Popen(
            [sys.executable, *command, "--output", str(run)],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _await_steps(run / f"world_{ranks}", ranks, job)
            windows = []
            for number in range(rounds):
                names = [ON, OFF_A, OFF_B]
                order.shuffle(names)
                windows.append({name: _block(run, name) for name in names})
                print(f"{ranks} ranks: round {number + 1} of {rounds}", file=sys.stderr)
        finally:
            # No report is needed, so the job is killed. Its ranks end with the launcher.
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        time.sleep(1.0)
        return _steps_in(run / f"world_{ranks}", ranks, windows)


def _block(run: Path, name: str) -> tuple[int, int, float]:
    """Runs a block; returns its counted begin and end, in ns, and the monitor's share of a core."""
    begin_s = time.monotonic()
    monitor = None
    if name == ON:
        command = [sys.executable, "-m", "commprof.monitor", str(run), *OUTPUTS]
        monitor = subprocess.Popen(command, cwd=run)
    try:
        _sleep(begin_s + LEFT_OUT_S, run, monitor)
        first_ns, cpu_s = time.monotonic_ns(), _cpu_s(monitor)
        _sleep(begin_s + BLOCK_S, run, monitor)
        last_ns = time.monotonic_ns()
        return first_ns, last_ns, (_cpu_s(monitor) - cpu_s) / ((last_ns - first_ns) / 1e9)
    finally:
        if monitor is not None:
            monitor.terminate()
            monitor.wait()


def _sleep(until_s: float, run: Path, monitor: subprocess.Popen[bytes] | None) -> None:
    """Sleeps until ``until_s``, and scrapes the monitor every two seconds."""
    while (rest_s := until_s - time.monotonic()) > 0:
        if monitor is not None:
            with contextlib.suppress(OSError, ValueError):
                url = json.loads(address_file(run).read_text())["url"]
                urllib.request.urlopen(url, timeout=2).read()
        time.sleep(min(2.0, rest_s))


def _cpu_s(monitor: subprocess.Popen[bytes] | None) -> float:
    if monitor is None:
        return 0.0
    fields = Path(f"/proc/{monitor.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _await_steps(world: Path, ranks: int, job: subprocess.Popen[bytes]) -> None:
    """Waits until all ranks record, and then for some seconds more, as warm-up."""
    while not all((world / f"rank_{rank}.trace").exists() for rank in range(ranks)):
        if job.poll() is not None:
            sys.exit(f"the job ended before it recorded: exit code {job.returncode}")
        time.sleep(0.2)
    time.sleep(5.0)


def _steps_in(
    world: Path, ranks: int, windows: list[dict[str, tuple[int, int, float]]]
) -> list[dict[str, float]]:
    steps = [columns.steps(read_trace(world / f"rank_{rank}.trace")) for rank in range(ranks)]
    count = min(map(len, steps))
    length_ns = np.max([each.end_ns[:count] - each.begin_ns[:count] for each in steps], axis=0)
    begin_ns, end_ns = steps[0].begin_ns[:count], steps[0].end_ns[:count]
    found = []
    for window in windows:
        medians = {}
        for name, (first_ns, last_ns, of_core) in window.items():
            inside = (begin_ns >= first_ns) & (end_ns <= last_ns)
            medians[name] = float(np.median(length_ns[inside])) / 1e6
            medians["of_core"] = max(of_core, medians.get("of_core", 0.0))
        found.append(medians)
    return found


def table(found: dict[str, Any]) -> str:
    """Returns a table of each job's ratios, with 95 % intervals."""
    rows = []
    for name, rounds in found.items():
        if not rounds:
            continue
        off = [(each[OFF_A] + each[OFF_B]) / 2 for each in rounds]
        core = np.median([each["of_core"] for each in rounds])
        on_off, control = ratios(rounds)
        for what, mean in (("on / off", on_off), ("control: off / off", control)):
            values = mean.value, mean.low, mean.high
            rows.append((name, len(rounds), np.median(off), what, *values, core))
    headers = (
        "job",
        "rounds",
        "off ms",
        "ratio",
        "typical",
        "95% low",
        "95% high",
        "monitor cores",
    )
    return tabulate(rows, headers=headers, floatfmt=".4f")


def ratios(rounds: list[dict[str, float]]) -> tuple[Interval, Interval]:
    """Returns the ratio of steps with a monitor to steps without, and the A/A control's ratio."""
    on, off_a, off_b = (np.array([each[key] for each in rounds]) for key in (ON, OFF_A, OFF_B))
    return signed_rank_ratio(on, (off_a + off_b) / 2), signed_rank_ratio(off_a, off_b)


def demands(found: dict[str, Any]) -> list[Demand]:
    """Checks the ratio at each world size, by the upper end of its interval."""
    asked = []
    measured = {name: rounds for name, rounds in found.items() if rounds}
    for name, rounds in measured.items():
        on, _ = ratios(rounds)
        asked.append(
            Demand(
                f"step of {name} ranks, with live metrics / without",
                f"{on.value:.4f} [{on.low:.4f}, {on.high:.4f}]",
                f"the interval's upper end at most {MOST:g}",
                on.high <= MOST,
            )
        )
    sizes = {int(name.split()[-1]) for name in measured}
    asked.append(of_all("world sizes measured", len(sizes & {*RANKS}), len(RANKS), len(RANKS)))
    return asked


if __name__ == "__main__":
    sys.exit(main())
