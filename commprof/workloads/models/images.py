"""Images with labels: synthetic, scikit-learn's digits, an .npz file, or a folder per class."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from commprof import invocation
from commprof.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

SYNTHETIC = "synthetic"
DIGITS = "digits"
_CHANNELS = 3
_DIGITS_COUNT = 1797
_DIGITS_LARGEST = 16.0
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm")


class Images(Protocol):
    """Interface of a source of images; nothing is loaded before `load`."""

    count: int
    """Number of images."""
    classes: int
    """Number of classes; labels are 0 to `classes` - 1."""
    description: str
    """Description of the images in words."""

    def require(self) -> None:
        """Raises UsageError if a package that `load` needs is missing."""
        ...

    def load(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Returns images as float32 of shape (count, 3, size, size), and labels as int64."""
        ...


def open_images(data: str, count: int, classes: int, size: int) -> Images:
    """Returns the source of images that the option `data` names.

    data: SYNTHETIC, DIGITS, an .npz file, or a folder.
    count: number of images to synthesise.
    classes: number of classes of synthetic images. Other images may have fewer classes, not more.
    size: height and width of synthetic images.
    Raises UsageError if the images cannot be read, or have more than `classes` classes.
    """
    images: Images
    if data == SYNTHETIC:
        images = _Synthetic(count, classes, size)
    elif data == DIGITS:
        images = _Digits()
    elif Path(data).is_dir():
        images = _Folder(Path(data))
    elif data.endswith(".npz") and Path(data).is_file():
        images = _Archive(Path(data))
    else:
        raise UsageError(
            f"data={data!r} does not name images (allowed: {SYNTHETIC}, {DIGITS}, an .npz file "
            "with 'images' and 'labels', or a folder that has a folder of images for each class)"
        )
    if images.classes > classes:
        raise UsageError(
            f"data={data} has {images.classes} classes; give classes={images.classes} or more"
        )
    return images


class _Synthetic:
    """Noise around one random image per class, so that a model can learn the classes."""

    def __init__(self, count: int, classes: int, size: int) -> None:
        self.count, self.classes = count, classes
        self.description = f"{count} made-up images of {size} x {size}"

    def require(self) -> None: ...

    def load(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(self.classes, (self.count,), generator=generator)
        shape = (_CHANNELS, size, size)
        means = torch.randn(self.classes, *shape, generator=generator)
        images = torch.randn(self.count, *shape, generator=generator).add_(means[labels])
        return images, labels


class _Digits:
    count, classes = _DIGITS_COUNT, 10
    description = f"scikit-learn's {_DIGITS_COUNT} digits"

    def require(self) -> None:
        if importlib.util.find_spec("sklearn") is None:
            raise UsageError(
                "data=digits needs scikit-learn, which is not installed: "
                f"{invocation.pip('scikit-learn')}"
            )

    def load(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        self.require()
        from sklearn.datasets import load_digits

        values, labels = load_digits(return_X_y=True)
        images = torch.tensor(values, dtype=torch.float32).view(-1, 1, 8, 8) / _DIGITS_LARGEST
        return _resized(images, size), torch.tensor(labels, dtype=torch.int64)


class _Archive:
    """Arrays `images` (count, height, width[, channels]) and `labels` (count) of an .npz file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with np.load(path) as arrays:
                self._labels = np.asarray(arrays["labels"]).astype(np.int64).reshape(-1)
                self._images = np.asarray(arrays["images"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UsageError(
                f"{path} does not hold 'images' and 'labels' that numpy can read: {error}"
            ) from None
        self.count = len(self._labels)
        if not (self.count == len(self._images) > 0 and self._images.ndim in (3, 4)):
            raise UsageError(
                f"{path} holds images of shape {self._images.shape} for {self.count} labels "
                "(allowed: count x height x width, or count x height x width x 1 or 3 channels, "
                "with one label per image)"
            )
        if self._labels.min() < 0:
            raise UsageError(
                f"{path}: label {self._labels.min()} is out of range (allowed: 0 or more)"
            )
        self.classes = int(self._labels.max()) + 1
        self.description = f"{self.count} images of {path.name}"

    def require(self) -> None: ...

    def load(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        return _tensors(list(self._images), size), torch.from_numpy(self._labels)


class _Folder:
    def __init__(self, path: Path) -> None:
        folders = sorted(folder for folder in _shown(path) if folder.is_dir())
        classes = [files for files in map(_images_in, folders) if files]
        self._files = [(file, label) for label, files in enumerate(classes) for file in files]
        if not self._files:
            raise UsageError(
                f"data={path} holds no images: give a folder with a folder per class, each with "
                f"files that end in .npy, {', '.join(_PICTURES)}"
            )
        self._path = path
        self.count, self.classes = len(self._files), len(classes)
        self.description = f"{self.count} images of {path}"

    def require(self) -> None:
        pictures = any(file.suffix.lower() != ".npy" for file, _ in self._files)
        if pictures and importlib.util.find_spec("PIL") is None:
            raise UsageError(
                f"data={self._path} needs Pillow, which is not installed: "
                f"{invocation.pip('pillow')}"
            )

    def load(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        self.require()
        images = [_read(file) for file, _ in self._files]
        return _tensors(images, size), torch.tensor([label for _, label in self._files])


def _shown(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _images_in(folder: Path) -> list[Path]:
    return sorted(file for file in _shown(folder) if file.suffix.lower() in (".npy", *_PICTURES))


def _read(file: Path) -> npt.NDArray[Any]:
    try:
        if file.suffix.lower() == ".npy":
            return np.asarray(np.load(file))
        from PIL import Image

        with Image.open(file) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{file} cannot be read as an image: {error}") from None


def _tensors(images: list[npt.NDArray[Any]], size: int) -> Tensor:
    """Resizes and stacks images of shape height x width or height x width x channels.

    Integer pixels are divided by 255.
    """
    found = []
    for image in images:
        scale = 255.0 if np.issubdtype(image.dtype, np.integer) else 1.0
        tensor = torch.tensor(image, dtype=torch.float32) / scale
        tensor = tensor.unsqueeze(-1) if tensor.ndim == 2 else tensor
        if tensor.ndim != 3 or tensor.shape[-1] not in (1, _CHANNELS):
            raise UsageError(
                f"an image has shape {tuple(image.shape)} (allowed: height x width, or "
                f"height x width x 1 or {_CHANNELS} channels)"
            )
        found.append(_resized(tensor.permute(2, 0, 1).unsqueeze(0), size))
    return torch.cat(found)


def _resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-2:] != (size, size):
        images = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
    return images.expand(-1, _CHANNELS, -1, -1).contiguous()
