"""Measures always-on mode's exchange of arrival times between simulated hosts.

Each host is a process that stands for many ranks (``live_host.cpp``). All hosts run on this
machine. They use commprof's own code for the exchange within a host and between hosts. In every
step, one rank arrives 20 ms late. When every living host has named this rank, another rank is late
instead. A host names a rank that came last to eight successive world collectives. In two further
phases, a host is killed, and another host is frozen and then continues. The frozen host has other
hosts below it in the tree.

    python benchmarks/scale/live.py [--hosts 16] [--ranks 4096] [--trials 50] [-o FILE]
    python benchmarks/scale/live.py --hosts 16,128 --per-host 8 --trials 10 [-o FILE]

The script prints the figures of each phase. With ``-o`` it also appends them to a file of results.
From two numbers of hosts with equally many ranks per host, it extrapolates the cost of a job of
1,024 hosts along a straight line. Each rank makes 44 calls per second; bytes and flows depend on
this rate. All hosts share this machine's cores, so a rank is named later than on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand, at_least, at_most
from benchmarks.judging.results_file import Lines
from commprof.capture.job.store_links import possible_parents

ROOT = Path(__file__).resolve().parents[2]
#: A host names a rank that came last to this many successive world collectives.
IN_A_ROW = 8
LIMIT_S = 10.0
_MOST_MIB = 64
_ON_PAPER = 1024
_PER_HOST = (
    *("bytes_per_s", "datagrams_per_s", "cpu_percent", "flows", "board_bytes", "resident_bytes"),
)
KINDS = ("world", "tp", "dp", "pp")


class SimulatedHost:
    """One process of ``live_host``, and the lines that this process wrote."""

    def __init__(self, program: Path, host: int, hosts: int, per_host: int) -> None:
        self.host = host
        self.token = secrets.randbits(63) | 1
        arguments = (host, hosts, per_host, self.token)
        self.process = subprocess.Popen(
            [str(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.lines: list[dict[str, Any]] = []
        self.newest_last: list[int] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line = json.loads(text)
            self.newest_last = (self.newest_last + line.pop("world_last"))[-IN_A_ROW:]
            self.lines.append(line)

    def tell(self, line: str) -> None:
        """Writes a command to the host's process, if it is running."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            pass

    @property
    def named(self) -> int:
        """The rank that came last to every one of the newest world collectives; -1 if none did."""
        same = len(self.newest_last) == IN_A_ROW and len(set(self.newest_last)) == 1
        return self.newest_last[0] if same else -1


def build(directory: Path) -> Path:
    """Compiles ``live_host`` with the sources of the core; returns the program."""
    program = directory / "live_host"
    core = directory / "core.cpp"
    sources = [
        source
        for folder in ("always_on", "base", "clock", "core", "device")
        for source in sorted((ROOT / "csrc" / folder).rglob("*.cpp"))
    ]
    core.write_text("".join(f'#include "{source}"\n' for source in sources))
    own = str(ROOT / "benchmarks/scale/live_host.cpp")
    options = ("-std=c++20", "-O1", "-pthread", f"-I{ROOT / 'csrc'}")
    subprocess.run(
        ["c++", *options, "-o", str(program), str(core), own],
        check=True,
    )
    return program


def until_named(hosts: list[SimulatedHost], rank: int) -> float:
    """Makes a rank late; returns the seconds until all hosts have named this rank.

    Returns NaN if this takes longer than ``LIMIT_S``.
    """
    began = time.monotonic()
    for host in hosts:
        host.tell(f"late {rank}")
    while time.monotonic() - began < LIMIT_S:
        if all(host.named == rank for host in hosts):
            return time.monotonic() - began
        time.sleep(0.05)
    return float("nan")


def trials(living: list[SimulatedHost], number: int, per_host: int, seed: int) -> dict[str, Any]:
    """Makes random ranks of running hosts late, one after another."""
    chosen = random.Random(seed)
    times = []
    for _ in range(number):
        rank = (chosen.choice(living).host - 1) * per_host + chosen.randrange(per_host)
        times.append(until_named(living, rank))
    named = [time_s for time_s in times if time_s == time_s]
    return {
        "named": len(named),
        "of": number,
        "median_s": round(statistics.median(named), 2) if named else None,
        "longest_s": round(max(named), 2) if named else None,
    }


def rates(hosts: list[SimulatedHost], since: list[int]) -> dict[str, Any]:
    """Returns what hosts sent per second, what they counted, and their memory.

    ``since``: for each host, the index of the line at which the measurement begins.
    """
    found: dict[str, list[float]] = {"bytes_per_s": [], "datagrams_per_s": [], "cpu_percent": []}
    counts = {kind: [0, 0, 0, 0] for kind in KINDS}
    for host, first in zip(hosts, since, strict=True):
        before, after = host.lines[first], host.lines[-1]
        elapsed_s = (after["time_ns"] - before["time_ns"]) / 1e9
        found["bytes_per_s"].append((after["bytes"] - before["bytes"]) / elapsed_s)
        found["datagrams_per_s"].append((after["datagrams"] - before["datagrams"]) / elapsed_s)
        found["cpu_percent"].append(100 * (after["cpu_s"] - before["cpu_s"]) / elapsed_s)
        for kind in KINDS:
            counts[kind] = [
                total + b - a
                for total, a, b in zip(counts[kind], before[kind], after[kind], strict=True)
            ]
    newest = [host.lines[-1] for host in hosts]
    result: dict[str, Any] = {
        name: {"median": round(statistics.median(values), 1), "max": round(max(values), 1)}
        for name, values in found.items()
    }
    for name in ("flows", "hosts", "skipped", "unsent", "refused", "board_bytes", "resident_bytes"):
        values = [line[name] for line in newest]
        result[name] = {"median": statistics.median(values), "max": max(values)}
    result["collectives"] = {
        kind: dict(zip(("known", "partial", "unknown", "correct"), counts[kind], strict=True))
        for kind in KINDS
    }
    return result


def phase(hosts: list[SimulatedHost], number: int, per_host: int, seed: int) -> dict[str, Any]:
    """Runs trials on the given hosts; returns the results of ``trials`` and ``rates``."""
    since = [len(host.lines) - 1 for host in hosts]
    found = trials(hosts, number, per_host, seed)
    return found | rates(hosts, since)


def demands(rows: Sequence[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on each phase: hosts name the late rank, and need little memory."""
    found = []
    for row in rows:
        phases = {name: phase for name, phase in row.items() if isinstance(phase, dict)}
        jobs = f"{row['ranks']} ranks on {row['hosts']} hosts"
        for name, phase in phases.items():
            share, longest_s = phase["named"] / phase["of"], phase["longest_s"]
            found.append(at_least(f"{jobs}, {name}: late ranks named", share, 1.0))
            found.append(at_most(f"{jobs}, {name}: longest time until", longest_s, LIMIT_S, " s"))
        most = max(phase["resident_bytes"]["max"] for phase in phases.values())
        found.append(at_most(f"{jobs}: memory of a host", most / 2**20, _MOST_MIB, " MiB"))
    return found


def measured(number: int, per_host: int, trials: int) -> dict[str, Any]:
    """Runs all phases with ``number`` hosts; returns the figures of all phases."""
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        hosts = [SimulatedHost(program, host, number, per_host) for host in range(1, number + 1)]
        try:
            return _phases(hosts, per_host, trials)
        finally:
            for host in hosts:
                host.tell("end")
            time.sleep(0.5)
            for host in hosts:
                host.process.kill()


def _phases(hosts: list[SimulatedHost], per_host: int, trials: int) -> dict[str, Any]:
    for host in hosts:
        for parent in possible_parents(host.host):
            there = hosts[parent - 1]
            host.tell(f"peer {parent} {there.port} {there.token}")
    begin_ns = time.monotonic_ns() + 1_000_000_000
    for host in hosts:
        host.tell(f"go {begin_ns}")
    time.sleep(4)
    few = max(3, trials // 5)
    result: dict[str, Any] = {"hosts": len(hosts), "ranks": len(hosts) * per_host}
    result["all live"] = phase(hosts, trials, per_host, 1)
    # In a tree of three levels, host 3 has children. In a tree of two levels, it has none.
    hosts[2].process.kill()
    living = [host for host in hosts if host.host != 3]
    result["a host killed"] = phase(living, few, per_host, 2)
    time.sleep(3)
    result["some seconds later"] = phase(living, few, per_host, 3)
    above = 2 if len(hosts) > 17 else 1
    hosts[above - 1].process.send_signal(signal.SIGSTOP)
    rest = [host for host in living if host.host != above]
    result[f"host {above} frozen"] = phase(rest, few, per_host, 4)
    hosts[above - 1].process.send_signal(signal.SIGCONT)
    time.sleep(8)
    result[f"host {above} goes on"] = phase(living, few, per_host, 5)
    return result


def on_paper(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Extrapolates the cost of a host in a job of ``_ON_PAPER`` hosts along a straight line.

    ``rows``: results with equally many ranks per host. Only the first and the last row are used.
    """
    hosts = [row["hosts"] for row in rows]
    share = (_ON_PAPER - hosts[-1]) / (hosts[-1] - hosts[0])

    def line(name: str, kind: str) -> float:
        first, last = (float(row["all live"][name][kind]) for row in (rows[0], rows[-1]))
        return round(last + (last - first) * share, 1)

    return {name: {kind: line(name, kind) for kind in ("median", "max")} for name in _PER_HOST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="16", help="numbers of hosts, separated by commas")
    parser.add_argument("--ranks", type=int, default=4096, help="ranks of all hosts together")
    parser.add_argument("--per-host", type=int, help="ranks per host, instead of --ranks")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    rows = []
    for hosts in map(int, args.hosts.split(",")):
        rows.append(measured(hosts, args.per_host or args.ranks // hosts, args.trials))
        for name, figures in rows[-1].items():
            print(f"{name}: {json.dumps(figures)}", flush=True)
        if args.output is not None:
            Lines(args.output).append(rows[-1])
    if args.per_host and len(rows) > 1:
        print(f"extrapolated to {_ON_PAPER} hosts: {json.dumps(on_paper(rows))}")


if __name__ == "__main__":
    sys.exit(main())
