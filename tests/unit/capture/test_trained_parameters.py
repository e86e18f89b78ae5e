from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.recorder import Recorder
from commprof.capture.trained_parameters import TrainedParameters


class _Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(x)
        return output


class _Metadata:
    def add_metadata(self, text: str) -> None:
        self.trained: dict[str, Any] = json.loads(text)["trained"]


def _trained(zeroing: str) -> dict[str, Any]:
    encoder, head, written = _Wrapped(), _Wrapped(), _Metadata()
    models = [cast("DistributedDataParallel", model) for model in (encoder, head)]
    trained = TrainedParameters(cast("Recorder", written), lambda: models, lambda: False)
    trained.install(Path("unused"))
    of_encoder, of_head = (torch.optim.SGD(model.parameters(), 0.1) for model in (encoder, head))
    for _ in range(3):
        of_encoder.zero_grad()
        of_head.zero_grad()
        head(encoder(torch.ones(1, 2))).sum().backward()
        trained.before_update(of_head)
        of_head.step()
        if zeroing != "never":
            of_encoder.zero_grad(set_to_none=zeroing == "deleted")
        encoder(torch.ones(1, 2)).sum().backward()
        trained.before_update(of_encoder)
        of_encoder.step()
    trained.remove()
    return written.trained


@pytest.mark.parametrize(
    ("zeroing", "kept"), [("never", [0, 1]), ("in place", [0, 1]), ("deleted", [1])]
)
def test_gradients_that_are_not_deleted_between_two_updates_are_noted(
    zeroing: str, kept: list[int]
) -> None:
    trained = _trained(zeroing)
    assert trained["ddp_model_bytes"] == [24, 24]
    assert trained["updated_models"] == [[1], [0]] * 3
    assert trained["kept_gradients"] == [[], kept] * 3


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("later", "parameter_bytes"), [(False, 12), (True, 36)])
def test_parameters_that_were_frozen_when_ddp_was_made_are_not_reduced(
    one_rank: None, later: bool, parameter_bytes: int
) -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    layers[0].requires_grad_(False)
    model, written = DistributedDataParallel(layers), _Metadata()
    layers[0].requires_grad_(later)
    trained = TrainedParameters(cast("Recorder", written), lambda: [model], lambda: False)
    trained.install(Path("unused"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(1, 2)).sum().backward()
    trained.before_update(optimizer)
    trained.remove()
    assert written.trained["parameter_bytes"] == parameter_bytes
    assert written.trained["ddp_bytes"] == 12
    assert written.trained["ddp_model_bytes"] == [12]
