from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

TRAINING, GLOO, GLOO_2 = 1, 7, 8


def operator(name: str, begin_us: float, end_us: float, tid: int = TRAINING, **args: Any) -> Event:
    span = {"ts": begin_us, "dur": end_us - begin_us}
    return {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": tid, "name": name, **span, "args": args}


def span(name: str, begin_us: float, end_us: float, tid: int = TRAINING, **args: Any) -> Event:
    return {**operator(name, begin_us, end_us, tid, **args), "cat": "user_annotation"}


def shapes(*tensors: Sequence[int] | Sequence[Sequence[int]] | None) -> dict[str, Any]:
    """Takes a shape for a tensor, a list of shapes for a list of tensors, None for the rest."""
    types = [
        "" if tensor is None else "TensorList" if tensor and type(tensor[0]) is list else "float"
        for tensor in tensors
    ]
    return {
        "Input Dims": [[] if tensor is None else tensor for tensor in tensors],
        "Input type": types,
    }


def group(name: str, ranks: Sequence[int], backends: str = "cpu:gloo,cuda:gloo") -> Event:
    return {
        **{"pg_name": name, "pg_desc": "default_pg" if name == "0" else f"group_{name}"},
        **{"backend_config": backends, "pg_size": len(ranks), "ranks": list(ranks)},
    }


def trace(
    events: Sequence[Event],
    rank: int = 0,
    world_size: int = 2,
    groups: Sequence[Event] | None = None,
    backend: str = "gloo",
) -> str:
    if groups is None:
        groups = [group("0", range(world_size), f"cpu:{backend}")]
    about = {"backend": backend, "rank": rank, "world_size": world_size}
    listed = {"pg_count": len(groups), "pg_config": list(groups)} if groups else {}
    head = {"schemaVersion": 1, "host_name": "host", "distributedInfo": {**about, **listed}}
    return json.dumps({**head, "traceEvents": list(events)})


def written(folder: Path, texts: Sequence[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, text in enumerate(texts):
        (folder / f"rank{rank}.json").write_text(text)
    return folder


def steps(count: int, length_us: float, of_step: Sequence[Event]) -> list[Event]:
    events = []
    for number in range(count):
        begin = length_us * number
        events.append(span(f"ProfilerStep#{number}", begin, begin + length_us))
        events += [{**event, "ts": event["ts"] + begin} for event in of_step]
    return events
