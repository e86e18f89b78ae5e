"""Jobs: what each rank does in each step, in which order, and how long everything takes.

A job has *roles*. All ranks of a role run the same list of operations in every step; only the times
differ. Data parallel jobs have one role, a pipeline has one per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Ints
from commprof.trace.schema import Phase

#: Kinds of operations. FINISH is DDP's wait for all calls of its backward pass.
WORK, ISSUE, WAIT, FINISH = "work", "issue", "wait", "finish"


class Op(NamedTuple):
    """One operation of the training thread."""

    kind: str
    phase: Phase
    #: ISSUE and WAIT: index of the call.
    call: int = -1
    #: FINISH: calls of the pass, in the order in which it waits for them.
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Call:
    """A collective, or a message, that each of the groups runs once in every step."""

    #: c10d's name; "send" for a message from the first rank of each group to its second.
    op: str
    #: Name of the communicators; calls of one communicator run one after another.
    label: str
    #: ``[group, member]``: global ranks.
    groups: Ints
    bytes: int
    #: True if autograd issues it.
    in_backward: bool = False

    @property
    def is_message(self) -> bool:
        """True for a message of one rank to another."""
        return self.op == "send"


@dataclass(frozen=True)
class Role:
    """Ranks that run the same operations."""

    ranks: Ints
    ops: tuple[Op, ...]


@dataclass
class Job:
    """A job, and how long its work and its calls take."""

    name: str
    size: int
    steps: int
    roles: Sequence[Role]
    calls: Sequence[Call]
    #: Time in ns of each WORK, by role and index of the operation: ``[step, rank of the role]``.
    work_ns: dict[tuple[int, int], Ints]
    #: Time in ns of each call on its communicator, ``[step, group]``, by index of the call.
    wire_ns: dict[int, Ints]
    #: Time in ns until a rank sees the end of a call, ``[step, rank]``, by index of the call.
    seen_after_ns: dict[int, Ints]
    #: Time in ns that DDP takes to copy a bucket back.
    copy_ns: int = 0
    #: Time in ns for which the process is stopped at the begin of a WORK, in addition to its
    #: ``work_ns``; indexed like ``work_ns``.
    pause_ns: dict[tuple[int, int], Ints] = field(default_factory=dict)
    #: Ranks of each host, each with a clock of its own; 0 if all ranks are on one host.
    ranks_per_host: int = 0
    #: Time in ns by which each rank begins after the first one.
    begin_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def role_of(self, rank: int) -> int:
        """Returns the index of a rank's role."""
        return next(i for i, role in enumerate(self.roles) if rank in role.ranks)

    def works(self, phase: Phase, role: int) -> list[int]:
        """Returns the indices of a role's WORK in one phase."""
        ops = self.roles[role].ops
        return [i for i, op in enumerate(ops) if op.kind == WORK and op.phase == phase]

    def lengthen(
        self, rank: int, phase: Phase, extra_ns: npt.NDArray[np.float64], at: Sequence[int] = ()
    ) -> None:
        """Makes one rank's phase longer by ``extra_ns[step]``.

        ``at``: indices of the WORK operations that share ``extra_ns`` equally; by default all
        operations of the phase.
        """
        role = self.role_of(rank)
        place = int(np.flatnonzero(self.roles[role].ranks == rank)[0])
        chosen = at or self.works(phase, role)
        for op in chosen:
            self.work_ns[role, op][:, place] += np.rint(extra_ns / len(chosen)).astype(np.int64)

    def pause(self, rank: int, op: int, extra_ns: npt.NDArray[np.float64]) -> None:
        """Stops one rank's process for ``extra_ns[step]``, as it begins a WORK."""
        role = self.role_of(rank)
        place = int(np.flatnonzero(self.roles[role].ranks == rank)[0])
        self.pause_ns.setdefault((role, op), np.zeros_like(self.work_ns[role, op]))
        self.pause_ns[role, op][:, place] += np.rint(extra_ns).astype(np.int64)
