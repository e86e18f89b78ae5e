from __future__ import annotations

import os
import resource
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commprof.errors import CommprofError
from commprof.trace import reader
from commprof.trace import ring as rings
from commprof.trace.reader import read_trace, salvage, salvage_dead
from commprof.trace.ring import RingTail
from commprof.trace.run.run_directory import read_context
from tests.support.builders import trace_bytes
from tests.support.builders import trace_bytes as made

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
PIDS = os.readlink("/proc/self/ns/pid")


@pytest.fixture
def gone() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def write(directory: Path, pid: int, boot_id: str = BOOT_ID, pids: str = PIDS) -> tuple[Path, Path]:
    prefix = str(directory / "ring-")
    metadata: dict[str, Any] = made.metadata(pid=pid, ring_prefix=prefix)
    metadata["machine"].update(boot_id=boot_id, pid_namespace=pids)
    trace, ring = directory / "rank_1.trace", directory / "ring-0.ring"
    trace.write_bytes(made.file_header() + made.document(made.METADATA_BLOCK, metadata))
    ring.write_bytes(made.ring({0: made.record(5)}, head=1))
    return trace, ring


def test_rings_of_a_dead_process_are_salvaged(tmp_path: Path, gone: int) -> None:
    trace, ring = write(tmp_path, gone)
    salvage_dead(tmp_path)
    assert not ring.exists()
    assert read_trace(trace).records["timestamp_ns"].tolist() == [5]


def test_rings_of_a_zombie_process_are_salvaged(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    _, ring = write(tmp_path, process.pid)
    salvage_dead(tmp_path)
    process.communicate()
    assert not ring.exists()


@pytest.mark.parametrize("other", [{"boot_id": "b"}, {"pids": "pid:[1]"}, {"boot_id": ""}])
def test_rings_of_another_machine_or_container_are_not_salvaged(
    tmp_path: Path, gone: int, other: dict[str, str]
) -> None:
    trace, ring = write(tmp_path, gone, **other)
    content = trace.read_bytes()
    salvage_dead(tmp_path)
    assert ring.exists()
    assert trace.read_bytes() == content


def test_rings_of_a_running_process_are_not_salvaged(tmp_path: Path) -> None:
    _, ring = write(tmp_path, os.getpid())
    salvage_dead(tmp_path)
    assert ring.exists()


def test_a_trace_without_rings_is_not_read_whole_to_be_salvaged(
    tmp_path: Path, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ring = write(tmp_path, gone)
    ring.unlink()
    whole: list[Path] = []
    monkeypatch.setattr(reader, "_read_file", whole.append)
    salvage_dead(tmp_path)
    assert whole == []


#: ``salvage`` calls these functions in this order if a process has two rings.
MOMENTS = ("_read_file", "ring", "ring", "_read_file", "_append", "remove_rings", "ring", "ring")


class Meanwhile:
    def __init__(self, patch: pytest.MonkeyPatch, number: int, other: Callable[[], object]) -> None:
        self.calls: list[str] = []
        self._number, self._other = number, other
        for name in ("_read_file", "_append", "remove_rings"):
            patch.setattr(reader, name, self._before(name, getattr(reader, name)))
        patch.setattr(rings, "open_regular", self._before("ring", rings.open_regular))

    def _before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            if len(self.calls) <= self._number:
                self.calls.append(name)
                if len(self.calls) == self._number + 1:
                    self._other()
            return call(*args)

        return counted


def write_with_two_rings(directory: Path) -> Path:
    trace, _ = write(directory, 1)
    (directory / "ring-1.ring").write_bytes(made.ring({0: made.record(6)}, head=1, dropped=3))
    return trace


@pytest.mark.parametrize("moment", range(len(MOMENTS)))
def test_two_simultaneous_salvages_lose_no_records(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_with_two_rings(tmp_path)
    meanwhile = Meanwhile(monkeypatch, moment, lambda: salvage(path))
    salvage(path)
    trace = read_trace(path)
    assert meanwhile.calls == list(MOMENTS[: moment + 1])
    assert (trace.records["timestamp_ns"].tolist(), trace.dropped) == ([5, 6], 3)
    assert trace.problems == ()
    assert not list(tmp_path.glob("*.ring"))


def test_a_failed_salvage_keeps_the_records_salvaged_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_with_two_rings(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def other() -> None:
        salvage(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))

    Meanwhile(monkeypatch, MOMENTS.index("_append"), other)
    try:
        salvage(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_trace(path).records["timestamp_ns"].tolist() == [5, 6]


def test_a_directory_with_traces_of_two_jobs_is_refused(tmp_path: Path) -> None:
    for rank, size in ((0, 1), (1, 2)):
        metadata = made.metadata(rank=rank, world_size=size)
        (tmp_path / f"rank_{rank}.trace").write_bytes(
            made.file_header() + made.document(made.METADATA_BLOCK, metadata)
        )
    with pytest.raises(CommprofError, match=r"several jobs: rank_0\.trace of 1 ranks, rank_1"):
        read_context(tmp_path)


SESSION = 77


class Ring:
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
            # Head and tail are equal, as in always-on mode, where records are drained at once.
            file.write(struct.pack("<Q", self._head))
            file.seek(128)
            file.write(struct.pack("<Q", self._head))


def times(tail: RingTail) -> list[int]:
    return [int(time) for time in tail.poll()["timestamp_ns"]]


def test_records_in_rings_of_several_threads_are_read_once_in_time_order(tmp_path: Path) -> None:
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


def test_overwritten_records_are_counted_and_the_slot_in_use_is_not_read(tmp_path: Path) -> None:
    tail = RingTail(f"{tmp_path}/r-", SESSION)
    ring = Ring(tmp_path / "r-0.ring")
    ring.push(1)
    assert times(tail) == [1]
    ring.push(2, 3, 4, 5, 6, 7)
    # The oldest of the 4 slots is not read, because the next push overwrites this slot.
    assert times(tail) == [5, 6, 7]
    assert tail.missed == 3


def test_records_in_removed_rings_are_still_read(tmp_path: Path) -> None:
    tail = RingTail(f"{tmp_path}/r-", SESSION)
    path = tmp_path / "r-0.ring"
    ring = Ring(path)
    assert times(tail) == []
    ring.push(5)
    path.unlink()
    assert times(tail) == [5]


def test_foreign_and_damaged_ring_files_are_ignored(tmp_path: Path) -> None:
    Ring(tmp_path / "r-0.ring", session=78).push(1)
    (tmp_path / "r-1.ring").write_bytes(b"CPRING01")
    (tmp_path / "r-2.ring").mkdir()
    (tmp_path / "r-x.ring").write_bytes(b"")
    assert times(RingTail(f"{tmp_path}/r-", SESSION)) == []
    assert times(RingTail("", SESSION)) == []


def test_rings_of_many_ranks_take_one_listing_until_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(64):
        Ring(tmp_path / f"rank{rank}-0.ring").push(1)
    os.utime(tmp_path, ns=(0, time.time_ns() - 2_000_000_000))
    listings: list[str] = []
    listdir = os.listdir

    def counted(directory: str) -> list[str]:
        listings.append(directory)
        return listdir(directory)

    monkeypatch.setattr(rings.os, "listdir", counted)
    for _ in range(3):
        for rank in range(64):
            name = tmp_path / f"rank{rank}-0.ring"
            assert list(rings.ring_files(f"{tmp_path}/rank{rank}-")) == [name]
    assert listings == [str(tmp_path)]
    Ring(tmp_path / "rank7-1.ring")
    assert len(list(rings.ring_files(f"{tmp_path}/rank7-"))) == 2


def test_a_ring_made_in_the_same_tick_as_a_listing_is_found(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    for number in range(3):
        Ring(tmp_path / f"r-{number}.ring")
        os.utime(tmp_path, ns=(now_ns, now_ns))
        assert len(list(rings.ring_files(f"{tmp_path}/r-"))) == number + 1


def test_a_prefix_that_is_no_path_has_no_rings() -> None:
    assert list(rings.ring_files("/dev/shm/\0-")) == []
    assert list(rings.ring_files("/no/such/directory/r-")) == []
