"""Finds which parameters a rank trained, and which data it exchanged with other ranks.

The calls of a process group count as an exchange of gradients if at least one of these rules holds:

- a backward pass issued a call, such as an all-reduce of DDP;
- a call is a message between two ranks, or an all-to-all: pipelines and experts exchange
  activations and gradients this way;
- a call has at least ``_OF_A_CALL`` of the bytes of the updated parameters, or all calls together
  have ``_OF_AN_UPDATE`` of these bytes per update. If the bytes of the parameters were not
  recorded, a call of more than ``_SMALL_BYTES`` is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import among, distinct_rows
from commprof.trace.operations import codes_of, family
from commprof.trace.ranks import firsts, firsts_of, joined, ranks_of, rows_containing
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase, op_name

#: Updates are recorded for each DDP model only if a process has at most this many models.
MOST_MODELS = 6
_OF_A_CALL = 0.01
_OF_AN_UPDATE = 0.001
#: Scalars, such as a loss, a norm or counts of samples, fit into this many bytes.
_SMALL_BYTES = 64
#: Families of operations that exchange activations, or parts of a model.
_MESSAGES = ("send", "recv", "all_to_all")


@dataclass(frozen=True)
class Trained:
    """The parameters that one rank's optimizers updated in their first updates."""

    parameter_bytes: int
    #: True if some parameters are shards.
    sharded: bool
    #: True if FSDP1 shards the parameters; None if this was not recorded.
    flat: bool | None
    #: Bytes of the parameters whose gradients DDP models reduce.
    ddp_bytes: int
    #: Bytes of the parameters that the script excluded from DDP models.
    ignored_bytes: int
    #: Loaded libraries that communicate outside of torch.distributed.
    other_libraries: tuple[str, ...]
    #: For each DDP model: bytes of the parameters whose gradients the model reduces. Empty if not
    #: recorded.
    ddp_model_bytes: tuple[int, ...] = ()
    #: For each update: indices in ``ddp_model_bytes`` of the models whose parameters were trained.
    #: Empty for more than ``MOST_MODELS`` models.
    updated_models: tuple[tuple[int, ...], ...] = ()
    #: For each update: indices of the models whose gradients the script had not set to None since
    #: the previous update, as one parameter of each model shows. Only for two to ``MOST_MODELS``
    #: models.
    kept_gradients: tuple[tuple[int, ...], ...] = ()

    @property
    def outside_ddp_bytes(self) -> int:
        """Bytes of the parameters outside of DDP models."""
        return self.parameter_bytes - self.ddp_bytes - self.ignored_bytes


def trained_by(metadata: dict[str, Any]) -> Trained | None:
    """Reads the trained parameters from a trace's metadata; None if not recorded."""
    found = metadata.get("trained")
    if not isinstance(found, dict):
        return None
    return Trained(
        found["parameter_bytes"],
        found["sharded"],
        found.get("flat"),  # traces of earlier versions lack it
        found["ddp_bytes"],
        found["ignored_bytes"],
        tuple(found["other_libraries"]),
        tuple(found.get("ddp_model_bytes", ())),
        tuple(map(tuple, found.get("updated_models", ()))),
        tuple(map(tuple, found.get("kept_gradients", ()))),
    )


@dataclass(frozen=True)
class GroupExchange:
    """Calls, except barriers, of one rank in one process group since its first backward pass."""

    #: c10d's name of the group.
    group: str
    #: Number of ranks of the group.
    size: int
    calls: int
    total_bytes: int
    #: True if the calls count as an exchange of gradients, see the rules of this module.
    of_gradients: bool
    #: c10d's name of the most frequent operation.
    op: str


@dataclass(frozen=True)
class Exchanged:
    """The parameters that one rank trained, and the data that it exchanged."""

    rank: int
    #: Numbers of backward passes and of optimizer updates; 0 if not recorded.
    backward_passes: int
    updates: int
    #: None if not recorded.
    trained: Trained | None
    groups: tuple[GroupExchange, ...]
    #: Bytes of all calls in ``groups``, except those of backward passes in which DDP waited for its
    #: buckets.
    beside_ddp_bytes: int
    #: True if there were calls that may carry activations: messages, all-to-all, or calls of a
    #: backward pass in which DDP did not wait for buckets.
    of_activations: bool

    @property
    def trains(self) -> bool:
        """True if the rank computed gradients and updated parameters."""
        return self.backward_passes > 0 and self.updates > 0


def exchanged_by(trace: Trace) -> Exchanged:
    """Finds what a rank trained and exchanged, from a trace that holds every record."""
    return exchanged_by_each([trace])[0]


def exchanged_by_each(traces: Sequence[Trace]) -> list[Exchanged]:
    """Finds what each rank trained and exchanged, from traces that hold every record."""
    ranks = range(len(traces))
    phases = columns.tables_of(traces, columns.phases)
    tables = columns.tables_of(traces, columns.collectives)
    passes = columns.tables_of(traces, columns.finalizations)
    key, of_phase = joined(phases, "key"), ranks_of(firsts_of(phases))
    backward = np.flatnonzero(key == Phase.BACKWARD)
    updates = np.bincount(of_phase[key == Phase.OPTIMIZER], minlength=len(traces)).tolist()
    begin_ns, end_ns = (joined(phases, name)[backward] for name in ("begin_ns", "end_ns"))
    order = np.lexsort((begin_ns, of_phase[backward]))
    begin_ns, end_ns = begin_ns[order], end_ns[order]
    count_backward = np.bincount(of_phase[backward], minlength=len(traces))
    first_backward = firsts(count_backward)
    since_ns = np.full(len(traces), 2**62)
    since_ns[count_backward > 0] = begin_ns[first_backward[:-1][count_backward > 0]]
    first_call = firsts_of(tables)
    rank = ranks_of(first_call)
    issue_ns, op, group, task = (
        joined(tables, name) for name in ("issue_ns", "op", "group", "graph_task")
    )
    within = rows_containing(begin_ns, end_ns, first_backward, issue_ns, first_call) >= 0
    barriers, messages = (among(op, *codes_of(*families)) for families in (("barrier",), _MESSAGES))
    size = np.maximum(joined(tables, "bytes_in"), joined(tables, "bytes_out"))
    counted = (issue_ns >= since_ns[rank]) & ~barriers
    in_backward = counted & (within | (task >= 0))
    of_pass = ranks_of(firsts_of(passes))
    number, first = distinct_rows(
        np.concatenate((of_pass, rank)), np.concatenate((joined(passes, "span.key"), task))
    )
    by_ddp = in_backward & (first[number[len(of_pass) :]] < len(of_pass))
    beside = _sums(rank, size, counted & ~by_ddp, len(traces))
    activations = _sums(
        rank, np.ones_like(size), counted & (messages | (in_backward & ~by_ddp)), len(traces)
    )
    groups: list[list[GroupExchange]] = [[] for _ in ranks]
    trained = [trained_by(trace.metadata) for trace in traces]
    rows = np.flatnonzero(counted)
    number, first = distinct_rows(rank[rows], group[rows])
    largest = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(largest, number, size[rows])
    shows = _sums(number, np.ones_like(rows), (in_backward | messages)[rows], len(first))
    for place, group_number, calls, total, most, of_gradients, of_op in zip(
        rank[rows][first].tolist(),
        group[rows][first].tolist(),
        np.bincount(number, minlength=len(first)).tolist(),
        _sums(number, size[rows], np.ones(len(rows), dtype=np.bool_), len(first)).tolist(),
        largest.tolist(),
        (shows > 0).tolist(),
        _most_frequent(number, op[rows]).tolist(),
        strict=True,
    ):
        found = traces[place].groups.get(group_number)
        groups[place].append(
            GroupExchange(
                group=found.name if found is not None else f"number {group_number}",
                size=found.size if found is not None else 0,
                calls=calls,
                total_bytes=total,
                of_gradients=of_gradients or _large(total, most, updates[place], trained[place]),
                op=op_name(of_op),
            )
        )
    return [
        Exchanged(
            rank=traces[place].rank,
            backward_passes=int(count_backward[place]),
            updates=updates[place],
            trained=trained[place],
            groups=tuple(groups[place]),
            beside_ddp_bytes=int(beside[place]),
            of_activations=bool(activations[place]),
        )
        for place in ranks
    ]


def _sums(number: Ints, values: Ints, chosen: npt.NDArray[np.bool_], count: int) -> Ints:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, number[chosen], values[chosen])
    return total


def _most_frequent(number: Ints, op: Ints) -> Ints:
    kind, first = distinct_rows(number, op)
    order = np.lexsort((op[first], -np.bincount(kind, minlength=len(first)), number[first]))
    _, at = np.unique(number[first][order], return_index=True)
    frequent: Ints = op[first][order][at]
    return frequent


def exchanged_in_summary(trace: Trace) -> Exchanged | None:
    """Returns what one rank exchanged, from a summary of always-on mode; None without a summary.

    A summary shows neither times nor sources of calls. So calls before the first backward pass
    count too, except broadcasts in only some of the steps. If a DDP model was trained, the calls of
    every group count as an exchange of gradients. ``beside_ddp_bytes`` includes DDP's calls for
    buckets, and ``of_activations`` is always True.
    """
    summary, trained = trace.summary, trained_by(trace.metadata)
    if summary is None:
        return None
    steps = summary.steps.count
    by_group: dict[int, list[tuple[str, int, int]]] = {}
    for each in summary.operations:
        op = op_name(each.op)
        # Broadcasts in only some of the steps presumably sent the initial parameters.
        at_start = op == "broadcast" and each.count < steps
        if family(op) != "barrier" and each.count and not at_start:
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
    if trained is None or trained.parameter_bytes == 0:
        return largest > _SMALL_BYTES
    parameters = trained.parameter_bytes
    return largest >= _OF_A_CALL * parameters or total >= _OF_AN_UPDATE * parameters * updates
