"""Measures the CPU time that commprof's NCCL plugin adds to the calling thread of a collective.

A small program plays the events of collectives to three plugins in turns: to an empty plugin, to
commprof's plugin, and to a copy of commprof's plugin that passes all events on to the empty plugin.
The exit code is 1 if a collective takes more than 300 ns longer with commprof's plugin than with
the empty plugin, or if passing events on takes more than another 100 ns.

    PYTHONPATH=. python benchmarks/own_cost/nccl_plugin.py [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.medians import median_interval
from benchmarks.judging.results_file import write_json

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "commprof" / "libnccl-profiler-commprof.so"
#: Largest allowed time that the plugin adds to a collective.
MOST_NS = 300.0
#: Largest allowed time that passing events on adds to a collective.
MOST_PASSING_ON_NS = 100.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write all times to this file")
    args = parser.parse_args()
    results = {"rounds_ns": _rounds(args.rounds)}
    write_json(args.json, results)
    return judged(demands(results))


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks the time that the plugin adds to a collective."""
    rounds = np.array(results.get("rounds_ns", []))
    if len(rounds) == 0:
        return []
    added = "CPU time of the calling thread added to a collective"
    return [
        at_most(what, float(np.median(more)), most_ns, " ns", median_interval(more), ".0f")
        for what, more, most_ns in (
            (f"{added}, compared with an empty plugin", rounds[:, 1] - rounds[:, 0], MOST_NS),
            (
                f"{added} by passing all events on to an empty plugin",
                rounds[:, 2] - rounds[:, 1],
                MOST_PASSING_ON_NS,
            ),
        )
    ]


def _rounds(count: int) -> list[list[float]]:
    """Returns each round's ns per collective: empty plugin, commprof's plugin, and both."""
    with tempfile.TemporaryDirectory(prefix="commprof-nccl-") as directory:
        program = str(Path(directory) / "nccl_plugin")
        source = str(Path(__file__).with_suffix(".cpp"))
        include = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests/cpp/support'}"]
        compiler = os.environ.get("CXX", "c++")
        command = [compiler, "-std=c++20", "-O2", *include, source, "-o", program, "-pthread"]
        subprocess.run([*command, "-ldl", "-rdynamic"], check=True)
        twin = str(shutil.copy(PLUGIN, Path(directory) / "copy.so"))
        place = {"RANK": "0", "WORLD_SIZE": "2", "COMMPROF_NCCL": "kernels"}
        done = subprocess.run(
            [program, str(PLUGIN), twin, str(count)],
            env={**os.environ, **place, "COMMPROF_OUT": str(Path(directory) / "run")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [list(map(float, line.split())) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
