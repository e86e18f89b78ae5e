"""State of one rank in a job that hangs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from commprof.analysis.collectives.mismatches import common_bytes
from commprof.text import CALLED_AT
from commprof.trace.documents import Group
from commprof.trace.operations import codes_of
from commprof.trace.schema import OPS, POINT_TO_POINT

#: Gloo does not report the completion of these operations. Their completion is known only if a wait
#: for the operation blocked.
SILENT = {
    *POINT_TO_POINT,
    *codes_of("reduce_scatter"),
}


#: Maps each part of a message to the part that the other rank issues.
COUNTERPART: Final = {"send": "recv", "recv": "send"}
#: Backends that run the operations of a communicator one after the other, in the order of issue.
IN_ORDER: Final = ("nccl", "xccl")


class Launch(NamedTuple):
    """Operations that a backend such as NCCL runs together, as one launch of a communicator."""

    #: The communicator, which runs one launch after the other.
    queue: str
    #: Number of the launch, in the order in which the rank issued its launches.
    number: int
    #: True if the launch has several operations, which complete together.
    of_several: bool = False


@dataclass(frozen=True)
class PendingOperation:
    """An operation that a rank handed to its process group."""

    op: str
    #: Name of the group in c10d; "number N" if the trace lacks the name.
    group: str
    #: Sequence number of a collective in its group, or of a message between two ranks; -1: unknown.
    seq: int
    #: The other rank of a message, as rank in the group. -1 for a collective, and for a receive
    #: from any rank.
    peer: int
    bytes_in: int
    bytes_out: int
    issue_ns: int
    #: Index of a DDP all-reduce in its backward pass, from 0; -1 for other operations.
    bucket: int
    #: True if a backward pass issued the operation. Used only in ``hang_N.json``.
    in_backward: bool
    #: True if the completion of the operation may not be recorded, as for some operations of gloo.
    silent: bool = False
    #: True if the operation has begun to run on its device; None if not known.
    started: bool | None = None
    #: Root of the operation, as rank in the group; -1 if there is no root, or if unknown.
    root: int = -1
    #: Lines of the script that issued the operation, the innermost first, such as
    #: "a.py:7 < train.py:20"; empty if not known.
    path: str = ""
    #: None if the backend runs operations independently of the order of issue; always None for
    #: operations that are not read from dumps.
    launch: Launch | None = None

    @property
    def line(self) -> str:
        """File and line that issued the operation, such as "train.py:7"; empty if not known."""
        return self.path.split(CALLED_AT, 1)[0]

    def __str__(self) -> str:
        """Returns the operation in words."""
        bucket = f", bucket {self.bucket}" if self.bucket >= 0 else ""
        number = f"number {self.seq}" if self.seq >= 0 else "of unknown number"
        end = f", {'to' if self.op == 'send' else 'from'} its rank {self.peer}"
        return f"{self.op} {number} of group {self.group!r}{bucket}{end * (self.peer >= 0)}"


class Standing(Protocol):
    """Interface of the state of one rank in a hanging job."""

    @property
    def rank(self) -> int:
        """The rank's global rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""

    @property
    def pending(self) -> Mapping[int, PendingOperation]:
        """Operations that the rank has issued and that are not known to be complete."""

    @property
    def next_seq(self) -> Mapping[str, int]:
        """Sequence number of the rank's next collective, by the group's name."""

    @property
    def next_message(self) -> Mapping[tuple[str, str, int], int]:
        """Number of the next point-to-point message, by group, "send" or "recv", and peer."""

    @property
    def receives_any(self) -> Collection[str]:
        """Groups in which the rank has issued a receive from any rank, by name."""

    @property
    def recent(self) -> Sequence[OwnCall]:
        """The rank's latest operations, in the order of issue."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """Groups to which the rank is known to belong, by name."""


class OwnCall(NamedTuple):
    """Properties that distinguish an operation from others that the rank issues in a step."""

    op: str
    group: str
    #: Size in bytes; -1 if the size may differ from step to step.
    size_bytes: int
    #: Other end of a message, as rank in the group; -1 for a collective, and for a receive from any
    #: rank.
    peer: int


@lru_cache(maxsize=1 << 12)
def own_call(op: str, group: str, bytes_in: int, bytes_out: int, peer: int) -> OwnCall:
    """Makes an ``OwnCall`` from the fields of a ``PendingOperation``."""
    size_bytes = common_bytes(OPS.index(op), bytes_in, bytes_out) if op in OPS else bytes_in
    return OwnCall(op, group, size_bytes, peer)


class Words:
    """Describes groups and operations in words."""

    def group(self, name: str) -> str:
        """Returns the group's name in words."""
        return f"group {name!r}"

    def operation(self, operation: PendingOperation) -> str:
        """Describes an operation."""
        return str(operation)

    def missed(self, operation: PendingOperation) -> str:
        """Returns what an awaited rank did not do, such as "did not arrive at X".

        For a send X, the result is "did not issue the recv for X".
        """
        if operation.op in COUNTERPART:
            part = COUNTERPART[operation.op]
            return f"did not issue the {part} for {self.operation(operation)}"
        return f"did not arrive at {self.operation(operation)}"


def oldest_first(state: Standing) -> list[PendingOperation]:
    """Returns a rank's pending operations in the order of issue."""
    return sorted(state.pending.values(), key=lambda operation: operation.issue_ns)


#: Largest number of operations in ``Standing.recent``, usually enough for several steps.
MOST_RECENT = 512
#: A rank's pending operations, the oldest first, each with the ranks that it waits for.
Waits = Sequence[tuple[PendingOperation, tuple[int, ...]]]
