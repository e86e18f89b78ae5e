"""Divides time by the kernels and copies that an accelerator ran.

Several kernels and copies may run at the same time. Each moment belongs to the first of these parts
that runs:

    compute                a kernel that does not communicate
    communication          a kernel that communicates, while no copy within the device runs (such
                           a copy hides communication, as a compute kernel does)
    copies                 any copy, or a fill of memory
    idle                   nothing

The four parts add up to all time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commprof.trace.stretches import Ints, Stretches, outside, union


@dataclass(frozen=True)
class DeviceActivity:
    """What one device ran; the stretches of a field do not overlap."""

    #: Kernels of collectives and messages; None if not recorded.
    communication: Stretches | None
    #: All other kernels.
    compute: Stretches
    #: Copies within the device.
    copies_within: Stretches
    #: Other copies, and fills of memory.
    other_copies: Stretches

    @cached_property
    def hiding(self) -> Stretches:
        """Times at which compute kernels or copies within the device can hide communication."""
        return union(self.compute, self.copies_within)

    @cached_property
    def exposed(self) -> Stretches:
        """Times at which communication ran and was not hidden.

        Empty if communication was not recorded.
        """
        return _NONE if self.communication is None else outside(self.communication, self.hiding)

    @cached_property
    def copies(self) -> Stretches:
        """Times at which copies or fills ran, without compute kernels or exposed communication."""
        both = union(self.copies_within, self.other_copies)
        return outside(both, union(self.compute, self.exposed))

    @cached_property
    def kernels(self) -> Stretches:
        """Times at which any kernel ran."""
        some = () if self.communication is None else (self.communication,)
        return union(self.compute, *some)

    @property
    def kinds(self) -> tuple[Stretches, ...]:
        """All fields that are not None."""
        others = self.compute, self.copies_within, self.other_copies
        return others if self.communication is None else (self.communication, *others)

    def moved(self, to_common: Callable[[Ints], Ints]) -> DeviceActivity:
        """Returns the activity with its times converted to another clock."""
        ends_ns = [ends for ran in self.kinds for ends in (ran.begin_ns, ran.end_ns)]
        moved_ns = to_common(np.concatenate(ends_ns))
        cuts = itertools.pairwise(itertools.accumulate(map(len, ends_ns), initial=0))
        moved = (moved_ns[first:last] for first, last in cuts)
        kinds = [Stretches(begin_ns, end_ns) for begin_ns, end_ns in zip(moved, moved, strict=True)]
        return DeviceActivity(None if self.communication is None else kinds[0], *kinds[-3:])

    @classmethod
    def joined(cls, of_ranks: Sequence[DeviceActivity], shift_ns: Ints) -> DeviceActivity:
        """Joins the activity of ranks; each rank's times are increased by its ``shift_ns``.

        The shifted times of each rank must follow the shifted times of the rank before.
        ``communication`` must be None for all ranks or for no rank.
        """

        def in_a_row(of_kind: Sequence[Stretches]) -> Stretches:
            moved_ns = np.repeat(shift_ns, list(map(len, of_kind)))
            return Stretches(
                np.concatenate([ran.begin_ns for ran in of_kind]) + moved_ns,
                np.concatenate([ran.end_ns for ran in of_kind]) + moved_ns,
            )

        communication = [a.communication for a in of_ranks if a.communication is not None]
        return cls(
            in_a_row(communication) if communication else None,
            in_a_row([activity.compute for activity in of_ranks]),
            in_a_row([activity.copies_within for activity in of_ranks]),
            in_a_row([activity.other_copies for activity in of_ranks]),
        )


_NONE = Stretches(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
