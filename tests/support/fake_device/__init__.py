"""Builds the device without hardware; it is loaded in processes of the tests' own."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from tests.support.machines import extensions


def load(*, shields: bool = False) -> Any:
    """The module; its device is torch's "privateuseone".

    Args:
        shields: a thread can say that its calls shall break no capture of another one, as with
            CUDA. Without that the device is like others of torch's.
    """
    module = extensions.load("fake_device", Path(__file__).with_name("fake_device.cpp"))
    if shields:
        ctypes.CDLL(module.__file__, ctypes.RTLD_GLOBAL)
    return module
