"""Medians with intervals, and the processor time that the hypervisor takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SAMPLES = 4000


def median_interval(values: npt.ArrayLike) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of the median."""
    found = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(0)
    samples = found[random.integers(0, len(found), size=(_SAMPLES, len(found)))]
    low, high = np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    return float(low), float(high)


def ratio_interval(above: npt.ArrayLike, below: npt.ArrayLike) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of median(above) / median(below).

    Values with the same index form a pair. In a bootstrap sample the ratio is infinite if
    median(below) is 0 or less.
    """
    pairs = np.array([above, below], dtype=np.float64)
    random = np.random.default_rng(0)
    drawn = pairs[:, random.integers(0, pairs.shape[1], size=(_SAMPLES, pairs.shape[1]))]
    ratios = [ratio_of(*medians) for medians in np.median(drawn, axis=2).T]
    # No interpolation: the upper end may be infinite.
    low, high = np.percentile(ratios, [2.5, 97.5], method="nearest")
    return float(low), float(high)


def ratio_of(above: float, below: float) -> float:
    """Returns above / below; infinite if ``below`` is 0 or less."""
    return float(above / below) if below > 0 else float("inf")


#: Positions of fields in the first line of ``/proc/stat``, after the line's name (see proc(5)). The
#: last number is the number of fields that are read.
_IDLE, _IOWAIT, _STEAL, _KNOWN = 3, 4, 7, 8

#: Stolen share above which a measurement is repeated.
MOST_STOLEN = 0.02


class Stolen:
    """Processor time that the hypervisor stole since this object was made.

    Idle time does not count, because even a little stolen time disturbs a job that mostly sleeps.
    """

    def __init__(self) -> None:
        self._begin = _ticks()

    def share(self) -> float:
        """Returns stolen / (stolen + run), 0 to 1; 0 if nothing ran or the kernel has no count."""
        begin, end = self._begin, _ticks()
        if len(begin) < _KNOWN or len(end) < _KNOWN:
            return 0.0
        spent = [after - before for before, after in zip(begin, end, strict=True)]
        wanted = sum(spent) - spent[_IDLE] - spent[_IOWAIT]
        return spent[_STEAL] / wanted if wanted > 0 else 0.0


def _ticks() -> list[int]:
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    return [int(word) for word in first.split()[1 : 1 + _KNOWN]]
