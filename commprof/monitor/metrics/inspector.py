"""Live metrics of a job whose processes write logs of NCCL Inspector.

Labels are the host and the process id from the logs, and the process's rank in the communicator of
all processes. The rank is "" if there is no such communicator.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from typing import Final

from commprof.analysis.inspector.live import InspectorState, LiveProcess
from commprof.analysis.inspector.result import KindRow
from commprof.monitor.metrics.metrics import Metric, Sample
from commprof.monitor.metrics.values import Labels, Values


def inspector_samples(state: InspectorState) -> Iterator[Sample]:
    """Yields all known values, metric by metric."""
    for metric in INSPECTOR_METRICS:
        for labels, value in metric.values(state):
            if not math.isnan(value):
                yield Sample(metric, labels, value)


def _here(state: InspectorState) -> list[LiveProcess]:
    """Returns this host's processes, or all processes if the logs are from other hosts."""
    own_host = socket.gethostname().split(".")[0]
    processes = [live for live in state.processes if live.process.host.split(".")[0] == own_host]
    return processes or list(state.processes)


def _labels(live: LiveProcess) -> Labels:
    rank = "" if live.rank is None else str(live.rank)
    return {"rank": rank, "host": live.process.host, "pid": str(live.process.pid)}


def _processes(value: Callable[[LiveProcess], float]) -> Callable[[InspectorState], Values]:
    def values(state: InspectorState) -> Values:
        for live in _here(state):
            yield _labels(live), float(value(live))

    return values


def _late(state: InspectorState) -> Values:
    for live in _here(state):
        yield _labels(live), float(live.process in state.waited_for)


def _kinds(value: Callable[[KindRow], float]) -> Callable[[InspectorState], Values]:
    def values(state: InspectorState) -> Values:
        for row in state.kinds:
            labels = {"op": row.op, "ranks": str(row.ranks), "size_bytes": str(row.size_bytes)}
            yield labels, value(row)

    return values


def _job(value: Callable[[InspectorState], float]) -> Callable[[InspectorState], Values]:
    return lambda state: iter([({}, float(value(state)))])


def _metric(
    kind: str, name: str, text: str, values: Callable[[InspectorState], Values]
) -> Metric[InspectorState]:
    return Metric(f"commprof_nccl_{name}", kind, text, values)


INSPECTOR_METRICS: Final = (
    _metric(
        "counter",
        "wait_caused_seconds_total",
        "Time for which other processes waited in collectives and messages because of this "
        "process, summed over the processes that waited. Waiting counts for the process where it "
        "began, even if that process is in another communicator.",
        _processes(lambda one: one.caused_s),
    ),
    _metric(
        "counter",
        "waited_seconds_total",
        "Time for which this process waited in collectives and messages for the last rank.",
        _processes(lambda one: one.waited_s),
    ),
    _metric(
        "counter",
        "operation_seconds_total",
        "Time of this process in collectives and messages whose waiting is known, both waiting and "
        "transfer.",
        _processes(lambda one: one.time_s),
    ),
    _metric(
        "gauge",
        "late",
        "1 for a process that makes the others wait more than chance explains, 0 for all others.",
        _late,
    ),
    _metric(
        "gauge",
        "writes",
        "0 if the process has written nothing for much longer than usual, else 1.",
        _processes(lambda one: one.writes),
    ),
    _metric(
        "gauge",
        "transfer_seconds",
        "Median transfer time of the latest calls. A call's transfer time is its duration on the "
        "rank that came last.",
        _kinds(lambda row: row.transfer_us / 1e6),
    ),
    _metric(
        "gauge",
        "transfer_bus_bandwidth_bytes_per_second",
        "Bus bandwidth of the latest calls while they transferred data, without the waiting.",
        _kinds(lambda row: row.busbw_gb_per_s * 1e9),
    ),
    _metric("counter", "calls_total", "Calls counted so far.", _job(lambda state: state.calls)),
    _metric(
        "counter",
        "lost_records_total",
        "Number of missing records: some ranks recorded the call, and other ranks did not.",
        _job(lambda state: state.lost_records),
    ),
    _metric(
        "gauge",
        "since_written_seconds",
        "Time since any process wrote to its log.",
        _job(lambda state: state.since_written_s),
    ),
    _metric(
        "gauge",
        "problems",
        "Number of distinct problems that the monitor found in the logs.",
        _job(lambda state: len(state.problems)),
    ),
)
