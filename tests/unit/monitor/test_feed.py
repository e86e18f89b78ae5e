from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from commprof.monitor.watchdog.feed import RankFeed
from commprof.trace.run.processes import Here
from commprof.trace.schema import BlockType
from tests.support.builders import trace_bytes as made
from tests.support.builders.traces import summary

#: The ring of the first thread has a file; the ring of the second thread has none.
FILED, PRIVATE = 1, 2


def trace_of_this_process(prefix: Path, *blocks: bytes) -> bytes:
    here = Here()
    machine = made.metadata()["machine"] | {
        "boot_id": here._boot_id,
        "pid_namespace": here._pids,
        "time_namespace": here._times,
    }
    clock = {"source": "CLOCK_MONOTONIC", "monotonic_ns": time.monotonic_ns(), "realtime_ns": 0}
    return made.trace(
        *blocks, ring_prefix=str(prefix), pid=os.getpid(), machine=machine, clock=clock
    )


def issue(op_id: int, at_ns: int) -> bytes:
    return made.record(at_ns, made.ISSUE, op_id=op_id, op=1, group=1, thread=FILED, seq=op_id)


def end(op_id: int, at_ns: int, thread: int = PRIVATE) -> bytes:
    return made.record(at_ns, made.END, op_id=op_id, op=1, thread=thread)


def written(value: dict[str, Any]) -> bytes:
    return made.document(made.METADATA_BLOCK, value)


@pytest.mark.parametrize("at_once", [True, False])
def test_records_of_rings_without_files_are_read_from_the_trace_once(
    tmp_path: Path, at_once: bool
) -> None:
    path, prefix = tmp_path / "rank_1.trace", tmp_path / "r-"
    group = made.document(made.GROUP_BLOCK, made.group(1))
    head = trace_of_this_process(prefix, group)
    told = head + written({"private_rings": True})
    drained = told + made.block(made.RECORDS_BLOCK, issue(1, 10) + end(1, 11))
    path.write_bytes(drained if at_once else head)
    ring = Path(f"{prefix}0.ring")
    ring.write_bytes(made.ring({0: issue(1, 10)}, head=1, tail=1))
    feed = RankFeed(path)
    looks = []
    for step in range(10):
        if step == 4:
            path.write_bytes(drained)
        if step == 6:
            ring.write_bytes(made.ring({0: issue(1, 10), 1: issue(2, 20)}, head=2, tail=1))
        if step == 7:
            path.write_bytes(drained + made.block(made.RECORDS_BLOCK, issue(2, 20) + end(2, 21)))
        feed.poll()
        assert feed.is_seen
        looks += [(one["kind"], one["op_id"]) for one in feed.records]
    assert looks == [(made.ISSUE, 1), (made.END, 1), (made.ISSUE, 2), (made.END, 2)]
    assert feed.state is not None
    assert not feed.state.pending
    feed.close()


@pytest.mark.parametrize("private", [True, False])
def test_an_always_on_rank_with_private_rings_is_not_seen(tmp_path: Path, private: bool) -> None:
    path, prefix = tmp_path / "rank_1.trace", tmp_path / "r-"
    document = made.block(BlockType.SUMMARY, json.dumps(summary()).encode())
    more = [written({"private_rings": True})] if private else []
    path.write_bytes(trace_of_this_process(prefix, document, *more))
    Path(f"{prefix}0.ring").write_bytes(made.ring({0: issue(1, 10)}, head=1, tail=1))
    feed = RankFeed(path)
    for _ in range(3):
        feed.poll()
    assert feed.is_seen is not private
    feed.close()


def test_operations_begun_just_before_recording_resumes_are_kept(tmp_path: Path) -> None:
    path, prefix = tmp_path / "rank_1.trace", tmp_path / "r-"
    head = trace_of_this_process(prefix, made.document(made.GROUP_BLOCK, made.group(1)))
    off = head + written({"capture_state": {"recording": False, "monotonic_ns": 5}})
    path.write_bytes(off)
    ring = Path(f"{prefix}0.ring")
    ring.write_bytes(made.ring({0: issue(1, 1)}, head=1, tail=1))
    feed = RankFeed(path)
    for _ in range(3):
        feed.poll()
    assert feed.state is not None
    assert list(feed.state.pending) == []
    ring.write_bytes(made.ring({0: issue(1, 1), 1: issue(2, 20)}, head=2, tail=1))
    feed.poll()
    path.write_bytes(off + written({"capture_state": {"recording": True, "monotonic_ns": 25}}))
    feed.poll()
    assert feed.is_seen
    assert list(feed.state.pending) == [2]
