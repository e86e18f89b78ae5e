"""Times at which an accelerator ran kernels and copies, and how they divide time into parts.

Kernels and copies of several streams may run at once. Each moment belongs to the first of these
parts for which something runs then:

    compute                a kernel other than those of communication
    communication          a kernel of communication, while no copy within the device runs (such a
                           copy hides communication, as a compute kernel does): exposed
                           communication
    copies                 a copy between host and device, within or between devices, or a fill
    idle                   nothing

So ``compute + communication + copies + idle`` is all time.
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
    """What one device ran; in each field, each moment counts once."""

    #: Kernels of collectives and messages; None if the recording lacks them.
    communication: Stretches | None
    #: All other kernels.
    compute: Stretches
    #: Copies within the device.
    copies_within: Stretches
    #: Other copies, and fills of memory.
    other_copies: Stretches

    @cached_property
    def hiding(self) -> Stretches:
        """Times at which communication would be hidden if it ran."""
        return union(self.compute, self.copies_within)

    @cached_property
    def exposed(self) -> Stretches:
        """Times at which communication ran and was not hidden.

        Empty if communication was not recorded.
        """
        return _NONE if self.communication is None else outside(self.communication, self.hiding)

    @cached_property
    def copies(self) -> Stretches:
        """Times at which copies or fills ran, but no compute kernel or exposed communication."""
        both = union(self.copies_within, self.other_copies)
        return outside(both, union(self.compute, self.exposed))

    @cached_property
    def kernels(self) -> Stretches:
        """Times at which any kernel ran."""
        some = () if self.communication is None else (self.communication,)
        return union(self.compute, *some)

    @property
    def kinds(self) -> tuple[Stretches, ...]:
        """All fields that the recording has."""
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
        """Joins the activity of ranks; their times are shifted so that they follow one another.

        Either all ranks have ``communication``, or none.
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
