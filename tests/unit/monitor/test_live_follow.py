from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from commprof.monitor import follow
from commprof.monitor.follow import TraceTail
from commprof.monitor.monitor import Monitor
from commprof.monitor.observer import Observer
from commprof.monitor.settings import Settings
from commprof.trace import summary as summaries
from commprof.trace.schema import BlockType, Records
from tests.support.builders import trace_bytes as made
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.traces import GrowingRun, summary


def times(records: Records) -> list[int]:
    return records["timestamp_ns"].tolist()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank_1.trace"


def test_a_trace_is_read_once_it_exists(path: Path) -> None:
    tail = TraceTail(path)
    assert times(tail.poll()) == []
    path.touch()
    assert times(tail.poll()) == []
    assert (tail.metadata, tail.problems, tail.caught_up) == (None, [], False)
    path.write_bytes(made.trace(made.records(5, 1)))
    assert times(tail.poll()) == [1, 5]
    assert tail.metadata == made.metadata()
    assert tail.caught_up


def test_each_block_of_a_growing_trace_is_read_exactly_once(path: Path) -> None:
    path.write_bytes(made.trace())
    tail = TraceTail(path)
    tail.poll()
    group = made.document(made.GROUP_BLOCK, made.group(3, name="tp", size=2))
    blocks = [made.records(7, 3), group, made.records(9), made.end(dropped=4)]
    found = []
    for byte in b"".join(blocks):
        append(path, bytes([byte]))
        found += times(tail.poll())
    assert found == [3, 7, 9]
    assert tail.groups[3].name == "tp"
    assert (tail.ended, tail.dropped, tail.problems) == (True, 4, [])
    assert times(tail.poll()) == []


def test_a_block_is_read_only_once_its_header_is_slot(path: Path) -> None:
    path.write_bytes(made.trace())
    tail = TraceTail(path)
    tail.poll()
    begin, block = path.stat().st_size, made.records(4)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), block[24:], begin + 24)
        assert times(tail.poll()) == []
        os.pwrite(file.fileno(), block[:24], begin)
    assert times(tail.poll()) == [4]
    assert tail.problems == []


def test_a_trace_that_is_truncated_and_continued_is_followed(path: Path) -> None:
    path.write_bytes(made.trace(made.records(1)))
    tail = TraceTail(path)
    assert times(tail.poll()) == [1]
    whole = path.read_bytes()
    append(path, made.records(2)[:40])
    assert times(tail.poll()) == []
    path.write_bytes(whole)
    assert times(tail.poll()) == []
    append(path, made.records(3))
    assert times(tail.poll()) == [3]
    assert tail.problems == []


def slot(sequence: int) -> bytes:
    content = {"sequence": sequence, **summary(sequence=sequence)}
    payload = json.dumps(content).encode().ljust(4096)
    return made.block(BlockType.SUMMARY, payload)


def test_overwritten_summaries_are_read_once_they_are_complete(path: Path) -> None:
    path.write_bytes(made.trace(slot(1), slot(2)))
    tail = TraceTail(path)
    tail.poll()
    assert tail.summary is not None
    assert tail.summary.sequence == 2
    data = bytearray(path.read_bytes())
    first = len(made.trace())
    new = slot(3)
    spare = made.block(BlockType.SPARE, new[24:])[:24]
    data[first : first + len(new)] = spare + new[24:]
    path.write_bytes(data)
    tail.poll()
    assert tail.summary.sequence == 2
    data[first : first + len(new)] = new
    path.write_bytes(data)
    tail.poll()
    assert tail.summary.sequence == 3
    assert tail.problems == []


def test_only_recent_records_of_a_long_trace_are_read(path: Path) -> None:
    block = made.records(0)
    blocks = [made.records(i) for i in range(100)]
    path.write_bytes(made.trace(*blocks, made.document(made.GROUP_BLOCK, made.group(9))))
    tail = TraceTail(path, recent_bytes=10 * len(block))
    found = times(tail.poll())
    assert found[-1] == 99
    assert 5 < len(found) <= 10
    assert 9 in tail.groups
    append(path, made.records(100))
    assert times(tail.poll()) == [100]


def test_the_bytes_read_in_one_poll_are_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_BYTES_PER_POLL", 1000)
    path.write_bytes(made.trace(*(made.records(i) for i in range(100))))
    tail, found, looks = TraceTail(path), list[int](), 0
    while len(found) < 100:
        new = times(tail.poll())
        assert len(new) <= 1000 // 64 + 1
        found += new
        looks += 1
    assert found == list(range(100))
    assert looks >= 100 * 64 // 1064


def test_a_damaged_block_is_skipped_and_reported(path: Path) -> None:
    bad = bytearray(made.records(2))
    bad[-1] ^= 1
    path.write_bytes(made.trace(made.records(1), bytes(bad), made.records(3)))
    tail = TraceTail(path)
    assert times(tail.poll()) == [1]  # The damaged block may be incomplete.
    found = [time for _ in range(5) for time in times(tail.poll())]
    assert found == [3]
    assert ["checksum" in problem for problem in tail.problems] == [True]


@pytest.mark.parametrize("length", [1 << 30, 1 << 62, 2**64 - 1])
def test_a_block_length_beyond_the_file_or_limit_is_not_read(path: Path, length: int) -> None:
    header = struct.pack("<4sIQII", b"CPKB", 2, length, 0, 0)
    path.write_bytes(made.trace(made.records(1), header))
    tail = TraceTail(path)
    assert times(tail.poll()) == [1]
    assert times(tail.poll()) == []
    if length == 1 << 30:
        os.truncate(path, (1 << 30) + 10_000)
        tail.poll()
        assert "left out" in tail.problems[0]


@pytest.mark.parametrize(
    "data",
    [b"\x7fELF" * 20, made.file_header(version=9), made.file_header(header_bytes=1), b"x" * 500],
)
def test_a_file_that_is_no_trace_is_reported_once(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    tail = TraceTail(path)
    for _ in range(6):
        assert times(tail.poll()) == []
    assert len(tail.problems) == 1


def test_unusable_metadata_is_reported(path: Path) -> None:
    path.write_bytes(made.file_header() + made.document(made.METADATA_BLOCK, {"rank": 0}))
    tail = TraceTail(path)
    tail.poll()
    assert "unusable metadata" in tail.problems[0]
    assert tail.metadata is None


def test_a_deleted_trace_is_still_followed(path: Path) -> None:
    path.write_bytes(made.trace())
    with path.open("ab") as writer, TraceTail(path) as tail:
        tail.poll()
        path.unlink()
        writer.write(made.records(6))
        writer.flush()
        assert times(tail.poll()) == [6]


def test_a_recreated_trace_is_followed_where_reading_stopped(path: Path) -> None:
    before = made.trace(made.records(5))
    path.write_bytes(before)
    with TraceTail(path) as tail:
        assert times(tail.poll()) == [5]
        for other in (before[:-1], made.file_header(session=7) + before[32:]):
            path.unlink()
            path.write_bytes(other)
            assert times(tail.poll()) == []
        path.unlink()
        path.write_bytes(before + made.records(6))
        assert times(tail.poll()) == [6]
        append(path, made.records(7) + made.end())
        assert times(tail.poll()) == [7]
        assert (tail.closed, tail.problems) == (True, [])


def test_of_two_new_summaries_only_the_newer_one_is_parsed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(made.trace(slot(1), slot(2)))
    slots = [path.stat().st_size - count * len(slot(1)) for count in (2, 1)]
    tail = TraceTail(path)
    tail.poll()
    converted: list[int] = []
    convert, loads = summaries.summary_of, summaries.json.loads
    parsed: list[int] = []

    def parse(text: bytes) -> Any:
        parsed.append(len(text))
        return loads(text)

    def counted(value: dict[str, Any]) -> summaries.Summary:
        converted.append(value["sequence"])
        return convert(value)

    monkeypatch.setattr(summaries, "summary_of", counted)
    monkeypatch.setattr(summaries.json, "loads", parse)
    for newest in (4, 6):
        with path.open("r+b") as file:
            for offset, sequence in zip(slots, (newest, newest - 1), strict=True):
                file.seek(offset)
                file.write(slot(sequence))
        tail.poll()
        assert tail.summary is not None
        assert tail.summary.sequence == newest
    tail.close()
    assert converted == [4, 6]
    assert len(parsed) == 2


def test_random_bytes_never_raise(path: Path) -> None:
    whole = made.trace(made.records(1, 2), made.end())
    for seed in range(300):
        data = bytearray(whole)
        data[seed * 7919 % len(data)] ^= 1 + seed % 255
        path.write_bytes(data[: len(data) - seed % 50])
        with TraceTail(path) as tail:
            for _ in range(5):
                tail.poll()


def test_a_pipe_in_place_of_a_trace_does_not_block(path: Path) -> None:
    os.mkfifo(path)
    tail = TraceTail(path)
    assert times(tail.poll()) == []
    assert times(tail.poll()) == []
    assert len(tail.problems) == 1


def test_a_device_in_place_of_a_trace_is_reported(path: Path) -> None:
    path.symlink_to("/dev/null")
    with TraceTail(path) as tail:
        assert times(tail.poll()) == []
        assert tail.problems == ["the trace cannot be read: it is not a regular file"]


def of_another_version(path: Path) -> None:
    document = made.document(made.METADATA_BLOCK, made.metadata(rank=0))
    path.write_bytes(made.file_header(version=2) + document)


_REASON = "rank 0: the file is not a commprof trace of version 1"


def test_the_reason_why_no_trace_can_be_read_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    of_another_version(tmp_path / "rank_0.trace")
    monitor = Monitor(tmp_path, Settings())
    monitor.end()
    monitor.run()
    monitor.close()
    assert capsys.readouterr().err == f"commprof monitor: {_REASON}\n"
    assert main(["top", str(tmp_path), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"no trace can be read in {tmp_path} yet; waiting", f"* {_REASON}"]


def test_an_unreadable_trace_is_reported_while_others_are_shown(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, ranks_of(2, 12))
    run.begin()
    run.end()
    of_another_version(run.paths[0])
    observer = Observer(tmp_path, patience_s=0)
    state = observer.poll()
    assert state is not None
    assert [rank.rank for rank in state.ranks] == [1]
    assert state.monitor.problems == (_REASON,)
    run.paths[0] = tmp_path / "rank_0.attempt_1.trace"
    run.begin(0)
    state = observer.poll()
    observer.close()
    assert state is not None
    assert [rank.rank for rank in state.ranks] == [0, 1]
    assert state.monitor.problems == ()


def test_top_once_reports_damaged_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(made.trace(rank=0))
    data[-1] ^= 1
    (tmp_path / "rank_0.trace").write_bytes(data)
    assert main(["top", str(tmp_path), "--once"]) == 0
    assert "* rank 0: the block at byte 32 has a wrong checksum" in capsys.readouterr().out
