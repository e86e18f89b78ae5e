from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from commprof.trace import schema
from commprof.trace.columns import Ints
from commprof.trace.schema import Kind, Phase
from tests.support.builders.exact.jobs import FINISH, ISSUE, WAIT, Job
from tests.support.builders.exact.simulation import Times
from tests.support.builders.traces import MS, THREAD, Rank

#: gloo tells the end of these operations only to the thread that waits.
_NO_END = ("send", "recv", "reduce_scatter_tensor")
#: A host's clock is ahead of the previous host's by _CLOCK_AHEAD_NS, and faster by a multiple of
#: _DRIFT.
_CLOCK_AHEAD_NS, _DRIFT = 137 * MS + 977, 2e-6


class ExactRank(Rank):
    def __init__(self, job: Job, rank: int, records: Any, steps: list[tuple[int, int]]) -> None:
        of_host = job.ranks_per_host or job.size
        host = rank // of_host
        super().__init__(
            rank, job.size, groups=_groups(job, rank), boot_id=f"boot {host}", threads=1
        )
        self.group_ranks = {id: place for id, _, _, place in _memberships(job, rank)}
        self.metadata["machine"].update(
            hostname=f"host{host}", cpu_count=4 * of_host, usable_cpu_count=4 * of_host
        )
        self.steps = steps
        self._made = records

    def records(self) -> Any:
        return self._made[np.argsort(self._made["timestamp_ns"], kind="stable")]


def _labels(job: Job) -> list[str]:
    return list(dict.fromkeys(call.label for call in job.calls))


def _memberships(job: Job, rank: int) -> list[tuple[int, str, int, int]]:
    """Returns id, name and size of each group of a rank, and the rank's place in the group."""
    found = []
    for id, label in enumerate(_labels(job), 1):
        calls = [call for call in job.calls if call.label == label]
        if calls[0].is_message:
            found.append((id, label, job.size, rank))
            continue
        g, place = np.nonzero(calls[0].groups == rank)
        if len(g):
            size = calls[0].groups.shape[1]
            found.append((id, f"{label} {int(g[0])}", size, int(place[0])))
    return found


def _groups(job: Job, rank: int) -> dict[int, tuple[str, int]]:
    return {id: (name, size) for id, name, size, _ in _memberships(job, rank)}


def recorded(job: Job, times: Times) -> list[Rank]:
    ids = {label: id for id, label in enumerate(_labels(job), 1)}
    ranks: list[Rank | None] = [None] * job.size
    for r, role in enumerate(job.roles):
        records = _of_role(job, times, r, ids)
        for place, rank in enumerate(role.ranks.tolist()):
            ranks[rank] = _of_rank(job, times, rank, records[place])
    return [rank for rank in ranks if rank is not None]


def _of_rank(job: Job, times: Times, rank: int, records: Any) -> Rank:
    begin, end = times.step_begin_ns[:, rank], times.step_end_ns[:, rank]
    first = np.zeros(1, dtype=schema.RECORD_DTYPE)
    first["kind"], first["timestamp_ns"], first["thread"] = Kind.STEP, begin[0], THREAD
    made = np.concatenate((first, records.reshape(-1)))
    host = rank // job.ranks_per_host if job.ranks_per_host else 0
    if host:
        made = _on_own_clock(made, host, int(begin[0]), int(end[-1]))
    steps = list(zip(begin.tolist(), end.tolist(), strict=True))
    return ExactRank(job, rank, made, steps)


def _on_own_clock(records: Any, host: int, first_ns: int, last_ns: int) -> Any:
    def moved(at: Ints) -> Ints:
        drifted = np.rint((at - first_ns) * _DRIFT * (1 + host % 3)).astype(np.int64)
        result: Ints = at + host * _CLOCK_AHEAD_NS + drifted
        return result

    ends = np.isin(records["kind"], (Kind.PHASE, Kind.WAIT, Kind.PAUSE))
    values = records["value"].astype(np.int64)
    records["value"][ends] = moved(values[ends]).astype(np.uint64)
    records["timestamp_ns"] = moved(records["timestamp_ns"].astype(np.int64))
    common = np.linspace(first_ns, last_ns, 8).astype(np.int64)
    own = moved(common)
    clocks = np.zeros(len(common), dtype=schema.RECORD_DTYPE)
    clocks["kind"], clocks["timestamp_ns"], clocks["thread"] = Kind.CLOCK, own, THREAD + 5
    error = 3000 + 1000 * (np.arange(len(common)) % 3)
    seen = common - own + 1000 * (np.arange(len(common)) % 2)
    clocks["value"] = seen.astype(np.uint64)
    clocks["bytes_in"], clocks["bytes_out"] = error, 2 * error
    return np.concatenate((records, clocks))


def _of_role(job: Job, times: Times, r: int, ids: dict[str, int]) -> Any:
    role = job.roles[r]
    ranks, steps = role.ranks, np.arange(job.steps)[:, np.newaxis]
    made: list[Any] = []

    def add(kind: Kind, at: Ints, thread: int = THREAD, **fields: Any) -> None:
        column = np.zeros((job.steps, len(ranks)), dtype=schema.RECORD_DTYPE)
        column["kind"], column["timestamp_ns"], column["thread"] = kind, at, thread
        for name, value in fields.items():
            column[name] = value
        made.append(column)

    issued = [i for i, op in enumerate(role.ops) if op.kind == ISSUE]
    op_ids = {role.ops[i].call: steps * len(issued) + n + 1 for n, i in enumerate(issued)}
    for i, op in enumerate(role.ops):
        begin, end = times.begin_ns[r, i], times.end_ns[r, i]
        if op.kind == ISSUE:
            call, of_call = job.calls[op.call], times.calls[op.call]
            fields = _fields(job, op.call, ranks)
            in_backward = call.in_backward
            add(
                Kind.ISSUE,
                begin,
                op_id=op_ids[op.call],
                group=ids[call.label],
                seq=_seq(job, op.call),
                value=steps + 1 if in_backward else 0,
                **fields,
            )
            if call.op not in _NO_END:
                same = {"op_id": op_ids[op.call], "op": fields["op"], "thread": THREAD + 1}
                add(Kind.END, of_call.end_ns[:, ranks], **same)
        elif op.kind == WAIT:
            code = _fields(job, op.call, ranks)["op"]
            add(Kind.WAIT, begin, op_id=op_ids[op.call], value=end, op=code)
        elif op.kind == FINISH:
            first, last = times.stood_ns[r, i]
            cpu = (end - begin) - (last - first).sum(axis=0)
            same = {"op_id": steps, "flags": schema.FLAG_RUN_DELAY_READ}
            add(Kind.FINALIZE_BEGIN, begin, value=7, bytes_in=5, **same)
            add(Kind.FINALIZE_END, end, value=7 + cpu, bytes_in=5, **same)
        elif (r, i) in job.pause_ns:
            add(Kind.PAUSE, begin, THREAD + 9, value=begin + job.pause_ns[r, i])
    place = 0
    for phase, part in groupby(role.ops, key=lambda op: op.phase):
        count = len(list(part))
        if phase != Phase.OTHER:
            until = times.end_ns[r, place + count - 1]
            add(Kind.PHASE, times.begin_ns[r, place], aux=int(phase), value=until)
        place += count
    add(Kind.STEP, times.step_end_ns[:, ranks], op_id=steps, aux=1)
    records = np.stack(made, axis=2).transpose(1, 0, 2)
    # A pause of 0 ns has no record.
    return [
        each[(each["kind"] != Kind.PAUSE) | (each["value"] > each["timestamp_ns"])]
        for each in records
    ]


def _seq(job: Job, number: int) -> Ints:
    call = job.calls[number]
    alike = [
        i
        for i, other in enumerate(job.calls)
        if other.label == call.label
        and (not call.is_message or np.array_equal(other.groups, call.groups))
    ]
    seq: Ints = np.arange(job.steps)[:, np.newaxis] * len(alike) + alike.index(number)
    return seq


def _fields(job: Job, number: int, ranks: Ints) -> dict[str, Any]:
    call = job.calls[number]
    if not call.is_message:
        sizes = {"bytes_in": call.bytes, "bytes_out": call.bytes}
        return {"op": schema.OPS.index(call.op), **sizes}
    sender = np.isin(ranks, call.groups[:, 0])
    peer = np.zeros(job.size, dtype=np.int64)
    peer[call.groups[:, 0]], peer[call.groups[:, 1]] = call.groups[:, 1], call.groups[:, 0]
    op = np.where(sender, schema.OPS.index("send"), schema.OPS.index("recv"))
    sizes = {
        "bytes_in": np.where(sender, call.bytes, 0),
        "bytes_out": np.where(sender, 0, call.bytes),
    }
    return {"op": op, "aux": peer[ranks], **sizes}
