from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from types import UnionType
from typing import Any

import pytest

from commprof.errors import TraceError
from commprof.trace.documents import METADATA, MORE_METADATA, read_metadata
from commprof.trace.first_blocks import first_metadata_of, read_first_metadata
from commprof.trace.packed_data import PackedData
from commprof.trace.reader import Trace, read_trace
from tests.support.builders import trace_bytes as made

UNKNOWN_BLOCK = 99
_PARTS = (
    *("metadata", "groups", "complete", "dropped", "problems"),
    *("summary", "stacks", "communicators"),
)


def read(tmp_path: Path, data: bytes) -> Trace:
    path = tmp_path / "rank_1.trace"
    path.write_bytes(data)
    packed = outcome(path, PackedData())
    trace = read_trace(path) if not isinstance(packed, str) else None
    assert packed == outcome(path)
    return trace if trace is not None else read_trace(path)


def outcome(path: Path, pack: PackedData | None = None) -> object:
    try:
        trace = read_trace(path, pack)
    except TraceError as error:
        return str(error)
    parts = {name: getattr(trace, name) for name in _PARTS}
    order = list(trace.metadata), trace.records.copy().tobytes()
    return parts, order


def times(trace: Trace) -> list[int]:
    return trace.records["timestamp_ns"].tolist()


def test_a_complete_trace_is_read(tmp_path: Path) -> None:
    group = made.document(made.GROUP_BLOCK, made.group(3, name="tp", size=2))
    trace = read(tmp_path, made.trace(made.records(5, 1), group, made.records(3), made.end(4)))

    assert (trace.rank, trace.world_size) == (1, 2)
    assert trace.metadata == made.metadata()
    assert trace.groups[3].name == "tp"
    assert (trace.groups[3].rank, trace.groups[3].size) == (1, 2)
    assert times(trace) == [1, 3, 5]
    assert (trace.complete, trace.dropped, trace.problems) == (True, 4, ())


def test_every_field_of_a_record_is_read(tmp_path: Path) -> None:
    names = ("op", "dtype", "reduce_op", "group", "thread", "aux")
    wide = ("op_id", "bytes_in", "bytes_out", "value")
    fields = {name: 10 + i for i, name in enumerate((*names, "seq", "flags"))}
    fields |= {name: 2**63 + i for i, name in enumerate(wide)}
    row = made.record(2**64 - 1, made.ISSUE, **fields)
    (got,) = read(tmp_path, made.trace(made.block(made.RECORDS_BLOCK, row), made.end())).records

    assert int(got["timestamp_ns"]) == 2**64 - 1
    assert int(got["kind"]) == made.ISSUE
    assert {name: int(got[name]) for name in fields} == fields


def test_a_trace_without_an_end_block_is_incomplete(tmp_path: Path) -> None:
    trace = read(tmp_path, made.trace(made.records(1)))

    assert (trace.complete, trace.problems, times(trace)) == (False, (), [1])


def test_a_trace_without_records_is_complete(tmp_path: Path) -> None:
    for blocks in ((), (made.block(made.RECORDS_BLOCK, b""),)):
        trace = read(tmp_path, made.trace(*blocks, made.end()))
        assert (trace.complete, trace.problems, times(trace)) == (True, (), [])


def test_unknown_blocks_and_keys_of_later_versions_are_ignored(tmp_path: Path) -> None:
    header = made.file_header(header_bytes=40) + bytes(8)
    blocks = [
        made.document(made.METADATA_BLOCK, made.metadata(new_key=[1])),
        made.block(UNKNOWN_BLOCK, b"anything"),
        made.document(made.GROUP_BLOCK, made.group(new_key=1)),
        made.records(1),
        made.end(),
    ]
    trace = read(tmp_path, header + b"".join(blocks))

    assert (trace.complete, trace.problems, times(trace)) == (True, (), [1])
    assert list(trace.groups) == [1]


def test_records_of_kind_none_are_ignored(tmp_path: Path) -> None:
    rows = made.record(1, kind=0) + made.record(2)
    trace = read(tmp_path, made.trace(made.block(made.RECORDS_BLOCK, rows), made.end()))

    assert times(trace) == [2]


def test_a_trace_truncated_at_any_byte_is_read_up_to_its_last_whole_block(tmp_path: Path) -> None:
    blocks = [
        made.document(made.METADATA_BLOCK, made.metadata()),
        made.records(1, 2),
        made.document(made.GROUP_BLOCK, made.group()),
        made.records(3),
        made.end(7),
    ]
    whole = made.file_header() + b"".join(blocks)
    ends = [len(made.file_header())]
    for one in blocks:
        ends.append(ends[-1] + len(one))
    for size in range(len(whole) + 1):
        if size < ends[1]:
            with pytest.raises(TraceError):
                read(tmp_path, whole[:size])
            continue
        trace = read(tmp_path, whole[:size])
        complete = sum(end <= size for end in ends) - 1
        assert times(trace) == {1: [], 2: [1, 2], 3: [1, 2]}.get(complete, [1, 2, 3])
        assert len(trace.groups) == (complete >= 3)
        assert trace.complete == (size == len(whole))
        assert trace.dropped == (7 if size == len(whole) else 0)
        assert len(trace.problems) == (size not in ends), size


def test_a_block_without_its_header_counts_as_cut_off(tmp_path: Path) -> None:
    """The writer writes a block's payload before the header."""
    hole = bytes(24) + made.record(9)
    trace = read(tmp_path, made.trace(made.records(1)) + hole)

    assert times(trace) == [1]
    assert [problem.split(" at ")[0] for problem in trace.problems] == ["cut off"]


@pytest.mark.slow
def test_single_flipped_bytes_never_crash(tmp_path: Path) -> None:
    group = made.document(made.GROUP_BLOCK, made.group())
    whole = made.trace(made.records(1, 2, 3), group, made.records(4), made.end())
    chance = random.Random(1)
    outcomes = {"refused": 0, "reported": 0, "unnoticed": 0}
    tracemalloc.start()
    for _ in range(4000):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        try:
            trace = read(tmp_path, bytes(data))
        except TraceError:
            outcomes["refused"] += 1
        else:
            assert set(times(trace)) <= {1, 2, 3, 4}
            outcomes["reported" if trace.problems or not trace.complete else "unnoticed"] += 1
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # No checksum covers the headers, so damage in a header may stay unnoticed.
    headers = 32 + 5 * 24
    assert outcomes["unnoticed"] <= 4000 * headers / len(whole)
    assert outcomes["refused"] > 0
    assert outcomes["reported"] > 0
    assert peak_bytes < 4 << 20


def test_flipped_bytes_with_a_matching_checksum_never_crash(tmp_path: Path) -> None:
    chance = random.Random(2)
    payload = json.dumps(made.metadata()).encode()
    group = json.dumps(made.group()).encode()
    for _ in range(2000):
        damaged = [bytearray(payload), bytearray(group)]
        for one in damaged:
            one[chance.randrange(len(one))] = chance.randrange(256)
        data = made.file_header() + made.block(made.METADATA_BLOCK, bytes(damaged[0]))
        data += made.block(made.GROUP_BLOCK, bytes(damaged[1])) + made.end()
        try:
            trace = read(tmp_path, data)
        except TraceError:
            continue
        assert 0 <= trace.rank < trace.world_size
        assert all(isinstance(group.size, int) for group in trace.groups.values())


@pytest.mark.parametrize("length", [65, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 24, 2**64 - 1])
def test_hostile_block_lengths_allocate_no_memory(tmp_path: Path, length: int) -> None:
    block = bytearray(made.records(2))
    block[8:16] = length.to_bytes(8, "little")
    data = made.trace(made.records(1)) + bytes(block)
    tracemalloc.start()
    trace = read(tmp_path, data)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert times(trace) == [1]
    assert len(trace.problems) == 1
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize("header_bytes", [0, 31, 10_000, 2**32 - 1])
def test_hostile_file_header_sizes_are_refused(tmp_path: Path, header_bytes: int) -> None:
    data = made.file_header(header_bytes=header_bytes) + made.trace()[32:]
    with pytest.raises(TraceError, match=f"its file header claims to be {header_bytes} bytes long"):
        read(tmp_path, data)


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_other_trace_versions_are_refused_by_number(tmp_path: Path, version: int) -> None:
    data = made.file_header(version) + made.trace()[32:]
    with pytest.raises(TraceError, match=f"trace version {version}; this commprof reads version 1"):
        read(tmp_path, data)


@pytest.mark.parametrize("data", [b"", b"COMMPROF", b"\x7fELF" + bytes(60), b"commprof" * 8])
def test_files_that_are_no_trace_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError, match=r"rank_1\.trace: not a commprof trace"):
        read(tmp_path, data)


def test_a_missing_file_and_a_directory_raise_os_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        read_trace(tmp_path)


def test_partial_records_are_left_out(tmp_path: Path) -> None:
    odd = made.block(made.RECORDS_BLOCK, made.record(1) + bytes(63))
    trace = read(tmp_path, made.trace(odd, made.records(2), made.end()))

    assert times(trace) == [2]
    assert "127 bytes are not a whole number of records" in trace.problems[0]


def required(shape: dict[str, Any], where: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, inner in shape.items():
        if not isinstance(inner, UnionType):
            found.append((*where, key))
        if isinstance(inner, dict):
            found += required(inner, (*where, key))
    return found


def test_metadata_of_equal_traces_can_be_changed_apart() -> None:
    payload = memoryview(json.dumps(made.metadata()).encode())
    first, second = read_metadata(payload), read_metadata(payload)
    first["rank"] = "changed"
    assert second == read_metadata(payload) != first


def test_a_later_metadata_block_sets_the_hooks(tmp_path: Path) -> None:
    more = {"hooks": ["mean all-reduce"], "rank": 9}
    data = made.trace(
        made.document(made.METADATA_BLOCK, more),
        made.document(made.METADATA_BLOCK, {"hooks": "none"}),
    )
    trace = read(tmp_path, data)

    assert trace.metadata == {**made.metadata(), "hooks": ["mean all-reduce"]}
    assert [problem for problem in trace.problems if "hooks is not a list" in problem]


@pytest.mark.parametrize("key", sorted(MORE_METADATA.keys() - METADATA.keys()))
def test_script_metadata_with_reserved_keys_is_ignored(tmp_path: Path, key: str) -> None:
    assert key not in read(tmp_path, made.trace(**{key: 3})).metadata


@pytest.mark.parametrize("path", required(METADATA), ids=".".join)
def test_a_missing_or_wrong_metadata_key_is_named(tmp_path: Path, path: tuple[str, ...]) -> None:
    for wrong in (None, True, -1, 2**63, 1.5, float("inf"), [1], {}):
        metadata = made.metadata()
        inner = metadata
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = wrong
        data = made.file_header() + made.document(made.METADATA_BLOCK, metadata)
        with pytest.raises(TraceError, match=".".join(path)):
            read(tmp_path, data)
    del inner[path[-1]]
    data = made.file_header() + made.document(made.METADATA_BLOCK, metadata)
    with pytest.raises(TraceError, match=f"unusable metadata: {'.'.join(path)} is missing"):
        read(tmp_path, data)


def test_an_optional_metadata_key_may_be_missing_but_not_wrong(tmp_path: Path) -> None:
    assert "elastic_run_id" not in read(tmp_path, made.trace()).metadata
    assert read(tmp_path, made.trace(elastic_run_id="a")).metadata["elastic_run_id"] == "a"
    with pytest.raises(TraceError, match="elastic_run_id is not a string"):
        read(tmp_path, made.trace(elastic_run_id=1))


def test_a_rank_outside_its_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="rank 2 is not below world_size 2"):
        read(tmp_path, made.trace(rank=2))


JSON_BOMBS = {
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "empty": b"",
    "not utf-8": b'{"a": "\xff"}',
    "half": b'{"a": ',
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "long number": b'{"rank": ' + b"9" * 100_000 + b"}",
    "infinity": b'{"rank": 1e999}',
}


@pytest.mark.parametrize("payload", JSON_BOMBS.values(), ids=JSON_BOMBS)
def test_unusable_json_is_refused_in_metadata_and_skipped_in_other_blocks(
    tmp_path: Path, payload: bytes
) -> None:
    with pytest.raises(TraceError, match="unusable metadata"):
        read(tmp_path, made.file_header() + made.block(made.METADATA_BLOCK, payload))
    bad = [made.block(kind, payload) for kind in (made.GROUP_BLOCK, made.END_BLOCK)]
    trace = read(tmp_path, made.trace(*bad, made.records(1)))

    assert times(trace) == [1]
    assert [problem.split(" is ")[0] for problem in trace.problems] == [
        "a block of type 3",
        "a block of type 4",
    ]
    assert not trace.complete


@pytest.mark.parametrize(
    "changes",
    [{"id": "1"}, {"id": -1}, {"size": None}, {"rank": 2**64}, {"name": 0}, {"backend": ["gloo"]}],
)
def test_groups_of_wrong_types_are_left_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    bad = made.document(made.GROUP_BLOCK, made.group(1, **changes))
    good = made.document(made.GROUP_BLOCK, made.group(2))
    trace = read(tmp_path, made.trace(bad, good, made.end()))

    assert list(trace.groups) == [2]
    assert f"{next(iter(changes))} is not" in trace.problems[0]


def first_block(path: Path) -> object:
    try:
        return read_first_metadata(path)
    except TraceError as error:
        return str(error)


def test_damaged_bytes_are_read_alike_in_both_ways(tmp_path: Path) -> None:
    group = made.document(made.GROUP_BLOCK, made.group(2, size=4))
    whole = made.trace(group, made.records(5, 1, 3), made.records(2, 9), made.end(1))
    path, rng = tmp_path / "rank_1.trace", random.Random(5)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice((0, 1, 1, 2))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        assert outcome(path, PackedData()) == outcome(path)
        (block,) = first_metadata_of([path])
        assert (block if isinstance(block, dict) else str(block)) == first_block(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": -1},
        {"rank": 1.0},
        {"rank": 10**30},
        {"rank": True},
        {"rank": "1"},
        {"world_size": 1 << 21},
        {"command": "train.py"},
        {"clock": {"source": "a", "monotonic_ns": -5, "realtime_ns": 1}},
        {"clock": {"source": "a", "monotonic_ns": 5}},
        {"clock": 3},
        {"hooks": 5},
        {"garbage": {"total_ns": "much"}},
        {"elastic_run_id": None, "replica": 'a \u00e9 \U0001f600 \\ " ]}'},
        {"own": [{"a": [1.5, None, True]}, "}", -0.0, 1e300]},
        {'a " key': 1, "": 2, "\u00e9": 3},
        {"machine": {}},
    ],
)
def test_metadata_alike_or_not_is_read_as_a_whole_document_is(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    for text in (json.dumps(made.metadata(**changes)), json.dumps(made.metadata(), indent=1)):
        read_one = [_read_or_why(text.encode()), _read_or_why(text.encode())]
        # The reader parses a text in UTF-16 as a whole document.
        as_whole = _read_or_why(text.encode("utf-16"))
        assert read_one == [as_whole, as_whole]
        assert not isinstance(as_whole, dict) or list(read_one[0]) == list(as_whole)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rank": 1,}', '{"rank": 01}', "\x00", "{}x"])
def test_what_is_no_metadata_is_refused(text: str) -> None:
    assert isinstance(_read_or_why(text.encode()), str)


def _read_or_why(text: bytes) -> Any:
    try:
        return read_metadata(memoryview(text))
    except ValueError as error:
        return str(error)


def test_the_first_block_is_read_again_once_the_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "rank_1.trace"
    for torch in ("1", "12"):
        path.write_bytes(made.trace(made.end(), torch=torch))
        (block,) = first_metadata_of([path])
        assert isinstance(block, dict)
        assert block["torch"] == torch
    path.unlink()
    (missing,) = first_metadata_of([path])
    assert isinstance(missing, FileNotFoundError)


def test_scripts_that_make_traces_find_what_they_import(tmp_path: Path) -> None:
    """Scripts outside this repository import these names."""
    from commprof.trace import blocks, reader, schema

    path = tmp_path / "rank_1.trace"
    path.write_bytes(data := made.trace(made.records(5), made.end()))
    assert reader.read_first_metadata(path)["rank"] == 1
    assert reader.read_trace(path).records.dtype == schema.RECORD_DTYPE
    first = blocks.read_blocks(path, data).blocks[0]
    assert first.type == schema.BlockType.METADATA
    packed = blocks.pack_block(first.type, first.payload)
    assert packed in data
