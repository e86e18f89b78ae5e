"""What capture puts in the place of torch's futures' methods, and that nothing of it stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.futures import Future, collect_all, wait_all

from commprof import _native
from commprof.capture.patches.future_waits import FutureWaits


@pytest.fixture
def installed() -> Iterator[None]:
    waits = FutureWaits()
    waits.install()
    yield
    waits.remove()


def methods() -> list[Any]:
    """As they stand there, and not as one gets them."""
    mine = vars(torch._C.Future)
    return [mine["wait"], mine["then"], torch._C._collect_all]


@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
def test_nothing_stays() -> None:
    before = methods()
    waits = FutureWaits()
    waits.install()
    assert not any(a is b for a, b in zip(before, methods(), strict=True))
    waits.remove()
    assert all(a is b for a, b in zip(before, methods(), strict=True))
    future: Future[int] = Future()
    future.set_result(3)
    assert future.wait() == 3


def test_without_the_native_module_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "native", None)
    before = methods()
    waits = FutureWaits()
    waits.install()
    assert all(a is b for a, b in zip(before, methods(), strict=True))
    waits.remove()


@pytest.mark.usefixtures("installed")
def test_futures_of_others_work_as_ever() -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    doubled = first.then(lambda done: 2 * done.value())
    together = collect_all([first, second])
    other = threading.Thread(target=lambda: (first.set_result(3), second.set_result(4)))
    other.start()
    assert doubled.wait() == 6
    assert [one.wait() for one in together.wait()] == [3, 4]
    assert wait_all([first, second]) == [3, 4]
    assert wait_all([]) == []
    other.join()


@pytest.mark.usefixtures("installed")
def test_errors_come_as_they_are() -> None:
    failed: Future[int] = Future()
    failed.set_exception(KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        failed.wait()
    with pytest.raises(KeyError, match="mine"):
        wait_all([failed])
    with pytest.raises(TypeError):
        torch._C.Future.wait(3)
