from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any


def entry(
    group: str,
    seq: int,
    op: str = "all_reduce",
    state: str = "scheduled",
    *,
    count: int = 8,
    dtype: str = "Float",
    backend: str = "nccl",
    at: int = 0,
) -> dict[str, Any]:
    """``op`` is a collective, or a message such as "send 0->1".

    ``seq`` counts from 0, as commprof does; c10d counts collectives from 1.
    """
    message = "->" in op or "<-" in op
    return {
        "record_id": seq,
        "pg_id": int(group),
        "process_group": (group, "undefined"),
        "collective_seq_id": 0 if message else seq + 1,
        "p2p_seq_id": seq if message else 0,
        "op_id": seq,
        "profiling_name": f"{backend}:{op}",
        "time_created_ns": at or seq,
        "input_sizes": [[count]],
        "input_dtypes": [dtype],
        "output_sizes": [[count]],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": message,
    }


def dump(groups: dict[str, list[int]], *entries: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "2.9",
        "pg_config": {
            name: {"name": name, "desc": f"GROUP_{name}", "ranks": str(ranks)}
            for name, ranks in groups.items()
        },
        "pg_status": {},
        "entries": list(entries),
    }


def write_dumps(folder: Path, *dumps: dict[str, Any] | None, as_json: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, value in enumerate(dumps):
        if value is not None:
            data = json.dumps(value).encode() if as_json else pickle.dumps(value, protocol=2)
            (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder
