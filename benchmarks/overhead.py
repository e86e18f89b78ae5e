"""What watching costs: plain against observed, hooked, a Python hook and torch.profiler.

All modes take turns in one process in shuffled order, round after round; every figure is a
difference or a ratio to "plain" of the same round. "plain 2" is the A/A control: what it shows
is noise. The demands are of the ratios of neighbouring steps, which are the least noisy, and of the
cost per call. The exit code is 1 where one is not met.

    PYTHONPATH=. python benchmarks/overhead.py [--quick] [--paired] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.medians import Floats, median_interval
from benchmarks.judging.results_file import write_json

SIZES = ("small", "many_buckets", "medium", "large")
#: Models that a demand speaks of, and what a step may take by mode, over one without capture.
ASKED = ("small", "medium", "large")
MOST = {"full": 1.005, "always-on": 1.002}
#: What a call may take more, in us, by mode of the collectives.
MOST_US = 1.0
WATCHED = ("observed", "always-on")
#: Columns of the comparison of blocks; "plain 2" is the control.
COLUMNS = {
    "full": "hooked",
    "full, no hook": "observed",
    "always-on": "always-on",
    "A/A control": "plain 2",
    "Python hook": "Python hook",
    "torch.profiler": "torch.profiler",
}
RANK_SCRIPT = Path(__file__).parent / "ranks" / "overhead_rank.py"


def main() -> int:
    """Runs everything, prints tables and what became of the demands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--paired", action="store_true", help="only capture off against on, 4 min")
    parser.add_argument("--json", type=Path, help="write all times there")
    args = parser.parse_args()
    scale = 0.2 if args.quick else 1.0
    results: dict[str, Any] = {}
    if not args.paired:
        results["collectives"] = _run(1, "collectives", int(100 * scale))
        for call, times in results["collectives"].items():
            print(f"\nMicroseconds per {call} on the fake backend, difference to plain\n")
            print(_table(times, ratio=False))
    for size, rounds in zip(SIZES, (4000, 2000, 160, 60), strict=True):
        times = _run(1, f"{size}-alternating", max(20, int(rounds * scale)))
        results[f"alternating_{size}"] = times
    _print_alternating(results)
    if not args.paired:
        _blocks(results, scale)
    write_json(args.json, results)
    return judged(demands(results))


def _blocks(results: dict[str, Any], scale: float) -> None:
    for ranks, rounds in ((1, 30), (2, 20)):
        for size in SIZES:
            times = _run(ranks, size, max(4, int(rounds * scale)))
            results[f"ddp_{size}_{ranks}"] = times
            print(
                f"\nDDP step, {size} model, {ranks} gloo rank(s), plain "
                f"{np.median(times['plain']):.2f} ms, ratio to plain\n"
            )
            print(_table(times, ratio=True))
        print(f"\nSide by side, {ranks} gloo rank(s): median ratio to plain [95 %]\n")
        print(side_by_side(results, ranks), flush=True)


def side_by_side(results: dict[str, Any], ranks: int) -> str:
    """A row per model: full and always-on mode beside the control and the other ways."""
    rows = []
    for size in SIZES:
        times = results[f"ddp_{size}_{ranks}"]
        plain = np.array(times["plain"])
        row = [size, f"{np.median(plain):.2f}"]
        for mode in COLUMNS.values():
            ratio = np.array(times[mode]) / plain
            low, high = median_interval(ratio)
            row.append(f"{np.median(ratio):.3f} [{low:.3f}, {high:.3f}]")
        rows.append(row)
    headers = ("model", "plain ms", *COLUMNS)
    return tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)


def demands(results: dict[str, Any]) -> list[Demand]:
    """What is asked of what was measured: of steps, and of single calls."""
    return [*step_demands(results), *call_demands(results)]


def step_demands(results: dict[str, Any]) -> list[Demand]:
    """Ratio of neighbouring steps: within the limit, or within the interval of the control."""
    found = []
    for size in ASKED:
        for mode, limit in MOST.items() if f"alternating_{size}" in results else ():
            _, ratio, control, _ = alternating(results[f"alternating_{size}"], mode)
            median, (low, high) = float(np.median(ratio)), median_interval(ratio)
            least, most = median_interval(control)
            found.append(
                Demand(
                    f"step of the {size} model, {mode} mode over capture off, 1 rank",
                    f"{median:.4f} [{low:.4f}, {high:.4f}], control [{least:.4f}, {most:.4f}]",
                    f"at most {limit:g}, or inside the control's interval",
                    median <= limit or least <= median <= most,
                )
            )
    return found


def call_demands(results: dict[str, Any]) -> list[Demand]:
    """What a call takes more than without commprof, on a backend that does nothing."""
    found = []
    for call, times in results.get("collectives", {}).items():
        for mode in (mode for mode in WATCHED if mode in times):
            more = np.array(times[mode]) - np.array(times["plain"])
            what = f"{call} on the fake backend, {mode}"
            median = float(np.median(more))
            found.append(at_most(what, median, MOST_US, " us", median_interval(more)))
    return found


def alternating(times: dict[str, list[float]], mode: str) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each round: ms with capture off, on / off, off / off (the control), and ms with it on."""
    off_a, off_b, on = (np.array(times[f"{label} {mode}"]) for label in ("off_a", "off_b", "on"))
    off = (off_a + off_b) / 2
    return off, on.reshape(-1, 2).mean(axis=1) / off, off_a / off_b, on


def _print_alternating(results: dict[str, Any]) -> None:
    """Medians over the rounds, and what the least disturbed tenth of the steps shows."""
    print("\nDDP step at 1 gloo rank, capture off and on from step to step: median of the ratios")
    print("of neighbours (two steps with capture on over the two without beside them), and the")
    print("difference of the 10th percentiles\n")
    rows = []
    for size in SIZES:
        times = results[f"alternating_{size}"]
        for mode in MOST:
            off, on_off, off_off, on = alternating(times, mode)
            off_a, off_b = (np.array(times[f"{label} {mode}"]) for label in ("off_a", "off_b"))
            least = np.percentile(on, 10) - np.percentile(np.concatenate([off_a, off_b]), 10)
            control = np.percentile(off_a, 10) - np.percentile(off_b, 10)
            for name, ratio, apart_ms in (
                (f"{mode} / off", on_off, least),
                ("control: off / off", off_off, control),
            ):
                interval = median_interval(ratio)
                rows.append(
                    (size, np.median(off), name, np.median(ratio), *interval, apart_ms * 1e3)
                )
    headers = ("model", "off ms", "ratio", "median", "95% low", "95% high", "p10 apart us")
    print(tabulate(rows, headers=headers, floatfmt=".4f"), flush=True)


def _table(times: dict[str, list[float]], ratio: bool) -> str:
    plain = np.array(times["plain"])
    rows = []
    for mode, values in times.items():
        if mode != "plain":
            other = np.array(values)
            compared = other / plain if ratio else other - plain
            low, high = median_interval(compared)
            quartiles = np.percentile(compared, [25, 75])
            rows.append((mode, np.median(compared), low, high, *quartiles))
    headers = ("mode", "median", "95% low", "95% high", "quartile 1", "quartile 3")
    return tabulate(rows, headers=headers, floatfmt=".3f")


def _run(ranks: int, what: str, rounds: int) -> Any:
    """Runs the rank script; returns what rank 0 printed, to a tenth of a us or better."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(RANK_SCRIPT), what, str(rounds)],
            env={**os.environ, **common, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            sys.exit(f"{what} failed with {process.returncode}:\n{errors}")
    last = outputs[0][0].strip().splitlines()[-1]
    return json.loads(last, parse_float=lambda text: round(float(text), 4))


if __name__ == "__main__":
    sys.exit(main())
