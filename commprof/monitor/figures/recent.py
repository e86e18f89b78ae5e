"""Totals and recent steps of a job in full mode, from the steps as they come."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import (
    LateRank,
    find_late_rank,
    find_slow_rank,
    late_by_own_work,
    of_ranks,
    with_cause,
)
from commprof.analysis.step.breakdown import mean_of_known
from commprof.monitor.figures.steps import NewSteps, wall_ns
from commprof.monitor.state import RECENT_STEPS, Late, StepTimes
from commprof.units import ns_to_s, us_to_ns

Floats = npt.NDArray[np.float64]

#: In the order of ``StepTimes``, without its first field.
_PARTS: Final = (
    *("wall_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "other_ns"),
    *("exposed_ns", "wait_ns", "wire_ns", "unsplit_ns", "hidden_ns"),
)
_EXPOSED, _WAIT, _WIRE = (_PARTS.index(f"{name}_ns") for name in ("exposed", "wait", "wire"))
#: A rank is named late from so many recent steps on.
_FEWEST_FOR_LATE: Final = 10


class RecentSteps:
    """Recent steps of the followed ranks, which do not change."""

    def __init__(self, world_size: int) -> None:
        """``world_size`` is the job's."""
        self._world_size = world_size
        self._ranks: tuple[int, ...] = ()
        self._steps = 0
        #: ``[rank, part]`` in ns, and ns by culprit.
        self._total: Floats = np.zeros((0, len(_PARTS)))
        self._waited_for: Floats = np.zeros(world_size)
        #: Per step ``[rank, part]``, ``[rank, origin]``, waiting ``[rank, cause]``
        #: and the length.
        self._recent: deque[tuple[Floats, Floats, Floats, float]] = deque(maxlen=RECENT_STEPS)
        self._clock_error_ns = 0.0
        self._late: LateRank | None = None

    def add(self, new: NewSteps) -> None:
        """Counts them."""
        if not self._ranks:
            self._ranks = new.ranks
            self._total = np.zeros((len(new.ranks), len(_PARTS)))
        parts = np.stack([[getattr(part, name) for name in _PARTS] for part in new.parts])
        work = np.stack([part.by_origin_ns for part in new.parts])
        caused: Floats = np.sum([part.caused_ns for part in new.parts], axis=0)
        self._steps += len(new.numbers)
        self._total += np.nan_to_num(parts).sum(axis=2)
        self._waited_for += caused.sum(axis=(0, 2))
        rows = range(len(new.numbers))[-RECENT_STEPS:]
        lengths = wall_ns(new)
        for row in rows:
            step = parts[:, :, row], work[:, :, row], caused[row], float(lengths[row])
            self._recent.append(step)
        self._clock_error_ns = us_to_ns(new.world.clock_error_us)
        self._find_late()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks; empty before the first step."""
        return self._ranks

    def waited_for_s(self, rank: int) -> float:
        """Total that the others' training threads waited for it; NaN where that is not known."""
        known = not math.isnan(self._clock_error_ns) and len(self._ranks) == self._world_size
        return ns_to_s(float(self._waited_for[rank])) if known else math.nan

    def total(self, rank: int) -> StepTimes | None:
        """Mean times over all steps counted."""
        if rank not in self._ranks:
            return None
        return _times(self._steps, self._total[self._ranks.index(rank)])

    def recent(self, rank: int) -> StepTimes | None:
        """Mean of the recent steps."""
        if rank not in self._ranks:
            return None
        row = self._ranks.index(rank)
        steps = np.stack([parts[row] for parts, _, _, _ in self._recent])
        means = np.nan_to_num(steps).mean(axis=0)
        for part in (_WAIT, _WIRE):
            means[part] = mean_of_known(steps[:, part], steps[:, _EXPOSED])
        return _times(len(self._recent), means)

    @property
    def late(self) -> Late | None:
        """The rank that the others wait for, by the report's rules."""
        found = self._late
        if found is None:
            return None
        return Late(found.rank, ns_to_s(found.wait_ns), found.phase or "")

    def _find_late(self) -> None:
        """Finds the late rank as ``analysis.world`` does."""
        self._late = None
        if len(self._recent) < _FEWEST_FOR_LATE or len(self._ranks) != self._world_size:
            return
        _, works, caused, lengths = zip(*self._recent, strict=True)
        waited_for = of_ranks(np.stack(caused))
        step_ns = float(np.median(lengths))
        late = find_late_rank(waited_for, step_ns, self._clock_error_ns)
        if late is not None:
            late = with_cause(late, np.stack(caused))
        slow = find_slow_rank(np.stack(works, axis=2), step_ns)
        self._late = late_by_own_work(late, slow, waited_for, step_ns)


def _times(steps: int, values_ns: Sequence[float] | Floats) -> StepTimes:
    return StepTimes(steps, *(ns_to_s(float(value)) for value in values_ns))
