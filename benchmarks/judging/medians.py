"""Medians with intervals, and the processor time that the hypervisor took meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SAMPLES = 4000


def median_interval(values: npt.ArrayLike) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    found = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(0)
    samples = found[random.integers(0, len(found), size=(_SAMPLES, len(found)))]
    low, high = np.percentile(np.median(samples, axis=1), [2.5, 97.5])
    return float(low), float(high)


def ratio_interval(above: npt.ArrayLike, below: npt.ArrayLike) -> tuple[float, float]:
    """The same of median(above) / median(below), whose values belong together in pairs.

    Where a sample's lower median is 0 or less, the ratio counts as infinite.
    """
    pairs = np.array([above, below], dtype=np.float64)
    random = np.random.default_rng(0)
    drawn = pairs[:, random.integers(0, pairs.shape[1], size=(_SAMPLES, pairs.shape[1]))]
    ratios = [ratio_of(*medians) for medians in np.median(drawn, axis=2).T]
    # No interpolation: the upper end may be infinite.
    low, high = np.percentile(ratios, [2.5, 97.5], method="nearest")
    return float(low), float(high)


def ratio_of(above: float, below: float) -> float:
    """above / below; infinite where nothing, or less than that, is left below."""
    return float(above / below) if below > 0 else float("inf")


#: Of the first line of ``/proc/stat``, behind its name: proc(5).
_IDLE, _IOWAIT, _STEAL, _KNOWN = 3, 4, 7, 8

#: Share above which a measurement is done again.
MOST_STOLEN = 0.02


class Stolen:
    """Counts from when it is made.

    The share is of the time that processors had something to run: a job that mostly sleeps is
    disturbed by less.
    """

    def __init__(self) -> None:
        self._begin = _ticks()

    def share(self) -> float:
        """Stolen over stolen and run, 0 to 1; 0 where nothing ran or the kernel does not tell."""
        begin, end = self._begin, _ticks()
        if len(begin) < _KNOWN or len(end) < _KNOWN:
            return 0.0
        spent = [after - before for before, after in zip(begin, end, strict=True)]
        wanted = sum(spent) - spent[_IDLE] - spent[_IOWAIT]
        return spent[_STEAL] / wanted if wanted > 0 else 0.0


def _ticks() -> list[int]:
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    return [int(word) for word in first.split()[1 : 1 + _KNOWN]]
