from __future__ import annotations

import copy
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.tune import compressors
from tests.support.ranks.compressors.checks import TIMEOUT_S, WIDTH, attached, batch


def sparse_gradients_pass() -> None:
    def made() -> DistributedDataParallel:
        torch.manual_seed(3)
        return DistributedDataParallel(nn.EmbeddingBag(50, 8, sparse=True))

    def trained(ddp: DistributedDataParallel) -> torch.Tensor:
        for step in range(2):
            ddp.zero_grad()
            ddp(torch.tensor([[step, dist.get_rank() + 1]])).square().sum().backward()
        return ddp.module.weight.grad

    plain, ddp = made(), made()
    with attached(ddp, compressors.topk(0.1)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = trained(ddp)
    told = [str(w.message) for w in caught if "exchanged uncompressed" in str(w.message)]
    assert len(told) == 1, told
    assert "Sparse" in told[0]
    assert found.is_sparse
    assert torch.equal(found.to_dense(), trained(plain).to_dense())


def residuals_of_unused_wait() -> None:
    """DDP drops the mean of a parameter that no rank used, so the residual must not be sent."""
    torch.manual_seed(3)
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            x = self.parts[0](x)
            return self.parts[1](x) if both else x

    ddp = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
    compressor = compressors.topk(0.05)
    name = "parts.1.weight"
    applied = torch.zeros(WIDTH, WIDTH)
    given = torch.zeros(WIDTH, WIDTH)
    with attached(ddp, compressor):
        for step in range(6):
            ddp.zero_grad()
            before = _residual(compressor, name) if step else None
            both = step % 3 == 0
            with torch.no_grad():
                x = batch(step)
            ddp(x, both).square().mean().backward()
            if both:
                applied += model[1].weight.grad
                local = copy.deepcopy(model).requires_grad_(True)
                local.zero_grad()
                local[1](local[0](x)).square().mean().backward()
                given += local[1].weight.grad
            else:
                assert model[1].weight.grad is None
                assert torch.equal(_residual(compressor, name), before)
        rest = _residual(compressor, name).view(WIDTH, WIDTH).clone()
    for tensor in (given, rest):
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
    assert rest.any()
    assert torch.allclose(applied + rest, given, rtol=1e-4, atol=1e-7)


def _residual(compressor: compressors.Compressor, name: str) -> torch.Tensor:
    return compressor.state_dict()["parameters"][name]["residual"]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    sparse_gradients_pass()
    residuals_of_unused_wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
