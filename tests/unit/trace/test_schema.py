from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import pytest

from commprof import _native
from commprof.capture.job.metadata import trace_metadata
from commprof.errors import CommprofError
from commprof.trace import documents, schema, summary
from commprof.trace.summary import SUMMARY_COUNTERS, Summary

ROOT = Path(__file__).parents[3]
FLAGS = {
    "failed": schema.FLAG_FAILED,
    "device_async": schema.FLAG_DEVICE_ASYNC,
    "last_bucket": schema.FLAG_LAST_BUCKET,
    "run_delay_read": schema.FLAG_RUN_DELAY_READ,
    "device_time": schema.FLAG_DEVICE_TIME,
    "non_finite": schema.FLAG_NON_FINITE,
    "sparse": schema.FLAG_SPARSE,
    "in_issue": schema.FLAG_IN_ISSUE,
    "manual_finalize": schema.FLAG_MANUAL_FINALIZE,
}

SUMMARY_PARTS = (
    *("mode", "steps_end", "steps", "exposed", "phases", "paused", "arrivals"),
    *("arrival_clock_error", "hosts", "exposed_wait", "exposed_transfer", "last", "waited_for"),
    "operations",
)


CONTENTS = ["moment", "operation", "pass", "pass_plus_one", "real", "number"]

TYPES = {"char": "s", "uint64_t": "Q", "uint32_t": "I", "BlockType": "I"}


def header(name: str) -> str:
    return (ROOT / "csrc/core" / name).read_text()


def layout(text: str, struct_name: str) -> str:
    body = re.findall(rf"^struct {struct_name} \{{\n(.*?)^\}};", text, re.MULTILINE | re.DOTALL)[0]
    body = re.sub(r"std::atomic<(\w+)>", r"\1", body.partition("char pad0")[0])
    found = re.findall(r"^  (\w+) \w+(?:\[(\d+)\])?;", body, re.MULTILINE)
    return "<" + "".join(count + TYPES[kind] for kind, count in found)


def described_kinds() -> list[str]:
    return re.findall(r"^// (\w+): ", header("record_fields.inc"), re.MULTILINE)


def test_schema_tables_equal_those_of_the_native_module() -> None:
    if _native.native is None:
        pytest.skip(_native.native_error)
    assert schema.KINDS == _native.native.KINDS
    assert schema.OPS == _native.native.OPS
    assert schema.PHASES == _native.native.PHASES
    assert schema.MODES == _native.native.MODES


@pytest.mark.parametrize("names", [schema.KINDS, schema.OPS, schema.PHASES])
def test_names_of_kinds_operations_and_phases_are_unique(names: Sequence[str]) -> None:
    assert len(set(names)) == len(names)


def test_enum_codes_are_the_positions_of_their_names() -> None:
    assert [kind.value for kind in schema.Kind] == list(range(len(schema.KINDS)))
    assert [phase.value for phase in schema.Phase] == list(range(len(schema.PHASES)))


def test_the_table_of_fields_describes_every_kind_of_record() -> None:
    kinds = [re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in described_kinds()]
    assert tuple(kinds) == schema.KINDS
    assert [kind.name for kind in schema.Kind if not schema.FIELDS[kind]] == ["NONE"]


def test_each_field_of_a_kind_has_a_member_of_its_own() -> None:
    for kind, fields in schema.FIELDS.items():
        members = [field.member for field in fields.values()]
        assert len(set(members)) == len(members), kind
        assert set(members) <= set(schema.RECORD_DTYPE.names or ()) - {"kind", "timestamp_ns"}
        assert all(field.content in CONTENTS for field in fields.values()), kind
    named = re.findall(r"^//   ([A-Z]\w+)  ", header("record_fields.inc"), re.MULTILINE)
    assert [re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in named] == CONTENTS


def test_moments_are_ends_and_launches() -> None:
    names = {
        name
        for fields in schema.FIELDS.values()
        for name, field in fields.items()
        if field.content == "moment"
    }
    assert names == {"end_ns", "launch_ns"}
    assert {member for _, member in schema.MOMENTS} == {"value"}


def test_flags_and_block_types_are_documented_and_equal_in_cpp_and_python() -> None:
    flags = re.findall(r"inline constexpr uint32_t k(\w+) =\s*(\d+); // (.+)", header("record.h"))
    snake = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower(): int(bit) for name, bit, _ in flags}
    assert snake == FLAGS
    blocks = re.findall(r"^  k(\w+) = (\d+), // (.+)", header("trace_format.h"), re.MULTILINE)
    assert {name.upper(): int(code) for name, code, _ in blocks} == dict(
        schema.BlockType.__members__
    )


def test_struct_layouts_equal_those_of_the_cpp_headers() -> None:
    assert layout(header("trace_format.h"), "FileHeader") == schema.FILE_HEADER.format
    assert layout(header("trace_format.h"), "BlockHeader") == schema.BLOCK_HEADER.format
    # The magic is 8 characters in Python, and a number in C++.
    ring = layout(header("ring.h"), "RingHeader").replace("<Q", "<8s", 1)
    assert ring == schema.RING_HEADER.format
    assert f"sizeof(RingHeader) == {schema.RING_HEADER_BYTES}" in header("ring.h")
    lines = re.findall(r"alignas\(64\) std::atomic<uint64_t> (\w+);", header("ring.h"))
    assert lines == ["head", "tail", "dropped"]
    assert [schema.RING_HEAD_OFFSET, schema.RING_TAIL_OFFSET, schema.RING_DROPPED_OFFSET] == [
        64,
        128,
        192,
    ]


def test_magic_numbers_equal_those_of_the_cpp_headers() -> None:
    ring = re.findall(r"kRingMagic = (\w+);", header("ring.h"))[0]
    assert int(ring, 16).to_bytes(8, "little") == schema.RING_MAGIC
    assert f'"{schema.BLOCK_MAGIC.to_bytes(4, "little").decode()}"' in header("trace_format.h")
    for size in (schema.FILE_HEADER.size, schema.BLOCK_HEADER.size):
        assert f"== {size})" in header("trace_format.h")


def test_every_key_of_a_json_block_is_documented() -> None:
    source = Path(documents.__file__).read_text().splitlines()
    for line, before in zip(source[1:], source, strict=False):
        # Only keys of the block itself are indented by four spaces.
        if re.match(r'    "\w+": ', line):
            assert "#" in line or before.strip().startswith("#"), line
    for shape in (documents.METADATA, documents.MORE_METADATA):
        for key in shape:
            assert any(line.startswith(f'    "{key}": ') for line in source), key


def test_summary_keys_equal_the_field_names_or_are_documented() -> None:
    fields = set(get_type_hints(Summary))
    renamed = {"arrivals", "paused"}
    assert {*SUMMARY_COUNTERS, *SUMMARY_PARTS} - renamed <= fields
    assert all(f"``{name}``" in (summary.__doc__ or "") for name in renamed)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("3", 3), (None, 0), ("", 0), ("-1", 0), ("first", 0), ("9" * 5000, 0), ("²", 0)],
)
def test_an_unusable_local_rank_is_recorded_as_0(
    value: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if value is not None:
        monkeypatch.setenv("LOCAL_RANK", value)
    written = json.dumps(trace_metadata("", {})).encode()
    assert documents.read_metadata(memoryview(written))["local_rank"] == expected


def keys_of(value: object) -> object:
    return {key: keys_of(inner) for key, inner in value.items()} if isinstance(value, dict) else 0


def test_capture_writes_exactly_the_documented_metadata() -> None:
    assert keys_of(trace_metadata("", {})) == keys_of(documents.METADATA)


@pytest.mark.parametrize("key", sorted(documents.MORE_METADATA.keys() - {"hooks"}))
def test_a_script_cannot_set_a_key_that_capture_may_set_later(key: str) -> None:
    with pytest.raises(CommprofError, match=rf"^profile\(metadata=\.\.\.\) cannot set {key}: "):
        trace_metadata("", {"mine": 1, key: 3})


@pytest.mark.parametrize(
    ("seq", "other", "before"),
    [(0, 1, True), (1, 0, False), (5, 5, False), (2**32 - 1, 0, True), (3, 2**32 - 2, False)],
)
def test_sequence_numbers_wrap(seq: int, other: int, before: bool) -> None:
    assert schema.comes_before(seq, other) == before
