"""The trace format's tables agree wherever they stand: Python, the module, the docs."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import pytest

from commprof import _native
from commprof.capture.job.metadata import trace_metadata
from commprof.trace import documents, schema
from commprof.trace.summary import SUMMARY_COUNTERS

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/trace_format.md").read_text()
FLAGS = {
    "failed": schema.FLAG_FAILED,
    "device_async": schema.FLAG_DEVICE_ASYNC,
    "last_bucket": schema.FLAG_LAST_BUCKET,
    "run_delay_read": schema.FLAG_RUN_DELAY_READ,
    "device_time": schema.FLAG_DEVICE_TIME,
    "non_finite": schema.FLAG_NON_FINITE,
    "sparse": schema.FLAG_SPARSE,
}

#: Of a summary, beside its counters.
SUMMARY_PARTS = (
    *("mode", "steps_end", "steps", "exposed", "phases", "paused", "arrivals"),
    *("arrival_clock_error", "hosts", "exposed_wait", "exposed_wire", "last", "waited_for"),
    "operations",
)


def documented(*header: str) -> list[list[str]]:
    """The rows of the tables in the document with this header, cell by cell."""
    rows: list[list[str]] = []
    inside = False
    for line in DOCUMENT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[: len(header)] == list(header):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|-"):
            rows.append(cells)
    assert rows, header
    return rows


def layouts() -> list[list[tuple[int, str, str]]]:
    """Offset, type and field of the tables of bytes: file, block, record, ring."""
    found: list[list[tuple[int, str, str]]] = []
    for offset, kind, field, _ in documented("offset", "type", "field"):
        if offset == "0":
            found.append([])
        found[-1].append((int(offset), kind, field))
    return found


def test_tables_equal_the_module() -> None:
    if _native.native is None:
        pytest.skip(_native.native_error)
    assert schema.KINDS == _native.native.KINDS
    assert schema.OPS == _native.native.OPS
    assert schema.PHASES == _native.native.PHASES
    assert schema.MODES == _native.native.MODES


@pytest.mark.parametrize("names", [schema.KINDS, schema.OPS, schema.PHASES])
def test_names_are_unique(names: Sequence[str]) -> None:
    assert len(set(names)) == len(names)


def test_codes_are_the_positions_of_their_names() -> None:
    assert [kind.value for kind in schema.Kind] == list(range(len(schema.KINDS)))
    assert [phase.value for phase in schema.Phase] == list(range(len(schema.PHASES)))


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (("code", "kind"), schema.KINDS),
        (("code", "operation"), schema.OPS),
        (("code", "phase"), schema.PHASES),
        (("code", "stage"), schema.STAGES),
    ],
)
def test_documented_codes(header: tuple[str, str], names: Sequence[str]) -> None:
    rows = [(int(row[0]), row[1]) for row in documented(*header)]
    assert rows == list(enumerate(names))


def test_documented_flags_and_blocks() -> None:
    assert {row[1]: int(row[0]) for row in documented("bit", "flag")} == FLAGS
    blocks = {row[1].upper(): int(row[0]) for row in documented("type", "name")}
    assert blocks == dict(schema.BlockType.__members__)


def test_documented_fields_of_each_kind_exist() -> None:
    for _, kind, _, fields in documented("code", "kind"):
        named = set(re.findall(r"`(\w+)`", fields))
        assert named <= set(schema.RECORD_DTYPE.names or ()), kind


TYPES = {"char[8]": "8s", "u64": "Q", "u32": "I", "u8": "B"}


def test_documented_layouts() -> None:
    file, block, record, ring = layouts()
    for layout, packed in ((file, schema.FILE_HEADER), (block, schema.BLOCK_HEADER)):
        assert "<" + "".join(TYPES[kind] for _, kind, _ in layout) == packed.format
        assert layout_bytes(layout) == packed.size
    offsets = {name: offset for offset, _, name in record}
    fields = schema.RECORD_DTYPE.fields
    assert fields is not None
    assert {name: at for name, (_, at, *_) in fields.items()} == offsets
    assert [struct.calcsize(TYPES[kind]) for _, kind, _ in record] == [
        schema.RECORD_DTYPE[name].itemsize for name in offsets
    ]
    head, tail, dropped = ring[-3:]
    assert "<" + "".join(TYPES[kind] for _, kind, _ in ring[:-3]) == schema.RING_HEADER.format
    assert (head[0], tail[0], dropped[0]) == (
        schema.RING_HEAD_OFFSET,
        schema.RING_TAIL_OFFSET,
        schema.RING_DROPPED_OFFSET,
    )


def layout_bytes(layout: list[tuple[int, str, str]]) -> int:
    """Size of a layout without gaps; fails where there is one."""
    at = 0
    for offset, kind, field in layout:
        assert offset == at, field
        at += struct.calcsize(TYPES[kind])
    return at


def test_documented_constants() -> None:
    assert f"`{schema.TRACE_MAGIC.decode()}`" in DOCUMENT
    assert f"`{schema.RING_MAGIC.decode()}`" in DOCUMENT
    assert f"`{schema.BLOCK_MAGIC.to_bytes(4, 'little').decode()}`" in DOCUMENT
    assert f"| version | {schema.TRACE_VERSION} |" in DOCUMENT
    assert f"A record has {schema.RECORD_DTYPE.itemsize} bytes." in DOCUMENT
    assert f"a header of {schema.RING_HEADER_BYTES} bytes" in DOCUMENT


def test_documented_json_keys() -> None:
    rows = documented("block", "key")
    shapes = {
        "metadata": documents.METADATA,
        "later metadata": documents.MORE_METADATA,
        "group": get_type_hints(documents.Group),
        "end": documents.END,
        "salvaged": documents.SALVAGED,
        "stack": documents.STACK,
        "summary": dict.fromkeys((*SUMMARY_COUNTERS, *SUMMARY_PARTS), int),
    }
    for name, shape in shapes.items():
        keys = {key.strip("`"): content for block, key, content in rows if block == name}
        assert list(keys) == list(shape)
        for key, inner in shape.items():
            if isinstance(inner, dict):
                assert re.findall(r"`(\w+)`", keys[key]) == list(inner)


def keys_of(value: object) -> object:
    return {key: keys_of(inner) for key, inner in value.items()} if isinstance(value, dict) else 0


def test_capture_writes_just_the_documented_metadata() -> None:
    assert keys_of(trace_metadata("", {})) == keys_of(documents.METADATA)


@pytest.mark.parametrize(
    ("seq", "other", "before"),
    [(0, 1, True), (1, 0, False), (5, 5, False), (2**32 - 1, 0, True), (3, 2**32 - 2, False)],
)
def test_sequence_numbers_wrap(seq: int, other: int, before: bool) -> None:
    assert schema.comes_before(seq, other) == before
