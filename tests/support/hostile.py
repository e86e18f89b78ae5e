"""Run directories that mean no good: sound checksums, and whatever else in the blocks."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from commprof.trace.blocks import pack_block, read_blocks
from commprof.trace.schema import FILE_HEADER, RECORD_DTYPE, BlockType
from tests.support.run_directories import ranks_of, write_run

_EXTREMES = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**62, 2**63, 10**30, 1.5, float("nan"), float("inf")),
    *("", "\x1b[2J", "../../etc", "x" * 10_000, [], [[]], {}, {"a": [None]}, [0] * 100),
)


def sound_run(directory: Path) -> Path:
    """Two ranks, six steps."""
    return write_run(directory, ranks_of(2, 6, late_ms=5))


def damage(run: Path, chance: random.Random) -> str:
    """Changes one file of a run in one way; says which."""
    files = sorted(path for path in run.rglob("rank_*.trace") if path.is_file())
    path = chance.choice(files)
    if path.suffix == ".json":
        return _damage_json(path, chance)
    way = chance.choice((_cut, _flip, _change_records, _change_records, _change_document))
    return f"{way.__name__} {path.name}: {way(path, chance)}"


def _cut(path: Path, chance: random.Random) -> str:
    data = path.read_bytes()
    size = chance.randrange(len(data))
    path.write_bytes(data[:size])
    return f"to {size} bytes"


def _flip(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    places = [chance.randrange(len(data)) for _ in range(chance.randint(1, 8))]
    for place in places:
        data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))
    return f"bits at {places}"


def _change_records(path: Path, chance: random.Random) -> str:
    """Extreme values in a field of some records, or of all."""
    name = chance.choice(RECORD_DTYPE.names or ())
    share = chance.choice((0.02, 0.3, 1.0))
    value = chance.choice(_EXTREMES)

    def change(block_type: int, payload: bytes) -> bytes:
        if block_type != BlockType.RECORDS:
            return payload
        records = np.frombuffer(payload, RECORD_DTYPE).copy()
        chosen = np.array([chance.random() < share for _ in records])
        field = records[name]
        field[chosen] = np.uint64(value).astype(field.dtype)
        return records.tobytes()

    _rewrite(path, change)
    return f"{name}={value} in {share:.0%}"


def _change_document(path: Path, chance: random.Random) -> str:
    """Another value somewhere in a JSON block."""
    said = []

    def change(block_type: int, payload: bytes) -> bytes:
        if block_type == BlockType.RECORDS:
            return payload
        value = json.loads(payload)
        if isinstance(value, dict) and chance.random() < 0.5:
            said.append(_change_value(value, chance))
        return json.dumps(value).encode()

    _rewrite(path, change)
    return "; ".join(said)


def _damage_json(path: Path, chance: random.Random) -> str:
    value = json.loads(path.read_text())
    said = _change_value(value, chance)
    path.write_text(json.dumps(value))
    return f"{path.name}: {said}"


def _change_value(value: Any, chance: random.Random) -> str:
    """Replaces or removes one value, however deep."""
    where = []
    while True:
        key = chance.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
        where.append(str(key))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
            value = inner
            continue
        if chance.random() < 0.1:
            del value[key]
            return f"no {'.'.join(where)}"
        value[key] = chance.choice(_VALUES)
        return f"{'.'.join(where)}={str(value[key])[:40]}"


def _rewrite(path: Path, change: Any) -> None:
    data = path.read_bytes()
    try:
        found = read_blocks(path, data)
    except Exception:  # an earlier change made it no trace at all
        return
    blocks = [pack_block(b.type, change(b.type, bytes(b.payload))) for b in found.blocks]
    path.write_bytes(data[: FILE_HEADER.size] + b"".join(blocks))


@contextmanager
def little_memory(more_bytes: int) -> Iterator[None]:
    """Only so much more address space: who allocates by an unchecked length gets MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
