"""Measures what the monitor of a job in always-on mode costs: CPU time and bytes read per look.

Simulated hosts of 8 ranks write the same files as real hosts. Before each look, all ranks and hosts
replace their summaries by others of realistic size. Each monitor is a process of its own, and looks
when this script tells it to. With ``--before``, a monitor of another version of commprof is
measured too. The two monitors look in turns.

    python benchmarks/scale/live_hosts.py [--hosts 16,128] [--looks 5] [--before CHECKOUT] [-o FILE]

From two numbers of hosts, the script extrapolates the cost of 1,024 hosts along a straight line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.append(str(Path(__file__).resolve().parents[2]))  # after the folders in PYTHONPATH

from benchmarks.judging.results_file import Lines

if TYPE_CHECKING:
    from tests.support.builders.simulated_hosts import SimulatedHost

ROOT: Final = Path(__file__).resolve().parents[2]
PER_HOST: Final = 8
_ON_PAPER: Final = 1024
_INTERVAL_S: Final = 2.0
_NOT_MISSING_S: Final = 600.0
#: The monitor's largest share of a core, and its longest rest in seconds, as in
#: ``commprof.monitor.monitor``.
_OF_A_CORE, _LONGEST_S = 0.02, 30.0


def monitor(run: Path) -> None:
    """Looks once per line of stdin, and prints the cost of each look as JSON."""
    from commprof.monitor.metrics.metrics import samples
    from commprof.monitor.observer import Observer

    is_new = hasattr(Observer, "publish")
    observer = Observer(run, nested=False, **({"is_monitor": True} if is_new else {}))
    for line in sys.stdin:
        before_s, before_bytes = time.process_time(), _read_bytes()
        state = observer.poll()
        assert state is not None
        count = sum(1 for _ in samples(state))
        if is_new:
            observer.publish(_INTERVAL_S)
        found = {
            "cpu_s": time.process_time() - before_s,
            "bytes": _read_bytes() - before_bytes,
            "late": None if state.late is None else state.late.rank,
            "ranks": len(state.ranks),
            "samples": count,
            "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "look": int(line),
        }
        print(json.dumps(found), flush=True)


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])  # the first field, rchar


def measured(hosts: int, looks: int, checkouts: dict[str, Path]) -> dict[str, Any]:
    """Lets each version's monitor look several times; returns the median cost of a look."""
    # Not imported above, because the monitor of another version may lack this module.
    from tests.support.builders.simulated_hosts import SimulatedHost

    with tempfile.TemporaryDirectory() as place:
        run = Path(place)
        simulated = [SimulatedHost(run, number, hosts, PER_HOST) for number in range(hosts)]
        monitors = {name: _started(run, path) for name, path in checkouts.items()}
        costs: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
        try:
            for look in range(looks + 1):
                _write_all(simulated, look + 1)
                for name, process in monitors.items():
                    costs[name].append(_looked(process, look))
        finally:
            for process in monitors.values():
                process.kill()
                process.wait()
        sizes = [path.stat().st_size for path in run.glob("host_*.summary")]
    return {
        "hosts": hosts,
        "ranks": hosts * PER_HOST,
        "largest_summary_bytes": max(sizes, default=0),
        **{name: _medians(found) for name, found in costs.items()},
    }


def _write_all(simulated: list[SimulatedHost], sequence: int) -> None:
    for number, host in enumerate(simulated):
        if sequence > 1:
            host.rewrite(sequence)
            continue
        host.write(sequence)
        if number:  # the measured monitor writes the first host's summary
            # the interval is long, because this one process writes for all hosts
            host.publish(_NOT_MISSING_S)


def _started(run: Path, checkout: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{checkout}:{ROOT}", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__)), "--monitor", str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=checkout,
    )


def _looked(process: subprocess.Popen[str], look: int) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{look}\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def _medians(looks: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns medians without the first look, which takes longer because it opens files."""
    later = looks[1:]
    cpu_s, read = (statistics.median(look[name] for look in later) for name in ("cpu_s", "bytes"))
    rest_s = max(_INTERVAL_S, min(cpu_s / _OF_A_CORE, _LONGEST_S))
    return {
        "first_cpu_s": round(looks[0]["cpu_s"], 3),
        "cpu_s": round(cpu_s, 4),
        "bytes": int(read),
        "rest_s": round(rest_s, 1),
        "cpu_per_s": round(cpu_s / (rest_s + cpu_s), 5),
        "bytes_per_s": int(read / (rest_s + cpu_s)),
        "resident_bytes": looks[-1]["resident_bytes"],
        "ranks": looks[-1]["ranks"],
        "late": looks[-1]["late"],
    }


def on_paper(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Extrapolates the monitor's cost to ``_ON_PAPER`` hosts from the first and the last row."""
    first, last = rows[0], rows[-1]

    def line(figure: str) -> float:
        slope = (last[name][figure] - first[name][figure]) / (last["hosts"] - first["hosts"])
        return float(last[name][figure] + slope * (_ON_PAPER - last["hosts"]))

    cpu_s, read = line("cpu_s"), line("bytes")
    rest_s = max(_INTERVAL_S, min(cpu_s / _OF_A_CORE, _LONGEST_S))
    return {
        "cpu_s": round(cpu_s, 3),
        "bytes": int(read),
        "rest_s": round(rest_s, 1),
        "cpu_per_s": round(cpu_s / (rest_s + cpu_s), 5),
        "bytes_per_s": int(read / (rest_s + cpu_s)),
        "resident_bytes": int(line("resident_bytes")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="16,128", help="numbers of hosts (default: 16,128)")
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--before", type=Path, help="built checkout of another version")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--monitor", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.monitor is not None:
        monitor(args.monitor)
        return 0
    checkouts = {"now": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    rows = [measured(int(hosts), args.looks, checkouts) for hosts in args.hosts.split(",")]
    paper = {name: on_paper(rows, name) for name in checkouts} if len(rows) > 1 else {}
    for row in [*rows, {"hosts": _ON_PAPER, "ranks": _ON_PAPER * PER_HOST, **paper}]:
        for name in checkouts:
            if name in row:
                print(
                    f"{row['hosts']} hosts, {row['ranks']} ranks, {name}: {json.dumps(row[name])}"
                )
        if "largest_summary_bytes" in row:
            print(f"{row['hosts']} hosts: largest summary {row['largest_summary_bytes']} bytes")
    if args.output is not None:
        Lines(args.output).append({"rows": rows, "on_paper": paper})
    return 0


if __name__ == "__main__":
    sys.exit(main())
