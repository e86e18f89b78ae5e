"""What one rank trained, and what it exchanged with other ranks since its first backward pass.

Ranks that train one model exchange gradients, or parameters from time to time. A rank that only
gathers a loss or waits at barriers does not. Small models and compressed gradients need few bytes,
so these rules call an exchange one of gradients, each of them enough:

- DDP waited for its buckets, or a backward pass issued the call;
- a call is a message between two ranks, or an all-to-all: pipelines and experts exchange
  activations, whatever their size;
- a call has at least ``_OF_A_CALL`` of the bytes of the updated parameters, or the calls of a
  group have ``_OF_AN_UPDATE`` of these bytes per update. If the bytes of the parameters were not
  recorded, a call of more than ``_SMALL_BYTES`` is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commprof.trace import columns
from commprof.trace.lookup import among, row_containing
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, Phase, op_name

_OF_A_CALL = 0.01
_OF_AN_UPDATE = 0.001
#: Scalars, such as a loss, a norm or counts of samples, fit into this.
_SMALL_BYTES = 64
_BARRIERS = ("barrier", "monitored_barrier")
#: Exchanges of activations, or of parts of a model.
_MESSAGES = ("send", "recv", "recv_any_source", "all_to_all", "all_to_all_single")


@dataclass(frozen=True)
class Trained:
    """The parameters that one rank's optimizers updated in their first updates, in bytes."""

    parameter_bytes: int
    #: True if some are shards of parameters.
    sharded: bool
    #: Parameters whose gradients DDP models reduce.
    ddp_bytes: int
    #: Parameters that DDP models were told to ignore.
    ignored_bytes: int
    #: Loaded libraries that communicate outside of torch.distributed.
    other_libraries: tuple[str, ...]

    @property
    def outside_ddp_bytes(self) -> int:
        """Parameters that belong to no DDP model."""
        return self.parameter_bytes - self.ddp_bytes - self.ignored_bytes


def trained_by(metadata: dict[str, Any]) -> Trained | None:
    """Reads what a rank trained from the metadata of its trace; None if it was not recorded."""
    found = metadata.get("trained")
    if not isinstance(found, dict):
        return None
    return Trained(
        found["parameter_bytes"],
        found["sharded"],
        found["ddp_bytes"],
        found["ignored_bytes"],
        tuple(found["other_libraries"]),
    )


@dataclass(frozen=True)
class GroupExchange:
    """What one rank exchanged in one process group since its first backward pass."""

    #: c10d's name of the group, and its number of ranks.
    group: str
    size: int
    calls: int
    total_bytes: int
    #: True if one of the rules of this module calls it an exchange of gradients.
    of_gradients: bool
    #: Most frequent operation, in c10d's words.
    op: str


@dataclass(frozen=True)
class Exchanged:
    """What one rank trained and exchanged."""

    rank: int
    #: Numbers of backward passes and of optimizer updates; 0 if not recorded.
    backward_passes: int
    updates: int
    #: None if not recorded.
    trained: Trained | None
    groups: tuple[GroupExchange, ...]
    #: Bytes of all calls that DDP did not issue for its buckets.
    beside_ddp_bytes: int
    #: True if calls were issued whose kind says nothing of gradients: in backward passes by
    #: others than DDP, messages, or all-to-all.
    of_activations: bool

    @property
    def trains(self) -> bool:
        """True if the rank computed gradients and updated parameters."""
        return self.backward_passes > 0 and self.updates > 0


def exchanged_by(trace: Trace) -> Exchanged:
    """Finds what the rank of a trace of single records trained and exchanged."""
    phases, table = columns.phases(trace), columns.collectives(trace)
    backward = phases.key == Phase.BACKWARD
    updates = int((phases.key == Phase.OPTIMIZER).sum())
    trained = trained_by(trace.metadata)
    begin_ns, end_ns = phases.begin_ns[backward], phases.end_ns[backward]
    since = int(begin_ns.min(initial=2**62))
    order = np.argsort(begin_ns, kind="stable")
    within = row_containing(begin_ns[order], end_ns[order], table.issue_ns) >= 0
    barriers, messages = (
        among(table.op, *map(OPS.index, names)) for names in (_BARRIERS, _MESSAGES)
    )
    size = np.maximum(table.bytes_in, table.bytes_out)
    counted = (table.issue_ns >= since) & ~barriers
    in_backward = counted & (within | (table.graph_task >= 0))
    by_ddp = in_backward & np.isin(table.graph_task, columns.finalizations(trace).span.key)
    groups = []
    for number in np.unique(table.group[counted]).tolist():
        mine = counted & (table.group == number)
        found = trace.groups.get(number)
        ops, times = np.unique(table.op[mine], return_counts=True)
        total, largest = int(size[mine].sum()), int(size[mine].max())
        groups.append(
            GroupExchange(
                group=found.name if found is not None else f"number {number}",
                size=found.size if found is not None else 0,
                calls=int(mine.sum()),
                total_bytes=total,
                of_gradients=bool((mine & (in_backward | messages)).any())
                or _large(total, largest, updates, trained),
                op=op_name(int(ops[np.argmax(times)])),
            )
        )
    return Exchanged(
        rank=trace.rank,
        backward_passes=int(backward.sum()),
        updates=updates,
        trained=trained,
        groups=tuple(groups),
        beside_ddp_bytes=int(size[counted & ~by_ddp].sum()),
        of_activations=bool((counted & (messages | (in_backward & ~by_ddp))).any()),
    )


def exchanged_in_summary(trace: Trace) -> Exchanged | None:
    """Finds the same from a summary of always-on mode; None if the trace has no summary.

    A summary does not tell what backward passes issued, nor when: a DDP model that was trained
    counts as an exchange.
    """
    summary, trained = trace.summary, trained_by(trace.metadata)
    if summary is None:
        return None
    steps = summary.steps.count
    by_group: dict[int, list[tuple[str, int, int]]] = {}
    for each in summary.operations:
        op = op_name(each.op)
        # A broadcast in few steps, before the first of them, hands out initial parameters.
        at_start = op == "broadcast" and each.count < steps
        if op not in _BARRIERS and each.count and not at_start:
            by_group.setdefault(each.group, []).append((op, each.count, each.bytes))
    groups = []
    for number, rows in by_group.items():
        found = trace.groups.get(number)
        total = sum(size for _, _, size in rows)
        largest = max(size // count for _, count, size in rows)
        is_message = any(op in _MESSAGES for op, _, _ in rows)
        by_ddp = trained is not None and trained.ddp_bytes > 0
        groups.append(
            GroupExchange(
                group=found.name if found is not None else f"number {number}",
                size=found.size if found is not None else 0,
                calls=sum(count for _, count, _ in rows),
                total_bytes=total,
                of_gradients=is_message or by_ddp or _large(total, largest, steps, trained),
                op=max(rows, key=lambda row: row[1])[0],
            )
        )
    computed = summary.phases[Phase.BACKWARD].sum_ns > 0
    updated = summary.phases[Phase.OPTIMIZER].sum_ns > 0
    return Exchanged(
        rank=trace.rank,
        backward_passes=steps if computed else 0,
        updates=steps if updated else 0,
        trained=trained,
        groups=tuple(groups),
        beside_ddp_bytes=sum(each.total_bytes for each in groups),
        of_activations=True,
    )


def _large(total: int, largest: int, updates: int, trained: Trained | None) -> bool:
    """True if calls of these bytes are large enough for an exchange of gradients."""
    if trained is None or trained.parameter_bytes == 0:
        return largest > _SMALL_BYTES
    parameters = trained.parameter_bytes
    return largest >= _OF_A_CALL * parameters or total >= _OF_AN_UPDATE * parameters * updates
