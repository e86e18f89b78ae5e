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
    """Returns the ranks' waiting intervals, cut so that each begins after the rank's previous one.

    Args:
        exposed: exposures of all ranks, rank after rank, and each rank's in order of begin.
        first: index of each rank's first exposure, then the total number of exposures.
    """
    end = accumulated(np.maximum, exposed.end_ns, first)
    before = np.concatenate((exposed.begin_ns[:1], end[:-1]))
    filled = first[:-1][np.diff(first) > 0]
    before[filled] = exposed.begin_ns[filled]
    begin = np.maximum(exposed.begin_ns, before)
    return replace(exposed, begin_ns=begin, end_ns=np.maximum(begin, end))


class OwnTimes:
    """Converts times of ranks to own time: time since the rank's start, minus its waiting."""

    def __init__(self, exposed: Exposures, first: Ints, begin_ns: Ints, until_ns: Ints) -> None:
        """Prepares own time.

        Args:
            exposed: exposures that do not overlap, see :func:`apart`.
            first: index of each rank's first exposure, then the total number of exposures.
            begin_ns: per rank, the time at which own time is 0.
            until_ns: per rank, the last time that is converted.
        """
        self._exposed, self._first = exposed, first
        self._begin_ns = begin_ns
        #: Keys that order the times of all ranks, from each rank's start to its last time.
        self.times = RankTimes(begin_ns, until_ns)
        self._key = self.times.key(ranks_of(first), exposed.begin_ns)
        waited = exposed.waited_ns
        total = accumulated(np.add, waited, first)
        self._before_ns = total - waited
        self._length_ns = np.maximum(exposed.end_ns - exposed.begin_ns, 1)
        ranks = np.arange(len(begin_ns))
        self._stood_ns = self._stood(ranks, begin_ns)

    def wait_at(self, rank: Ints, time_ns: Ints) -> Ints:
        """Returns, per time, the row of the last exposure begun by then; -1 if there is none."""
        row = np.searchsorted(self._key, self.times.key(rank, time_ns), side="right") - 1
        return np.where(row >= self._first[rank], row, -1)

    def at(self, rank: Ints, time_ns: Ints) -> Floats:
        """Converts times to own time in ns; ``rank``: per time, the index of its rank."""
        stood = self._stood(rank, time_ns) - self._stood_ns[rank]
        own: Floats = (time_ns - self._begin_ns[rank]) - stood
        return own

    def _stood(self, rank: Ints, time_ns: Ints) -> Floats:
        """Returns, per time, for how many ns the rank has waited by then."""
        row = self.wait_at(rank, time_ns)
        stood = np.zeros(len(row))
        began = row >= 0
        row = row[began]
        exposed = self._exposed
        share = np.minimum(1.0, (time_ns[began] - exposed.begin_ns[row]) / self._length_ns[row])
        share[exposed.end_ns[row] == exposed.begin_ns[row]] = 1.0
        stood[began] = self._before_ns[row] + exposed.waited_ns[row] * share
        return stood
