"""Measures the time that recording adds to one call of a collective.

The calls go to torch's "fake" backend, which does nothing. So the difference between calls with and
without recording is the cost of recording. The exit code is 1 if recording adds more than 1 us to a
call.

    PYTHONPATH=. python benchmarks/own_cost/calls.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.medians import median_interval
from benchmarks.judging.results_file import read_json, write_json
from benchmarks.own_cost.overhead import RANK_SCRIPT

#: Largest allowed time that recording adds to a call, in us.
MOST_US = 1.0
WATCHED = ("observed", "always-on")
ROUNDS = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="add the times to this file")
    args = parser.parse_args()
    results = {"collectives": call_times("fake", ROUNDS)}
    write_json(args.json, {**read_json(args.json), **results})
    return judged(demands(results))


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks the time that commprof adds to a call."""
    found = []
    for call, times in results.get("collectives", {}).items():
        for mode in (mode for mode in WATCHED if mode in times):
            more = np.array(times[mode]) - np.array(times["plain"])
            what = f"time added to {call} on the fake backend, {mode}"
            median = float(np.median(more))
            found.append(at_most(what, median, MOST_US, " us", median_interval(more)))
    return found


def _call_table(times: dict[str, list[float]]) -> str:
    plain = np.array(times["plain"])
    rows = []
    for mode, values in times.items():
        if mode != "plain":
            more = np.array(values) - plain
            low, high = median_interval(more)
            rows.append((mode, np.median(more), low, high, *np.percentile(more, [25, 75])))
    headers = ("mode", "median", "95% low", "95% high", "quartile 1", "quartile 3")
    return tabulate(rows, headers=headers, floatfmt=".3f")


def call_times(backend: str, rounds: int) -> dict[str, Any]:
    """Measures calls on a backend, and prints tables; returns the times in us, by call and mode."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RANK_SCRIPT), "collectives", str(rounds), backend],
        env={**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    last = done.stdout.strip().splitlines()[-1]
    found = json.loads(last, parse_float=lambda text: round(float(text), 4))
    for call, times in found.items():
        print(f"\nMicroseconds that each mode adds to {call} on the {backend} backend\n")
        print(_call_table(times))
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())
