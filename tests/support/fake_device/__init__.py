"""Builds a device without hardware, to be loaded in the tests' own processes."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.support.machines import extensions


def load(*, shields: bool = False) -> Any:
    """Returns the module, whose device is torch's "privateuseone".

    Args:
        shields: True if a thread can declare that its calls do not break another thread's capture,
            as with CUDA. If False, the device is like torch's other devices.
    """
    module = extensions.load("fake_device")
    if shields:
        ctypes.CDLL(module.__file__, ctypes.RTLD_GLOBAL)
    return module
