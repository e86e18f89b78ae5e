"""Renders the figures of a job from logs of NCCL Inspector, as text and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

from commprof.analysis.inspector.communicators import Process
from commprof.analysis.inspector.late_processes import LateProcess
from commprof.analysis.inspector.result import (
    CommunicatorRow,
    InspectorResult,
    KindRow,
    ProcessRow,
    StepRow,
)
from commprof.analysis.inspector.slower_processes import SlowerProcesses
from commprof.field_groups import plain_fields
from commprof.files import plain
from commprof.report.section import Section
from commprof.report.tabulated import Grid, not_shown, tabulated, three_digits
from commprof.text import counted, fitted, listed, plain_digits, plural, printable, wrapped

SCHEMA_VERSION = 1
_OPERATIONS = """\
time: mean time of a rank in a call, as measured by Inspector; wait: the part of this time before
the last rank arrived; transfer: median time of the rank that arrived last; busbw: bus bandwidth of
the transfer; with wait: bus bandwidth of the whole time, as Inspector computes it. size: as counted
by nccl-tests. -: not known."""
_COMMUNICATORS = """\
last: the process for which the communicator's other processes waited most; part: fraction of the
other processes' waiting that was for this process. The process may be late only because it waited
in another communicator. The column "caused" of the table above shows with which process the waiting
began. time, wait: means over the recorded ranks, in operations whose waiting is known."""
_PROCESSES = """\
caused: time that all others waited because of the process, traced across communicators; waited:
time that the process waited itself, and its fraction of time; time: in operations whose waiting is
known; unsplit: in operations whose waiting is not known. rank, if shown: in the communicator of all
processes."""
_PROCESS_HEADERS = (
    *("process", "rank", "caused\ns", "waited\ns", "waited\n%", "time\ns"),
    "unsplit\ns",
)
_UNKNOWN = "Not known, or not read"
_MOST_ROWS = 12
_MOST_RANKS = 4
_MOST_ALGORITHMS = 3


def render(result: InspectorResult, width: int, tables: int | None = None) -> str:
    """Renders a result for a terminal.

    Args:
        result: the figures.
        width: number of characters at which prose is wrapped.
        tables: number of characters; a wider table is split. None leaves the table whole.
    """
    blocks = [heading(result), *(wrapped(text, width) for text in sentences(result))]
    for _, _, grid, legend, more in _tables(result):
        blocks += [tabulated(*grid, width=tables), *more, fitted(legend, width)]
    caveats = [wrapped(f"- {text}", width, rest="  ") for text in result.caveats]
    blocks.append("\n".join([_UNKNOWN, *caveats]))
    return "\n\n".join(blocks) + "\n"


def sections(result: InspectorResult) -> list[Section]:
    """Returns the sections of a page."""
    lead, *rest = sentences(result)
    parts = [Section("card", "Who waits for whom", lead=lead, paragraphs=tuple(rest))]
    for place, title, grid, legend, more in _tables(result):
        parts.append(
            Section(place, title, paragraphs=tuple(more), grids=((title, grid),), legend=legend)
        )
    return [*parts, Section("unknown", _UNKNOWN, bullets=result.caveats)]


def context(result: InspectorResult) -> dict[str, str]:
    """Returns the head of a page: the recording and its recorder."""
    return {
        "description": heading(result),
        "recorded_by": "NVIDIA's NCCL Inspector",
        "backend": "nccl",
        "timestamp": "",
        "command": "",
    }


def _tables(result: InspectorResult) -> list[tuple[str, str, Grid, str, list[str]]]:
    """Returns for each table: id, title, grid, legend, and sentences on rows that are not shown."""
    most_waited_for = sorted(result.process_rows, key=lambda row: -row.caused_s)[:_MOST_ROWS]
    return [
        (
            "collectives",
            "Waiting and transfer by operation and size",
            _operations_grid(result),
            _OPERATIONS,
            not_shown(len(result.kinds) - _MOST_ROWS, "kind of operation"),
        ),
        (
            "ranks",
            "Processes by the waiting that they cause",
            _processes_grid(most_waited_for),
            _PROCESSES,
            not_shown(len(result.process_rows) - _MOST_ROWS, "row", " of processes"),
        ),
        (
            "waiting",
            "Communicators by their waiting",
            _communicators_grid(result),
            _COMMUNICATORS,
            not_shown(len(result.communicators) - _MOST_ROWS, "communicator"),
        ),
    ]


def sentences(result: InspectorResult) -> list[str]:
    """Returns sentences on who is waited for, and on how much of the time is waiting."""
    if not result.mean.time_s > 0:
        return [
            "No call has GPU times from two or more of its ranks, so waiting and transfer are "
            "not known."
        ]
    bound = "at least " if result.is_lower_bound else ""
    missing = "as records are missing, and " if result.is_lower_bound else ""
    found = [_late(late, result) for late in result.late]
    if result.slower is not None:
        found = [told_slower(result.slower)]
    elif not found:
        found = [f"No process stands out as the one that the others wait for{_most(result)}."]
    found.append(
        f"On average a process spends {_seconds(result.mean.time_s)} in collectives and messages: "
        f"{bound}{_seconds(result.mean.wait_s)} ({result.mean.waiting:.0%}) waiting for the "
        f"last rank, {missing}the rest transferring."
    )
    if result.step is not None:
        found.append(_steps(result.step))
    if result.mean.unsplit_s > 0:
        found.append(
            f"Beyond that, a process spends {_seconds(result.mean.unsplit_s)} in operations whose "
            "waiting is not known."
        )
    named = [late.process for late in result.late]
    if result.slower is not None:
        named = [*result.slower.processes]
    slowest = result.lowest.lowest_bandwidth
    if named and slowest is not None and slowest not in named:
        found.append(
            f"Inspector shows the lowest bandwidth for {_name(slowest)}. This process is not slow: "
            f"{result.lowest.lowest_waits:.0%} of its time in operations is waiting for others."
        )
    return found


def told_slower(slower: SlowerProcesses) -> str:
    """Describes several slow processes for which the other processes wait."""
    return (
        f"{named_processes(slower)} make the others wait: {slower.share:.0%} of all waiting began "
        f"with them. Every other process waits {_seconds(slower.wait_per_process_s)} because of "
        "them, on average. "
        f"They wait only {_seconds(slower.waits_s)} themselves, and each spends at least "
        f"{_seconds(slower.longer_s)} more outside of all operations than the median of the others."
    )


def named_processes(slower: SlowerProcesses) -> str:
    """Names the slow processes, or their hosts if all processes of these hosts are slow."""
    count = len(slower.processes)
    if slower.hosts:
        shown = [*map(printable, slower.hosts[:_MOST_RANKS])]
        shown += [f"{len(slower.hosts) - _MOST_RANKS} more"] * (len(slower.hosts) > _MOST_RANKS)
        return f"The {count} processes of {plural(len(slower.hosts), 'host')} {listed(shown)}"
    shown = [_name(process) for process in slower.processes[:_MOST_RANKS]]
    shown += [f"{count - _MOST_RANKS} more"] * (count > _MOST_RANKS)
    return listed(shown)


def _most(result: InspectorResult) -> str:
    """Names the process that causes most waiting, as the end of a sentence."""
    most = max(result.process_rows, key=lambda row: row.caused_s)
    waited_s = sum(row.waited_s for row in result.process_rows)
    if not waited_s > 0:
        return ""
    return (
        f": the largest part of the waiting, {most.caused_s / waited_s:.0%}, began with "
        f"{_name(most.process)}, but chance may explain this"
    )


def _steps(step: StepRow) -> str:
    return (
        f"The calls of {printable(step.communicator)} repeat {step.steps} times; the repeated "
        f"sequence is {printable(step.calls)}. If a repetition is a step, and not a part of one, a "
        f"process waits {_ms(step.wait_ms)} ms and transfers {_ms(step.transfer_ms)} ms per step, "
        "in all communicators."
    )


def _ms(value: float) -> str:
    return plain_digits(value)


def compared_waiting(first: InspectorResult, second: InspectorResult) -> list[str]:
    """Returns a sentence on the waiting and the late processes of each of two jobs."""
    lines = []
    for name, result in (("A", first), ("B", second)):
        late = " and ".join(_name(one.process) for one in result.late)
        verb = "makes" if len(result.late) == 1 else "make"
        if result.slower is not None:
            late = named_processes(result.slower)
        said = f"{late} {verb} the others wait" if late else "no process stands out"
        if not result.mean.time_s > 0:
            lines.append(f"Waiting in {name}: not known.")
            continue
        bound = "at least " * result.is_lower_bound
        lines.append(
            f"Waiting in {name}: {bound}{result.mean.waiting:.0%} of "
            f"{_seconds(result.mean.time_s)} per process in operations with known waiting; {said}."
        )
    return lines


def document(result: InspectorResult) -> str:
    """Renders a result as a JSON object; unknown values are null."""
    body = plain_fields(result)
    body["path"] = str(result.logs.path)
    head = {"schema_version": SCHEMA_VERSION, "kind": "nccl inspector"}
    return json.dumps(plain(head | {"verdict": sentences(result)} | body), indent=1) + "\n"


def heading(result: InspectorResult) -> str:
    """Describes the recording in one line."""
    versions = ", ".join(version or "unknown" for version in result.logs.versions)
    return (
        f"NCCL Inspector: {result.logs.processes} process{'es' * (result.logs.processes != 1)} on "
        f"{counted(result.logs.hosts, 'host')}, {result.logs.operations:,} operations in "
        f"{counted(len(result.communicators), 'communicator')}, format {printable(versions)}"
    )


def _late(late: LateProcess, result: InspectorResult) -> str:
    labels = Counter(row.label for row in result.communicators)
    names = [
        f"{rank} of {'its ' * (labels[label] > 1)}{printable(label)}" for label, rank in late.ranks
    ]
    more = f" and {len(names) - _MOST_RANKS} more" if len(names) > _MOST_RANKS else ""
    of_recorded = "of the recorded ranks " if result.is_lower_bound else ""
    number = late.waiting_processes
    who = f"{number} processes wait for it" if number != 1 else "1 process waits for it"
    longer = (
        f" Outside of all operations it spends {_seconds(late.own_s)} more than the median process."
        if late.own_s > 0
        else ""
    )
    return (
        f"{_name(late.process)} makes the others wait: {late.share:.0%} of all waiting began with "
        f"it. {who}, {_seconds(late.wait_per_process_s)} on average. It is late in "
        f"{late.late_parts} of {late.parts} parts of the run, comes last {of_recorded}and itself "
        f"waits only {_seconds(late.waits_s)}."
        f"{longer} It is rank {', '.join(names[:_MOST_RANKS])}{more}."
    )


def _name(process: Process) -> str:
    return printable(process.label)


def _seconds(value: float) -> str:
    return f"{plain_digits(value * 1e3)} ms" if value < 1 else f"{plain_digits(value)} s"


def _operations_grid(result: InspectorResult) -> Grid:
    headers = (
        *("operation", "ranks", "size\nB", "calls", "time\nus", "wait\nus", "transfer\nus"),
        *("busbw\nGB/s", "with wait\nGB/s"),
    )
    rows = [_operation(row) for row in result.kinds[:_MOST_ROWS]]
    if not any(row.algorithms for row in result.kinds):
        return Grid(rows, headers, (0,))
    named = [_algorithms(row) for row in result.kinds[:_MOST_ROWS]]
    rows = [(*row, name) for row, name in zip(rows, named, strict=True)]
    return Grid(rows, (*headers, "algorithm/protocol"), (0, len(headers)))


def _algorithms(row: KindRow) -> str:
    records = sum(number for _, number in row.algorithms)
    named = [
        printable(name) + ("" if number == records else f" {number / records:.0%}")
        for name, number in row.algorithms[:_MOST_ALGORITHMS]
    ]
    return ", ".join(named) or "-"


def _operation(row: KindRow) -> tuple[str, ...]:
    return (
        printable(row.op),
        str(row.ranks),
        str(row.size_bytes),
        str(row.calls),
        three_digits(row.time_us),
        three_digits(row.wait_us),
        three_digits(row.transfer_us),
        three_digits(row.busbw_gb_per_s),
        three_digits(row.busbw_with_waiting_gb_per_s),
    )


def _processes_grid(rows: Sequence[ProcessRow]) -> Grid:
    left_out = {1} if all(row.rank is None for row in rows) else set[int]()
    shown = [place for place in range(len(_PROCESS_HEADERS)) if place not in left_out]
    cells = [tuple(_process(row)[place] for place in shown) for row in rows]
    return Grid(cells, tuple(_PROCESS_HEADERS[place] for place in shown), (0,))


def _process(row: ProcessRow) -> tuple[str, ...]:
    return (
        _name(row.process),
        "-" if row.rank is None else str(row.rank),
        three_digits(row.caused_s),
        three_digits(row.waited_s),
        f"{100 * row.waited_s / row.time_s:.0f}" if row.time_s > 0 else "-",
        three_digits(row.time_s),
        three_digits(row.unsplit_s),
    )


def _communicators_grid(result: InspectorResult) -> Grid:
    headers = ("communicator", "last", "ranks", "logs", "calls", "time\ns", "wait\ns", "part\n%")
    rows = [_communicator(row) for row in result.communicators[:_MOST_ROWS]]
    return Grid(rows, headers, (0, 1))


def _communicator(row: CommunicatorRow) -> tuple[str, ...]:
    named = row.label if row.label == row.id else f"{row.label} {row.id}"
    part = "-" if math.isnan(row.most_share) else f"{100 * row.most_share:.0f}"
    return (
        printable(named),
        "-" if row.most_waited_for is None else _name(row.most_waited_for),
        str(row.ranks),
        str(row.recorded_ranks),
        str(row.calls),
        three_digits(row.time_s),
        three_digits(row.wait_s),
        part,
    )
