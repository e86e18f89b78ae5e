from __future__ import annotations

import errno
import os
from typing import cast

import numpy as np
import pytest

from commprof.trace import columns, packed
from commprof.trace.packed_data import InFile, PackedData
from commprof.trace.schema import MOMENTS, RECORD_DTYPE, Kind, Records

_KINDS = (Kind.STEP, Kind.PHASE, Kind.ISSUE, Kind.END, Kind.CLOCK)


def _random(seed: int, count: int = 500) -> Records:
    random = np.random.default_rng(seed)
    records = np.zeros(count, dtype=RECORD_DTYPE)
    for field in RECORD_DTYPE.names or ():
        bits = 8 * RECORD_DTYPE[field].itemsize
        spread = int(random.integers(0, bits + 1))
        base = int(random.integers(0, 2 ** (bits - spread) if spread < bits else 1))
        values = (
            random.integers(0, 2**spread, count, dtype=np.uint64, endpoint=False)
            if (spread < 64)
            else random.integers(0, 2**64, count, dtype=np.uint64)
        )
        records[field] = base + values
    records["kind"] = random.choice(_KINDS, count)
    records["bytes_out"][0] = 2**64 - 1
    return records


def _packs() -> list[object]:
    return [packed.pack_in_python, packed.packing()]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pack", _packs(), ids=["python", "chosen"])
def test_every_value_is_given_back(
    seed: int, pack: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "packing", lambda: pack)
    records = _random(seed)
    found = packed.packed(records)
    assert len(found) == len(records)
    assert found.copy().tobytes() == records.tobytes()
    for field in RECORD_DTYPE.names or ():
        assert found[field].dtype == RECORD_DTYPE[field]
        assert (found[field] == records[field]).all()
    for kind in _KINDS:
        chosen = records[records["kind"] == kind]
        some = found.of_kind(kind)
        assert np.array(some).tobytes() == chosen.tobytes()
        odd = chosen["seq"] % 2 == 1
        for field in RECORD_DTYPE.names or ():
            assert (some[field] == chosen[field]).all()
            assert (some.compress(odd)[field] == chosen[odd][field]).all()
    two = found.of_kinds(Kind.STEP, Kind.END)
    mask = np.isin(records["kind"], (Kind.STEP, Kind.END))
    assert two.tobytes() == records[mask].tobytes()


def test_no_records_and_unknown_kinds() -> None:
    none = packed.packed(np.zeros(0, dtype=RECORD_DTYPE))
    assert len(none) == len(none["value"]) == len(none.of_kind(Kind.END)["value"]) == 0
    assert len(none.of_kinds(Kind.END)) == 0
    records = np.zeros(3, dtype=RECORD_DTYPE)
    records["kind"] = 200
    assert packed.packed(records).copy().tobytes() == records.tobytes()


def test_what_never_changes_takes_no_memory() -> None:
    records = np.zeros(1000, dtype=RECORD_DTYPE)
    records["kind"] = Kind.ISSUE
    records["timestamp_ns"] = 2**60 + np.arange(1000)
    records["bytes_in"] = 2**40
    found = packed.packed(records)
    assert found._chunks[0].data.nbytes == 2000
    assert columns.ints(found.of_kind(Kind.ISSUE)["bytes_in"]).strides == (0,)


def test_times_are_converted_and_nothing_else() -> None:
    records = _random(1)
    records["timestamp_ns"] %= 2**40
    records["value"] %= 2**40
    records["value"][::7] = 0
    moved = packed.packed(records).on_clock(lambda times: times + 5)
    expected = records.copy()
    expected["timestamp_ns"][records["kind"] != Kind.CLOCK] += np.uint64(5)
    timed = np.isin(records["kind"], [kind for kind, _ in MOMENTS]) & (records["value"] > 0)
    expected["value"][timed] += np.uint64(5)
    assert moved.copy().tobytes() == expected.tobytes()
    ends = columns.of_kind(cast("Records", moved), Kind.END)
    assert (ends["timestamp_ns"] == expected["timestamp_ns"][expected["kind"] == Kind.END]).all()


@pytest.mark.parametrize("pack", _packs(), ids=["python", "chosen"])
def test_times_that_spread_far_are_packed_as_differences(
    pack: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "packing", lambda: pack)
    records = np.zeros(1000, dtype=RECORD_DTYPE)
    records["kind"] = Kind.WAIT
    records["timestamp_ns"] = 2**60 + 50_000_000 * np.arange(1000)
    records["value"] = records["timestamp_ns"] + np.random.default_rng(1).integers(0, 10**9, 1000)
    found = packed.packed(records)
    assert found.copy().tobytes() == records.tobytes()
    assert found._chunks[0].data.nbytes == 2 * 4 * 1000
    begin, end = (int(records["timestamp_ns"][row]) for row in (100, 700))
    assert found.between([(begin, end)]).copy().tobytes() == records[100:700].tobytes()
    two = found.between([(begin, begin + 1), (end, 2**63)])
    assert two.copy().tobytes() == records[[100, *range(700, 1000)]].tobytes()


def test_records_are_packed_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_CHUNK_RECORDS", 50)
    records = _random(2)
    records["timestamp_ns"] = np.arange(len(records)) // 2
    for shuffled in (records, records[np.random.default_rng(0).permutation(len(records))]):
        packer = packed.Packer()
        for batch in np.array_split(shuffled, 37):
            packer.add(batch)
        expected = shuffled[np.argsort(shuffled["timestamp_ns"], kind="stable")]
        assert packer.finish().copy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("most_in_memory", [0, 4000, 10**9])
def test_records_of_a_long_run_lie_in_a_file(
    most_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_CHUNK_RECORDS", 50)
    records = _random(6)
    records["timestamp_ns"] = 2**40 + 7 * np.arange(len(records))
    packer = packed.Packer(PackedData(most_in_memory))
    for batch in np.array_split(records, 37):
        packer.add(batch)
    found = packer.finish()
    in_file = [isinstance(chunk.data, InFile) for chunk in found._chunks]
    assert (any(in_file), all(in_file)) == (most_in_memory < 10**9, most_in_memory == 0)
    assert found.copy().tobytes() == records.tobytes()
    assert (found.kinds == records["kind"]).all()
    times = records["timestamp_ns"][[3, 49, 50, 333]]
    assert found.between([times[1:3], (times[3], 2**63)]).copy().tobytes() == (
        records[[49, *range(333, 500)]].tobytes()
    )
    asked = np.array([0, *times.tolist(), *(times + 1).tolist(), 2**63], dtype=np.uint64)
    expected = np.searchsorted(records["timestamp_ns"], asked)
    assert packed.records_before(cast("Records", found), asked).tolist() == expected.tolist()
    assert packed.records_before(records, asked).tolist() == expected.tolist()
    for kind in _KINDS:
        parts = [*packed.in_parts(cast("Records", found), kind, "op_id", "flags")]
        assert len(parts) > 1
        for number, name in enumerate(("op_id", "flags")):
            column = np.concatenate([part[number] for part in parts])
            assert column.tolist() == records[records["kind"] == kind][name].tolist()
    some = found.between([(int(times[0]), int(times[3]))])
    for field in RECORD_DTYPE.names or ():
        chosen = records[3:333][records["kind"][3:333] == Kind.END][field]
        joined = packed.columns_of([some, found], Kind.END, field)
        whole = records[records["kind"] == Kind.END][field]
        assert joined.tolist() == [*chosen.tolist(), *whole.tolist()]


def test_records_that_no_file_takes_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    records = _random(7)
    records["timestamp_ns"] = np.arange(len(records))
    packer = packed.Packer(PackedData(0))
    packer.add(records)
    assert packer.finish().copy().tobytes() == records.tobytes()


@pytest.mark.parametrize("first_ns", [0, 40, 100, 400])
def test_equal_records_of_a_file_and_of_rings_are_kept_once(
    monkeypatch: pytest.MonkeyPatch, first_ns: int
) -> None:
    monkeypatch.setattr(packed, "_CHUNK_RECORDS", 20)
    records = _random(4, 200)
    records["timestamp_ns"] = 10 + np.arange(len(records)) // 3
    records[1::10] = records[::10]
    records[20] = records[19]  # the last record of a chunk, and the first of the next
    in_rings = records["timestamp_ns"] >= first_ns
    late = np.concatenate((records[in_rings], _random(5, 30)[: 30 * (first_ns == 100)]))
    packer = packed.Packer()
    packer.add(records)
    found = packed.joined_once(packer.finish(), [late]).copy()
    order = np.argsort(found["timestamp_ns"], kind="stable")
    assert (order == np.arange(len(found))).all()
    both = np.concatenate((records, late)).view(f"V{RECORD_DTYPE.itemsize}")
    assert sorted(found.view(both.dtype).tolist()) == sorted(set(both.tolist()))


@pytest.mark.parametrize("row", [(3, 0, 8, 0), (1, 0, 4, 13), (1, 0, 3, 0), (2, 0, 5, 2**40)])
def test_a_column_beyond_its_data_is_refused(row: tuple[int, ...]) -> None:
    unpack = pytest.importorskip("commprof._reading").unpack_columns
    data = np.zeros(16, dtype=np.uint8)
    assert unpack([data], np.array([(2, 7, 8, 0)], dtype=np.uint64)).tolist() == [7, 7]
    with pytest.raises(ValueError, match="reaches beyond its data"):
        unpack([data], np.array([row], dtype=np.uint64))


@pytest.mark.parametrize(("wanted", "held"), [(1, 7_232), (7_233, 23_616), (10**6, 40_000)])
def test_the_latest_records_are_whole_chunks_at_the_end(wanted: int, held: int) -> None:
    records = _random(3, 40_000)  # 40,000 records are two chunks of 16,384 and a rest
    latest = packed.packed(records).latest(wanted)
    assert len(latest) == held
    assert (np.asarray(latest) == records[-held:]).all()
