"""Tests reports on logs of NCCL Inspector, and measures how fast such logs are read.

    PYTHONPATH=. python benchmarks/recordings/inspector.py truth [--jobs 100] [--first-seed 0]
        [--minutes 5] [--results inspector.jsonl]
    PYTHONPATH=. python benchmarks/recordings/inspector.py speed [--millions 4] [--lost 0]
        [--place FOLDER] [--results inspector_speed.jsonl]

``truth`` draws simulated jobs of 8 to 2,048 ranks, with at most two late processes. The jobs differ
in their groups, collectives and clocks, and in the records that their logs lack. The findings of
`commprof report` are compared with the simulated truth. Other tools name the process with the
lowest bandwidth, so that process is compared with the truth too. Jobs in the results file are not
repeated.

``speed`` writes logs of 2,048 ranks, which lack the fraction --lost of their records. commprof,
Python's json and, if installed, DuckDB read these logs in turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judging.demands import Demand, at_least, at_most, judged, of_all
from benchmarks.judging.results_file import Lines, read_rows
from commprof.analysis.inspector.kinds import UNSPLIT
from commprof.analysis.inspector.result import InspectorResult, inspector_result
from commprof.text import counted
from tests.support.builders.inspector_logs import SimulatedJob, simulate

#: Layouts to draw from: degrees of tensor, data and pipeline parallelism, and number of steps. A
#: layout that is listed several times is drawn more often.
LAYOUTS = (
    *[(1, 8, 1, 150), (2, 4, 1, 150), (4, 8, 1, 100), (2, 4, 2, 150), (8, 4, 1, 100)] * 4,
    *[(2, 8, 4, 100), (8, 8, 2, 60)] * 2,
    *[(8, 32, 1, 30), (8, 16, 4, 20)],
)
LARGE = ((8, 256, 1, 12),)
RANKS, COMMUNICATORS = 2048, 3
#: The plugin writes whole microseconds, and the kernels of a call do not end together. So a rank's
#: waiting and transfer in a call are not known more precisely than this.
_RESOLUTION_US = 1.0
#: Number of jobs of each kind that the demands require.
JOBS = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("truth", "speed"))
    parser.add_argument("--jobs", type=int, default=100, help="jobs of each kind (default: 100)")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="seed of the first job (default: 0)"
    )
    parser.add_argument("--minutes", type=float, default=60, help="start no job after MINUTES")
    parser.add_argument(
        "--millions", type=float, default=4.0, help="speed: millions of records (default: 4)"
    )
    parser.add_argument(
        "--lost",
        type=float,
        default=0.0,
        help="speed: fraction of records that the logs lack (default: 0)",
    )
    parser.add_argument("--alone", action="store_true", help="speed: read by commprof only")
    parser.add_argument(
        "--place", type=Path, help="folder for the logs, which are deleted afterwards"
    )
    parser.add_argument("--results", type=Path, help="JSON lines; jobs in it are not repeated")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.place) as place:
        if args.what == "speed":
            kept = Lines(args.results)
            return judged(_speed(args.millions, args.lost, Path(place), kept, args.alone))
        rows = _truth(args.jobs, args.first_seed, args.minutes, Path(place), args.results)
    return judged(demands(rows))


def demands(rows: Sequence[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on the jobs.

    A late process may be missed if its delay is below the limit that the report states.
    """
    late = [row for row in rows if row["late"]]
    clean = [row for row in rows if not row["late"]]
    errors = [row["error"] for row in rows if row["error"] is not None]
    return [
        of_all(
            "jobs of 8 to 2,048 ranks in which exactly the late processes are named",
            sum(
                sorted(row["named"] + row.get("too_little", [])) == sorted(row["late"])
                for row in late
            ),
            len(late),
            JOBS,
        ),
        of_all(
            "jobs without a late process that accuse nobody",
            sum(not row["named"] for row in clean),
            len(clean),
            JOBS,
        ),
        at_most(
            "jobs without lost records: largest error of wait or transfer, beyond 1 µs per call",
            100 * max(errors, default=math.nan),
            1,
            " %",
        ),
    ]


def beside_truth(rows: Sequence[dict[str, Any]]) -> str:
    """Returns further results on the jobs, as Markdown."""
    return "\n".join(text for text in (lowest_bandwidth(rows), wait_resolution(rows)) if text)


def lowest_bandwidth(rows: Sequence[dict[str, Any]]) -> str:
    """Returns, as Markdown, how often the process with the lowest bandwidth is late."""
    late = [row for row in rows if row["late"]]
    right = sum(row["lowest"] in row["late"] for row in late)
    waits = [row["lowest_waits"] for row in late if row["lowest_waits"] is not None]
    if not late:
        return ""
    return (
        f"In {right} of the {len(late)} jobs with a late process, the process with the lowest "
        "bandwidth is late. In the median of these jobs, the process with the lowest bandwidth "
        f"waits during {statistics.median(waits):.0%} of its time in operations.\n"
    )


def wait_resolution(rows: Sequence[dict[str, Any]]) -> str:
    """Returns, as Markdown, the error of the waiting that the report shows."""
    off = [row for row in rows if row.get("wait_excess_us") is not None]
    if not off:
        return ""
    excess_us = [row["wait_excess_us"] for row in off]
    worst = max(abs(row["wait_excess_us"]) / row["wait_us"] for row in off)
    return (
        f"In the {counted(len(off), 'job')} that lost no record, the kernels of one call end at "
        "different times, up to 3 µs apart. Where all ranks arrive together, the difference looks "
        "like waiting. So a rank's mean waiting in a call is "
        f"{min(excess_us):.2f} to {max(excess_us):.2f} µs too long in the report, at most "
        f"{worst:.2%} of the true waiting.\n"
    )


def _truth(
    jobs: int, first_seed: int, minutes: float, place: Path, results: Path | None
) -> list[dict[str, Any]]:
    rows, kept = read_rows(results), Lines(results)
    done = {row["seed"] for row in rows}
    end = time.monotonic() + 60 * minutes
    seeds = range(first_seed, first_seed + 2 * jobs)
    for seed in seeds:
        if seed in done or time.monotonic() > end:
            continue
        rows.append(_judged_job(seed, place / "job"))
        kept.append(rows[-1])
        row = rows[-1]
        if sorted(row["named"]) != sorted(row["late"]):
            print(f"seed {seed}: {row}", flush=True)
    too_little = sum(bool(row.get("too_little")) for row in rows if row["seed"] in seeds)
    print(f"jobs with a late process whose delay is too short to be named: {too_little}")
    return [row for row in rows if row["seed"] in seeds]


def _judged_job(seed: int, folder: Path) -> dict[str, Any]:
    is_late = seed % 2 == 0
    draw = np.random.default_rng(seed)
    layout = LARGE[0] if seed % 100 < 2 else LAYOUTS[int(draw.integers(len(LAYOUTS)))]
    job, late, about = _drawn(draw, layout, is_late, seed)
    job.write(folder, ("v4.0", "v4.3")[seed // 2 % 2])
    result = inspector_result(folder)
    shutil.rmtree(folder)
    lowest = result.lowest.lowest_bandwidth
    found_us, true_us = _waits_us(job, result)
    waited_for = [late.process for late in result.late]
    waited_for += [] if result.slower is None else result.slower.processes
    named = sorted(process.pid - 1000 for process in waited_for)
    return {
        "seed": seed,
        **about,
        "late": sorted(late),
        "named": named,
        "too_little": [
            process
            for process in sorted(late - {*named})
            if job.late_by_us.get(process, 0.0) < 1e6 * result.least_late_s
        ],
        "lowest": None if lowest is None else lowest.pid - 1000,
        "lowest_waits": None if lowest is None else round(result.lowest.lowest_waits, 4),
        "error": None if result.is_lower_bound else round(_error(job, result), 5),
        "wait_us": round(true_us, 3),
        "wait_excess_us": None if result.is_lower_bound else round(found_us - true_us, 3),
    }


def _error(job: SimulatedJob, result: InspectorResult) -> float:
    """Returns the largest relative error of the mean waiting and of any transfer.

    An error of less than ``_RESOLUTION_US`` per call does not count.
    """
    errors = [
        _beyond_resolution(row.transfer_us, float(np.median(transfers)))
        for row in result.kinds
        if (transfers := _transfers(job, row.op, row.size_bytes, row.ranks))
    ]
    return max(_beyond_resolution(*_waits_us(job, result)), *errors)


def _beyond_resolution(found_us: float, true_us: float) -> float:
    return max(0.0, abs(found_us - true_us) - _RESOLUTION_US) / true_us


def _waits_us(job: SimulatedJob, result: InspectorResult) -> tuple[float, float]:
    """Returns the mean waiting of a rank in a call, as found and as simulated."""
    groups = (*job.tensor, *job.data, *job.pipeline, *job.expert)
    records = sum(record.kind not in UNSPLIT for record in job.records)
    waited_us = sum(group.waited_us for group in groups)
    return 1e6 * result.mean.wait_s * job.count / records, waited_us / records


def _drawn(
    draw: np.random.Generator, layout: tuple[int, int, int, int], is_late: bool, seed: int
) -> tuple[SimulatedJob, set[int], dict[str, Any]]:
    tp, dp, pp, steps = layout
    number = int(draw.integers(1, 3)) if is_late else 0
    late = draw.choice(tp * dp * pp, number, replace=False).tolist()
    late_us = {process: float(draw.uniform(800, 3000)) for process in late}
    lost = float(draw.choice([0, 0, 0.05, 0.3]))
    part = float(draw.choice([0.5, 1]))
    experts = int(draw.choice([1, 2, 4]))
    is_rooted, overflows = bool(draw.random() < 0.5), bool(draw.random() < 0.25)
    job = simulate(
        *(tp, dp, pp),
        steps=steps,
        late_us=late_us,
        late_part=part,
        lost=0.0 if overflows else lost,
        experts=experts,
        rooted=is_rooted,
        seed=seed,
    )
    if overflows:
        job.overflow(ring=24, per_dump=32)
    about = {
        "layout": [tp, dp, pp, experts],
        "lost": 0.25 if overflows else lost,
        "overflows": overflows,
        "rooted": is_rooted,
    }
    return job, set(late), about


def _transfers(job: SimulatedJob, op: str, size_bytes: int, ranks: int) -> list[float]:
    """Returns the simulated transfers of one kind of collective, in µs."""
    names = {"all_reduce": "AllReduce", "all_gather": "AllGather", "all_to_all": "AllToAll"}
    kind = {**names, "reduce_scatter": "ReduceScatter"}.get(op, "")
    of_all_ranks = 1 if kind == "AllReduce" else ranks
    return [
        transfer
        for group in (*job.tensor, *job.data, *job.expert)
        if len(group.members) == ranks
        for transfer in group.transfers_us.get((kind, size_bytes // of_all_ranks), ())
    ]


def _speed(millions: float, lost: float, place: Path, kept: Lines, alone: bool) -> list[Demand]:
    folder = place / "logs"
    size_bytes, records = _write(folder, int(millions * 1e6), lost)
    print(f"{records:,} records, {size_bytes / 1e9:.2f} GB, {RANKS} logs")
    readers: dict[str, Callable[[], tuple[float, float, float]]] = {
        "commprof report": lambda: _measured(
            [sys.executable, "-m", "commprof", "report", str(folder), "--format", "json"]
        ),
        "json.loads of each line": lambda: _measured(
            [sys.executable, "-c", _JSON, str(folder)], fraction=min(1.0, 0.4e6 / records)
        ),
    }
    if importlib.util.find_spec("duckdb"):
        readers["DuckDB read_json"] = lambda: _measured(
            [sys.executable, "-c", _DUCKDB, str(folder)]
        )
    if alone:
        readers = {"commprof report": readers["commprof report"]}
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in readers}
    for _ in range(3 if millions <= 8 else 1):
        for name, read in readers.items():
            figures[name].append(read())
    made: dict[str, Any] = {"records": records, "lost": lost, "size_bytes": size_bytes}
    for name, rows in figures.items():
        cpu_s, wall_s, most_bytes = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        made[name] = {"cpu_s": [row[0] for row in rows], "wall_s": [row[1] for row in rows]}
        made[name]["most_bytes"] = int(most_bytes)
        print(
            f"{name:24} {cpu_s:8.1f} s CPU {wall_s:8.1f} s {most_bytes / 1e9:6.2f} GB "
            f"{records / cpu_s / 1e3:8.0f} thousand records per s of a core"
        )
    kept.append(made)
    return speed_demands([made])


def speed_demands(rows: Sequence[dict[str, Any]]) -> list[Demand]:
    """Checks the demands on the speed and memory of reading.

    For comparison: another reader, NIXT, read 52,000 records per second and core. Its largest job
    had 37.5 million records.
    """
    found = []
    for row in sorted(rows, key=lambda row: (row["lost"], row["records"])):
        records, ours = row["records"], row["commprof report"]
        cpu_s = statistics.median(ours["cpu_s"])
        scale = records / 37.5e6
        lost = f", {row['lost']:.0%} of the records lost" if row["lost"] else ""
        found += [
            at_least(
                f"thousand records per second of a core{lost}", records / cpu_s / 1e3, 156, ""
            ),
            at_most(
                "memory (2 GB for 37.5 million records)",
                ours["most_bytes"] / 1e9,
                max(0.3, 2 * scale),
                " GB",
            ),
        ]
        if scale > 0.9:
            found.append(
                at_most(
                    "processor time for 37.5 million records (2 cores, 120 s)", cpu_s, 240, " s"
                )
            )
    return found


def speed_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a Markdown table of each reader's processor time and memory."""
    readers = list(
        dict.fromkeys(name for row in rows for name in row if isinstance(row[name], dict))
    )
    head = ("records", "lost", "GB", *(f"{name}: s CPU, GB" for name in readers))
    lines = ["| " + " | ".join(head) + " |", "|" + "--:|" * len(head)]
    for row in sorted(rows, key=lambda row: (row["lost"], row["records"])):
        cells = [f"{row['records']:,}", f"{row['lost']:.0%}", f"{row['size_bytes'] / 1e9:.2f}"]
        for name in readers:
            one = row.get(name)
            cells.append(
                "-"
                if one is None
                else f"{statistics.median(one['cpu_s']):.1f}, {one['most_bytes'] / 1e9:.2f}"
            )
        lines.append("| " + " | ".join(cells) + " |")
    caption = "Readers of the same logs of NCCL Inspector: seconds of processor time, and memory."
    return "\n".join([caption, "", *lines]) + "\n"


_JSON = """\
import json, sys, pathlib
fraction = float(sys.argv[2])
files = sorted(pathlib.Path(sys.argv[1]).iterdir())
for file in files[:max(1, round(len(files) * fraction))]:
    for line in file.open():
        json.loads(line)
"""
_DUCKDB = """\
import duckdb, sys
duckdb.sql("SET threads=2")
duckdb.sql(f"select coll_perf.coll, count(*), min(coll_perf.coll_exec_time_us) from "
           f"read_json('{sys.argv[1]}/*.log', format='newline_delimited') group by 1").fetchall()
"""


def _measured(command: list[str], fraction: float = 1.0) -> tuple[float, float, float]:
    """Runs a command; returns its CPU seconds, wall seconds, and largest memory in bytes.

    If ``fraction`` is below 1, the command reads only this part, and the times are scaled up.
    """
    began = time.monotonic()
    if fraction < 1 or "json.loads" in command[2]:
        command = [*command, str(fraction)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[:3]} ended with status {status}")
    wall_s = time.monotonic() - began
    return (
        (used.ru_utime + used.ru_stime) / fraction,
        wall_s / fraction,
        used.ru_maxrss * 1024,
    )


def _write(folder: Path, records: int, lost: float) -> tuple[int, int]:
    """Writes logs of RANKS ranks; returns the number of bytes and the number of records.

    ``lost`` is the fraction of records that the logs lack.
    """
    folder.mkdir()
    draw = np.random.default_rng(1)
    a_rank = max(COMMUNICATORS, records // RANKS)
    calls = a_rank // COMMUNICATORS
    # Sixteen texts with different times. Each rank's log is a copy of one text, with the rank's own
    # names.
    texts = []
    for _ in range(16):
        lines = []
        for place, (kind, size) in enumerate(
            (("AllReduce", 8 << 20), ("ReduceScatter", 1 << 20), ("AllGather", 1 << 20))
        ):
            times = (100 * (place + 1) + draw.exponential(30, calls)).astype(int)
            for number, time_us in enumerate(times.tolist()):
                about = {
                    "header": {
                        "id": f"@id{place}@",
                        "comm_name": ("tp", "dp", "world")[place],
                        "rank": f"@rank{place}@",
                        "n_ranks": (8, 256, 2048)[place],
                        "nnodes": 1,
                    },
                    "metadata": {
                        "inspector_output_format_version": "v4.0",
                        "git_rev": "",
                        "rec_mechanism": "nccl_profiler_interface",
                        "dump_timestamp_us": 1_780_000_000_000_000 + number,
                        "hostname": "@host@",
                        "pid": "@pid@",
                    },
                    "coll_perf": {
                        "coll": kind,
                        "coll_sn": number,
                        "coll_msg_size_bytes": size,
                        "coll_exec_time_us": time_us,
                        "coll_timing_source": "kernel_gpu",
                        "coll_algobw_gbs": round(size / time_us / 1e3, 6),
                        "coll_busbw_gbs": round(size / time_us / 1e3, 6),
                    },
                }
                lines.append(json.dumps(about))
        texts.append([f"{line}\n".encode() for line in lines])
    size_bytes = written = 0
    for rank in range(RANKS):
        whole = texts[int(draw.integers(16))]
        kept = draw.random(len(whole)) >= lost
        written += int(kept.sum())
        text = b"".join(itertools.compress(whole, kept.tolist()))
        for name, value in (
            (b"@id0@", b"0xa%x" % (rank // 8)),
            (b'"@rank0@"', b"%d" % (rank % 8)),
            (b"@id1@", b"0xb%x" % (rank % 8)),
            (b'"@rank1@"', b"%d" % (rank // 8)),
            (b"@id2@", b"0xc"),
            (b'"@rank2@"', b"%d" % rank),
            (b"@host@", b"host%04d" % (rank // 8)),
            (b'"@pid@"', b"%d" % (1000 + rank)),
        ):
            text = text.replace(name, value)
        (folder / f"host{rank // 8:04d}-pid{1000 + rank}.log").write_bytes(text)
        size_bytes += len(text)
    return size_bytes, written


if __name__ == "__main__":
    sys.exit(main())
