"""Builders of traces; times are in ns on the clock that the ranks of one machine share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from commprof.trace import schema
from commprof.trace.columns import HOST_COUNTS
from commprof.trace.reader import Group, Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import FLAG_RUN_DELAY_READ, Kind, Phase
from tests.support.builders import trace_bytes
from tests.support.builders.histograms import histogram_of

MS = 1_000_000
THREAD = 100


class Rank:
    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        groups: dict[int, tuple[str, int]] | None = None,
        boot_id: str = "boot",
        dropped: int = 0,
        **metadata: Any,
    ) -> None:
        """``groups`` maps a group's number to name and size; by default all ranks are one group."""
        self.rank = rank
        self.world_size = world_size
        self.dropped = dropped
        self.groups = {1: ("0", world_size)} if groups is None else groups
        self.metadata = trace_bytes.metadata(rank=rank, world_size=world_size, **metadata)
        self.metadata["machine"]["boot_id"] = boot_id
        self.backend = "gloo"
        #: Number of the rank in each group; by default the number is the global rank.
        self.group_ranks: dict[int, int] = {}
        self.stacks: dict[int, tuple[str, ...]] = {}
        self.steps: list[tuple[int, int]] = []
        self._records: list[dict[str, int]] = []
        self._op_id = 0

    def step(self, begin: int, end: int) -> None:
        if not self.steps or self.steps[-1][1] != begin:
            self._add(Kind.STEP, begin, op_id=len(self.steps), aux=0)
        self._add(Kind.STEP, end, op_id=len(self.steps), aux=1)
        self.steps.append((begin, end))

    def step_begin(self, begin: int) -> None:
        self._add(Kind.STEP, begin, op_id=0, aux=0)

    def phase(
        self, phase: Phase, begin: int, end: int, thread: int = THREAD, samples: int = 0
    ) -> None:
        self._add(Kind.PHASE, begin, aux=phase, value=end, thread=thread, seq=samples)

    def collective(
        self,
        seq: int,
        issue: int,
        end: int,
        bytes: int = 0,
        graph_task: int = -1,
        group: int = 1,
        op: str = "all_reduce",
        failed: bool = False,
        **fields: int,
    ) -> int:
        """``end`` is 0 if the end is unknown, ``fields`` belong to the issue; returns the id."""
        self._op_id += 1
        code = schema.OPS.index(op)
        self._add(
            Kind.ISSUE,
            issue,
            op_id=self._op_id,
            op=code,
            group=group,
            seq=seq,
            **{"bytes_in": bytes, "bytes_out": bytes, "value": graph_task + 1, **fields},
        )
        if end:
            flags = schema.FLAG_FAILED if failed else 0
            self._add(Kind.END, end, op_id=self._op_id, op=code, thread=THREAD + 1, flags=flags)
        return self._op_id

    def wait(self, op_id: int, begin: int, end: int, thread: int = THREAD) -> None:
        self._add(Kind.WAIT, begin, op_id=op_id, value=end, thread=thread)

    def stack(self, op_id: int, number: int) -> None:
        self._add(Kind.STACK, 1, op_id=op_id, value=number)

    def pause(self, begin: int, end: int) -> None:
        self._add(Kind.PAUSE, begin, value=end, thread=THREAD + 9)

    def no_core(self, begin: int, end: int, delay: int, helpers_cpu: int = 0) -> None:
        """The training thread could run, but had no core for ``delay`` ns.

        ``helpers_cpu`` is the CPU time in ns of the process's other threads.
        """
        self._add(Kind.RUN_DELAY, begin, value=end, bytes_in=delay, bytes_out=helpers_cpu)

    def host_counts(self, begin: int, end: int, **counts: int) -> None:
        fields = {HOST_COUNTS[name]: count for name, count in counts.items()}
        self._add(Kind.HOST_COUNTS, begin, value=end, **fields)

    def finalize(
        self, begin: int, end: int, cpu: int, run_delay: int | None = 0, graph_task: int = 0
    ) -> None:
        """``run_delay`` is None if the run delay was not read."""
        flags = 0 if run_delay is None else FLAG_RUN_DELAY_READ
        same = {"op_id": graph_task, "flags": flags}
        self._add(Kind.FINALIZE_BEGIN, begin, value=7, bytes_in=5, **same)
        self._add(Kind.FINALIZE_END, end, value=7 + cpu, bytes_in=5 + (run_delay or 0), **same)

    def compressed(
        self,
        index: int,
        size: int,
        times: tuple[int, ...],
        scheme: str = "int8",
        wire: int = 0,
        quality: tuple[float, float, float, int, int] | None = None,
        flags: int = 0,
        seq: int = 0,
    ) -> None:
        """``times``: bucket ready, and the ends of queueing, encode, exchange, reduce and decode.

        ``quality``: relative error, cosine, residual ratio, zeroed values, saturated values.
        """
        self._op_id += 1
        ready, *ends = times
        same = {"op_id": self._op_id, "aux": index}
        self._add(Kind.BUCKET, ready, bytes_in=size, value=ready, group=1, seq=seq, **same)
        for stage, (begin, end) in enumerate(pairwise(ends)):
            self._add(Kind.SPAN, begin, op_id=self._op_id, aux=stage, value=end)
        name = int.from_bytes(scheme.encode(), "little")
        sizes = {"bytes_in": wire // 2, "bytes_out": wire}
        self._add(Kind.COMPRESSION, ends[-1], value=name, flags=flags, **sizes, **same)
        if quality is not None:
            error, cosine, ratio, zeroed, saturated = quality
            bits = [int(np.float64(x).view(np.uint64)) for x in (error, cosine, ratio)]
            self._add(
                Kind.QUALITY,
                ends[-1],
                op_id=self._op_id,
                bytes_in=bits[0],
                bytes_out=bits[1],
                value=bits[2],
                seq=zeroed,
                aux=saturated,
            )
        self._add(Kind.BUCKET_END, ends[-1], **same)

    def clock(self, at: int, offset: int, error: int) -> None:
        """Adds that rank 0's clock is ahead by ``offset`` ns, with an error up to ``error`` ns."""
        value = offset % 2**64
        self._add(Kind.CLOCK, at, value=value, bytes_in=error, bytes_out=2 * error)

    def trace(self) -> Trace:
        return Trace(
            path=Path(f"rank_{self.rank}.trace"),
            metadata=self.metadata,
            groups={
                id: Group(id, name, "", self.backend, self.group_ranks.get(id, self.rank), size)
                for id, (name, size) in self.groups.items()
            },
            records=self.records(),
            complete=True,
            dropped=self.dropped,
            problems=(),
            stacks=self.stacks,
        )

    def records(self) -> Any:
        records = np.zeros(len(self._records), dtype=schema.RECORD_DTYPE)
        for row, values in zip(records, self._records, strict=True):
            for name, value in values.items():
                row[name] = value
        return records[np.argsort(records["timestamp_ns"], kind="stable")]

    def write(self, path: Path) -> None:
        groups = [
            trace_bytes.group(id, name=name, rank=self.rank, size=size, backend=self.backend)
            for id, (name, size) in self.groups.items()
        ]
        blocks = [trace_bytes.document(trace_bytes.GROUP_BLOCK, group) for group in groups]
        blocks += [trace_bytes.block(trace_bytes.RECORDS_BLOCK, self.records().tobytes())]
        path.write_bytes(trace_bytes.trace(*blocks, trace_bytes.end(self.dropped), **self.metadata))

    def result(self, **values: Any) -> dict[str, Any]:
        step_ns = [end - begin for begin, end in self.steps]
        return {
            "rank": self.rank,
            "steps": len(step_ns),
            "step_ns": step_ns,
            "step_samples": [10] * len(step_ns),
            "losses": [2.0] * max(1, len(step_ns)),
            "average_loss": 2.0,
            "overhead": [],
            "record_cost_ns": 50.0,
            **values,
        }

    def _add(self, kind: Kind, timestamp: int, thread: int = THREAD, **values: int) -> None:
        self._records.append(
            {"kind": int(kind), "timestamp_ns": timestamp, "thread": thread, **values}
        )


def world_run(ranks: list[Rank], world_size: int | None = None, **values: Any) -> WorldRun:
    return WorldRun(
        world_size=world_size or len(ranks),
        directory=Path("world"),
        results={rank.rank: rank.result(**values) for rank in ranks},
        traces={rank.rank: rank.trace() for rank in ranks},
        problems=(),
    )


class GrowingRun:
    def __init__(self, directory: Path, ranks: Sequence[Rank]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.ranks = {rank.rank: rank for rank in ranks}
        self.paths = {rank.rank: directory / f"rank_{rank.rank}.trace" for rank in ranks}
        self._records = {rank.rank: rank.records() for rank in ranks}
        self._written = dict.fromkeys(self.ranks, 0)

    def begin(self, *ranks: int) -> None:
        for number in ranks or self.ranks:
            rank = self.ranks[number]
            groups = [
                trace_bytes.document(
                    trace_bytes.GROUP_BLOCK,
                    trace_bytes.group(id, name=name, rank=number, size=size),
                )
                for id, (name, size) in rank.groups.items()
            ]
            self.paths[number].write_bytes(trace_bytes.trace(*groups, **rank.metadata))

    def until(self, now_ns: int, *ranks: int) -> None:
        for number in ranks or self.ranks:
            records = self._records[number]
            count = int(np.searchsorted(records["timestamp_ns"], now_ns))
            new = records[self._written[number] : count]
            if len(new):
                self._append(number, trace_bytes.block(trace_bytes.RECORDS_BLOCK, new.tobytes()))
            self._written[number] = count

    def end(self) -> None:
        self.until(2**62)
        for number in self.ranks:
            self._append(number, trace_bytes.end())

    def _append(self, rank: int, data: bytes) -> None:
        with self.paths[rank].open("ab") as file:
            file.write(data)


def document(values_ns: list[int]) -> dict[str, Any]:
    found = histogram_of(values_ns)
    gaps = np.diff(found.buckets, prepend=0).tolist()
    pairs = [x for pair in zip(gaps, found.counts.tolist(), strict=True) for x in pair]
    counters = {"count": found.count, "sum": found.sum_ns, "min": found.min_ns}
    return {**counters, "max": found.max_ns, "buckets": pairs}


def operation(**changes: Any) -> dict[str, Any]:
    return {
        "op": 1,
        "group": 1,
        "size_class": 21,
        "count": 2,
        "bytes": 3_000_000,
        "failed": 0,
        "unfinished": 0,
        "duration": document([4 * MS, 6 * MS]),
        "wait": document([]),
        "until_last": document([1 * MS, 3 * MS]),
        "transfer": document([3 * MS, 3 * MS]),
        **changes,
    }


def summary(**changes: Any) -> dict[str, Any]:
    """Each step of 10 ms is 1 ms data, 2 ms forward, 3 ms backward, 3 ms exposed, 1 ms other."""
    return {
        "sequence": 1,
        "mode": "always-on",
        "begin_ns": 0,
        "end_ns": 2_000_000_000,
        "records": 9,
        "dropped": 0,
        "unmatched": 0,
        "moved": 0,
        "steps": document([10 * MS] * 2),
        "exposed": document([3 * MS] * 2),
        "phases": [document([n * MS] * 2) for n in (1, 1, 2, 3, 0)],
        "arrivals": {"known": 2, "unknown": 0, "unsplit_steps": 0},
        "arrival_clock_error": document([]),
        "hosts": {"clock": 0, "peers": 0, "heard": 0, "unsent": 0},
        "exposed_wait": document([1 * MS] * 2),
        "exposed_transfer": document([2 * MS] * 2),
        "last": [{"rank": 0, "count": 2, "wait_ns": 0}],
        "waited_for": {"block_ns": 1 << 24, "cells": []},
        "operations": [operation()],
        **changes,
    }
