from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commprof.errors import UsageError
from commprof.workloads.models.images import Images, open_images


def opened(data: str, classes: int = 10) -> Images:
    return open_images(data, count=50, classes=classes, size=8)


def archive(path: Path, images: Any, labels: Any) -> str:
    np.savez(path / "set.npz", images=images, labels=labels)
    return str(path / "set.npz")


def test_made_up_images_depend_on_the_seed_and_differ_by_class() -> None:
    images, labels = opened("synthetic").load(8, seed=1)
    again, _ = opened("synthetic").load(8, seed=1)
    other, _ = opened("synthetic").load(8, seed=2)

    assert images.shape == (50, 3, 8, 8)
    assert labels.min() >= 0
    assert labels.max() < 10
    assert torch.equal(images, again)
    assert not torch.equal(images, other)
    # Images of a class share a mean of variance 1; the noise on each has the same.
    same = images[labels == labels[0]]
    assert (same.mean(0) - images.mean(0)).norm() > 2


def test_an_archive_of_bytes_becomes_floats_of_the_size_asked_for(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 4), np.uint8)
    images[1] = 255
    found = opened(archive(tmp_path, images, [0, 1, 2]))
    loaded, labels = found.load(8, seed=0)

    assert (found.count, found.classes) == (3, 3)
    assert loaded.shape == (3, 3, 8, 8)
    assert loaded[1].eq(1).all()
    assert loaded[0].eq(0).all()
    assert labels.tolist() == [0, 1, 2]


def test_floats_in_colour_stay_as_they_are(tmp_path: Path) -> None:
    images = np.zeros((2, 8, 8, 3))
    images[..., 2] = -3.5
    loaded, _ = opened(archive(tmp_path, images, [0, 0])).load(8, seed=0)

    assert loaded[:, 2].eq(-3.5).all()
    assert loaded[:, :2].eq(0).all()


def test_a_folder_per_class(tmp_path: Path) -> None:
    for label, name in enumerate(("cats", "dogs")):
        (tmp_path / name).mkdir()
        for index in range(2):
            np.save(tmp_path / name / f"{index}.npy", np.full((8, 8), 51 * label, np.uint8))
    found = opened(str(tmp_path))
    images, labels = found.load(8, seed=0)

    assert (found.count, found.classes) == (4, 2)
    assert labels.tolist() == [0, 0, 1, 1]
    assert images[2:].eq(0.2).all()
    assert images[:2].eq(0).all()


def test_hidden_and_empty_folders_are_no_classes(tmp_path: Path) -> None:
    for name in (".checkpoints", "birds", "cats", "dogs"):
        (tmp_path / name).mkdir()
    for name in (".checkpoints/a.npy", "cats/a.npy", "cats/.b.npy", "dogs/a.npy"):
        np.save(tmp_path / name, np.zeros((8, 8), np.uint8))
    (tmp_path / "birds/notes.txt").write_text("to come")
    found = opened(str(tmp_path), classes=2)

    assert (found.count, found.classes) == (2, 2)
    assert found.load(8, seed=0)[1].tolist() == [0, 1]


@pytest.mark.parametrize(("library", "package"), [("sklearn", "scikit-learn"), ("PIL", "Pillow")])
def test_what_is_missing_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, package: str
) -> None:
    (tmp_path / "red").mkdir()
    (tmp_path / "red/a.png").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    images = opened("digits" if library == "sklearn" else str(tmp_path))
    with pytest.raises(UsageError, match=rf"needs {package}, .*pip install [a-z-]+"):
        images.require()


def test_pictures_of_a_folder(tmp_path: Path) -> None:
    image_module = import_module("PIL.Image")
    (tmp_path / "red").mkdir()
    image_module.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red/a.png")
    images, _ = opened(str(tmp_path)).load(8, seed=0)

    assert images[0, 0].eq(1).all()
    assert images[0, 1:].eq(0).all()


def test_digits() -> None:
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
def test_an_archive_that_does_not_fit_is_refused(
    tmp_path: Path, images: Any, labels: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opened(archive(tmp_path, images, labels))


def test_channels_that_are_no_colours_are_refused(tmp_path: Path) -> None:
    found = opened(archive(tmp_path, np.zeros((1, 4, 4, 2)), [0]))
    with pytest.raises(UsageError, match=r"has shape \(4, 4, 2\)"):
        found.load(8, seed=0)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(UsageError, match="holds no 'images' and 'labels'"):
        opened(str(tmp_path / "set.npz"))


def test_an_archive_without_labels_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=np.zeros((1, 2, 2)))
    with pytest.raises(UsageError, match="holds no 'images' and 'labels'"):
        opened(str(tmp_path / "set.npz"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="holds no images: give a folder with a folder per class"):
        opened(str(tmp_path / "folder"))
