from __future__ import annotations

import pytest
import torch

from commprof.errors import UsageError
from commprof.workloads.resnet50 import Resnet50, ResnetOptions
from commprof.workloads.spec import Shard, parse_spec
from tests.support.alone import alone

TINY = ResnetOptions(samples=4, image=8)


@pytest.mark.parametrize(("classes", "count"), [(1000, 25_557_032), (10, 23_528_522)])
def test_the_canonical_parameter_counts(classes: int, count: int) -> None:
    assert Resnet50(ResnetOptions(classes=classes)).parameter_count == count


def test_sixteen_blocks_with_the_canonical_shapes() -> None:
    trainee = Resnet50(TINY).build(Shard(0, 1, 2, steps=1, seed=0))
    features, shapes = torch.zeros(1, 64, 56, 56), []
    for block in trainee.blocks:
        features = block(features)
        shapes.append(tuple(features.shape[1:]))
    stages = [(256, 56, 56)] * 3 + [(512, 28, 28)] * 4 + [(1024, 14, 14)] * 6 + [(2048, 7, 7)] * 3
    assert shapes == stages
    inside = {id(p) for block in trainee.blocks for p in block.parameters()}
    rest = sum(p.numel() for p in trainee.model.parameters() if id(p) not in inside)
    assert rest == 64 * 3 * 7 * 7 + 2 * 64 + 2048 * 10 + 10  # the stem and the last layer


def test_it_trains_on_images_of_any_size() -> None:
    shard = Shard(0, 1, 4, steps=4, seed=0)
    training = alone(Resnet50(TINY).build(shard), shard)
    losses = []
    for epoch in range(3):
        ((batch,),) = training.batches(epoch)
        loss = training.forward(batch)
        training.backward(loss, 1.0)
        training.update()
        losses.append(loss.item())
    assert all(0 < loss < 100 for loss in losses)
    assert batch.inputs.shape == (4, 3, 8, 8)


def test_description_and_epochs() -> None:
    workload = Resnet50(ResnetOptions(samples=100))
    assert "23,528,522 parameters (10 classes), 100 made-up images of 32 x 32" in (
        workload.describe()
    )
    assert workload.steps_per_epoch(world_size=2, per_rank_batch=16) == 4


def test_images_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match=r"data='cats' is no images \(allowed: synthetic, digits"):
        parse_spec("resnet50:data=cats")
