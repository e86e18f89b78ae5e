"""What watching costs: plain against observed, hooked, a Python hook and torch.profiler.

All modes take turns in one process in shuffled order, round after round; every figure is a
difference or a ratio to "plain" of the same round. "plain 2" is the A/A control: what it shows
is noise. Usage: ``python benchmarks/overhead.py [--quick] [--paired] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

HERE = Path(__file__).parent
SIZES = ("small", "many_buckets", "medium", "large")
RANK_SCRIPT = HERE / "overhead_rank.py"


def main() -> None:
    """Runs everything and prints tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--paired", action="store_true", help="only capture off against on, 4 min")
    parser.add_argument("--json", type=Path, help="write all times there")
    args = parser.parse_args()
    scale = 0.2 if args.quick else 1.0
    results: dict[str, Any] = {"context": _context()}
    if not args.paired:
        results["collectives"] = _run(1, "collectives", int(100 * scale))
        for call, times in results["collectives"].items():
            print(f"\nMicroseconds per {call} on the fake backend, difference to plain\n")
            print(_table(times, ratio=False))
    for size, rounds in zip(SIZES, (4000, 2000, 160, 60), strict=True):
        times = _run(1, f"{size}-alternating", max(20, int(rounds * scale)))
        results[f"alternating_{size}"] = times
    _print_alternating(results)
    if args.paired:
        return
    for ranks, rounds in ((1, 30), (2, 20)):
        for size in SIZES:
            times = _run(ranks, size, max(4, int(rounds * scale)))
            results[f"ddp_{size}_{ranks}"] = times
            print(
                f"\nDDP step, {size} model, {ranks} gloo rank(s), plain "
                f"{np.median(times['plain']):.2f} ms, ratio to plain\n"
            )
            print(_table(times, ratio=True))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


def _print_alternating(results: dict[str, Any]) -> None:
    """Medians over the rounds, and what the least disturbed tenth of the steps shows."""
    print("\nDDP step at 1 gloo rank, capture off and on from step to step: median of the ratios")
    print("of neighbours (two steps with capture on over the two without beside them), and the")
    print("difference of the 10th percentiles\n")
    rows = []
    for size in SIZES:
        times = {name: np.array(row) for name, row in results[f"alternating_{size}"].items()}
        for mode in ("full", "always-on"):
            off_a, off_b, on = (times[f"{label} {mode}"] for label in ("off_a", "off_b", "on"))
            off = (off_a + off_b) / 2
            least = np.percentile(on, 10) - np.percentile(np.concatenate([off_a, off_b]), 10)
            control = np.percentile(off_a, 10) - np.percentile(off_b, 10)
            for name, ratio, apart_ms in (
                (f"{mode} / off", on.reshape(-1, 2).mean(axis=1) / off, least),
                ("control: off / off", off_a / off_b, control),
            ):
                interval = _median_interval(ratio)
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
            low, high = _median_interval(compared)
            quartiles = np.percentile(compared, [25, 75])
            rows.append((mode, np.median(compared), low, high, *quartiles))
    headers = ("mode", "median", "95% low", "95% high", "quartile 1", "quartile 3")
    return tabulate(rows, headers=headers, floatfmt=".3f")


def _median_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    random = np.random.default_rng(0)
    samples = values[random.integers(0, len(values), size=(4000, len(values)))]
    low, high = np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    return float(low), float(high)


def _run(ranks: int, what: str, rounds: int) -> Any:
    """Runs the rank script; returns what rank 0 printed."""
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
    return json.loads(outputs[0][0].strip().splitlines()[-1])


def _context() -> dict[str, Any]:
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
