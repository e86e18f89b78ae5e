from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable

import pytest

from commprof.launch.worker import guarded


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _nothing() -> None:
    pass


def _rank(work: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        guarded(work)
    finally:
        _interrupt()


@pytest.mark.parametrize(("work", "code"), [(_nothing, 0), (_interrupt, 130)])
def test_an_interrupt_after_the_end_of_a_ranks_work_is_ignored(
    work: Callable[[], None], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    rank = multiprocessing.get_context("fork").Process(target=_rank, args=(work,))
    rank.start()
    rank.join(60)
    assert rank.exitcode == code
    assert capfd.readouterr().err == ""
