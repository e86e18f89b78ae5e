"""How much values say whose neighbours in time are alike.

n values whose lag-1 correlation is r say of their mean what n (1 - r) / (1 + r) independent ones
do (Bayley and Hammersley, "The Effective Number of Independent Observations in an Autocorrelated
Time Series", J. R. Statist. Soc. Suppl. 8 (1946) 184-197).

Few values that are alike look more independent than they are: of n values about their own mean the
expected correlation is r - (1 + 3 r) / n (Kendall, "Note on Bias in the Estimation of
Autocorrelation", Biometrika 41 (1954) 403-404). ``lag_one`` puts that right.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Largest correlation that is reckoned with.
LARGEST = 0.99


def lag_one(*samples: Floats) -> float:
    """Returns the correlation of each value with the next of its sample, put right for few values.

    Values that are all equal have none; samples of 3 values or fewer get ``LARGEST``.
    """
    # The mean of equal values is off by a rounding, which all of them would share.
    centred = [sample - sample.mean() for sample in samples if np.ptp(sample) > 0]
    if not centred:
        return 0.0
    n = len(samples) / sum(1 / len(sample) for sample in samples)
    if n <= 3:
        return LARGEST
    square = sum(float((sample**2).sum()) for sample in centred)
    product = sum(float((sample[1:] * sample[:-1]).sum()) for sample in centred)
    return min(LARGEST, (n * product / square + 1) / (n - 3))


def worth(correlation: float) -> float:
    """Returns how many independent values one is worth, from 0.005 to 1; above 0 counts alone."""
    r = min(LARGEST, max(0.0, correlation))
    return (1 - r) / (1 + r)


def cautious_worth(*samples: Floats) -> float:
    """Returns ``worth`` at one standard error more than the samples' correlation.

    Too small a correlation makes false alarms, too large a one only asks for more values.
    """
    r = lag_one(*samples)
    return worth(r + math.sqrt(max(0.0, 1 - r**2) / sum(map(len, samples))))
