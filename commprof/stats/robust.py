"""The spread of values some of which were disturbed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: Standard deviations of a normal distribution in one median absolute deviation (Iglewicz and
#: Hoaglin, How to Detect and Handle Outliers, 1993).
_DEVIATIONS_PER_MAD = 1.4826


def robust_deviation(
    values: Sequence[float] | npt.NDArray[np.float64], about: float | None = None
) -> float:
    """Returns the median absolute deviation, scaled to the standard deviation of normal values.

    Args:
        values: one or more.
        about: deviations are from this; None takes the median.
    """
    found = np.asarray(values, np.float64)
    center = float(np.median(found)) if about is None else about
    return _DEVIATIONS_PER_MAD * float(np.median(np.abs(found - center)))
