"""Builds the device without hardware; it is loaded in processes of the tests' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import extensions


def load() -> Any:
    """The module; its device is torch's "privateuseone"."""
    return extensions.load("fake_device", Path(__file__).with_name("fake_device.cpp"))
