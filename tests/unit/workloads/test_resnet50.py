from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commprof.errors import UsageError
from commprof.workloads.models.images import Images, open_images
from commprof.workloads.models.resnet50 import Resnet50, ResnetOptions
from commprof.workloads.spec import Shard, parse_spec
from tests.support.ranks.alone import alone


def opened(data: str, classes: int = 10) -> Images:
    return open_images(data, count=50, classes=classes, size=8)


def archive(path: Path, images: Any, labels: Any) -> str:
    np.savez(path / "set.npz", images=images, labels=labels)
    return str(path / "set.npz")


def test_synthetic_images_depend_on_the_seed_and_differ_by_class() -> None:
    images, labels = opened("synthetic").load(8, seed=1)
    again, _ = opened("synthetic").load(8, seed=1)
    other, _ = opened("synthetic").load(8, seed=2)

    assert images.shape == (50, 3, 8, 8)
    assert labels.min() >= 0
    assert labels.max() < 10
    assert torch.equal(images, again)
    assert not torch.equal(images, other)
    # Images of a class share a mean of variance 1, and the noise of an image has variance 1.
    same = images[labels == labels[0]]
    assert (same.mean(0) - images.mean(0)).norm() > 2


def test_images_of_bytes_become_floats_of_the_requested_size(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 4), np.uint8)
    images[1] = 255
    found = opened(archive(tmp_path, images, [0, 1, 2]))
    loaded, labels = found.load(8, seed=0)

    assert (found.count, found.classes) == (3, 3)
    assert loaded.shape == (3, 3, 8, 8)
    assert loaded[1].eq(1).all()
    assert loaded[0].eq(0).all()
    assert labels.tolist() == [0, 1, 2]


def test_colour_images_of_floats_are_unchanged(tmp_path: Path) -> None:
    images = np.zeros((2, 8, 8, 3))
    images[..., 2] = -3.5
    loaded, _ = opened(archive(tmp_path, images, [0, 0])).load(8, seed=0)

    assert loaded[:, 2].eq(-3.5).all()
    assert loaded[:, :2].eq(0).all()


def test_images_are_read_from_a_folder_per_class(tmp_path: Path) -> None:
    for label, name in enumerate(("cats", "dogs")):
        (tmp_path / name).mkdir()
        for index, ending in enumerate((".npy", ".NPY")):
            with (tmp_path / name / f"{index}{ending}").open("wb") as file:
                np.save(file, np.full((8, 8), 51 * label, np.uint8))
    found = opened(str(tmp_path))
    images, labels = found.load(8, seed=0)

    assert (found.count, found.classes) == (4, 2)
    assert labels.tolist() == [0, 0, 1, 1]
    assert images[2:].eq(0.2).all()
    assert images[:2].eq(0).all()


def test_hidden_and_empty_folders_are_not_counted_as_classes(tmp_path: Path) -> None:
    for name in (".checkpoints", "birds", "cats", "dogs"):
        (tmp_path / name).mkdir()
    for name in (".checkpoints/a.npy", "cats/a.npy", "cats/.b.npy", "dogs/a.npy"):
        np.save(tmp_path / name, np.zeros((8, 8), np.uint8))
    (tmp_path / "birds/notes.txt").write_text("to come")
    found = opened(str(tmp_path), classes=2)

    assert (found.count, found.classes) == (2, 2)
    assert found.load(8, seed=0)[1].tolist() == [0, 1]


@pytest.mark.parametrize(("library", "package"), [("sklearn", "scikit-learn"), ("PIL", "Pillow")])
def test_a_missing_library_is_named_with_its_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, package: str
) -> None:
    (tmp_path / "red").mkdir()
    (tmp_path / "red/a.png").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    images = opened("digits" if library == "sklearn" else str(tmp_path))
    with pytest.raises(UsageError, match=rf"needs {package}, .*pip install [a-z-]+"):
        images.require()


def test_png_pictures_are_read_from_a_folder(tmp_path: Path) -> None:
    image_module = import_module("PIL.Image")
    (tmp_path / "red").mkdir()
    image_module.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red/a.png")
    images, _ = opened(str(tmp_path)).load(8, seed=0)

    assert images[0, 0].eq(1).all()
    assert images[0, 1:].eq(0).all()


def test_the_digits_data_set_is_loaded() -> None:
    found = opened("digits")
    images, labels = found.load(16, seed=0)

    assert images.shape == (found.count, 3, 16, 16)
    assert labels.unique().tolist() == list(range(10))
    assert images.min() >= 0
    assert images.max() <= 1


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 4)), [0, 1], r"images of shape \(2, 4\) for 2 labels"),
        (np.zeros((2, 4, 4)), [0], "for 1 labels"),
        (np.zeros((2, 4, 4)), [0, -1], "label -1"),
        (np.zeros((2, 4, 4)), [0, 11], "has 12 classes; give classes=12 or more"),
    ],
)
def test_an_archive_with_mismatched_images_or_labels_is_refused(
    tmp_path: Path, images: Any, labels: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opened(archive(tmp_path, images, labels))


def test_images_with_an_unusable_number_of_channels_are_refused(tmp_path: Path) -> None:
    found = opened(archive(tmp_path, np.zeros((1, 4, 4, 2)), [0]))
    with pytest.raises(UsageError, match=r"has shape \(4, 4, 2\)"):
        found.load(8, seed=0)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(UsageError, match="does not hold 'images' and 'labels'"):
        opened(str(tmp_path / "set.npz"))


def test_an_archive_without_labels_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=np.zeros((1, 2, 2)))
    with pytest.raises(UsageError, match="does not hold 'images' and 'labels'"):
        opened(str(tmp_path / "set.npz"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="holds no images: give a folder with a folder per class"):
        opened(str(tmp_path / "folder"))


TINY = ResnetOptions(samples=4, image=8)


@pytest.mark.parametrize(("classes", "count"), [(1000, 25_557_032), (10, 23_528_522)])
def test_resnet50_has_the_canonical_parameter_counts(classes: int, count: int) -> None:
    assert Resnet50(ResnetOptions(classes=classes)).parameter_count == count


def test_resnet50_has_sixteen_blocks_with_the_canonical_shapes() -> None:
    trainee = Resnet50(TINY).build(Shard(0, 1, 2, steps=1, seed=0))
    features, shapes = torch.zeros(1, 64, 56, 56), []
    for block in trainee.blocks:
        features = block(features)
        shapes.append(tuple(features.shape[1:]))
    stages = [(256, 56, 56)] * 3 + [(512, 28, 28)] * 4 + [(1024, 14, 14)] * 6 + [(2048, 7, 7)] * 3
    assert shapes == stages
    inside = {id(p) for block in trainee.blocks for p in block.parameters()}
    rest = sum(p.numel() for p in trainee.model.parameters() if id(p) not in inside)
    assert rest == 64 * 3 * 7 * 7 + 2 * 64 + 2048 * 10 + 10


@pytest.mark.slow
def test_resnet50_trains_on_small_images() -> None:
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


def test_the_resnet50_workload_describes_itself_and_counts_steps() -> None:
    workload = Resnet50(ResnetOptions(samples=100))
    assert "23,528,522 parameters (10 classes), 100 made-up images of 32 x 32" in (
        workload.describe()
    )
    assert workload.steps_per_epoch(world_size=2, per_rank_batch=16) == 4


def test_an_unknown_image_source_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"data='cats' does not name images \(allowed: synthetic, digits"
    ):
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
def test_a_pass_of_one_small_image_is_refused_with_advice(
    samples: int, ranks: int, batch: int, image: int, advice: str
) -> None:
    workload = Resnet50(ResnetOptions(samples=samples, image=image))
    with pytest.raises(UsageError, match=advice):
        workload.steps_per_epoch(ranks, batch)
    larger = Resnet50(ResnetOptions(samples=samples, image=33))
    assert larger.steps_per_epoch(ranks, batch) > 0


@pytest.mark.parametrize(("samples", "batch"), [(2, 16), (32, 16), (225, 9), (225, 15)])
def test_passes_of_two_images_or_more_are_accepted(samples: int, batch: int) -> None:
    assert Resnet50(ResnetOptions(samples=samples)).steps_per_epoch(1, batch) > 0


def test_the_model_takes_two_small_images_but_not_one() -> None:
    model = Resnet50(ResnetOptions(samples=2)).build(Shard(0, 1, 2, steps=1, seed=0)).model
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert model(torch.zeros(1, 3, 33, 33)).shape == (1, 10)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_batch_norm_with_16_bit_weights_keeps_fp32_statistics(low: torch.dtype) -> None:
    norm = Resnet50(TINY).build(Shard(0, 1, 2, steps=1, seed=0)).model.stem[1]
    features = 1000 + torch.arange(2 * 64 * 4).float().view(2, 64, 2, 2) / 16
    exact = torch.nn.BatchNorm2d(64)(features.to(low).float())
    norm.weight.data, norm.bias.data = norm.weight.data.to(low), norm.bias.data.to(low)
    found = norm(features.to(low))

    assert found.dtype == low
    # Means near 1000 would have an error above the deviation if rounded to 16 bits.
    assert torch.allclose(found.float(), exact, atol=0.01)
    assert norm.running_mean.dtype == torch.float32
    assert norm.running_mean.mean().item() == pytest.approx(101.6, abs=0.02)
    assert int(norm.num_batches_tracked) == 1
