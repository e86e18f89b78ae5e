from __future__ import annotations

import gc
import json
import os
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend

from commprof import _native
from commprof.capture.job import store_links
from commprof.capture.job.metadata import clock_identity
from commprof.capture.job.store_links import ArrivalLink, ClockLink


class ClockModule:
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
def clock_module(monkeypatch: pytest.MonkeyPatch) -> ClockModule:
    fake = ClockModule()
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


def join_for_clocks(rank: int, world_size: int = 2) -> dist.Store:
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=rank, world_size=world_size)
    return store_links.default_store("commprof_clock")  # type: ignore[no-any-return]


def clock_server(**changes: Any) -> str:
    return json.dumps(
        {"address": "10.0.0.1", "port": 77, "token": 4711, "clock": ["else", "where"], **changes}
    )


pytestmark = pytest.mark.usefixtures("ended")


def test_rank_0_publishes_its_clock_server_address_without_waiting(
    clock_module: ClockModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = join_for_clocks(0)
    link = ClockLink("auto")
    link.start()
    assert not link.pending
    ((address, token, world_size),) = clock_module.served
    assert (address, world_size) == ("127.0.0.1", 2)
    assert 0 < token < 2**63
    said = {"address": "127.0.0.1", "port": 77, "token": 4711, "clock": clock_identity()}
    assert json.loads(store.get("clock_server")) == said
    assert clock_module.same == 1


def test_rank_0_that_cannot_serve_clocks_publishes_port_0(
    clock_module: ClockModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_if")
    store = join_for_clocks(0)
    ClockLink("auto").start()
    assert clock_module.served == []
    assert json.loads(store.get("clock_server"))["port"] == 0
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(_native, "native", None)
    ClockLink("auto").start()
    assert json.loads(store.get("clock_server"))["port"] == 0


def test_another_rank_follows_the_published_clock_server(clock_module: ClockModule) -> None:
    join_for_clocks(1).set("clock_server", clock_server())
    link = ClockLink("auto")
    link.start()
    assert not link.pending
    assert clock_module.followed == [("10.0.0.1", 77, 4711, 1)]
    link.stop()
    link.stop()
    assert clock_module.ended == 1


@pytest.mark.parametrize(
    ("chosen", "said", "asks", "same"),
    [
        ("auto", clock_server(clock=clock_identity()), False, 1),
        ("always", clock_server(clock=clock_identity()), True, 0),
        ("auto", clock_server(port=0), False, 0),
        ("always", clock_server(port=0), False, 0),
        ("auto", "no JSON", False, 0),
        ("auto", "[]", False, 0),
        ("off", clock_server(), False, 0),
    ],
)
def test_clocks_are_not_asked_if_shared_switched_off_or_not_served(
    clock_module: ClockModule, chosen: str, said: str, asks: bool, same: int
) -> None:
    join_for_clocks(1).set("clock_server", said)
    link = ClockLink(chosen)
    link.start()
    assert not link.pending
    assert bool(clock_module.followed) == asks
    link.stop()
    assert clock_module.ended == int(asks)
    assert clock_module.same == same


def test_clocks_are_followed_once_the_group_and_rank_0_exist(
    clock_module: ClockModule,
) -> None:
    link = ClockLink("auto")
    begin = time.monotonic()
    link.start()
    link.poll()
    assert time.monotonic() - begin < store_links._WAIT_S
    store = join_for_clocks(1)
    link.poll()
    assert link.pending
    assert clock_module.followed == []
    store.set("clock_server", clock_server())
    link.poll()
    assert not link.pending
    assert len(clock_module.followed) == 1


def test_the_search_for_a_rank_0_that_does_not_record_ends(
    clock_module: ClockModule,
) -> None:
    join_for_clocks(1)
    link = ClockLink("auto")
    link.start()
    looks = 0
    while link.pending:
        link.poll()
        looks += 1
    assert looks == store_links._LOOKS
    assert clock_module.followed == []


@pytest.mark.parametrize(("local", "world_size"), [("2", 2), ("1", 1)])
def test_no_clock_server_starts_if_one_launcher_started_all_ranks(
    clock_module: ClockModule, monkeypatch: pytest.MonkeyPatch, local: str, world_size: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    store = join_for_clocks(0, world_size)
    ClockLink("auto").start()
    assert clock_module.served == []
    assert not store.check(["clock_server"])


class Native:
    def __init__(self) -> None:
        self.created: list[tuple[int, int, int]] = []
        self.opened: list[tuple[str, int, int]] = []
        self.carried: list[tuple[str, int, int]] = []
        self.peers: list[tuple[int, str, int, int]] = []
        self.flushed = 0
        self.refuses = False

    def arrivals_create(self, token: int, rank: int, local_ranks: int) -> int:
        if self.refuses:
            raise OSError("no memory")
        self.created.append((token, rank, local_ranks))
        return 9

    def arrivals_open(self, path: str, token: int, rank: int) -> None:
        if self.refuses:
            raise ValueError("another job")
        self.opened.append((path, token, rank))

    def arrivals_carry(self, address: str, token: int, host: int) -> int:
        self.carried.append((address, token, host))
        return 77

    def arrivals_peer(self, host: int, address: str, port: int, token: int) -> None:
        self.peers.append((host, address, port, token))

    def arrivals_flush(self) -> None:
        self.flushed += 1


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[Native]:
    fake = Native()
    monkeypatch.setattr(_native, "native", fake)
    monkeypatch.setattr(store_links, "_meetings", [])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(store_links, "_LATER_S", 0.0)
    monkeypatch.setattr(store_links, "_WAIT_S", 0.05)
    yield fake
    if dist.is_initialized():
        dist.destroy_process_group()


def join(rank: int, world_size: int = 2) -> dist.Store:
    """Returns the store of this host's ranks."""
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=rank, world_size=world_size)
    host = "/".join([*clock_identity(), os.readlink("/proc/self/ns/pid")])
    return store_links.default_store(f"commprof_arrivals/{host}")


def test_the_first_rank_to_arrive_on_a_host_creates_the_shared_memory(native: Native) -> None:
    store = join(1)
    link = ArrivalLink()
    link.start()
    assert not link.pending
    ((token, rank, local_ranks),) = native.created
    board = json.loads(store.get("board"))
    assert (rank, token, local_ranks) == (1, board["token"], 2)
    assert native.carried == []
    assert board["path"] == f"/proc/{os.getpid()}/fd/9"
    assert native.opened == []


def test_later_ranks_open_the_shared_memory_once_it_exists(native: Native) -> None:
    store = join(0)
    store.add("ranks", 1)
    link = ArrivalLink()
    link.start()
    assert link.pending
    store.set("board", json.dumps({"path": "/proc/1/fd/3", "token": 4711}))
    link.poll()
    assert not link.pending
    assert native.opened == [("/proc/1/fd/3", 4711, 0)]
    later = ArrivalLink()
    later.start()
    assert not later.pending
    assert (len(native.opened), native.created) == (1, [])


def test_ranks_stop_looking_if_shared_memory_cannot_be_created(native: Native) -> None:
    native.refuses = True
    store = join(0)
    link = ArrivalLink()
    link.start()
    assert not link.pending
    assert json.loads(store.get("board"))["token"] == 0
    other = ArrivalLink()
    store_links._meetings.clear()
    other.start()
    assert not other.pending
    assert native.opened == []


def test_shared_memory_that_cannot_be_opened_ends_the_search(native: Native) -> None:
    native.refuses = True
    store = join(0)
    store.add("ranks", 1)
    store.set("board", json.dumps({"path": "/proc/1/fd/3", "token": 4711}))
    link = ArrivalLink()
    link.start()
    assert not link.pending
    assert native.opened == []


def test_a_single_rank_or_no_group_shares_no_memory(native: Native) -> None:
    link = ArrivalLink()
    link.start()
    assert link.pending
    join(0, 1)
    link.poll()
    assert not link.pending
    assert (native.created, native.opened) == ([], [])


def test_without_the_native_module_the_arrival_link_is_not_pending(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "native", None)
    assert not ArrivalLink().pending


def several_hosts(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> dist.Store:
    """Returns the store of all ranks of the job."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    join(rank, world_size)
    return store_links.default_store("commprof_arrivals")


def there(port: int) -> str:
    return json.dumps({"address": "10.0.0.2", "port": port, "token": 4712})


def test_the_first_rank_of_a_host_exchanges_arrivals_with_the_other_hosts(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = several_hosts(monkeypatch, 0, 4)
    job.add("hosts", 1)
    job.set("host/1", there(88))
    link = ArrivalLink()
    link.start()
    ((address, token, number),) = native.carried
    assert (address, number) == ("127.0.0.1", 2)
    own = {"address": "127.0.0.1", "port": 77, "token": token}
    assert json.loads(job.get("host/2")) == own
    assert native.peers == [(1, "10.0.0.2", 88, 4712)]
    assert native.created[0][2] == 4
    assert not link.pending
    link.stop()
    assert native.flushed == 1
    later = ArrivalLink()
    later.start()
    assert not later.pending
    assert (len(native.created), len(native.carried), len(native.peers)) == (1, 1, 1)


def test_a_host_deep_in_the_tree_connects_to_the_hosts_above_it(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = several_hosts(monkeypatch, 0, 2400)
    job.add("hosts", 299)
    for number in (19, 2, 3):
        job.set(f"host/{number}", there(1000 + number))
    link = ArrivalLink()
    link.start()
    assert link.pending
    assert native.peers == [(19, "10.0.0.2", 1019, 4712), (2, "10.0.0.2", 1002, 4712)]
    job.set("host/1", there(0))  # Port 0 means that host 1 has no address.
    link.poll()
    assert not link.pending
    assert native.peers[2:] == [(3, "10.0.0.2", 1003, 4712)]


def test_possible_parents_have_lower_numbers_and_end_at_the_root_and_its_stand_ins() -> None:
    assert store_links.possible_parents(0) == []
    assert store_links.possible_parents(1) == []
    assert store_links.possible_parents(2) == [1]
    assert store_links.possible_parents(3) == [1, 2]
    assert store_links.possible_parents(17) == [1, 2, 3]
    assert store_links.possible_parents(18) == [2, 1, 3]
    assert store_links.possible_parents(1024) == [64, 4, 1, 2, 3]
    parents = [store_links.possible_parents(host)[0] for host in range(2, 1025)]
    assert max(parents.count(host) for host in set(parents)) == 16


def test_a_host_without_a_reachable_address_publishes_port_0(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = several_hosts(monkeypatch, 0, 2)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_if")
    job.add("hosts", 1)
    job.set("host/1", there(88))
    link = ArrivalLink()
    link.start()
    assert not link.pending
    assert json.loads(job.get("host/2"))["port"] == 0
    assert (native.carried, native.peers) == ([], [])


def test_a_host_that_published_port_0_gets_no_arrivals(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = several_hosts(monkeypatch, 0, 2)
    job.add("hosts", 1)
    job.set("host/1", there(0))
    job.add("ranks", 1)
    link = ArrivalLink()
    link.start()
    assert not link.pending
    assert (len(native.carried), native.peers) == (1, [])


def test_later_ranks_of_a_host_exchange_nothing_with_other_hosts(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = several_hosts(monkeypatch, 1, 4)
    host = "/".join([*clock_identity(), os.readlink("/proc/self/ns/pid")])
    here = store_links.default_store(f"commprof_arrivals/{host}")
    here.add("ranks", 1)
    here.set("board", json.dumps({"path": "/proc/1/fd/3", "token": 4711}))
    link = ArrivalLink()
    link.start()
    assert not link.pending
    assert not job.check(["host/1"])
    assert (native.carried, len(native.opened)) == ([], 1)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_arrival_link_does_not_keep_the_process_group_alive(
    native: Native, is_first: bool
) -> None:
    store = join(0)
    if not is_first:
        store.add("ranks", 1)
    link = ArrivalLink()
    link.start()
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    gc.collect()
    assert group() is None
    link.stop()
