from __future__ import annotations

import gc
import signal
import time
from typing import Any, NoReturn

import pytest

from commprof import _native
from commprof.capture.garbage import GarbageCollections
from commprof.files import checked
from commprof.trace.documents import MORE_METADATA
from tests.support.builders.metadata_recorder import Recorder

pytestmark = pytest.mark.skipif(_native.native_error is not None, reason="needs the native module")


class Slow:
    def __init__(self, seconds: float) -> None:
        self.itself, self._seconds = self, seconds

    def __del__(self) -> None:
        time.sleep(self._seconds)


def noted(seconds: float, write_errno: int = 0) -> dict[str, Any]:
    recorder = Recorder(write_errno)
    collections = GarbageCollections(recorder)  # type: ignore[arg-type]
    before = list(gc.callbacks)
    gc.collect()
    gc.disable()
    try:
        collections.install()
        Slow(seconds)
        gc.collect(0)
    finally:
        collections.remove()
        gc.enable()
    assert gc.callbacks == before
    found: dict[str, Any] = recorder.metadata.get("garbage", {})
    if found:
        checked(found, MORE_METADATA["garbage"], "garbage")
    return found


def test_a_long_collection_is_noted_with_its_time() -> None:
    before = time.monotonic_ns()
    found = noted(0.02)
    assert len(found["begin_ns"]) == len(found["end_ns"]) == 1
    assert before <= found["begin_ns"][0]
    assert found["end_ns"][0] - found["begin_ns"][0] == found["total_ns"] >= 20_000_000


def test_after_the_end_nothing_is_noted() -> None:
    recorder = Recorder()
    collections = GarbageCollections(recorder)  # type: ignore[arg-type]
    collections.remove()
    assert recorder.metadata == {}


def test_on_a_full_disk_nothing_is_written_before_the_closing_block() -> None:
    assert noted(0.02, write_errno=28) == {}


def _collect_with_signal(after_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, after_s)
    gc.collect()


class Interrupted(Exception): ...


def test_a_signal_during_a_collection_reaches_the_program() -> None:
    def handler(*_: object) -> NoReturn:
        raise Interrupted

    collections = GarbageCollections(Recorder())  # type: ignore[arg-type]
    handler_before = signal.signal(signal.SIGALRM, handler)
    # The collector visits each list, so the signal comes during the collection.
    many = [[number] for number in range(3_000_000)]
    collections.install()
    try:
        with pytest.raises(Interrupted):
            _collect_with_signal(after_s=0.005)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
        collections.remove()
        del many
