"""Tests that the report's intervals of commprof's own cost contain 1 if nothing differs.

The report divides the time of a step with capture by the time of a step without capture, and gives
a 95 % interval of this ratio. Here all steps run without capture. The steps are cut into 200 blocks
of 16 steps, and each block is labelled at random, five times: half of its steps "on", half "off".
So 95 % of the intervals should contain 1. The exit code is 1 if the share is below 93 % or above 97
%.

    PYTHONPATH=. python benchmarks/own_cost/calibration.py [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.demands import Demand, judged
from benchmarks.judging.results_file import read_json, write_json
from benchmarks.own_cost.overhead import PLAIN, RANKS, fork_server
from commprof.analysis.step.overhead import Samples, overhead
from commprof.workloads.loop import overhead_states

BLOCKS, BLOCK_STEPS, LOTS = 200, 16, 5
HELD_LEAST, HELD_MOST = 0.93, 0.97


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="add the counts to this file")
    args = parser.parse_args()
    results = calibrate()
    write_json(args.json, {**read_json(args.json), **results})
    return judged(demands(results))


def calibrate() -> dict[str, Any]:
    """Counts the intervals that contain 1, by comparison, clock and number of ranks."""
    held: dict[str, int] = {}
    order = random.Random(0)
    with fork_server() as server, tempfile.TemporaryDirectory() as place:
        for ranks in RANKS:
            (job,) = server([PLAIN], "small", ranks, place).values()
            each = np.array([one["each"] for one in job.run(BLOCKS * BLOCK_STEPS)], np.float64)
            job.end()
            series = list(zip(each[..., 0].max(axis=0), each[..., 1].sum(axis=0), strict=True))
            for first in sorted([*range(0, len(series), BLOCK_STEPS)] * LOTS):
                states = overhead_states(BLOCK_STEPS, str(order.random()))
                times = series[first : first + BLOCK_STEPS]
                samples = [(state, *both) for state, both in zip(states, times, strict=True)]
                for name, holds in _held(samples):
                    key = f"{name}, {ranks} gloo rank{'s' * (ranks > 1)}"
                    held[key] = held.get(key, 0) + holds
    return {"calibration": {"blocks": BLOCKS, "tried": BLOCKS * LOTS, "held": held}}


def _held(samples: Samples) -> Iterator[tuple[str, bool]]:
    found = overhead(samples)
    assert found is not None
    assert found.cpu is not None
    for clock, cost in (("CPU time", found.cpu), ("wall time", found.wall)):
        yield f"{clock}, on over off", cost.on_over_off.contains(1.0)
        yield f"{clock}, off over off", cost.control.contains(1.0)


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks the share of intervals that contain 1."""
    measured = results.get("calibration", {"blocks": 0, "tried": 0, "held": {}})
    found = []
    for name, held in measured["held"].items():
        share = held / measured["tried"]
        what = f"intervals of A/A blocks of {BLOCK_STEPS} steps that contain 1: {name}"
        figure = f"{held} of {measured['tried']} ({share:.1%}), {measured['blocks']} blocks"
        met = measured["blocks"] >= BLOCKS and HELD_LEAST <= share <= HELD_MOST
        found.append(Demand(what, figure, f"93 to 97 % in {BLOCKS} blocks", met))
    return found


if __name__ == "__main__":
    sys.exit(main())
