"""Own time of ranks: a clock that stops while the training thread waits for communication."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.exposure import Exposures
from commprof.trace.columns import Ints
from commprof.trace.ranks import RankTimes, accumulated, ranks_of

Floats = npt.NDArray[np.float64]


def apart(exposed: Exposures, first: Ints) -> Exposures:
    """Shortens waiting intervals so that the intervals of one rank do not overlap.

    Args:
        exposed: exposures of all ranks, sorted by rank, then by begin.
        first: index of each rank's first exposure; the last entry is the number of exposures.
    """
    end = accumulated(np.maximum, exposed.end_ns, first)
    before = np.concatenate((exposed.begin_ns[:1], end[:-1]))
    filled = first[:-1][np.diff(first) > 0]
    before[filled] = exposed.begin_ns[filled]
    begin = np.maximum(exposed.begin_ns, before)
    return replace(exposed, begin_ns=begin, end_ns=np.maximum(begin, end))


class OwnTimes:
    """Converts times to a rank's own time, in which the rank's waiting does not count."""

    def __init__(self, exposed: Exposures, first: Ints, begin_ns: Ints, until_ns: Ints) -> None:
        """Prepares own time.

        Args:
            exposed: exposures that do not overlap, see :func:`apart`.
            first: index of each rank's first exposure; the last entry is the number of exposures.
            begin_ns: per rank, the time at which own time is 0.
            until_ns: per rank, the last time that is converted.
        """
        self._exposed, self._first = exposed, first
        self._begin_ns = begin_ns
        self.times = RankTimes(begin_ns, until_ns)
        self._key = self.times.key(ranks_of(first), exposed.begin_ns)
        waited = exposed.waited_ns
        total = accumulated(np.add, waited, first)
        self._before_ns = total - waited
        self._length_ns = np.maximum(exposed.end_ns - exposed.begin_ns, 1)
        ranks = np.arange(len(begin_ns))
        self._stood_ns = self._stood(ranks, begin_ns)

    def wait_at(self, rank: Ints, time_ns: Ints) -> Ints:
        """Returns, per time, the row of the rank's last exposure up to the time; -1 if none."""
        row = np.searchsorted(self._key, self.times.key(rank, time_ns), side="right") - 1
        return np.where(row >= self._first[rank], row, -1)

    def at(self, rank: Ints, time_ns: Ints) -> Floats:
        """Converts times to own time in ns; ``rank``: per time, the index of its rank."""
        stood = self._stood(rank, time_ns) - self._stood_ns[rank]
        own: Floats = (time_ns - self._begin_ns[rank]) - stood
        return own

    def _stood(self, rank: Ints, time_ns: Ints) -> Floats:
        """Returns how long the rank had waited before each time, in ns."""
        row = self.wait_at(rank, time_ns)
        stood = np.zeros(len(row))
        began = row >= 0
        row = row[began]
        exposed = self._exposed
        share = np.minimum(1.0, (time_ns[began] - exposed.begin_ns[row]) / self._length_ns[row])
        share[exposed.end_ns[row] == exposed.begin_ns[row]] = 1.0
        stood[began] = self._before_ns[row] + exposed.waited_ns[row] * share
        return stood
