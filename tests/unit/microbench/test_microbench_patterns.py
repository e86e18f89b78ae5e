"""Data with a known result: the closed form against the definition, and what it must notice."""

from __future__ import annotations

import pytest
import torch

from commprof.errors import UsageError
from commprof.microbench.operations import DTYPES, IN_PLACE, OUT_OF_PLACE, REDOPS, operation
from commprof.microbench.patterns import TORCH_DTYPES, Pattern
from commprof.microbench.timing.buffers import make_buffers

WORLD_SIZES = (1, 2, 3, 8)
COUNT = 100  # no multiple of any modulus


def stacked(pattern: Pattern, world_size: int, elements: int) -> torch.Tensor:
    return torch.stack([pattern.given(rank, elements) for rank in range(world_size)])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("redop", REDOPS)
def test_reductions_are_what_the_definition_says(redop: str, dtype: str, world_size: int) -> None:
    pattern = Pattern("all_reduce", redop, dtype, world_size)
    given = stacked(pattern, world_size, COUNT).double()
    by_definition = {
        "sum": given.sum(0),
        "prod": given.prod(0),
        "min": given.amin(0),
        "max": given.amax(0),
        "avg": given.mean(0),
    }[redop]
    expected = pattern.expected(0, COUNT)
    assert expected.dtype == TORCH_DTYPES[dtype]
    if dtype.startswith(("int", "uint")) and redop == "avg":
        assert torch.equal(expected.double(), by_definition.trunc())
    else:
        assert torch.equal(expected, by_definition.to(TORCH_DTYPES[dtype]))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_parts_go_where_they_must(world_size: int) -> None:
    ranks = range(world_size)
    gather = Pattern("all_gather", "sum", "float", world_size)
    assert torch.equal(
        gather.expected(0, COUNT), torch.cat([gather.given(rank, COUNT) for rank in ranks])
    )
    for op in ("reduce_scatter", "all_to_all"):
        pattern = Pattern(op, "sum", "float", world_size)
        parts = stacked(pattern, world_size, world_size * COUNT).view(world_size, world_size, COUNT)
        for rank in ranks:
            mine = parts[:, rank]  # what each rank holds for this one
            wanted = mine.sum(0) if op == "reduce_scatter" else mine.flatten()
            assert torch.equal(pattern.expected(rank, COUNT), wanted)


def test_only_the_root_of_a_reduce_is_promised_something() -> None:
    pattern = Pattern("reduce", "sum", "float", 2)
    assert pattern.expected(1, COUNT) is None
    assert pattern.wrong(torch.full((COUNT,), torch.nan), None) == 0
    assert pattern.wrong(pattern.expected(0, COUNT), pattern.expected(0, COUNT)) == 0


def test_wrong_elements_are_counted() -> None:
    pattern = Pattern("all_reduce", "sum", "float", 2)
    expected = pattern.expected(0, COUNT)
    assert pattern.wrong(expected.clone(), expected) == 0
    planted = expected.clone()
    planted[3] += 1
    planted[-1] = torch.nan
    assert pattern.wrong(planted, expected) == 2


@pytest.mark.parametrize("dtype", ["float", "half", "bfloat16"])
def test_a_mean_may_be_off_by_its_rounding_and_no_more(dtype: str) -> None:
    pattern = Pattern("all_reduce", "avg", dtype, 3)
    expected = pattern.expected(0, COUNT)
    eps = torch.finfo(expected.dtype).eps
    assert pattern.wrong((expected.double() * (1 + eps / 2)).to(expected.dtype), expected) == 0
    assert pattern.wrong(expected * (1 + 8 * eps), expected) > COUNT / 2


def test_a_mean_of_whole_numbers_is_exact() -> None:
    pattern = Pattern("all_reduce", "avg", "int32", 3)
    expected = pattern.expected(0, COUNT)
    assert pattern.wrong(expected.clone(), expected) == 0
    assert pattern.wrong(expected + 1, expected) == COUNT


def test_an_exchanged_block_a_missing_rank_and_stale_data_show() -> None:
    gather = Pattern("all_gather", "sum", "float", 4)
    expected = gather.expected(0, COUNT)
    exchanged = torch.cat([expected[COUNT : 2 * COUNT], expected[:COUNT], expected[2 * COUNT :]])
    assert gather.wrong(exchanged, expected) > COUNT
    total = Pattern("all_reduce", "sum", "float", 4)
    without_one = stacked(total, 4, COUNT)[:3].sum(0)
    assert total.wrong(without_one, total.expected(0, COUNT)) > COUNT / 2
    assert total.wrong(torch.zeros(COUNT), total.expected(0, COUNT)) == COUNT


def test_sums_that_no_type_holds_are_refused() -> None:
    with pytest.raises(UsageError, match="a sum over 200 ranks is not exact in int8"):
        Pattern("all_reduce", "sum", "int8", 200)
    assert Pattern("all_reduce", "max", "int8", 200).expected(0, 3).tolist() == [6, 6, 6]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_in_place_means_one_memory_as_in_nccl(op: str) -> None:
    buffers = make_buffers(operation(op), IN_PLACE, COUNT, 1, 3, "float", "cpu")
    pattern = Pattern(op, "sum", "float", 3)
    buffers.fill(pattern, 1)
    part, itemsize = COUNT * 4, 4
    offset = buffers.target.data_ptr() - buffers.source.data_ptr()
    assert offset == {"all_reduce": 0, "all_gather": -part, "reduce_scatter": part}[op]
    assert torch.equal(buffers.source, pattern.given(1, buffers.source.numel()))
    assert buffers.source.element_size() == itemsize
    apart = make_buffers(operation(op), OUT_OF_PLACE, COUNT, 1, 3, "float", "cpu")
    assert apart.source.untyped_storage().data_ptr() != apart.target.untyped_storage().data_ptr()
