from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(name: str, begin_us: float, end_us: float, stream: int = 7, **args: object) -> Event:
    about = {"device": 0, "stream": stream, **args}
    span = {"ts": begin_us, "dur": end_us - begin_us}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        **span,
        "args": about,
    }


def annotation(name: str, begin_us: float, end_us: float, tid: int = 1) -> Event:
    span = {"ts": begin_us, "dur": end_us - begin_us}
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": tid, **span}


def all_reduce(begin_us: float, end_us: float, seq: int, elements: int = 1000) -> Event:
    args = {
        **{"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2, "Seq": seq},
        **{"dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements},
        "Process Group Ranks": "[0, 1]",
    }
    return kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", begin_us, end_us, 20, **args)


def document(events: Sequence[Event], rank: int, world_size: int = 2, **head: object) -> str:
    about = {"backend": "nccl", "rank": rank, "world_size": world_size}
    whole = {"schemaVersion": 1, "distributedInfo": about, **head, "traceEvents": list(events)}
    return json.dumps(whole)


def rank_events(
    rank: int, ahead_us: float = 0.0, drift: float = 0.0, steps: int = 4
) -> list[Event]:
    """Each step of 1000 µs computes until 300 µs on rank 0 and until 500 µs on rank 1.

    The all-reduce then runs until 600 µs, and another kernel until 900 µs.
    """
    found = []
    for step in range(steps):
        base = 1000.0 * step
        own = 300 if rank == 0 else 500
        found += [
            annotation(f"ProfilerStep#{step + 3}", base, base + 1000),
            kernel("gemm", base, base + own),
            all_reduce(base + own, base + 600, seq=step),
            kernel("relu", base + 600, base + 900),
        ]
        if rank == 0:
            found.append(kernel("copy", base + 300, base + 350, stream=9))
    for event in found:
        event["ts"] = event["ts"] * (1 + drift) + ahead_us + 5e9
        event["dur"] *= 1 + drift
    return found


def write(folder: Path, documents: Sequence[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, text in enumerate(documents):
        (folder / f"rank{rank}.pt.trace.json").write_text(text)
    return folder


def both(folder: Path, **of_rank_1: float) -> Path:
    ranks = rank_events(0), rank_events(1, **of_rank_1)
    return write(folder, [document(events, rank) for rank, events in enumerate(ranks)])
