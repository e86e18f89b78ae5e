from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from commprof import _native
from commprof.errors import UsageError
from commprof.forecast.microbench.buffers import TORCH_DTYPES, Buffers, Pattern, make_buffers
from commprof.forecast.microbench.calls import Side, no_meeting
from commprof.forecast.microbench.measure import (
    TimedCall,
    loop_language,
    make_sampled_call,
    take_samples,
)
from commprof.forecast.microbench.operations import (
    DTYPES,
    IN_PLACE,
    OPERATIONS,
    OUT_OF_PLACE,
    REDOPS,
    operation,
)
from tests.support.machines import commands

WORLD_SIZES = (1, 2, 3, 8)
PATTERN_COUNT = 100  # This count is no multiple of a pattern's modulus.


def stacked(pattern: Pattern, world_size: int, elements: int) -> torch.Tensor:
    return torch.stack([pattern.given(rank, elements) for rank in range(world_size)])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("redop", REDOPS)
def test_expected_reductions_equal_their_definition(
    redop: str, dtype: str, world_size: int
) -> None:
    pattern = Pattern("all_reduce", redop, dtype, world_size)
    given = stacked(pattern, world_size, PATTERN_COUNT).double()
    by_definition = {
        "sum": given.sum(0),
        "prod": given.prod(0),
        "min": given.amin(0),
        "max": given.amax(0),
        "avg": given.mean(0),
    }[redop]
    expected = pattern.expected(0, PATTERN_COUNT)
    assert expected.dtype == TORCH_DTYPES[dtype]
    if dtype.startswith(("int", "uint")) and redop == "avg":
        assert torch.equal(expected.double(), by_definition.trunc())
    else:
        assert torch.equal(expected, by_definition.to(TORCH_DTYPES[dtype]))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_expected_parts_of_gather_scatter_and_all_to_all_are_right(world_size: int) -> None:
    ranks = range(world_size)
    gather = Pattern("all_gather", "sum", "float", world_size)
    assert torch.equal(
        gather.expected(0, PATTERN_COUNT),
        torch.cat([gather.given(rank, PATTERN_COUNT) for rank in ranks]),
    )
    for op in ("reduce_scatter", "all_to_all"):
        pattern = Pattern(op, "sum", "float", world_size)
        parts = stacked(pattern, world_size, world_size * PATTERN_COUNT).view(
            world_size, world_size, PATTERN_COUNT
        )
        for rank in ranks:
            mine = parts[:, rank]
            wanted = mine.sum(0) if op == "reduce_scatter" else mine.flatten()
            assert torch.equal(pattern.expected(rank, PATTERN_COUNT), wanted)


def test_only_the_root_of_a_reduce_is_checked() -> None:
    pattern = Pattern("reduce", "sum", "float", 2)
    assert pattern.expected(1, PATTERN_COUNT) is None
    assert pattern.wrong(torch.full((PATTERN_COUNT,), torch.nan), None) == 0
    assert (
        pattern.wrong(pattern.expected(0, PATTERN_COUNT), pattern.expected(0, PATTERN_COUNT)) == 0
    )


def test_wrong_elements_are_counted() -> None:
    pattern = Pattern("all_reduce", "sum", "float", 2)
    expected = pattern.expected(0, PATTERN_COUNT)
    assert pattern.wrong(expected.clone(), expected) == 0
    planted = expected.clone()
    planted[3] += 1
    planted[-1] = torch.nan
    assert pattern.wrong(planted, expected) == 2


@pytest.mark.parametrize("dtype", ["float", "half", "bfloat16"])
def test_a_mean_may_differ_by_its_rounding_only(dtype: str) -> None:
    pattern = Pattern("all_reduce", "avg", dtype, 3)
    expected = pattern.expected(0, PATTERN_COUNT)
    eps = torch.finfo(expected.dtype).eps
    assert pattern.wrong((expected.double() * (1 + eps / 2)).to(expected.dtype), expected) == 0
    assert pattern.wrong(expected * (1 + 8 * eps), expected) > PATTERN_COUNT / 2


def test_a_mean_of_whole_numbers_is_exact() -> None:
    pattern = Pattern("all_reduce", "avg", "int32", 3)
    expected = pattern.expected(0, PATTERN_COUNT)
    assert pattern.wrong(expected.clone(), expected) == 0
    assert pattern.wrong(expected + 1, expected) == PATTERN_COUNT


def test_swapped_blocks_missing_ranks_and_stale_data_are_detected() -> None:
    gather = Pattern("all_gather", "sum", "float", 4)
    expected = gather.expected(0, PATTERN_COUNT)
    exchanged = torch.cat(
        [
            expected[PATTERN_COUNT : 2 * PATTERN_COUNT],
            expected[:PATTERN_COUNT],
            expected[2 * PATTERN_COUNT :],
        ]
    )
    assert gather.wrong(exchanged, expected) > PATTERN_COUNT
    total = Pattern("all_reduce", "sum", "float", 4)
    without_one = stacked(total, 4, PATTERN_COUNT)[:3].sum(0)
    assert total.wrong(without_one, total.expected(0, PATTERN_COUNT)) > PATTERN_COUNT / 2
    assert (
        total.wrong(torch.zeros(PATTERN_COUNT), total.expected(0, PATTERN_COUNT)) == PATTERN_COUNT
    )


def test_sums_that_the_type_cannot_hold_exactly_are_refused() -> None:
    with pytest.raises(UsageError, match="a sum over 200 ranks is not exact in int8"):
        Pattern("all_reduce", "sum", "int8", 200)
    assert Pattern("all_reduce", "max", "int8", 200).expected(0, 3).tolist() == [6, 6, 6]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_in_place_buffers_share_memory_as_in_nccl(op: str) -> None:
    buffers = make_buffers(operation(op), IN_PLACE, PATTERN_COUNT, 1, 3, "float", "cpu")
    pattern = Pattern(op, "sum", "float", 3)
    buffers.fill(pattern, 1)
    part, itemsize = PATTERN_COUNT * 4, 4
    offset = buffers.target.data_ptr() - buffers.source.data_ptr()
    assert offset == {"all_reduce": 0, "all_gather": -part, "reduce_scatter": part}[op]
    assert torch.equal(buffers.source, pattern.given(1, buffers.source.numel()))
    assert buffers.source.element_size() == itemsize
    apart = make_buffers(operation(op), OUT_OF_PLACE, PATTERN_COUNT, 1, 3, "float", "cpu")
    assert apart.source.untyped_storage().data_ptr() != apart.target.untyped_storage().data_ptr()


pytestmark = pytest.mark.skipif(_native.native is None, reason="no native module")

RANKS = 2
COUNT = 1000
NOTHING = Buffers(torch.empty(0), torch.empty(0))
T = TypeVar("T")


def on_both(work: Callable[[int], T]) -> list[T]:
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
def test_every_operation_gives_the_expected_result(
    sides: list[Side], op: str, placement: str
) -> None:
    pattern = Pattern(op, "sum", "float", RANKS)

    def wrong(rank: int) -> tuple[Any, int]:
        buffers = make_buffers(operation(op), placement, COUNT, rank, RANKS, "float", "cpu")
        call = make_sampled_call(op, sides[rank], buffers, "sum")
        buffers.fill(pattern, rank)
        call()
        return call, pattern.wrong(buffers.target, pattern.expected(rank, COUNT))

    assert _native.tune_error is None
    for call, count in on_both(wrong):
        assert isinstance(call, _native.tune.CollectiveCall)
        assert count == 0


@pytest.mark.parametrize("redop", ["prod", "min", "max"])
def test_reduce_operations_give_different_results(sides: list[Side], redop: str) -> None:
    def result(rank: int) -> float:
        one = torch.full((1,), float(rank + 2))
        make_sampled_call("all_reduce", sides[rank], Buffers(one, one), redop)()
        return float(one)

    assert on_both(result) == [{"prod": 6.0, "min": 2.0, "max": 3.0}[redop]] * RANKS


@pytest.mark.parametrize("meets", [True, False])
def test_samples_are_consecutive_and_end_after_all_ranks_began(
    sides: list[Side], meets: bool
) -> None:
    def sampled(rank: int) -> Any:
        buffers = make_buffers(
            operation("all_reduce"), IN_PLACE, COUNT, rank, RANKS, "float", "cpu"
        )
        meet = make_sampled_call("barrier", sides[rank], NOTHING, "sum") if meets else no_meeting
        call = make_sampled_call("all_reduce", sides[rank], buffers, "sum")
        return take_samples(TimedCall(call), meet, 20)

    first, second = on_both(sampled)
    for times in (first, second):
        assert len(times.begin_ns) == len(times.end_ns) == 20
        assert (times.end_ns > times.begin_ns).all()
        assert (times.begin_ns[1:] >= times.end_ns[:-1]).all()
    assert (first.end_ns > second.begin_ns).all()
    assert (second.end_ns > first.begin_ns).all()


def test_python_takes_the_samples_of_calls_that_are_not_native(
    sides: list[Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = make_sampled_call("barrier", sides[0], NOTHING, "sum")
    calls = []
    assert len(take_samples(TimedCall(lambda: calls.append(1)), no_meeting, 3).end_ns) == 3
    prepared = TimedCall(lambda: None, prepare=lambda: calls.append(2))
    assert len(take_samples(prepared, no_meeting, 2).end_ns) == 2
    assert calls == [1, 1, 1, 2, 2]
    monkeypatch.setattr(_native, "tune_error", "none")
    assert type(make_sampled_call("barrier", sides[0], NOTHING, "sum")) is not type(barrier)
    assert (loop_language(on_cpu=True), loop_language(on_cpu=False)) == ("Python", "Python")


def test_unknown_operations_reduce_ops_and_devices_are_refused(sides: list[Side]) -> None:
    assert _native.tune_error is None
    one, group = torch.ones(1), sides[0].group
    with pytest.raises(ValueError, match=re.escape("unknown operation 'gossip' (allowed: all_g")):
        _native.tune.CollectiveCall(group, "gossip", one, one, "sum", 0)
    with pytest.raises(ValueError, match="unknown reduce op 'median'"):
        _native.tune.CollectiveCall(group, "all_reduce", one, one, "median", 0)
    with pytest.raises(ValueError, match="a tensor is on meta"):
        _native.tune.CollectiveCall(group, "reduce", one, one.to("meta"), "sum", 0)


def test_deleting_a_call_with_the_last_reference_to_its_group_releases_the_gil() -> None:
    script = Path(__file__).parents[3] / "support/ranks/last_reference_to_group.py"
    ended = commands.call(str(script), timeout_s=60.0)
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr
