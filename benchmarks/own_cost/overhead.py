"""Measures the cost of recording, against processes that have never imported commprof.

There is one process per mode and rank, with a model of its own. The modes take turns of a few
steps, in random order. A process is stopped between its turns, so the caches hold another process's
data when a turn begins. The first steps of a turn are therefore not counted. Turns are short,
because a machine's speed drifts. The ratio of two plain processes is the A/A control.

A process is always a little faster or slower than its equal, because its memory lies elsewhere. So
each process has holes of random size in its memory, and all processes are restarted again and
again. The rounds from one start to the next are a *generation*. A round's ratio is the step of a
mode, divided by the mean step of the two plain processes. A generation gives the median ratio of
its rounds, and the interval follows from Wilcoxon's signed ranks over generations. Costly modes
take part in the first rounds of a generation only.

CPU time is the sum over all ranks; wall time is that of the slowest rank. A limit of 1.002 on CPU
time allows a ratio of at most 1.002, with the ends of its interval at most 0.002 away. A limit on
wall time applies to the upper end of the interval. The exit code is 1 if a demand is not met.
Generations are repeated for ``--minutes``.

    PYTHONPATH=. python benchmarks/own_cost/overhead.py [--minutes 8] [--models MODEL ...]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.demands import Demand, judged
from benchmarks.judging.results_file import read_json, write_json
from commprof.stats.intervals import Interval, signed_rank_ratio
from tests.support.machines.ranks import free_port

#: Numbers of counted steps per turn, of uncounted steps before them, and of turns.
Turns = tuple[int, int, int]
SIZES: dict[str, Turns] = {
    "small": (25, 5, 10),
    "many_buckets": (20, 4, 6),
    "medium": (2, 2, 48),
    "large": (2, 1, 40),
}
#: Models whose steps have a limit.
ASKED = ("small", "medium", "large")
RECORDED = ("always-on", "full", "full, attached")
#: Largest allowed ratio to a step without commprof, by mode.
MOST_CPU = dict(zip(RECORDED, (1.002, 1.005, 1.005), strict=True))
MOST_WALL = dict(zip(RECORDED, (1.005, 1.01, 1.01), strict=True))
PLAIN, CONTROL, PROFILER = "plain", "A/A control", "torch.profiler"
#: Mode in which commprof's hook averages gradients, without a compressor.
HOOK = "full, hook"
MODES = (PLAIN, CONTROL, *RECORDED, HOOK, PROFILER)
#: Modes that need less precision, and the number of rounds that they take part in.
COSTLY, COSTLY_ROUNDS = (HOOK, PROFILER), 10
RANKS = (1, 2)
#: Clocks, and their names in tables.
CLOCKS = {
    "thread": "CPU time of the training thread",
    "process": "CPU time of the process",
    "instructions": "instructions of the training thread",
    "wall": "wall time",
}
#: Settings with which malloc places all tensors in its heap. With mmap, equal models in one process
#: differ by up to 19 % in the time of a step.
ALIKE = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
RANK_SCRIPT = Path(__file__).parents[1] / "ranks" / "overhead_rank.py"

#: Values per step, by mode and clock: one list per generation, with one value per round. Times are
#: in ms.
Cell = dict[str, dict[str, list[list[float]]]]
#: Ratio and the ends of its interval, by clock and column. The column ``TYPICAL_MS`` has the median
#: step of a plain process instead.
Ratios = dict[str, dict[str, Any]]
TYPICAL_MS = "plain ms"
#: Column with the step of ``HOOK``, divided by the step of an attached model without a hook.
ADDED_BY_HOOK = "hook / attached"
#: Function that writes all ratios so far into the results file.
Keep = Callable[[Mapping[str, Ratios]], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit (default: 8)")
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--json", type=Path, help="add all ratios to this file; other models' ratios are kept"
    )
    args = parser.parse_args()
    end_s = time.monotonic() + 60 * args.minutes
    before = read_json(args.json)
    results = generations(
        args.models, end_s, lambda found: write_json(args.json, {**before, **found})
    )
    for clock, name in CLOCKS.items():
        print(f"\n{name[0].upper()}{name[1:]} per step, relative to plain processes [95 %]\n")
        print(table(results, clock) or "not available on this machine", flush=True)
    return judged(demands(results))


def generations(models: list[str], end_s: float, keep: Keep) -> dict[str, Ratios]:
    """Measures generations of all models and numbers of ranks, while there is time.

    After each generation, ``keep`` gets all ratios so far.
    """
    asked = [(size, ranks) for size, ranks in _cells() if size in models]
    cells: dict[str, Cell] = {cell_name(*cell): {} for cell in asked}
    longest_s, order = 0.0, random.Random(0)
    with fork_server() as server:
        while time.monotonic() + longest_s < end_s:
            begin_s = time.monotonic()
            for size, ranks in asked:
                add(
                    cells[cell_name(size, ranks)],
                    generation(server, size, ranks, MODES, SIZES[size], order),
                )
            keep({name: ratios_of(cell) for name, cell in cells.items()})
            longest_s = max(longest_s, time.monotonic() - begin_s)
            print(
                f"a generation of all models took {time.monotonic() - begin_s:.0f} s",
                file=sys.stderr,
            )
    return {name: ratios_of(cell) for name, cell in cells.items()}


def _cells() -> list[tuple[str, int]]:
    return [(size, ranks) for ranks in RANKS for size in SIZES]


def add(kept: Cell, one: dict[str, dict[str, list[float]]]) -> None:
    """Adds the values of one generation to ``kept``."""
    for mode, clocks in one.items():
        for clock, values in clocks.items():
            kept.setdefault(mode, {}).setdefault(clock, []).append(values)


def cell_name(size: str, ranks: int) -> str:
    """Returns the key of a model and number of ranks in the results file."""
    return f"turns_{size}_{ranks}"


class Processes:
    """The ranks of one mode, which are stopped between the mode's turns."""

    def __init__(self) -> None:
        self._doors: list[socket.socket] = []
        self._lines: list[Any] = []
        self._pids: list[int] = []

    def add(self, door: socket.socket, lines: Any, pid: int) -> None:
        """Adds a rank that has ended its warm-up, and stops it until its next turn."""
        self._doors.append(door)
        self._lines.append(lines)
        self._pids.append(pid)
        os.kill(pid, signal.SIGSTOP)

    def run(self, steps: int, uncounted: int = 1) -> list[dict[str, Any]]:
        """Runs uncounted steps, and then counted steps; returns the ranks' replies."""
        self._signal(signal.SIGCONT)
        for lines in self._lines:
            print(steps, uncounted, file=lines, flush=True)
        taken = [json.loads(lines.readline()) for lines in self._lines]
        self._signal(signal.SIGSTOP)
        return taken

    def turn(self, steps: int, uncounted: int) -> dict[str, float]:
        """Runs a turn; returns its figures by clock."""
        taken = self.run(steps, uncounted)
        found = {"wall": max(one["wall"] for one in taken)}
        for clock in ("thread", "process", "instructions"):
            values = [one[clock] for one in taken]
            if None not in values:
                found[clock] = sum(values)
        return found

    def end(self) -> None:
        """Lets the ranks close their traces and end."""
        self._signal(signal.SIGCONT)
        for door in self._doors:
            door.shutdown(socket.SHUT_WR)
        for door, lines in zip(self._doors, self._lines, strict=True):
            lines.read()  # until the ranks have ended
            door.close()

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            os.kill(pid, number)


def generation(
    server: Any,
    size: str,
    ranks: int,
    modes: tuple[str, ...],
    turns: Turns,
    order: random.Random,
) -> dict[str, dict[str, list[float]]]:
    """Starts processes of all modes; returns a value per round, by mode and clock."""
    steps, uncounted, rounds = turns
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        running = server(order.sample(modes, len(modes)), size, ranks, place)
        for one in running.values():
            stack.callback(one.end)
        for number in range(rounds):
            in_turn = [mode for mode in modes if number < COSTLY_ROUNDS or mode not in COSTLY]
            for mode in order.sample(in_turn, len(in_turn)):
                for clock, value in running[mode].turn(steps, uncounted).items():
                    found.setdefault(mode, {}).setdefault(clock, []).append(round(value, 5))
    return found


@contextmanager
def fork_server(backend: str = "gloo") -> Iterator[Any]:
    """Yields a function that forks processes from a process that has imported torch.

    The function takes modes, the size of the model, the number of ranks, and a directory for
    traces.
    """
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as door:
        address = f"{place}/door"
        door.bind(address)
        door.listen()
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(RANK_SCRIPT), "serve", address],
            env={**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", **ALIKE},
            stdin=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None

        def start(modes: list[str], size: str, ranks: int, place: str) -> dict[str, Processes]:
            for mode in modes:
                common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
                for rank in range(ranks):
                    environment = {**common, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
                    asked = {"size": size, "name": mode, "environment": environment}
                    asked |= {"mode": PLAIN if mode == CONTROL else mode}
                    asked |= {"directory": f"{place}/{mode}", "backend": backend}
                    print(json.dumps(asked), file=process.stdin, flush=True)
            door.settimeout(120)
            found = {mode: Processes() for mode in modes}
            for _ in range(ranks * len(modes)):
                opened = door.accept()[0]
                lines = opened.makefile("rw")
                about = json.loads(lines.readline())
                assert about["has_commprof"] == (about["name"] in (*RECORDED, HOOK))
                found[about["name"]].add(opened, lines, about["pid"])
            return found

        try:
            yield start
        finally:
            process.stdin.close()
            process.wait()


def ratio(
    cell: Cell, mode: str, clock: str, over: tuple[str, ...] = (PLAIN, CONTROL)
) -> Interval | None:
    """Returns the ratio of a mode to the mean of plain processes, with its interval.

    The control is compared with the other plain process only. Returns None if the clock has fewer
    than two generations.
    """
    if clock not in cell.get(mode, {}) or len(cell[mode][clock]) < 2:
        return None
    above = np.array(cell[mode][clock])
    below = [np.array(cell[other][clock]) for other in over if other != mode]
    rounds = min(len(one[0]) for one in (above, *below))
    below = [one[:, :rounds] for one in below]
    typical = np.median(above[:, :rounds] / np.mean(below, axis=0), axis=1)
    return signed_rank_ratio(typical, np.ones_like(typical))


def ratios_of(cell: Cell) -> Ratios:
    """Returns the ratios of one model and number of ranks."""
    found: Ratios = {}
    for clock in CLOCKS:
        if clock not in cell.get(PLAIN, {}):
            continue
        ratios = {mode: ratio(cell, mode, clock) for mode in MODES[1:]}
        ratios[ADDED_BY_HOOK] = ratio(cell, HOOK, clock, (RECORDED[-1],))
        found[clock] = {TYPICAL_MS: float(np.median(cell[PLAIN][clock]))}
        found[clock] |= {
            column: [of_column.value, of_column.low, of_column.high]
            for column, of_column in ratios.items()
            if of_column is not None
        }
    return found


def _interval(ratios: Ratios, clock: str, column: str) -> Interval | None:
    ends = ratios.get(clock, {}).get(column)
    return None if ends is None else Interval(*ends)


def table(results: Mapping[str, Ratios], clock: str, style: str = "simple") -> str:
    """Returns a table of the ratios by one clock; empty if the clock was not measured."""
    rows = []
    columns = (*MODES[1:], ADDED_BY_HOOK)
    for size, ranks in _cells():
        ratios = results.get(cell_name(size, ranks), {})
        if clock in ratios:
            found = [shown(_interval(ratios, clock, column)) for column in columns]
            rows.append((size, ranks, f"{ratios[clock][TYPICAL_MS]:.4g}", *found))
    headers = ("model", "gloo ranks", TYPICAL_MS, *columns)
    made = tabulate(rows, headers=headers, tablefmt=style, disable_numparse=True)
    return made if rows else ""


def shown(found: Interval | None) -> str:
    """Returns a ratio and its interval as text."""
    return f"{found.value:.4f} [{found.low:.4f}, {found.high:.4f}]" if found else "-"


def demands(results: Mapping[str, Ratios]) -> list[Demand]:
    """Checks the limits of each mode, and that torch.profiler costs more."""
    found = []
    for size, ranks in _cells():
        of_cell = results.get(cell_name(size, ranks), {})
        where = f"step of the {size} model at {ranks} gloo rank{'s' * (ranks > 1)}"
        for clock in CLOCKS:
            ratios = {mode: _interval(of_cell, clock, mode) for mode in (*RECORDED, PROFILER)}
            for mode in RECORDED if size in ASKED else ():
                of_mode = ratios[mode]
                if of_mode is not None:
                    what = f"{where}, {mode}: {CLOCKS[clock]} / that without commprof"
                    found.append(_demand(what, clock, mode, of_mode))
            found += below_profiler(f"{where}, all recording modes", clock, ratios)
    return found


def below_profiler(where: str, clock: str, ratios: dict[str, Interval | None]) -> list[Demand]:
    """Demands that torch.profiler costs more than all other modes, if it was measured."""
    known = {mode: of_mode.value for mode, of_mode in ratios.items() if of_mode}
    if PROFILER not in known:
        return []
    most = max(value for mode, value in known.items() if mode != PROFILER)
    what = f"{where}: {CLOCKS[clock]} below torch.profiler's"
    figure = f"{most:.4f} at most, torch.profiler {known[PROFILER]:.4f}"
    return [Demand(what, figure, "below", most < known[PROFILER])]


def _demand(what: str, clock: str, mode: str, found: Interval) -> Demand:
    if clock == "wall":
        limit = MOST_WALL[mode]
        asked = f"the interval's upper end at most {limit:g}"
        return Demand(what, shown(found), asked, found.high <= limit)
    limit = MOST_CPU[mode]
    wide = max(found.high - found.value, found.value - found.low) > limit - 1
    figure = shown(found) + (", not measurable with this precision" if wide else "")
    asked = f"at most {limit:g}, with a precision of {limit - 1:.1%}"
    return Demand(what, figure, asked, found.value <= limit and not wide)


if __name__ == "__main__":
    sys.exit(main())
