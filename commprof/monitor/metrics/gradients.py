"""What ranks that measure their gradients say of the last time; ``capture/gradient_norms.py``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Final

from commprof.files import open_regular
from commprof.monitor.state import GradientState

_LARGEST_BYTES: Final = 4096


def newest(trace: Path) -> GradientState | None:
    """Of the rank that writes this trace, which has its figures beside it.

    None where nothing was measured, or the file is being written.
    """
    try:
        with open_regular(trace.with_suffix(".gradients")) as file:
            value = json.loads(file.read(_LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    names = ("norm", "layer_variance", "cost_s")
    if not isinstance(value, dict) or not isinstance(value.get("step"), int):
        return None
    numbers = [value.get(name) for name in names]
    if not all(number is None or isinstance(number, int | float) for number in numbers):
        return None
    norm, variance, cost_s = (math.nan if n is None else float(n) for n in numbers)
    return GradientState(value["step"], norm, variance, cost_s)
