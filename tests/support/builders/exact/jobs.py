"""Jobs: what each rank does in a step, and how long everything takes.

All ranks of a role run the same operations in every step; only the times differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Ints
from commprof.trace.schema import Phase

#: FINISH is DDP's wait for all calls of its backward pass.
WORK, ISSUE, WAIT, FINISH = "work", "issue", "wait", "finish"


class Op(NamedTuple):
    kind: str
    phase: Phase
    call: int = -1
    calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class Call:
    op: str
    #: Calls of one communicator run one after another.
    label: str
    #: Each row has the global ranks of one group.
    groups: Ints
    bytes: int
    in_backward: bool = False

    @property
    def is_message(self) -> bool:
        return self.op == "send"


@dataclass(frozen=True)
class Role:
    ranks: Ints
    ops: tuple[Op, ...]


@dataclass
class Job:
    name: str
    size: int
    steps: int
    roles: Sequence[Role]
    calls: Sequence[Call]
    #: ``work_ns[role, operation][step, place]`` is the time in ns of a WORK; ``place`` is the
    #: position of a rank in the role.
    work_ns: dict[tuple[int, int], Ints]
    #: ``wire_ns[call][step, group]`` is the time in ns of a call on its communicator.
    wire_ns: dict[int, Ints]
    #: ``seen_after_ns[call][step, rank]`` is the time in ns until a rank sees the end of a call.
    seen_after_ns: dict[int, Ints]
    copy_ns: int = 0
    #: ``pause_ns`` is indexed like ``work_ns``. The process is stopped for this time in ns as the
    #: WORK begins.
    pause_ns: dict[tuple[int, int], Ints] = field(default_factory=dict)
    #: Each host has this number of ranks and its own clock; 0 puts all ranks on one host.
    ranks_per_host: int = 0
    begin_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def role_of(self, rank: int) -> int:
        return next(i for i, role in enumerate(self.roles) if rank in role.ranks)

    def works(self, phase: Phase, role: int) -> list[int]:
        ops = self.roles[role].ops
        return [i for i, op in enumerate(ops) if op.kind == WORK and op.phase == phase]

    def lengthen(
        self, rank: int, phase: Phase, extra_ns: npt.NDArray[np.float64], at: Sequence[int] = ()
    ) -> None:
        role = self.role_of(rank)
        place = int(np.flatnonzero(self.roles[role].ranks == rank)[0])
        chosen = at or self.works(phase, role)
        for op in chosen:
            self.work_ns[role, op][:, place] += np.rint(extra_ns / len(chosen)).astype(np.int64)

    def pause(self, rank: int, op: int, extra_ns: npt.NDArray[np.float64]) -> None:
        role = self.role_of(rank)
        place = int(np.flatnonzero(self.roles[role].ranks == rank)[0])
        self.pause_ns.setdefault((role, op), np.zeros_like(self.work_ns[role, op]))
        self.pause_ns[role, op][:, place] += np.rint(extra_ns).astype(np.int64)
