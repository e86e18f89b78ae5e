from __future__ import annotations

import pytest
import torch

from commprof.errors import UsageError
from commprof.workloads.models.resnet50 import Resnet50, ResnetOptions
from commprof.workloads.spec import Shard, parse_spec
from tests.support.ranks.alone import alone

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


@pytest.mark.parametrize(
    ("samples", "ranks", "batch", "image", "advice"),
    [
        (320, 16, 1, 32, "each pass would have one image of 32 x 32"),
        (
            1797,
            8,
            8,
            32,
            r"the last pass of an epoch .*225 images per rank, 8 per.* of 9 ",
        ),
        (33, 1, 16, 8, "a batch of 17 per rank, or image=33"),
        (4, 4, 16, 32, "fewer ranks, or image=33"),
    ],
)
def test_a_pass_of_one_small_image_is_refused_with_what_would_do(
    samples: int, ranks: int, batch: int, image: int, advice: str
) -> None:
    workload = Resnet50(ResnetOptions(samples=samples, image=image))
    with pytest.raises(UsageError, match=advice):
        workload.steps_per_epoch(ranks, batch)
    larger = Resnet50(ResnetOptions(samples=samples, image=33))
    assert larger.steps_per_epoch(ranks, batch) > 0


@pytest.mark.parametrize(("samples", "batch"), [(2, 16), (32, 16), (225, 9), (225, 15)])
def test_passes_of_two_images_or_more_are_taken(samples: int, batch: int) -> None:
    assert Resnet50(ResnetOptions(samples=samples)).steps_per_epoch(1, batch) > 0


def test_two_images_train_where_one_cannot() -> None:
    model = Resnet50(ResnetOptions(samples=2)).build(Shard(0, 1, 2, steps=1, seed=0)).model
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert model(torch.zeros(1, 3, 33, 33)).shape == (1, 10)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_batch_norm_takes_weights_in_16_bits_and_keeps_its_statistics(low: torch.dtype) -> None:
    norm = Resnet50(TINY).build(Shard(0, 1, 2, steps=1, seed=0)).model.stem[1]
    features = 1000 + torch.arange(2 * 64 * 4).float().view(2, 64, 2, 2) / 16
    exact = torch.nn.BatchNorm2d(64)(features.to(low).float())
    norm.weight.data, norm.bias.data = norm.weight.data.to(low), norm.bias.data.to(low)
    found = norm(features.to(low))

    assert found.dtype == low
    # Means around 1000 rounded to 16 bits would be off by more than the deviation.
    assert torch.allclose(found.float(), exact, atol=0.01)
    assert norm.running_mean.dtype == torch.float32
    assert norm.running_mean.mean().item() == pytest.approx(101.6, abs=0.02)
    assert int(norm.num_batches_tracked) == 1
