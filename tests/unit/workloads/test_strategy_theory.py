from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from commprof.errors import UsageError
from commprof.workloads.models.mlp import Mlp, MlpOptions
from commprof.workloads.options import TrainingOptions
from commprof.workloads.spec import Shard, Trainee
from commprof.workloads.strategies import STRATEGY_NAMES, listed_strategies, parse_strategy
from commprof.workloads.strategies.fsdp import Fsdp
from commprof.workloads.strategies.theory import broadcast_buffers, padded_count

OPTIONS = MlpOptions(inputs=6, width=10, layers=2, classes=3, samples=4)
# The blocks have 10 x 6 + 10 and 10 x 10 + 10 parameters, the last layer has 3 x 10 + 3.
BLOCKS, REST = 70 + 110, 33


def trainee() -> Trainee:
    return Mlp(OPTIONS).build(Shard(0, 1, 4, steps=1, seed=0))


def expected(
    strategy: str, world_size: int, built: Trainee | None = None, **options: object
) -> dict[str, int]:
    training = TrainingOptions(**options)  # type: ignore[arg-type]
    rows = parse_strategy(strategy).expected(built or trainee(), training, world_size)
    assert len({row.op for row in rows}) == len(rows)
    return {row.op: row.size_bytes for row in rows}


@pytest.mark.parametrize(
    ("options", "is_sent"),
    [
        ({}, True),
        ({"broadcast_buffers": None}, True),
        ({"broadcast_buffers": False}, False),
        ({"forward_sync_buffers": False}, False),
        ({"forward_sync_buffers": True, "broadcast_buffers": False}, True),
    ],
)
def test_buffers_are_expected_only_if_ddp_broadcasts_them(
    options: dict[str, object], is_sent: bool
) -> None:
    model = torch.nn.BatchNorm1d(4)  # the buffers are 8 floats and a count of 8 bytes
    assert sum(row.size_bytes for row in broadcast_buffers(model, options)) == 40 * is_sent


def test_ddp_reduces_every_gradient_once() -> None:
    whole = 4 * (BLOCKS + REST)
    assert expected("ddp", 4) == {"all_reduce": whole}
    assert expected("ddp", 4, accumulate=4, precision="bf16") == {"all_reduce": whole}


def test_zero1_also_broadcasts_updated_parameters() -> None:
    whole = 4 * (BLOCKS + REST)
    assert expected("zero1", 4) == {"all_reduce": whole, "broadcast": whole}


def test_ddp_broadcasts_buffers() -> None:
    built = trainee()
    built.model.register_buffer("mask", torch.zeros(5, 5))
    built.model.register_buffer("count", torch.zeros((), dtype=torch.int64))
    assert expected("ddp", 2, built)["broadcast"] == 100 + 8


def test_frozen_parameters_have_no_gradients() -> None:
    built = trainee()
    for parameter in built.blocks[0].parameters():
        parameter.requires_grad = False
    assert expected("ddp", 2, built) == {"all_reduce": 4 * (110 + REST)}
    assert expected("fsdp", 2, built) == {
        "all_gather_into_tensor": 4 * (2 * BLOCKS + 4 * 10 + 4),
        "reduce_scatter_tensor": 4 * (110 + 4 * 10 + 4),
    }


def test_fsdp_gathers_blocks_twice_and_the_rest_once() -> None:
    # The last layer's 3 rows are padded to 4 rows for 2 ranks.
    rest = 4 * 10 + 4
    assert expected("fsdp", 2) == {
        "all_gather_into_tensor": 4 * (2 * BLOCKS + rest),
        "reduce_scatter_tensor": 4 * (BLOCKS + rest),
    }
    blocks = 12 * 6 + 12 + 12 * 10 + 12
    assert expected("fsdp", 4)["reduce_scatter_tensor"] == 4 * (blocks + rest)


def test_fsdp_with_several_blocks_per_unit_exchanges_the_same_bytes() -> None:
    assert expected("fsdp:wrap_blocks=2", 2) == expected("fsdp", 2)
    strategy = parse_strategy("hsdp:shard=2,wrap_blocks=2")
    assert isinstance(strategy, Fsdp)
    three = Mlp(replace(OPTIONS, layers=3)).build(Shard(0, 1, 4, steps=1, seed=0))
    assert [len(unit) for unit in strategy.units(three)] == [2, 1]


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("ddp", ["ddp"]),
        ("ddp, fsdp", ["ddp", "fsdp"]),
        ("hsdp:shard=2,wrap_blocks=3,zero1", ["hsdp:shard=2,wrap_blocks=3", "zero1"]),
        ("fsdp,fsdp:wrap_blocks=2", ["fsdp", "fsdp:wrap_blocks=2"]),
        ("fsdp,shard=2", ["fsdp", "shard=2"]),
    ],
)
def test_a_list_of_strategies_is_split_at_strategy_names(text: str, listed: list[str]) -> None:
    assert listed_strategies(text) == listed


def test_fsdp_gathers_again_in_every_accumulated_pass_and_scatters_once() -> None:
    once, four = expected("fsdp", 2), expected("fsdp", 2, accumulate=4)
    assert four["all_gather_into_tensor"] == 4 * once["all_gather_into_tensor"]
    assert four["reduce_scatter_tensor"] == once["reduce_scatter_tensor"]


def test_fsdp_gathers_half_the_bytes_in_bf16_and_reduces_in_fp32() -> None:
    full, low = expected("fsdp", 2), expected("fsdp", 2, precision="bf16")
    assert 2 * low["all_gather_into_tensor"] == full["all_gather_into_tensor"]
    assert low["reduce_scatter_tensor"] == full["reduce_scatter_tensor"]


def test_one_rank_has_nothing_to_shard() -> None:
    assert expected("fsdp", 1) == expected("hsdp", 1) == {}


def test_hsdp_reduces_shards_between_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    within = expected("fsdp", 2)
    assert expected("hsdp", 4) == {**within, "all_reduce": within["reduce_scatter_tensor"] // 2}
    assert expected("hsdp:shard=4", 4) == expected("fsdp", 4)
    assert expected("hsdp", 2) == expected("fsdp", 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert expected("hsdp", 8) == {**within, "all_reduce": within["reduce_scatter_tensor"] // 2}


@pytest.mark.parametrize(
    ("shape", "ranks", "count"),
    [((10, 6), 4, 72), ((3,), 4, 4), ((8, 2), 4, 16), ((), 4, 4), ((1, 5), 2, 10)],
)
def test_a_parameter_is_padded_to_equal_parts_per_rank(
    shape: tuple[int, ...], ranks: int, count: int
) -> None:
    assert padded_count(torch.zeros(shape), ranks) == count


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_a_bare_name_gives_the_strategy(name: str) -> None:
    strategy = parse_strategy(name)
    assert strategy.name == name
    strategy.check(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fsd", r"unknown strategy 'fsd' \(allowed: ddp, .*\); did you mean 'fsdp'"),
        ("hsdp:shards=2", r"hsdp: unknown option 'shards' .* 'shard'"),
        ("hsdp:shard=x", "shard='x' is not a whole number"),
        ("fsdp:wrap_blocks=0", "wrap_blocks"),
        ("ddp:shard=2", "ddp: unknown option 'shard'"),
    ],
)
def test_an_unusable_strategy_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_strategy(text)


def test_hsdp_groups_of_unequal_size_are_refused() -> None:
    with pytest.raises(UsageError, match=r"shard=3 does not divide 4 ranks \(allowed: 1, 2, 4"):
        parse_strategy("hsdp:shard=3").check(4)
