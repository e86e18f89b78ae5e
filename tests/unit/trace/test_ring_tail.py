"""A live process's rings, followed from outside; the process is a file that the test writes."""

from __future__ import annotations

import struct
from pathlib import Path

from commprof.trace.rings.ring_tail import RingTail
from tests.support.builders import trace_bytes

SESSION = 77


class Ring:
    """A ring file as the recorder makes it."""

    def __init__(self, path: Path, capacity: int = 4, session: int = SESSION) -> None:
        self._path, self._capacity, self._head = path, capacity, 0
        header = struct.pack("<8sIIQQ", b"CPRING01", trace_bytes.RECORD_BYTES, 1, capacity, session)
        path.write_bytes(header.ljust(256 + capacity * trace_bytes.RECORD_BYTES, b"\0"))

    def push(self, *times_ns: int) -> None:
        with self._path.open("r+b") as file:
            for time_ns in times_ns:
                file.seek(256 + self._head % self._capacity * trace_bytes.RECORD_BYTES)
                file.write(trace_bytes.record(time_ns))
                self._head += 1
            file.seek(64)
            # Head and tail: drained at once, as always-on mode does.
            file.write(struct.pack("<Q", self._head))
            file.seek(128)
            file.write(struct.pack("<Q", self._head))


def times(tail: RingTail) -> list[int]:
    return [int(time) for time in tail.poll()["timestamp_ns"]]


def test_drained_records_of_several_threads_are_read_once_and_by_time(tmp_path: Path) -> None:
    tail = RingTail(f"{tmp_path}/r-", SESSION)
    assert times(tail) == []
    one, two = Ring(tmp_path / "r-0.ring"), Ring(tmp_path / "r-1.ring")
    one.push(10, 30)
    two.push(20)
    assert times(tail) == [10, 20, 30]
    assert times(tail) == []
    two.push(40, 50)
    assert times(tail) == [40, 50]
    assert (tail.rings, tail.missed) == (2, 0)
    tail.close()


def test_what_was_written_over_is_counted_and_the_slot_in_writing_left_out(tmp_path: Path) -> None:
    tail = RingTail(f"{tmp_path}/r-", SESSION)
    ring = Ring(tmp_path / "r-0.ring")
    ring.push(1)
    assert times(tail) == [1]
    ring.push(2, 3, 4, 5, 6, 7)
    # 4 slots, of which the next push takes the oldest.
    assert times(tail) == [5, 6, 7]
    assert tail.missed == 3


def test_rings_that_are_removed_are_read_to_their_end(tmp_path: Path) -> None:
    tail = RingTail(f"{tmp_path}/r-", SESSION)
    path = tmp_path / "r-0.ring"
    ring = Ring(path)
    assert times(tail) == []
    ring.push(5)
    path.unlink()
    assert times(tail) == [5]


def test_foreign_and_damaged_files_are_passed_over(tmp_path: Path) -> None:
    Ring(tmp_path / "r-0.ring", session=78).push(1)
    (tmp_path / "r-1.ring").write_bytes(b"CPRING01")
    (tmp_path / "r-2.ring").mkdir()
    (tmp_path / "r-x.ring").write_bytes(b"")
    assert times(RingTail(f"{tmp_path}/r-", SESSION)) == []
    assert times(RingTail("", SESSION)) == []
