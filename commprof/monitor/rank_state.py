"""Follows one rank: computes its step, phase and pending operations from its records."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from commprof.analysis.align.matching import RECV, RECV_ANY_SOURCE, SEND
from commprof.analysis.late.standing import MOST_RECENT, SILENT, OwnCall, PendingOperation, own_call
from commprof.trace.documents import Group
from commprof.trace.schema import (
    FLAG_DEVICE_ASYNC,
    FLAG_DEVICE_TIME,
    FLAG_IN_ISSUE,
    NO_SEQ,
    OPS,
    PHASES,
    POINT_TO_POINT,
    ROOTED,
    Kind,
    Records,
    comes_before,
)

_TAKEN = [
    *(Kind.ISSUE, Kind.END, Kind.WAIT, Kind.STEP, Kind.PHASE),
    *(Kind.FINALIZE_BEGIN, Kind.FINALIZE_END, Kind.DEVICE_WAIT),
]
_ALL_REDUCE = OPS.index("all_reduce")
#: At most this many pending operations are kept. The oldest are dropped first.
_MOST_PENDING = 1024


@dataclass
class FollowedRank:
    """Current state of one rank. Times are in ns of the CLOCK_MONOTONIC of the rank's host."""

    rank: int
    world_size: int
    #: Index of the current step; -1 before the first step begins.
    step: int = -1
    #: Begin of the current step; 0 before the first step begins.
    step_begin_ns: int = 0
    steps_ended: int = 0
    #: Durations of the steps that ended in the latest :meth:`take`. The first step is left out.
    new_step_ns: list[int] = field(default_factory=list)
    last_ns: int = 0
    #: Operations that are not known to be complete, by operation id.
    pending: dict[int, PendingOperation] = field(default_factory=dict)
    #: Sequence number of the rank's next collective, by group name.
    next_seq: dict[str, int] = field(default_factory=dict)
    #: Sequence number of the rank's next point-to-point message. The key holds the group's name,
    #: "send" or "recv", and the peer's rank in the group.
    next_message: dict[tuple[str, str, int], int] = field(default_factory=dict)
    #: Names of the groups in which the rank has issued a receive without a fixed sender.
    receives_any: set[str] = field(default_factory=set)
    recent: deque[OwnCall] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    groups: dict[str, Group] = field(default_factory=dict)
    #: True if the rank has closed its trace, or commprof salvaged it.
    closed: bool = False
    _finalizing: bool = False
    _last_phase: str = ""
    _last_phase_end_ns: int = 0
    _backward_issue_ns: int = 0
    _previous_begin_ns: int = 0
    _graph_task: int = 0
    _buckets: int = 0
    _on_device: set[int] = field(default_factory=set)
    #: True once the end of any operation was measured on the device.
    _has_device_times: bool = False
    #: Ids of operations whose completion was read before their issue. The first set is from the
    #: latest :meth:`take`, the second from the call before.
    _ended_early: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    @property
    def phase(self) -> str:
        """Current phase of the rank, or the last phase that it completed ("after forward").

        A phase is recorded only when it ends. A backward pass is recognised earlier, by the
        operations that it issues.
        """
        if self._finalizing:
            return "backward, waiting for its buckets"
        since_ns = max(self._last_phase_end_ns, self.step_begin_ns)
        if self._backward_issue_ns > since_ns:
            return "backward"
        if self._last_phase_end_ns > self.step_begin_ns:
            return f"after {self._last_phase}"
        return "begin of the step" if self.step >= 0 else "before the first step"

    @property
    def waiting_for(self) -> PendingOperation | None:
        """The oldest pending operation; None if no operation is pending."""
        return min(self.pending.values(), key=lambda operation: operation.issue_ns, default=None)

    def take(self, records: Records, groups: Iterable[Group]) -> None:
        """Updates the state with the rank's next records.

        Args:
            records: the new records, ordered by time.
            groups: the process groups that the rank's trace describes.
        """
        names = common_names(groups)
        self.groups = {group.name: group for group in names.values()}
        self.new_step_ns = []
        self._ended_early = (set(), self._ended_early[0])
        fields = records.dtype.names or ()
        if len(records):
            self.last_ns = max(self.last_ns, int(records["timestamp_ns"].max()))
        for values in records[np.isin(records["kind"], _TAKEN)].tolist():
            self._take(dict(zip(fields, values, strict=True)), names)
        while len(self.pending) > _MOST_PENDING:
            del self.pending[next(iter(self.pending))]
        self._on_device &= self.pending.keys()

    def forget_open(self, before_ns: int) -> None:
        """Forgets operations issued before ``before_ns``, because their ends are not recorded.

        If no record is newer, the next step that ends counts as the first step.
        """
        self.pending = {
            i: operation for i, operation in self.pending.items() if operation.issue_ns >= before_ns
        }
        if self.last_ns < before_ns:
            self.steps_ended = 0
            self._finalizing = False

    def _take(self, row: dict[str, int], groups: dict[int, Group]) -> None:
        kind = row["kind"]
        if kind == Kind.ISSUE:
            self._issue(row, groups)
        elif kind in (Kind.END, Kind.WAIT, Kind.DEVICE_WAIT):
            if not row["flags"] & FLAG_IN_ISSUE:
                self._ended(row)
        elif kind == Kind.STEP:
            self._boundary(row)
        elif kind == Kind.PHASE:
            if row["value"] >= self._last_phase_end_ns:
                self._last_phase_end_ns = row["value"]
                code = row["aux"]
                self._last_phase = PHASES[code] if code < len(PHASES) else f"phase {code}"
        elif kind in (Kind.FINALIZE_BEGIN, Kind.FINALIZE_END):
            self._finalizing = kind == Kind.FINALIZE_BEGIN

    def _ended(self, row: dict[str, int]) -> None:
        op_id, by_host = row["op_id"], row["kind"] == Kind.WAIT
        if row["kind"] == Kind.DEVICE_WAIT or row["flags"] & FLAG_DEVICE_TIME:
            self._has_device_times = True
        if by_host and self._has_device_times and op_id in self._on_device:
            return  # only a stream of the device waited, not the host
        if self.pending.pop(op_id, None) is None:
            self._ended_early[0].add(op_id)

    def _boundary(self, row: dict[str, int]) -> None:
        time_ns = row["timestamp_ns"]
        if row["aux"] == 1 and self.step >= 0:
            self.steps_ended += 1
            if self.steps_ended > 1:
                self.new_step_ns.append(time_ns - self.step_begin_ns)
        self.step = row["op_id"] + row["aux"]
        # Some backends do not report all completions. Operations that were issued before the last
        # two steps count as complete.
        over_ns, self._previous_begin_ns = self._previous_begin_ns, self.step_begin_ns
        self.step_begin_ns = time_ns
        self._finalizing = False
        for op_id in [i for i, operation in self.pending.items() if operation.issue_ns < over_ns]:
            del self.pending[op_id]

    def _issue(self, row: dict[str, int], groups: dict[int, Group]) -> None:
        described = groups.get(row["group"])
        name = described.name if described is not None else f"number {row['group']}"
        op, seq = row["op"], row["seq"]
        message = op in POINT_TO_POINT
        if op == RECV_ANY_SOURCE:
            self.receives_any.add(name)
        elif message and seq != NO_SEQ:
            key = name, "send" if op == SEND else "recv", row["aux"]
            self.next_message[key] = _later(self.next_message.get(key), seq + 1)
        elif not message:
            self.next_seq[name] = _later(self.next_seq.get(name), seq + 1)
        if row["value"]:
            self._backward_issue_ns = row["timestamp_ns"]
        op_name, peer = OPS[op] if op < len(OPS) else f"operation {op}", -1
        if op in (SEND, RECV):
            peer = row["aux"]
        self.recent.append(own_call(op_name, name, row["bytes_in"], row["bytes_out"], peer))
        if any(row["op_id"] in ended for ended in self._ended_early):
            return
        on_device = bool(row["flags"] & FLAG_DEVICE_ASYNC)
        if on_device:
            self._on_device.add(row["op_id"])
        self.pending[row["op_id"]] = PendingOperation(
            op=op_name,
            group=name,
            seq=-1 if op == RECV_ANY_SOURCE or (message and seq == NO_SEQ) else seq,
            peer=peer,
            bytes_in=row["bytes_in"],
            bytes_out=row["bytes_out"],
            issue_ns=row["timestamp_ns"],
            bucket=self._bucket(row) if op == _ALL_REDUCE and row["value"] else -1,
            in_backward=bool(row["value"]),
            silent=op in SILENT or on_device,
            root=row["aux"] if op in ROOTED else -1,
        )

    def _bucket(self, row: dict[str, int]) -> int:
        """Returns the bucket's index. DDP launches buckets in order, so all-reduces are counted."""
        if row["value"] != self._graph_task:
            self._graph_task, self._buckets = row["value"], 0
        self._buckets += 1
        return self._buckets - 1


def _later(latest: int | None, seq: int) -> int:
    """Returns the later of two sequence numbers, which start again at 0 after 2**32 - 1."""
    return latest if latest is not None and not comes_before(latest, seq) else seq % 2**32


def common_names(groups: Iterable[Group]) -> dict[int, Group]:
    """Returns the groups by id, with unique names.

    A name that is used again after ``destroy_process_group`` gets a counter: "0 (2)".
    """
    turns: Counter[str] = Counter()
    named = {}
    for group in sorted(groups, key=lambda each: each.id):
        turns[group.name] += 1
        turn = turns[group.name]
        named[group.id] = group if turn == 1 else replace(group, name=f"{group.name} ({turn})")
    return named
