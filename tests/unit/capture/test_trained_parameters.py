"""What is noted about the updates of several models, and about gradients that they keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.recorder import Recorder
from commprof.capture.trained_parameters import TrainedParameters


class _Wrapped(nn.Module):
    """A model in a wrapper that, unlike DDP, needs no other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(x)
        return output


class _Metadata:
    """Holds the last metadata instead of writing it."""

    def add_metadata(self, text: str) -> None:
        self.trained: dict[str, Any] = json.loads(text)["trained"]


def _trained(zeroing: str) -> dict[str, Any]:
    """Metadata on an encoder and a head: a pass of both, and then one of the encoder alone."""
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
    """The head keeps its gradients until the next pass of both models."""
    trained = _trained(zeroing)
    assert trained["ddp_model_bytes"] == [24, 24]
    assert trained["updated_models"] == [[1], [0]] * 3
    assert trained["kept_gradients"] == [[], kept] * 3
