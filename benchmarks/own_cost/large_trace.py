"""Measures the time and memory of a report on 20 GB of traces, and checks the report's figures.

    PYTHONPATH=. python benchmarks/own_cost/large_trace.py [--gigabytes 20] [--json FILE]

Four ranks repeat the same TILE_STEPS random steps (``benchmarks/scale/runs.py``) until their traces
have the size of --gigabytes. So means over the whole run are equal to means over one repetition.
The traces are in the temporary directory, and are deleted afterwards. The exit code is 1 if a
demand is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.command_cost import sound_cost, written_apart
from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.results_file import write_json
from benchmarks.scale.runs import drawn, job_records
from commprof.trace.schema import RECORD_DTYPE, Kind
from tests.support.builders import trace_bytes

ROOT = Path(__file__).resolve().parents[2]
GIGABYTES = 20.0
RANKS, TILE_STEPS, CALLS = 4, 2000, 25
LATE_RANK, LATE_MS = RANKS // 3, 4.0
_BLOCK_BYTES = 320 * RECORD_DTYPE.itemsize


def write(folder: Path, repetitions: int) -> int:
    """Writes the traces of a run; returns their total size in bytes."""
    folder.mkdir()
    times = drawn(RANKS, TILE_STEPS, CALLS, LATE_MS, seed=1)
    length_ns, size = tile_ns(), 0
    for rank in range(RANKS):
        records = job_records(times, rank, plain=True)
        records = records[np.argsort(records["timestamp_ns"], kind="stable")]
        with (folder / f"rank_{rank}.trace").open("wb") as file:
            about = trace_bytes.metadata(rank=rank, world_size=RANKS, local_rank=rank)
            about["machine"].update(cpu_count=4 * RANKS, usable_cpu_count=4 * RANKS)
            group = trace_bytes.group(1, name="0", rank=rank, size=RANKS, backend="gloo")
            described = trace_bytes.document(trace_bytes.GROUP_BLOCK, group)
            file.write(trace_bytes.trace(described, **about))
            for _ in range(repetitions):
                raw = records.tobytes()
                for begin in range(0, len(raw), _BLOCK_BYTES):
                    part = raw[begin : begin + _BLOCK_BYTES]
                    file.write(trace_bytes.block(trace_bytes.RECORDS_BLOCK, part))
                records = _later(records, length_ns)
            file.write(trace_bytes.end(0))
            size += file.tell()
    return size


def tile_ns() -> int:
    """Returns the length of one repetition of the steps."""
    times = drawn(RANKS, TILE_STEPS, CALLS, LATE_MS, seed=1)
    return int(times.end[-1].max() - times.begin[0].min())


def _later(records: npt.NDArray[np.void], length_ns: int) -> npt.NDArray[np.void]:
    """Returns the records of the next repetition, whose times and numbers are higher."""
    kind = records["kind"]
    # leaves out the begin of the first step
    later = records[~((kind == Kind.STEP) & (records["aux"] == 0))]
    kind, calls = later["kind"], TILE_STEPS * CALLS
    later["timestamp_ns"] += length_ns
    later["value"][kind == Kind.WAIT] += length_ns
    later["op_id"] += np.where(kind == Kind.STEP, TILE_STEPS, calls).astype(np.uint64)
    later["seq"][kind == Kind.ISSUE] += calls
    return later


def figures_of(document: str) -> dict[str, Any]:
    """Returns the figures of a JSON report that are checked."""
    found = json.loads(document)["runs"][0]["aggregated_metrics"]
    late = found["late_rank"] or {}
    return {
        "measured_steps": found["measured_steps"],
        "step_ms": found["parts"]["step_ms"],
        "wait_ms": found["parts"]["wait_ms"],
        "transfer_ms": found["parts"]["transfer_ms"],
        "late_rank": late.get("rank"),
    }


def measured(gigabytes: float) -> dict[str, Any]:
    """Reports on one repetition and on the large run; returns figures and costs."""
    with tempfile.TemporaryDirectory() as directory:
        small, large = Path(directory, "small"), Path(directory, "large")
        tile_bytes = written_apart(lambda: write(small, 1))
        repetitions = max(2, round(gigabytes * 1e9 / tile_bytes))
        command = ("report", "--format", "json", "--output")
        sound_cost(ROOT, (*command, "small.json", small), Path(directory))
        begin_s = time.perf_counter()
        size = written_apart(lambda: write(large, repetitions))
        written_s = time.perf_counter() - begin_s
        cost = sound_cost(ROOT, (*command, "large.json", large), Path(directory))
        reports = [Path(directory, f"{name}.json").read_text() for name in ("small", "large")]
    return {
        "bytes": size,
        "records": RANKS * repetitions * (3 * CALLS + 1) * TILE_STEPS,
        "steps": repetitions * TILE_STEPS,
        "write_s": round(written_s, 1),
        "wall_s": round(cost.wall_s, 1),
        "cpu_s": round(cost.cpu_s, 1),
        "memory_mb": round(cost.memory_mb),
        "tile_step_ms": tile_ns() / TILE_STEPS / 1e6,
        "of_one_repetition": figures_of(reports[0]),
        "of_all": figures_of(reports[1]),
    }


def demands(figures: dict[str, Any]) -> list[Demand]:
    """Checks the demands on the figures of a run."""
    one, whole = figures["of_one_repetition"], figures["of_all"]
    step_error = abs(whole["step_ms"] / figures["tile_step_ms"] - 1)
    differs = max(
        abs(whole[name] - one[name]) / one["step_ms"] for name in ("wait_ms", "transfer_ms")
    )
    size_gb = figures["bytes"] / 1e9
    return [
        Demand(
            "size of the run", f"{size_gb:.1f} GB", f"{GIGABYTES:g} GB", size_gb > 0.98 * GIGABYTES
        ),
        at_most("memory of its report", figures["memory_mb"], 1000, " MB"),
        at_most(
            "processor time per million records",
            figures["cpu_s"] / figures["records"] * 1e6,
            1.5,
            " s",
        ),
        at_most("error of the mean step", 100 * step_error, 0.5, " %"),
        at_most(
            "change of waiting or transfer from one repetition to the run, percent of the step",
            100 * differs,
            0.5,
            " %",
        ),
        Demand(
            "late rank", str(whole["late_rank"]), str(LATE_RANK), whole["late_rank"] == LATE_RANK
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=GIGABYTES)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    figures = measured(args.gigabytes)
    print(json.dumps(figures, indent=1))
    write_json(args.json, figures)
    return judged(demands(figures))


if __name__ == "__main__":
    sys.exit(main())
