"""Tests that commprof's NCCL plugin does no harm, even if calls or processes go wrong.

There are three tests. The first plays calls in random orders, with random handles, from several
threads, beside another plugin that returns handles of any kind. The second kills processes while
they play collectives. These two run under the address and undefined-behaviour sanitizers, and again
under the thread sanitizer. The third plays many events in one process.

The exit code is 1 if a process crashes, if a sanitizer reports anything, if the trace of a killed
process lacks a collective that had ended, or if memory grows.

    PYTHONPATH=. python benchmarks/own_cost/nccl_plugin_harm.py [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.results_file import write_json
from tests.support.machines.core_tests import build
from tests.support.nccl_runs import recorded

PLACE = {"RANK": "0", "WORLD_SIZE": "2"}
SANITIZERS = {
    "address,undefined": "the address and undefined-behaviour sanitizers",
    "thread": "the thread sanitizer",
}
#: Versions of the interface between NCCL and its profiler plugins.
VERSIONS = (3, 4, 5, 6, 7)
#: Number of random orders of calls that one process plays.
ORDERS_A_PROCESS = 50
#: Number of events of a collective on four channels. Events that only end another event do not
#: count.
EVENTS_A_COLLECTIVE = 6
#: Number of records of a collective: issue, operation, begin on the GPU, and end on the GPU.
RECORDS_A_COLLECTIVE = 4
#: Largest allowed growth of memory after the first tenth of the events.
MOST_GROWTH_BYTES = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=1000, help="random orders per sanitizer")
    parser.add_argument("--kills", type=int, default=200, help="killed processes per sanitizer")
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    results: dict[str, Any] = {"sanitizers": {}}
    for sanitizers in SANITIZERS:
        others = [f"logging-v{version}" for version in VERSIONS]
        tree = build(sanitizers, "test_nccl_harm", *others)
        results["sanitizers"][sanitizers] = {
            "orders": {"tried": args.orders, "survived": survived(tree, args.orders)},
            "kills": {"tried": args.kills, "whole": whole_after_kill(tree, args.kills)},
        }
    if args.events:
        results["memory"] = memory(args.events)
    write_json(args.json, results)
    return judged(demands(results))


def demands(results: dict[str, Any]) -> list[Demand]:
    """Checks the demands on all three tests."""
    found = []
    for sanitizers, counts in results["sanitizers"].items():
        under = f"under {SANITIZERS[sanitizers]}"
        orders, kills = counts["orders"], counts["kills"]
        what = f"random orders of calls without a crash or a report {under}"
        found.append(of_all(what, orders["survived"], orders["tried"], 1000))
        what = f"killed processes whose trace has each collective that had ended, {under}"
        found.append(of_all(what, kills["whole"], kills["tried"], 200))
    if "memory" in results:
        (first, *_, last) = results["memory"]["at"]
        for events, size in (first, results["memory"]["at"][4]):
            what = f"growth of memory from {events:,} to {last[0]:,} events"
            growth = last[1] - size
            asked = f"below {MOST_GROWTH_BYTES:,} bytes"
            found.append(Demand(what, f"{growth:,} bytes", asked, growth < MOST_GROWTH_BYTES))
        records = last[0] // EVENTS_A_COLLECTIVE * RECORDS_A_COLLECTIVE
        percent = 100 * results["memory"]["dropped"] / records
        what = f"records dropped, out of {records:,}, with a pause of 1 ms per 500 collectives"
        found.append(at_most(what, percent, 1.0, " %"))
    return found


def environment(out: Path, **more: str) -> dict[str, str]:
    """Returns the environment of a process that records everything into ``out``."""
    return {
        **os.environ,
        **PLACE,
        "COMMPROF_NCCL": "network",
        "COMMPROF_OUT": str(out),
        "TSAN_OPTIONS": "halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1",
        **more,
    }


def survived(tree: Path, orders: int) -> int:
    """Returns the number of random orders of calls without a crash or a sanitizer's report."""
    count = 0
    for first in range(1, orders + 1, ORDERS_A_PROCESS):
        wanted = min(ORDERS_A_PROCESS, orders + 1 - first)
        version = VERSIONS[first // ORDERS_A_PROCESS % len(VERSIONS)]
        with tempfile.TemporaryDirectory(prefix="commprof-nccl-") as out:
            done = subprocess.run(
                [tree / "test_nccl_harm", "orders", str(version), str(first), str(wanted)],
                env=environment(
                    Path(out),
                    COMMPROF_NCCL_PLUGIN=str(tree / f"liblogging-v{version}.so"),
                    LOGGED_FAULT="any",
                ),
                capture_output=True,
                text=True,
                check=False,
            )
        ended = len(done.stdout.split())
        count += ended if done.returncode == 0 else max(ended - 1, 0)
        if done.returncode != 0:
            print(
                f"random orders from {first} on: exit code {done.returncode}\n"
                f"{done.stderr[-4000:]}",
                file=sys.stderr,
            )
    return count


def whole_after_kill(tree: Path, kills: int) -> int:
    """Returns the number of killed processes whose trace has every collective that had ended.

    A kill may cut off the trace within a block. Then the block's records are read from the ring
    files, which outlive the process.
    """
    rng = random.Random(1)
    whole = 0
    for number in range(kills):
        with tempfile.TemporaryDirectory(prefix="commprof-nccl-") as folder:
            count = Path(folder) / "count"
            count.write_bytes(bytes(8))
            out = Path(folder) / "run"
            version = VERSIONS[number % len(VERSIONS)]
            process = subprocess.Popen(
                [tree / "test_nccl_harm", "until-killed", str(version), count],
                env=environment(out),
                stderr=subprocess.PIPE,
            )
            while count.read_bytes() == bytes(8) and process.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.3))
            process.kill()
            _, said = process.communicate()
            ended = int.from_bytes(count.read_bytes(), sys.byteorder)
            trace, operations = recorded(out / "rank_0.trace")
            timed = sum(times.end_ns > 0 for times in operations.values())
            good = process.returncode == -signal.SIGKILL and ended <= timed <= ended + 1
            whole += good
            if not good:
                print(
                    f"kill {number}: {ended} collectives had ended, the trace has {timed}, "
                    f"{trace.problems}\n{said.decode()[-4000:]}"
                )
    return whole


def memory(events: int) -> dict[str, Any]:
    """Returns memory in bytes after each tenth of the events, and the count of dropped records."""
    tree = build("", "test_nccl_harm", "nccl-profiler-commprof", "logging-v6")
    plugin = tree / "libnccl-profiler-commprof.so"
    with tempfile.TemporaryDirectory(prefix="commprof-nccl-") as out:
        done = subprocess.run(
            [tree / "test_nccl_harm", "many", plugin, str(events)],
            env=environment(
                Path(out),
                COMMPROF_NCCL="kernels",
                COMMPROF_NCCL_PLUGIN=str(tree / "liblogging-v6.so"),
                LOGGED_FAULT="any",
            ),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        path = Path(out) / "rank_0.trace"
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(-4096, os.SEEK_END)
            tail = file.read().decode(errors="replace")
    dropped = int(tail.rpartition('"dropped": ')[2].split(",")[0].split("}")[0])
    at = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    return {"at": at, "trace_bytes": size, "dropped": dropped}


if __name__ == "__main__":
    sys.exit(main())
