from __future__ import annotations

from typing import Any

from commprof.analysis.sweeps.sweep import RowKey, SweepResult, SweepRow

CONTEXT: dict[str, Any] = {
    "timestamp": "2026-01-02T03:04:05+00:00",
    "command": "python -m commprof.microbench all_reduce --nproc 2",
    "commprof": "0.1.0",
    "torch": "2.13.0",
    "backend": "gloo",
    "backend_version": "of torch 2.13.0",
    "git_commit": "",
    "threads_per_rank": 1,
    "loop": "C++",
    "hosts": 1,
    "world_size": 2,
    "machine": {
        "hostname": "here",
        "cpu_model": "A Processor",
        "usable_cpu_count": 2,
        "memory_bytes": 8_000_000_000,
        "kernel": "6.1",
        "numa_nodes": 1,
        "interfaces": [
            {"name": "eth0", "speed_mbit_per_s": 10_000},
            {"name": "lo", "speed_mbit_per_s": None},
        ],
    },
    "sync": "barrier",
    "start": "each sample after a barrier of the measured group; the barrier is not timed",
    "time": "from the latest begin to the latest end of any rank",
    "rounds": 10,
    "warmup": "1 to 5 calls per size and round, as many as fit into 5 ms",
    "check": 1,
}


def key(**changes: Any) -> RowKey:
    values: dict[str, Any] = {
        "op": "all_reduce",
        "dtype": "float",
        "redop": "sum",
        "world_size": 2,
        "backend": "gloo",
        "placement": "in_place",
        "size_bytes": 1024,
        "count": 256,
    }
    return RowKey(**{**values, **changes})


def row(**changes: Any) -> SweepRow:
    values: dict[str, Any] = {
        "key": key(),
        "root": -1,
        "time_us": 50.0,
        "min_us": 40.0,
        "p50_us": 50.0,
        "p99_us": 90.0,
        "max_us": 99.0,
        "cv": 0.25,
        "algbw_gb_per_s": 0.02048,
        "busbw_gb_per_s": 0.02048,
        "wrong": 0,
        "iterations": 4,
        "skew_us": 1.5,
        "samples_us": (40.0, 50.0, 50.0, 99.0),
        "round_iterations": (2, 2),
    }
    return SweepRow(**{**values, **changes})


def sweep_result(*rows: SweepRow, **changes: Any) -> SweepResult:
    return SweepResult(**{"context": CONTEXT, "rows": rows, **changes})
