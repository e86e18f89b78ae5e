"""How a rank finds rank 0's clock, or goes on without."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend

from commprof import _native
from commprof.capture.job import store_links
from commprof.capture.job.metadata import clock_identity
from commprof.capture.job.store_links import ClockLink


class Native:
    """Stands for the module: notes who is asked."""

    def __init__(self) -> None:
        self.followed: list[tuple[Any, ...]] = []
        self.served: list[tuple[Any, ...]] = []
        self.ended = 0
        self.same = 0

    def clock_serve(self, *arguments: Any) -> tuple[int, int]:
        self.served.append(arguments)
        return 77, 4711

    def clock_follow(self, *arguments: Any) -> None:
        self.followed.append(arguments)

    def clock_unfollow(self) -> None:
        self.ended += 1

    def clock_same(self) -> None:
        self.same += 1


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Native:
    fake = Native()
    monkeypatch.setattr(_native, "native", fake)
    monkeypatch.setattr(store_links, "_LATER_S", 0.0)
    monkeypatch.setattr(store_links, "_WAIT_S", 0.05)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return fake


@pytest.fixture
def ended() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def join(rank: int, world_size: int = 2) -> dist.Store:
    """A group of which this process is one rank; returns what the ranks share."""
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=rank, world_size=world_size)
    return store_links.default_store("commprof_clock")  # type: ignore[no-any-return]


def door(**changes: Any) -> str:
    return json.dumps(
        {"address": "10.0.0.1", "port": 77, "token": 4711, "clock": ["else", "where"], **changes}
    )


pytestmark = pytest.mark.usefixtures("ended")


def test_rank_0_says_where_it_answers_and_waits_for_nobody(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = join(0)
    link = ClockLink("auto")
    link.start()
    assert not link.pending
    ((address, token, world_size),) = native.served
    assert (address, world_size) == ("127.0.0.1", 2)
    assert 0 < token < 2**63
    said = {"address": "127.0.0.1", "port": 77, "token": 4711, "clock": clock_identity()}
    assert json.loads(store.get("door")) == said
    assert native.same == 1


def test_rank_0_without_an_address_or_a_module_tells_others_not_to_wait(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_if")
    store = join(0)
    ClockLink("auto").start()
    assert native.served == []
    assert json.loads(store.get("door"))["port"] == 0
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(_native, "native", None)
    ClockLink("auto").start()
    assert json.loads(store.get("door"))["port"] == 0


def test_another_rank_asks_where_it_is_told(native: Native) -> None:
    join(1).set("door", door())
    link = ClockLink("auto")
    link.start()
    assert not link.pending
    assert native.followed == [("10.0.0.1", 77, 4711, 1)]
    link.stop()
    link.stop()
    assert native.ended == 1


@pytest.mark.parametrize(
    ("chosen", "said", "asks", "same"),
    [
        ("auto", door(clock=clock_identity()), False, 1),  # one clock
        ("always", door(clock=clock_identity()), True, 0),
        ("auto", door(port=0), False, 0),
        ("always", door(port=0), False, 0),
        ("auto", "no JSON", False, 0),
        ("auto", "[]", False, 0),
        ("off", door(), False, 0),
    ],
)
def test_when_there_is_nobody_to_ask(
    native: Native, chosen: str, said: str, asks: bool, same: int
) -> None:
    join(1).set("door", said)
    link = ClockLink(chosen)
    link.start()
    assert not link.pending
    assert bool(native.followed) == asks
    link.stop()
    assert native.ended == int(asks)
    assert native.same == same


def test_capture_may_start_before_the_group_and_rank_0_may_come_late(native: Native) -> None:
    link = ClockLink("auto")
    begin = time.monotonic()
    link.start()  # no group: nothing to wait for
    link.look()
    assert time.monotonic() - begin < store_links._WAIT_S
    store = join(1)
    link.look()
    assert link.pending
    assert native.followed == []
    store.set("door", door())
    link.look()
    assert not link.pending
    assert len(native.followed) == 1


def test_a_rank_0_that_does_not_record_is_not_looked_for_for_ever(native: Native) -> None:
    join(1)
    link = ClockLink("auto")
    link.start()
    looks = 0
    while link.pending:
        link.look()
        looks += 1
    assert looks == store_links._LOOKS
    assert native.followed == []


@pytest.mark.parametrize(("local", "world_size"), [("2", 2), ("1", 1)])
def test_where_one_launcher_started_all_nothing_is_opened(
    native: Native, monkeypatch: pytest.MonkeyPatch, local: str, world_size: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    store = join(0, world_size)
    ClockLink("auto").start()
    assert native.served == []
    assert not store.check(["door"])
