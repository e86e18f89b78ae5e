"""Build backend: setuptools, which also requires torch if the environment has no torch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import installed_torch
import setuptools
from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

if int(setuptools.__version__.split(".")[0]) < 77:
    # Without isolation, pip does not check the version, and the error of setuptools is unclear.
    raise SystemExit(
        "commprof needs setuptools 77 or newer to build, but this environment has "
        f"{setuptools.__version__}: run `pip install 'setuptools>=77' cmake ninja`, or leave out "
        "--no-build-isolation"
    )


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Returns the requirements of setuptools, plus torch if the environment has no torch."""
    return build_meta.get_requires_for_build_wheel(config_settings) + _missing_torch()


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Returns the requirements of setuptools, plus torch if the environment has no torch."""
    return build_meta.get_requires_for_build_editable(config_settings) + _missing_torch()


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Builds a wheel with setuptools, without files of earlier builds."""
    _forget_earlier_wheels()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Builds an editable wheel with setuptools, without files of earlier builds."""
    _forget_earlier_wheels()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _missing_torch() -> list[str]:
    return [] if installed_torch.in_target() else [installed_torch.DEFAULT]


def _forget_earlier_wheels() -> None:
    """Empties setuptools' staging area, so that files of deleted modules are not packed.

    The build trees (build/py*-torch*) stay, because they make rebuilds quick.
    """
    for staging in [*Path("build").glob("lib*"), *Path("build").glob("bdist*")]:
        shutil.rmtree(staging)
