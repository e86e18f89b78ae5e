"""The loop of samples in C++: two ranks over gloo, as threads of this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from commprof import _native
from commprof.microbench.calls import Side, no_meeting
from commprof.microbench.operations import IN_PLACE, OPERATIONS, operation
from commprof.microbench.patterns import Pattern
from commprof.microbench.timing.buffers import Buffers, make_buffers
from commprof.microbench.timing.measure import Subject, take_samples
from commprof.microbench.timing.native_loop import loop_language, make_sampled_call

pytestmark = pytest.mark.skipif(_native.native is None, reason="no native module")

RANKS = 2
COUNT = 1000
NOTHING = Buffers(torch.empty(0), torch.empty(0))
T = TypeVar("T")


def on_both(work: Callable[[int], T]) -> list[T]:
    """By rank, at the same time; native calls release the GIL."""
    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(work, range(RANKS), timeout=60))


@pytest.fixture(scope="module")
def sides() -> list[Side]:
    store = dist.HashStore()

    def joined(rank: int) -> Side:
        gloo = dist.ProcessGroup.BackendType.GLOO
        backend = dist.ProcessGroupGloo(store, rank, RANKS, timedelta(seconds=30))
        group = dist.ProcessGroup(store, rank, RANKS)
        group._set_default_backend(gloo)
        group._register_backend(torch.device("cpu"), gloo, backend)
        return Side(group, rank, RANKS, "cpu")

    return on_both(joined)


@pytest.mark.parametrize(
    ("op", "placement"),
    [(name, place) for name, kind in OPERATIONS.items() if kind.sized for place in kind.placements],
)
def test_every_operation_leaves_what_it_must(sides: list[Side], op: str, placement: str) -> None:
    pattern = Pattern(op, "sum", "float", RANKS)

    def wrong(rank: int) -> tuple[Any, int]:
        buffers = make_buffers(operation(op), placement, COUNT, rank, RANKS, "float", "cpu")
        call = make_sampled_call(op, sides[rank], buffers, "sum")
        buffers.fill(pattern, rank)
        call()
        return call, pattern.wrong(buffers.target, pattern.expected(rank, COUNT))

    assert _native.native is not None
    for call, count in on_both(wrong):
        assert isinstance(call, _native.native.CollectiveCall)
        assert count == 0


@pytest.mark.parametrize("redop", ["prod", "min", "max"])
def test_reduce_operations_are_told_apart(sides: list[Side], redop: str) -> None:
    def result(rank: int) -> float:
        one = torch.full((1,), float(rank + 2))
        make_sampled_call("all_reduce", sides[rank], Buffers(one, one), redop)()
        return float(one)

    assert on_both(result) == [{"prod": 6.0, "min": 2.0, "max": 3.0}[redop]] * RANKS


@pytest.mark.parametrize("meets", [True, False])
def test_samples_follow_each_other_behind_the_last_begin(sides: list[Side], meets: bool) -> None:
    def sampled(rank: int) -> Any:
        buffers = make_buffers(
            operation("all_reduce"), IN_PLACE, COUNT, rank, RANKS, "float", "cpu"
        )
        meet = make_sampled_call("barrier", sides[rank], NOTHING, "sum") if meets else no_meeting
        call = make_sampled_call("all_reduce", sides[rank], buffers, "sum")
        return take_samples(Subject(call), meet, 20)

    first, second = on_both(sampled)
    for times in (first, second):
        assert len(times.begin_ns) == len(times.end_ns) == 20
        assert (times.end_ns > times.begin_ns).all()
        assert (times.begin_ns[1:] >= times.end_ns[:-1]).all()
    # No rank has the sum before the other has begun.
    assert (first.end_ns > second.begin_ns).all()
    assert (second.end_ns > first.begin_ns).all()


def test_python_samples_what_is_not_of_cpp(
    sides: list[Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = make_sampled_call("barrier", sides[0], NOTHING, "sum")
    calls = []
    assert len(take_samples(Subject(lambda: calls.append(1)), no_meeting, 3).end_ns) == 3
    prepared = Subject(lambda: None, prepare=lambda: calls.append(2))
    assert len(take_samples(prepared, no_meeting, 2).end_ns) == 2
    assert calls == [1, 1, 1, 2, 2]
    monkeypatch.setattr(_native, "native", None)
    assert type(make_sampled_call("barrier", sides[0], NOTHING, "sum")) is not type(barrier)
    assert (loop_language(on_cpu=True), loop_language(on_cpu=False)) == ("Python", "Python")


def test_what_is_unknown_is_refused_by_name(sides: list[Side]) -> None:
    assert _native.native is not None
    one, group = torch.ones(1), sides[0].group
    with pytest.raises(ValueError, match=re.escape("unknown operation 'gossip' (allowed: all_g")):
        _native.native.CollectiveCall(group, "gossip", one, one, "sum", 0)
    with pytest.raises(ValueError, match="unknown reduce op 'median'"):
        _native.native.CollectiveCall(group, "all_reduce", one, one, "median", 0)
    with pytest.raises(ValueError, match="a tensor is on meta"):
        _native.native.CollectiveCall(group, "reduce", one, one.to("meta"), "sum", 0)
