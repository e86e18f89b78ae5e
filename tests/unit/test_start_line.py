"""The start line: nobody begins before everybody is there, and all begin together."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from commprof.microbench import start_line
from commprof.microbench.start_line import NoStart, SharedStart

SAMPLES = 50


@pytest.fixture(params=[True, False], ids=["a core each", "too few cores"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    usable = set(range(8 if request.param else 1))
    monkeypatch.setattr(start_line.os, "sched_getaffinity", lambda _: usable)
    return bool(request.param)


def test_nobody_begins_before_the_last_has_come(tmp_path: Path, cores: bool) -> None:
    world_size = 3
    path = tmp_path / "words"
    path.write_bytes(bytes(SharedStart.bytes_for(world_size)))
    came = [[0] * SAMPLES for _ in range(world_size)]
    began = [[0] * SAMPLES for _ in range(world_size)]

    def run(rank: int) -> None:
        line = SharedStart(str(path), rank, world_size)
        for sample in range(SAMPLES):
            if sample % world_size == rank:
                time.sleep(0.001)  # another rank is late each time
            came[rank][sample] = time.monotonic_ns()
            line.wait()
            began[rank][sample] = time.monotonic_ns()
        line.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    for arrivals, starts in zip(zip(*came, strict=True), zip(*began, strict=True), strict=True):
        assert min(starts) >= max(arrivals)


def test_one_rank_meets_itself(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(bytes(SharedStart.bytes_for(1)))
    line = SharedStart(str(path), 0, 1)
    for _ in range(3):
        line.wait()
    line.close()
    NoStart().wait()


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_line, "_PATIENCE_S", 0.05)
    path = tmp_path / "words"
    path.write_bytes(bytes(SharedStart.bytes_for(2)))
    line = SharedStart(str(path), 0, 2)
    with pytest.raises(start_line.CommprofError, match=r"did not come .* within 0.05 s"):
        line.wait()
    line.close()
