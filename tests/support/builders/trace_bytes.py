"""Builders of traces and ring files, independent of commprof's own writers."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

METADATA_BLOCK, RECORDS_BLOCK, GROUP_BLOCK, END_BLOCK, SALVAGED_BLOCK = 1, 2, 3, 4, 5
STEP, PHASE, ISSUE, END, WAIT, FINALIZE_BEGIN, FINALIZE_END, BUCKET, BUCKET_END = range(1, 10)
RUN_DELAY_READ = 8
SESSION = 0x0123456789ABCDEF
RECORD_BYTES = 64


def file_header(version: int = 1, header_bytes: int = 32, session: int = SESSION) -> bytes:
    return b"COMMPROF" + struct.pack("<IIQQ", version, header_bytes, session, 0)


def block(block_type: int, payload: bytes) -> bytes:
    return struct.pack("<4sIQII", b"CPKB", block_type, len(payload), zlib.crc32(payload), 0) + (
        payload
    )


def document(block_type: int, value: object) -> bytes:
    return block(block_type, json.dumps(value).encode())


def record(timestamp_ns: int, kind: int = STEP, **fields: int) -> bytes:
    one_byte = ("op", "dtype", "reduce_op")
    rest = ("group", "thread", "aux", "bytes_in", "bytes_out", "seq", "flags", "value")
    assert set(fields) <= {"op_id", *one_byte, *rest}
    return struct.pack(
        "<QQBBBBIIIQQIIQ",
        timestamp_ns,
        fields.get("op_id", 0),
        kind,
        *(fields.get(name, 0) for name in one_byte),
        *(fields.get(name, 0) for name in rest),
    )


def records(*timestamps_ns: int) -> bytes:
    return block(RECORDS_BLOCK, b"".join(record(t) for t in timestamps_ns))


def metadata(**changes: Any) -> dict[str, Any]:
    return {
        "rank": 1,
        "world_size": 2,
        "local_rank": 1,
        "restart_count": 0,
        "pid": 7,
        "main_thread": 7,
        "command": ["train.py"],
        "python": "3.11.7",
        "torch": "2.13.0",
        "commprof": "0.1.0",
        "backend": "gloo",
        "threads": 1,
        "capture": "native",
        "machine": {
            "hostname": "host",
            "boot_id": "b",
            "time_namespace": "t",
            "pid_namespace": "p",
            "cpu_model": "cpu",
            "cpu_count": 2,
            "usable_cpu_count": 2,
            "usable_cpus": ["0"],
            "memory_bytes": 1,
            "kernel": "6",
            "cuda_devices": 0,
        },
        "clock": {"source": "CLOCK_MONOTONIC", "monotonic_ns": 1, "realtime_ns": 2},
        "ring_prefix": "",
        "record_bytes": RECORD_BYTES,
        "kinds": ["none"],
        "ops": ["other"],
        "phases": ["other"],
        "dtypes": [],
        "hooks": [],
        **changes,
    }


def group(group_id: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "id": group_id,
        "name": "0",
        "description": "default_pg",
        "backend": "gloo",
        "rank": 1,
        "size": 2,
        **changes,
    }


def end(dropped: int = 0) -> bytes:
    return document(END_BLOCK, {"records": 0, "dropped": dropped, "end_monotonic_ns": 9})


def trace(*blocks: bytes, **changes: Any) -> bytes:
    return file_header() + document(METADATA_BLOCK, metadata(**changes)) + b"".join(blocks)


def ring(
    slots: dict[int, bytes],
    *,
    capacity: int = 4,
    head: int = 0,
    tail: int = 0,
    dropped: int = 0,
    session: int = SESSION,
    magic: bytes = b"CPRING01",
    record_bytes: int = RECORD_BYTES,
    slot_count: int | None = None,
) -> bytes:
    """``slots`` maps the number of a slot to its record; the file has ``slot_count`` slots."""
    header = struct.pack("<8sIIQQ32x", magic, record_bytes, 7, capacity, session)
    for number in (head, tail, dropped):
        header += struct.pack("<Q56x", number)
    count = capacity if slot_count is None else slot_count
    return header + b"".join(slots.get(i, bytes(RECORD_BYTES)) for i in range(count))
