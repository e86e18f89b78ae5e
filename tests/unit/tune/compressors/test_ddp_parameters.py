from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.cross_check_sources import ddp_log
from commprof.capture.sync_check import parameters_digest
from commprof.checks import gradients
from commprof.ddp_parameters import kept_equal, reduced, reduced_first


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.table = nn.Linear(3, 4, bias=False)
        self.tied = nn.Linear(3, 4, bias=False)
        self.tied.weight = self.table.weight
        self.frozen = nn.Linear(5, 5, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.rows = nn.Embedding(6, 2)
        self.mlp = nn.Linear(4, 2)


def model(ignored: list[str], **options: Any) -> DistributedDataParallel:
    net = Net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignored)
    return DistributedDataParallel(net, **options)


def in_buckets(ddp: DistributedDataParallel) -> set[int]:
    buckets = ddp.reducer._get_zeros_like_grad_buckets()
    return {id(parameter) for bucket in buckets for parameter in bucket.parameters()}


@pytest.mark.parametrize(
    ("ignored", "names"),
    [
        ([], ["scale", "table.weight", "rows.weight", "mlp.weight", "mlp.bias"]),
        (["mlp.weight", "mlp.bias"], ["scale", "table.weight", "rows.weight"]),
        # DDP reduces a shared weight if only one of its names is ignored.
        (["table.weight"], ["scale", "table.weight", "rows.weight", "mlp.weight", "mlp.bias"]),
        (["table.weight", "tied.weight"], ["scale", "rows.weight", "mlp.weight", "mlp.bias"]),
        # DDP reduces parameters of the outermost module even if they are ignored.
        (["scale", "rows.weight"], ["scale", "table.weight", "mlp.weight", "mlp.bias"]),
    ],
)
def test_reduced_parameters_are_those_of_ddps_reducer(ignored: list[str], names: list[str]) -> None:
    ddp = model(ignored)
    found = reduced(ddp)
    assert {id(parameter) for _, parameter in found} == in_buckets(ddp)
    assert [name for name, _ in found] == names
    everyone = reduced_first(ddp)
    assert everyone[: len(found)] == found
    assert sorted(name for name, _ in everyone) == sorted(
        name for name, _ in ddp.module.named_parameters()
    )


def test_ddps_log_counts_the_bytes_of_reduced_parameters_only() -> None:
    log = ddp_log(model(["mlp.weight", "rows.weight"]))
    assert log is not None
    assert log["parameter_bytes"] == [4 * 1, 4 * 12, 4 * 2]


def test_the_digest_leaves_out_what_ddp_does_not_keep_equal() -> None:
    ddp, other = (model(["mlp.weight", "table.weight"]) for _ in range(2))
    other.load_state_dict(ddp.state_dict())
    with torch.no_grad():
        other.module.mlp.weight.add_(1)
        other.module.table.weight.add_(1)
    assert parameters_digest([ddp]) == parameters_digest([other])
    with torch.no_grad():
        other.module.frozen.weight.add_(1)  # DDP broadcasts frozen parameters
    assert parameters_digest([ddp]) != parameters_digest([other])


def test_out_of_sync_compares_what_ddp_keeps_equal() -> None:
    ddp = model(["mlp.weight"])
    norm = DistributedDataParallel(nn.BatchNorm1d(2))
    hashes = [gradients._hash_of(gradients._numbered(one)) for one in (ddp, norm)]
    with torch.no_grad():
        ddp.module.mlp.weight.add_(1)
    norm(torch.rand(4, 2))
    assert [gradients._hash_of(gradients._numbered(one)) for one in (ddp, norm)] == hashes
    with torch.no_grad():
        ddp.module.mlp.bias.add_(1)
    assert gradients._hash_of(gradients._numbered(ddp)) != hashes[0]


def test_parameters_with_a_delayed_all_reduce_are_kept_equal_but_not_in_buckets() -> None:
    net = Net()
    delayed = [("mlp.weight", net.mlp.weight)]
    ddp = DistributedDataParallel(
        net, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=net.mlp.bias
    )
    assert {id(parameter) for _, parameter in reduced(ddp)} == in_buckets(ddp)
    assert "mlp.weight" not in dict(reduced(ddp))
    assert any(parameter is net.mlp.weight for parameter in kept_equal(ddp))


def test_parameters_without_values_are_not_compared() -> None:
    net = Net()
    net.mlp.weight = nn.Parameter(torch.empty(2, 4, device="meta"))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["mlp.weight"])
    ddp = DistributedDataParallel(net)
    ddp.parameters_to_ignore = set()
    assert len(parameters_digest([ddp])) == 32
