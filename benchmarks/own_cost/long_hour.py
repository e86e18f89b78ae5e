"""Runs 64 ranks on one host in always-on mode for most of an hour, with a monitor.

    PYTHONPATH=. python benchmarks/own_cost/long_hour.py [--ranks 64] [--minutes 45] [--json FILE]

The ranks are forked from a process that has imported torch. A step takes STEP_S seconds, has one
all-reduce over gloo, and sleeps most of the time. Once a minute the script measures the memory and
processor time of the ranks and of the monitor, and the size of the run's files. The exit code is 1
if a demand is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.results_file import write_json

RANKS, MINUTES = 64, 45.0
STEP_S = 5.0
#: Largest allowed growth of a rank's memory, and of the run's files, after the first tenth of the
#: run.
MOST_GROWTH_BYTES = 1_000_000
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def rank_main(rank: int, ranks: int, steps: int, port: int, run: Path) -> None:
    """Runs the steps of one rank, in a forked process."""
    import torch
    import torch.distributed as dist

    import commprof

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    tensor = torch.ones(256)
    with commprof.profile(run, mode="always-on") as profiler:
        dist.all_reduce(tensor)
        begin_s = time.monotonic()
        for step in range(steps):
            time.sleep(max(0.0, begin_s + step * STEP_S - time.monotonic()))
            with profiler.phase("forward"):
                time.sleep(0.001)
            dist.all_reduce(tensor)
            profiler.step()
        time.sleep(STEP_S)  # until the last measurement is over
        dist.barrier()
    dist.destroy_process_group()


def memory_bytes(pid: int) -> int:
    """Returns the proportional set size (Pss) of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/smaps_rollup has no Pss")


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def look(begin_s: float, ranks: list[int], monitor: int, run: Path) -> dict[str, float]:
    """Returns the figures at this moment."""
    files = [path.stat().st_size for path in run.rglob("*") if path.is_file()]
    memory = [memory_bytes(pid) for pid in ranks]
    return {
        "time_s": round(time.monotonic() - begin_s, 1),
        "ranks_bytes": sum(memory),
        "largest_rank_bytes": max(memory),
        "monitor_bytes": memory_bytes(monitor),
        "ranks_cpu_s": round(sum(map(cpu_s, ranks)), 2),
        "monitor_cpu_s": round(cpu_s(monitor), 2),
        "files": len(files),
        "files_bytes": sum(files),
    }


def measured(ranks: int, minutes: float) -> dict[str, Any]:
    """Runs the job; returns the figures of each minute and of the summaries at the end."""
    import torch.distributed

    import commprof
    from commprof.trace.reader import read_trace

    del torch, commprof  # imported only for the ranks, which are forked from this process
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory, "run")
        run.mkdir()
        begin_s = time.monotonic()
        pids = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                code = 1
                with suppress(KeyboardInterrupt):
                    rank_main(rank, ranks, int(minutes * 60 / STEP_S), port, run)
                    code = 0
                os._exit(code)
            pids.append(pid)
        command = [sys.executable, "-m", "commprof.monitor", str(run)]
        metrics = ["--metrics-jsonl", str(Path(directory, "metrics.jsonl"))]
        monitor = subprocess.Popen([*command, *metrics])
        looks, every_s = [], min(60.0, minutes * 6)
        try:
            for number in range(1, int(minutes * 60 / every_s)):
                # A measurement itself takes a second. No measurement may come after the ranks' end.
                time.sleep(max(0.0, begin_s + number * every_s - time.monotonic()))
                looks.append(look(begin_s, pids, monitor.pid, run))
                print(json.dumps(looks[-1]), flush=True)
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            monitor.send_signal(signal.SIGINT)
            monitor.wait()
        traces = [read_trace(run / f"rank_{rank}.trace") for rank in range(ranks)]
        summaries = [trace.summary for trace in traces if trace.summary is not None]
        return {
            "ranks": ranks,
            "minutes": minutes,
            "step_s": STEP_S,
            "exit_codes": sorted(set(codes)),
            "summaries": len(summaries),
            "steps_counted": sorted({one.steps.count for one in summaries}),
            "collectives_counted": sum(row.count for one in summaries for row in one.operations),
            "dropped_records": sum(one.dropped for one in summaries),
            "metrics_bytes": Path(directory, "metrics.jsonl").stat().st_size,
            "looks": looks,
        }


def demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks the demands on the figures of a run."""
    looks = figures["looks"]
    early, last = looks[len(looks) // 10], looks[-1]
    time_s = last["time_s"] - early["time_s"]

    def growth(name: str) -> int:
        return int(last[name] - early[name])

    ranks_growth = growth("ranks_bytes")
    monitor_growth = last["monitor_bytes"] / looks[len(looks) // 2]["monitor_bytes"] - 1
    ranks = figures["ranks"]
    limit = f"below {MOST_GROWTH_BYTES:,} bytes"
    counted = figures["steps_counted"]
    monitor_cores = (last["monitor_cpu_s"] - early["monitor_cpu_s"]) / time_s
    return [
        Demand(
            f"minutes in always-on mode with {ranks} ranks on one host",
            f"{figures['minutes']:g}",
            f"{MINUTES:g}",
            figures["minutes"] >= MINUTES and ranks >= RANKS and figures["exit_codes"] == [0],
        ),
        Demand(
            "growth of a rank's memory after the first tenth of the run, mean of all ranks",
            f"{ranks_growth // ranks:,} bytes",
            limit,
            ranks_growth < ranks * MOST_GROWTH_BYTES,
        ),
        at_most(
            "growth of the monitor's memory in the run's second half, while histograms fill",
            100 * monitor_growth,
            5,
            " %",
        ),
        Demand(
            "growth of all files of the run after the first tenth of the run",
            f"{growth('files_bytes'):,} bytes (of {last['files_bytes']:,})",
            limit,
            growth("files_bytes") < MOST_GROWTH_BYTES,
        ),
        Demand(
            "cores that the monitor takes",
            f"{monitor_cores:.4f}",
            "at most 0.02",
            monitor_cores <= 0.02,
        ),
        Demand(
            "different numbers of steps in the ranks' summaries",
            f"{len(counted)} ({min(counted)} steps)",
            "1",
            len(counted) == 1 and figures["summaries"] == ranks,
        ),
        Demand(
            "records dropped",
            str(figures["dropped_records"]),
            "none",
            figures["dropped_records"] == 0,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    figures = measured(args.ranks, args.minutes)
    print(json.dumps({name: value for name, value in figures.items() if name != "looks"}))
    write_json(args.json, figures)
    return judged(demands(figures))


if __name__ == "__main__":
    sys.exit(main())
