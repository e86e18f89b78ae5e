"""Compares the recorded bytes between hosts with the counters of the network interfaces.

    PYTHONPATH=. python benchmarks/multi_node.py --results multi_node.json

Hosts are network namespaces, joined by links of 1 Gbit/s. Each host starts ``commprof run
--nnodes`` with its node rank. The table shows, for every world size, the bytes that the recorded
collectives sent between hosts, and the bytes that the interfaces counted. The exit code is 1 if
these numbers differ by more than 2 %. A number of hosts that is in the results file is not run
again. The script needs root, and takes a minute for each number of hosts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, judged, of_all
from benchmarks.judging.results_file import CONTEXT, read_json, write_json

# The ranks import this file as their main module, so the parent's own imports are in functions.

#: Numbers of hosts that must be measured.
HOSTS = (2, 4)
#: Largest allowed relative difference between counted and recorded bytes.
MOST_APART = 0.02
WORKLOAD = "timed:layers=4,backward_ms=20,gradient_mb=2,bucket_cap_mb=0.1"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[*HOSTS], metavar="N")
    parser.add_argument("--nproc", type=int, default=2, help="maximum ranks per host (default: 2)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--workload", default=WORKLOAD)
    parser.add_argument(
        "--results", type=Path, help="JSON file; numbers of hosts in it are not run again"
    )
    args = parser.parse_args()
    found = read_json(args.results)
    for hosts in args.hosts:
        if str(hosts) not in found:
            found[str(hosts)] = _run(hosts, args)
            write_json(args.results, found)
    print(table(found))
    return judged(demands(found))


def _run(count: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    from tests.support.machines import netns
    from tests.support.machines.netns import run_on_each

    if reason := netns.unavailable():
        raise SystemExit(f"no network namespaces here: {reason}")
    words = ["--workload", args.workload, "--steps", str(args.steps), "--overhead-steps", "0"]
    words += ["--nproc", str(args.nproc), "--strategy", args.strategy]
    with (
        tempfile.TemporaryDirectory(prefix="multi_node") as directory,
        netns.Hosts(count, "1gbit") as hosts,
    ):
        result = run_on_each(hosts, Path(directory) / "run", words)
    return [
        {"ranks": run["num_processes"], **run["aggregated_metrics"]["host_links"]}
        for run in result["runs"]
    ]


def table(found: dict[str, Any]) -> str:
    lines = [
        "hosts  ranks  MB per step  Gbit/s in flight  over step  sent MB  counted MB  difference"
    ]
    rows = _rows(found)
    for row in rows:
        lines.append(
            f"{row['hosts']:5}  {row['ranks']:5}  {row['step_bytes'] / 1e6:11.3f}  "
            f"{row['in_flight_gbit_per_s']:16.3f}  {row['step_gbit_per_s']:9.3f}  "
            f"{row['recorded_bytes'] / 1e6:7.1f}  {row['counted_bytes'] / 1e6:10.1f}  "
            f"{row['difference']:+10.2%}"
        )
    within = sum(abs(row["difference"]) <= MOST_APART for row in rows)
    return "\n".join([*lines, f"{within} of {len(rows)} world sizes within 2 %"])


def demands(found: dict[str, Any]) -> list[Demand]:
    """Checks the difference at each world size, and that all numbers of hosts were measured."""
    asked = [
        Demand(
            f"{row['ranks']} ranks on {row['hosts']} hosts: interface counters against records",
            f"{row['difference']:+.2%}",
            f"within {MOST_APART:.0%}",
            abs(row["difference"]) <= MOST_APART,
        )
        for row in _rows(found)
    ]
    measured = sum(str(hosts) in found for hosts in HOSTS)
    return [*asked, of_all("numbers of hosts measured", measured, len(HOSTS), len(HOSTS))]


def _rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for name, rows in found.items() if name != CONTEXT for row in rows]


if __name__ == "__main__":
    sys.exit(main())
