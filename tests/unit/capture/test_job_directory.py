from __future__ import annotations

import os
import resource
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import commprof
from commprof.capture.job import job_directory
from commprof.capture.job.job_directory import agree
from commprof.capture.profiler import active
from commprof.errors import TraceError
from commprof.trace import reader
from commprof.trace.columns import steps
from commprof.trace.reader import Trace, read_trace, salvage
from commprof.trace.ring import RingContent, read_rings
from tests.support.builders import trace_bytes as made


def begin(directory: Path, **metadata: object) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "rank_0.trace").write_bytes(made.trace(rank=0, **metadata))


def restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str) -> str:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    return str(agree(tmp_path).relative_to(tmp_path))


@pytest.mark.parametrize(
    ("run_id", "place"), [("first", "."), ("second", "job_2"), ("unknown", "job_4")]
)
def test_a_restart_writes_to_the_directory_where_its_job_began(
    run_id: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, elastic_run_id="first")
    begin(tmp_path / "job_2", elastic_run_id="second")
    begin(tmp_path / "job_3")
    begin(tmp_path / "job_4")
    (tmp_path / "job_4/rank_0.trace").write_bytes(b"")
    assert restarted(tmp_path, monkeypatch, run_id) == place
    assert (tmp_path / place / "rank_0.attempt_1.trace").exists()


def test_a_rank_waits_for_what_another_is_about_to_write_of_their_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    own = " ".join(os.environ.get(name, "") for name in job_directory._LAUNCH)
    launch = tmp_path / "launch.txt"
    launch.touch()
    writer = threading.Timer(0.3, launch.write_text, [own])
    writer.start()
    assert agree(tmp_path) == tmp_path
    writer.join()
    monkeypatch.setattr(job_directory, "_WRITES_WITHIN_S", 0.05)
    launch.write_text("")
    monkeypatch.setenv("RANK", "0")
    assert agree(tmp_path) == tmp_path / "job_2"


def test_a_restart_continues_the_last_of_two_jobs_with_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torchrun gives the ID "none" to each job whose user names no ID.
    begin(tmp_path, elastic_run_id="none")
    begin(tmp_path / "job_2", elastic_run_id="none")
    begin(tmp_path / "job_3", elastic_run_id="other")
    assert restarted(tmp_path, monkeypatch, "none") == "job_2"


def test_each_first_attempt_gets_a_new_job_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    begin(tmp_path)
    assert agree(tmp_path) == tmp_path / "job_2"
    assert agree(tmp_path) == tmp_path / "job_3"


def test_a_second_training_after_a_restart_gets_a_new_job_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, elastic_run_id="first")
    begin(tmp_path / "job_2", elastic_run_id="second")
    places = [restarted(tmp_path, monkeypatch, "first") for _ in range(3)]
    assert places == [".", "job_3", "job_4"]


class TwoRanks:
    """Plays both ranks of a job. Rank 0 begins when rank 1 waits for a key."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._store = dist.HashStore()
        self._rank = 1
        self._of_rank_0: Path | None = None
        self.add, self.set, self.get = self._store.add, self._store.set, self._store.get
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        monkeypatch.setattr(dist, "get_rank", lambda: self._rank)
        monkeypatch.setattr(job_directory, "_store", lambda: self)

    def wait(self, keys: list[str], patience: timedelta) -> None:
        if not self._store.check(keys):
            self.begin_rank_0()
        self._store.wait(keys, patience)

    def begin_rank_0(self) -> None:
        self._rank = 0
        self._of_rank_0 = agree(self._directory)
        self._rank = 1

    def train(self) -> tuple[str, str]:
        self._of_rank_0 = None
        of_rank_1 = agree(self._directory)
        if self._of_rank_0 is None:
            self.begin_rank_0()
        assert self._of_rank_0 is not None
        first, second = (p.relative_to(self._directory) for p in (self._of_rank_0, of_rank_1))
        return str(first), str(second)


def test_all_ranks_share_the_directory_of_each_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    ranks = TwoRanks(tmp_path, monkeypatch)
    assert [ranks.train() for _ in range(3)] == [(".", "."), ("job_2",) * 2, ("job_3",) * 2]


def test_directories_agreed_on_before_a_restart_are_not_reused_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    ranks = TwoRanks(tmp_path, monkeypatch)
    ranks.train()
    ranks.begin_rank_0()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert [ranks.train() for _ in range(2)] == [("job_2",) * 2, ("job_3",) * 2]


def test_without_a_working_store_the_given_directory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = TwoRanks(tmp_path, monkeypatch)
    monkeypatch.setattr(ranks, "add", dist.Store().add)  # The base class raises RuntimeError.
    assert ranks.train() == (".", ".")


class Killed:
    def __init__(self, tmp_path: Path) -> None:
        self.prefix = str(tmp_path / "commprof-[0]-")
        self.path = tmp_path / "rank_1.trace"
        self.path.write_bytes(made.trace(made.records(1, 2), ring_prefix=self.prefix))

    def ring_path(self, number: int | str = 0) -> Path:
        return Path(f"{self.prefix}{number}.ring")

    def leave(self, number: int | str, data: bytes) -> None:
        self.ring_path(number).write_bytes(data)

    def read(self) -> Trace:
        return read_trace(self.path)

    def times(self) -> list[int]:
        return self.read().records["timestamp_ns"].tolist()


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed(tmp_path)


def slots(**times_ns: int) -> dict[int, bytes]:
    """Maps slots to records: ``s2=7`` puts a record of time 7 ns into slot 2."""
    return {int(name[1:]): made.record(value) for name, value in times_ns.items()}


def test_records_left_in_rings_are_read_with_the_trace(killed: Killed) -> None:
    killed.leave(0, made.ring(slots(s2=3, s3=4, s0=5, s1=6), head=6, tail=2, dropped=8))
    killed.leave(1, made.ring(slots(s0=9, s1=10), head=1, dropped=1))
    trace = killed.read()

    assert trace.records["timestamp_ns"].tolist() == [1, 2, 3, 4, 5, 6, 9]
    assert (trace.dropped, trace.complete, trace.problems) == (9, False, ())


def test_a_record_in_both_trace_and_ring_counts_once(killed: Killed) -> None:
    killed.leave(0, made.ring(slots(s0=1, s1=2, s2=3), head=3))

    assert killed.times() == [1, 2, 3]


SALVAGED = made.document(made.SALVAGED_BLOCK, {"records": 2, "dropped": 2})


@pytest.mark.parametrize("rings_first", [False, True])
@pytest.mark.parametrize(
    ("added", "left", "complete", "dropped"),
    [
        (made.records(3), made.ring({1: made.record(4)}, head=2, tail=1, dropped=1), False, 1),
        (made.records(3, 4) + made.end(2), None, True, 2),
        (made.records(3, 4) + SALVAGED, None, False, 2),
    ],
    ids=["drained", "closed", "salvaged"],
)
def test_records_moved_out_of_rings_while_reading_count_once(
    added: bytes,
    left: bytes | None,
    complete: bool,
    dropped: int,
    rings_first: bool,
    killed: Killed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed.leave(0, made.ring(slots(s0=3, s1=4), head=2, dropped=1))

    def move() -> None:
        with killed.path.open("ab") as file:
            file.write(added)
        killed.ring_path().unlink()
        if left is not None:
            killed.leave(0, left)

    def read_meanwhile(prefix: str, session: int) -> RingContent:
        if not rings_first:
            move()
        content = read_rings(prefix, session)
        if rings_first:
            move()
        return content

    monkeypatch.setattr(reader, "read_rings", read_meanwhile)
    trace = killed.read()
    assert trace.records["timestamp_ns"].tolist() == [1, 2, 3, 4]
    assert (trace.complete, trace.dropped, trace.problems) == (complete, dropped, ())


def test_records_that_differ_in_one_field_all_count(killed: Killed) -> None:
    rows = {0: made.record(1), 1: made.record(1, value=1), 2: made.record(1, op_id=1)}
    killed.leave(0, made.ring(rows, head=3))

    assert killed.times() == [1, 1, 1, 2]


def test_ring_counters_near_64_bits_are_read_correctly(killed: Killed) -> None:
    killed.leave(0, made.ring(slots(s2=3), head=2**64 - 1, tail=2**64 - 2))

    assert killed.times() == [1, 2, 3]


FOREIGN: dict[str, dict[str, Any]] = {
    "another session": {"session": 1},
    "another magic": {"magic": b"CPRING02"},
    "no magic yet": {"magic": bytes(8)},
    "other records": {"record_bytes": 32},
    "no capacity": {"capacity": 0},
    "fewer slots than it says": {"slot_count": 3},
    "more slots than it says": {"slot_count": 5},
    "huge capacity": {"capacity": 2**63, "slot_count": 4},
    "wrapped capacity": {"capacity": 2**58, "slot_count": 0},
    "head before tail": {"head": 1, "tail": 2},
    "more than a ring holds": {"head": 5, "tail": 0},
    "wild head": {"head": 2**64 - 1, "tail": 0},
    "wild tail": {"head": 3, "tail": 2**64 - 1},
}


@pytest.mark.parametrize("changes", FOREIGN.values(), ids=FOREIGN)
def test_foreign_and_damaged_rings_are_ignored(killed: Killed, changes: dict[str, Any]) -> None:
    killed.leave(0, made.ring(slots(s0=7), **{"head": 1, "dropped": 5, **changes}))
    trace = killed.read()

    assert trace.records["timestamp_ns"].tolist() == [1, 2]
    assert trace.dropped == 0


@pytest.mark.parametrize("size", [0, 8, 255, 256, 319])
def test_truncated_rings_are_ignored(killed: Killed, size: int) -> None:
    killed.leave(0, made.ring(slots(s0=7), head=1)[:size])

    assert killed.times() == [1, 2]


def test_only_numbered_regular_files_are_rings(killed: Killed) -> None:
    killed.leave("x", made.ring(slots(s0=7), head=1))
    killed.leave("0.old", made.ring(slots(s0=8), head=1))
    os.mkfifo(killed.ring_path(1))
    killed.ring_path(2).mkdir()

    assert killed.times() == [1, 2]
    assert salvage(killed.path) == 0
    assert killed.ring_path("x").exists()
    assert killed.ring_path(1).exists()


def test_rings_of_a_closed_trace_are_not_read(killed: Killed) -> None:
    with killed.path.open("ab") as file:
        file.write(made.end(3))
    killed.leave(0, made.ring(slots(s0=7), head=1, dropped=9))
    trace = killed.read()

    assert trace.records["timestamp_ns"].tolist() == [1, 2]
    assert trace.dropped == 3


def test_salvage_moves_records_and_counters_and_is_idempotent(killed: Killed) -> None:
    killed.leave(0, made.ring(slots(s0=2, s1=3, s2=4), head=3, dropped=5))
    killed.leave(1, made.ring(slots(s3=6), head=4, tail=3, dropped=1))
    before = killed.read()

    assert salvage(killed.path) == 4
    assert not killed.ring_path(0).exists()
    assert not killed.ring_path(1).exists()
    after = killed.path.read_bytes()
    for trace in (before, killed.read()):
        assert trace.records["timestamp_ns"].tolist() == [1, 2, 3, 4, 6]
        assert (trace.dropped, trace.complete, trace.problems) == (6, False, ())
    assert salvage(killed.path) == 0
    assert killed.path.read_bytes() == after


def test_salvage_removes_a_partial_block_at_the_end_of_the_trace(killed: Killed) -> None:
    with killed.path.open("ab") as file:
        file.write(made.records(*range(50, 90))[:-1])  # Salvage writes a shorter block.
    killed.leave(0, made.ring(slots(s0=3), head=1))

    assert salvage(killed.path) == 1
    assert killed.times() == [1, 2, 3]
    assert killed.read().problems == ()


def test_salvage_after_a_crash_midway_adds_no_record_twice(killed: Killed) -> None:
    killed.leave(0, made.ring(slots(s0=3, s1=4), head=2, dropped=5))
    with killed.path.open("ab") as file:
        file.write(made.records(3, 4))

    assert killed.times() == [1, 2, 3, 4]
    assert salvage(killed.path) == 2
    assert killed.times() == [1, 2, 3, 4]
    assert killed.read().dropped == 5


def test_salvage_after_a_crash_before_the_removal_only_removes_the_ring(killed: Killed) -> None:
    ring = made.ring(slots(s0=3), head=1, dropped=5)
    killed.leave(0, ring)
    salvage(killed.path)
    killed.leave(0, ring)

    assert (killed.times(), killed.read().dropped) == ([1, 2, 3], 5)
    assert salvage(killed.path) == 0
    assert not killed.ring_path(0).exists()
    assert (killed.times(), killed.read().dropped) == ([1, 2, 3], 5)


def test_salvage_of_a_closed_trace_only_removes_rings(killed: Killed) -> None:
    with killed.path.open("ab") as file:
        file.write(made.end())
    before = killed.path.read_bytes()
    killed.leave(0, made.ring(slots(s0=7), head=1))

    assert salvage(killed.path) == 0
    assert killed.path.read_bytes() == before
    assert not killed.ring_path(0).exists()


def test_salvage_removes_only_rings_of_its_own_trace(killed: Killed) -> None:
    killed.leave(0, made.ring({}, session=1))
    killed.leave(1, made.ring({})[:0])
    killed.leave(2, b"somebody's file")

    assert salvage(killed.path) == 0
    assert [killed.ring_path(i).exists() for i in range(3)] == [True, False, True]


def test_salvage_that_cannot_write_keeps_the_rings(killed: Killed) -> None:
    killed.leave(0, made.ring(slots(s0=3), head=1))
    before = killed.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Salvage writes 140 bytes: 24 + 64 bytes of records, and 24 + 28 bytes of counters.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="only 10 of 140 bytes could be written"):
            salvage(killed.path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert killed.path.read_bytes() == before
    assert killed.times() == [1, 2, 3]
    assert salvage(killed.path) == 1


def test_salvage_of_a_file_that_is_no_trace_raises(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not a trace")
    with pytest.raises(TraceError):
        salvage(tmp_path / "x")


def test_a_profile_within_a_recorded_job_joins_the_running_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = commprof.profile(tmp_path / "job").start()
    whole.of_whole_job = True
    try:
        with commprof.profile(tmp_path / "own") as prof:
            assert prof is whole
            prof.step()
        second = commprof.profile(tmp_path / "own").start()
        second.step()
        second.stop()
        assert active() is whole
    finally:
        whole.of_whole_job = False
        whole.stop()
    said = capsys.readouterr().err
    assert f"the whole script is being recorded to {tmp_path}/job; " in said
    assert f"nothing goes to {tmp_path}/own" in said
    assert not (tmp_path / "own").exists()
    assert whole.trace_path is not None
    assert len(steps(read_trace(whole.trace_path))) == 2
