"""The line in which the collectives of one group wait for a worker and for the link.

Collectives are served in order of issue by ``workers`` threads over one link. One needs the link
for its ``wire`` time and is on its way for ``latency`` longer, in which others use the link. Where
two share the link their ends come closer together than here, the last of them at the same time:
``benchmarks/judging/simulate.py`` follows each segment, and a test compares the two.

Times are arrays with a value per step, so that many steps are served at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Line:
    """One group's line, of as many steps as are replayed at once."""

    def __init__(self, steps: int, workers: int) -> None:
        """``workers``: collectives that run at a time."""
        self._link_free = np.zeros(steps)
        self._free = np.zeros((workers, steps))
        self._rows = np.arange(steps)

    def serve(self, arrived: Floats, wire: Floats | float, latency: Floats | float) -> Floats:
        """When the next collective is there, of which ``arrived`` says when it could begin."""
        if len(self._free) == 1:
            worker: npt.NDArray[np.int64] | int = 0
            free = self._free[0]
        else:
            worker = self._free.argmin(axis=0)
            free = self._free[worker, self._rows]
        start = np.maximum(arrived, free)
        self._link_free = np.maximum(start, self._link_free) + wire
        end: Floats = self._link_free + latency
        if isinstance(worker, int):
            self._free[0] = end
        else:
            self._free[worker, self._rows] = end
        return end
