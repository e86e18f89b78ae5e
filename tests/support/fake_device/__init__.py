from __future__ import annotations

import ctypes
from typing import Any

from tests.support.machines import extensions


def load(*, shields: bool = False) -> Any:
    """Returns the fake device's module; torch calls the device "privateuseone".

    With ``shields``, other libraries find ``privateuseoneThreadExchangeStreamCaptureMode``.
    """
    module = extensions.load("fake_device")
    if shields:
        ctypes.CDLL(module.__file__, ctypes.RTLD_GLOBAL)
    return module
