"""Reads the traces that torch.profiler wrote on the ranks of a job."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from commprof.errors import CommprofError, TraceError
from commprof.invocation import quoted
from commprof.recordings.clock_agreement import with_compared_clocks
from commprof.recordings.containers import each_file, few
from commprof.recordings.other_tools import NO_COMMAND, other_tool
from commprof.recordings.profiler_call_columns import CallColumns, CallKinds
from commprof.recordings.profiler_calls import ROOTED, Call, of_job
from commprof.recordings.profiler_caveats import of_other_devices
from commprof.recordings.profiler_collectives import OF_FEW
from commprof.recordings.profiler_events import read_events
from commprof.recordings.profiler_groups import listed_groups, of_unknown_job, with_group
from commprof.recordings.profiler_rank import (
    RankRecording,
    rank_beside,
    rank_in_name,
    recorded_rank,
    trace_of,
)
from commprof.recordings.profiler_scan import trace_scanner
from commprof.recordings.profiler_windows import (
    MOST_WINDOWS,
    of_one_process,
    one_a_rank,
    overlap,
)
from commprof.recordings.profiler_words import form_of
from commprof.text import counted, named_ranks, with_ranks
from commprof.trace.lookup import distinct, row_containing
from commprof.trace.operations import UNEVEN
from commprof.trace.reader import TORCH_PROFILER, Trace
from commprof.trace.schema import NO_SEQ
from commprof.units import FIRST_DATE_NS

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recording:
    """A job's recording by torch.profiler, converted to commprof's own traces."""

    #: Content of ``run.json``, as far as it is known from the files.
    context: dict[str, Any]
    world_size: int
    traces: dict[int, Trace]
    #: Caveats of the recording, as sentences without a full stop.
    problems: tuple[str, ...]


#: At least one of these keys is in the first bytes of every torch.profiler trace.
_MARKS: Final = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"')
#: All of these keys are in the first bytes of a trace that is a bare array of events.
_MARKS_OF_EVENTS: Final = (b'"ph"', b'"ts"', b'"cat"')
#: Text in the first bytes of files that ``commprof trace`` writes.
_OUR_TIMELINE: Final = b'"otherData":{"commprof"'
#: Largest number of ranks that are listed in a group's name.
_FEW: Final = 8
#: First sequence number given to collectives that have no recorded number.
_FIRST_SEQ: Final = 1 << 24
#: Number of sequence numbers reserved for each file of a rank.
_OF_WINDOW: Final = 1 << 19


def looks_like_trace(head: bytes) -> bool:
    """True if a file with these first bytes is a trace of torch.profiler."""
    begin = head.lstrip()[:1]
    is_one = begin == b"{" and any(mark in head for mark in _MARKS)
    is_array = begin == b"[" and all(mark in head for mark in _MARKS_OF_EVENTS)
    return (is_one or is_array) and _OUR_TIMELINE not in head


def read_recording(path: Path) -> Recording | None:
    """Reads the traces at ``path``, a file, folder or archive; None if there are none.

    Raises:
        CommprofError: traces were found, but none can be used.
    """
    recordings: list[RankRecording] = []
    problems: list[str] = []
    seen, scanner, is_of_torch = 0, trace_scanner(), False

    def take(name: str, stream: BinaryIO) -> None:
        nonlocal seen, is_of_torch
        seen += 1
        try:
            events = read_events(stream, scanner)
            is_of_torch |= bool(events.about or events.of_host)
            beside = rank_beside((path if path.is_dir() else path.parent) / name)
            recordings.append(recorded_rank(name, events, beside))
        except (TraceError, ValueError) as error:
            problems.append(f"{quoted(name)}: {error}")

    problems += each_file(path, looks_like_trace, take)
    if not recordings:
        if problems and (seen or path.is_file()):
            if path.is_file() and not is_of_torch and (what := other_tool(path)):
                raise CommprofError(f"{quoted(path)} is {what}; {NO_COMMAND}")
            why = few(problems)[0].removeprefix(f"{quoted(path)}: ")
            raise CommprofError(f"{quoted(path)} cannot be read: {why}")
        return None
    return _recording(path, recordings, few(problems))


def _recording(path: Path, read: list[RankRecording], problems: list[str]) -> Recording:
    """Makes a recording of the given ranks; empties the list ``read`` to free memory."""
    _one_job(path, read)
    recordings, caveats = _of_all_processes(read)
    by_rank, about_ranks = _by_rank(recordings)
    caveats += about_ranks
    world_size = max(_world_size(recordings), max(by_rank) + 1)
    untold = any(recording.events.is_of_npu for recording in recordings)
    size_known = bool(_world_size(recordings)) or (1 < len(by_rank) == world_size and not untold)
    if not any(recording.calls for recording in recordings):
        raise CommprofError(_no_communication(path, recordings))
    kinds = CallKinds()
    by_rank = {
        rank: replace(
            recording,
            calls=_with_groups(recording, rank, world_size if size_known else 0, kinds),
            job_size_known=size_known,
        )
        for rank, recording in by_rank.items()
    }
    by_rank, without_kernels = _with_times(_with_distinct_groups(by_rank))
    caveats += without_kernels
    seqs, counted_so = _numbers(by_rank)
    # All ranks get the same codes of element types, because analyses compare codes between ranks.
    dtypes = sorted(
        {kind.dtype for recording in by_rank.values() for kind in recording.calls.used()}
    )
    caveats += counted_so + _about_size(recordings, size_known) + _about_calls(by_rank, size_known)
    begin_ns = min(map(_begin_ns, by_rank.values()))
    read.clear()
    recordings.clear()
    traces = {}
    for rank in sorted(by_rank):  # frees a rank's events once its trace is made
        recording = by_rank.pop(rank)
        traces[rank] = trace_of(recording, rank, world_size, seqs.pop(rank), dtypes)
    if len(traces) > 1:
        if not _one_clock(traces):
            compared, about_clocks = with_compared_clocks(list(traces.values()))
            traces = dict(zip(traces, compared, strict=True))
            caveats.append(about_clocks)
    elif world_size > 1 and size_known:
        caveats.append(
            f"only rank {next(iter(traces))} was recorded: the arrivals of the other ranks are not "
            "known, so neither waiting nor transfer is known"
        )
    per_rank = ((rank, text) for rank, t in traces.items() for text in t.problems)
    return Recording(
        context=_context(path, begin_ns, world_size, traces),
        world_size=world_size,
        traces=traces,
        problems=(*with_ranks(per_rank, traces), *caveats, *problems),
    )


def _world_size(recordings: Sequence[RankRecording]) -> int:
    """Returns the number of ranks of the job; 0 if neither files nor groups show it."""
    # If only the host was recorded, group sizes are derived from tensors. Such sizes count only if
    # the file does not state the job's size.
    telling = [
        recording
        for recording in recordings
        if recording.device is not None or not recording.world_size
    ]
    sizes = (
        max(kind.group_size, max(kind.group_ranks, default=-1) + 1)
        for recording in telling
        for kind in recording.calls.used()
    )
    return max(max(recording.world_size for recording in recordings), max(sizes, default=0))


def _with_groups(
    recording: RankRecording, rank: int, world_size: int, kinds: CallKinds
) -> CallColumns:
    if recording.device is not None and world_size:
        return recording.calls.changed(lambda kind: of_job(kind, world_size), kinds)
    if recording.device is not None:
        return recording.calls.changed(of_unknown_job, kinds)
    listed = listed_groups(recording.events.about)
    return recording.calls.changed(lambda kind: with_group(kind, listed, rank, world_size), kinds)


def _no_communication(path: Path, recordings: Sequence[RankRecording]) -> str:
    message = (
        f"{quoted(path)} holds no recognisable communication: no kernel of NCCL, RCCL, oneCCL or "
        "HCCL, and no range or operator of c10d that names a collective"
    )
    name = next(
        (
            recording.events.unreadable_name
            for recording in recordings
            if recording.events.unreadable
        ),
        "",
    )
    unread = next(
        filter(None, (of_other_devices(recording.events) for recording in recordings)), ""
    )
    kernels = f"the trace does not say what kernels such as {name} send" if name else ""
    is_alone = all(recording.world_size == 1 for recording in recordings)
    alone = "its job had one rank, which has nobody to wait for" if is_alone else ""
    return "; ".join(filter(None, (message, alone, kernels, unread)))


def _one_job(path: Path, recordings: Sequence[RankRecording]) -> None:
    sizes = {
        recording.world_size: recording.name for recording in recordings if recording.world_size
    }
    if len(sizes) > 1:
        jobs = ", ".join(f"{name} of {counted(size, 'rank')}" for size, name in sizes.items())
        raise CommprofError(
            f"{quoted(path)} holds traces of several jobs: {jobs}; report one of them"
        )


def _of_all_processes(recordings: list[RankRecording]) -> tuple[list[RankRecording], list[str]]:
    """Renumbers the ranks if several processes recorded the same rank at the same time.

    The new ranks are the numbers in the files' names, if every process has a number of its own.
    Otherwise ranks are counted in the order of the names. Also returns caveats on the new ranks.
    """
    if not _clash(recordings):
        return recordings, []
    why = "files of several hosts name the same ranks"
    if not all(recording.by_name for recording in recordings):
        why = "files of several processes state the same rank"
    named = [
        replace(recording, rank=rank_in_name(recording.name), by_name=True)
        for recording in recordings
    ]
    if all(recording.rank is not None for recording in named) and not _clash(named):
        return named, [f"{why}; ranks are taken from the file names"]
    ordered = sorted(recordings, key=lambda recording: _natural(recording.name))
    return [replace(recording, rank=rank) for rank, recording in enumerate(ordered)], [
        f"{why}; ranks are numbered in the order of file names"
    ]


def _clash(recordings: Sequence[RankRecording]) -> bool:
    """True if several processes recorded the same rank at the same time."""
    of_rank: dict[int, list[RankRecording]] = {}
    for recording in sorted(recordings, key=_begin_ns):
        if recording.rank is not None:
            of_rank.setdefault(recording.rank, []).append(recording)
    return any(
        overlap(earlier, later) and not of_one_process(earlier, later)
        for same in of_rank.values()
        for earlier, later in itertools.pairwise(same)
    )


def _begin_ns(recording: RankRecording) -> int:
    return int(recording.steps.begin_ns.min(initial=2**62))


def _natural(name: str) -> list[tuple[str, int]]:
    """Returns a sort key that compares numbers by value: "node-2" before "node-10"."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d{0,18})", name)]


def _by_rank(
    recordings_read: Sequence[RankRecording],
) -> tuple[dict[int, RankRecording], list[str]]:
    """Returns one recording per rank, and caveats.

    Files without a rank get the ranks that no other file has, in the order of the files' names.
    """
    recordings: dict[int, list[RankRecording]] = {}
    for recording in sorted(
        recordings_read, key=lambda recording: (_begin_ns(recording), recording.name)
    ):
        if recording.rank is not None:
            recordings.setdefault(recording.rank, []).append(recording)
    by_rank, caveat = one_a_rank(recordings)
    unnamed = sorted(
        (recording for recording in recordings_read if recording.rank is None),
        key=lambda recording: recording.name,
    )
    free = (rank for rank in itertools.count() if rank not in by_rank)
    by_rank |= dict(zip(list(itertools.islice(free, len(unnamed))), unnamed, strict=True))
    if unnamed and len(recordings_read) > 1:
        caveat.append("files that do not state their rank are numbered in the order of their names")
    return by_rank, caveat


def _with_times(by_rank: dict[int, RankRecording]) -> tuple[dict[int, RankRecording], list[str]]:
    """Leaves out ranks that lack times of some collectives; also returns a caveat.

    If no rank has the times of all its collectives, no rank is left out.
    """
    calling = {rank for rank, recording in by_rank.items() if recording.calls}
    timed = {rank for rank in calling if by_rank[rank].calls.all_timed()}
    without = sorted(calling - timed)
    if not timed or not without:
        return by_rank, []
    caveat = (
        f"no kernel of communication was recorded on {named_ranks(without)}, which therefore "
        f"{'is' if len(without) == 1 else 'are'} left out"
    )
    return {rank: recording for rank, recording in by_rank.items() if rank not in without}, [caveat]


def _numbers(by_rank: dict[int, RankRecording]) -> tuple[dict[int, Ints], list[str]]:
    """Returns each call's sequence number in its group, by rank; also returns caveats.

    A group's recorded numbers are used if they are complete and distinct on every rank. Otherwise
    the calls of the group are counted from the first step that all ranks recorded, and anew in each
    file of a rank. Groups whose calls differ between ranks are counted by step; see
    :func:`_numbers_by_step`. Point-to-point and unknown operations get no number, because each rank
    may issue different operations.
    """
    marked = [recording.steps for recording in by_rank.values()]
    first_step = max((int(steps.number[0]) for steps in marked if len(steps.number)), default=0)
    rows_of = {rank: _rows_by_group(recording.calls) for rank, recording in by_rank.items()}
    unnumbered = {
        name
        for rank, recording in by_rank.items()
        for name, rows in rows_of[rank].items()
        if not _are_numbers(recording.calls.seq[rows])
    }
    apart = _numbers_by_step(by_rank, rows_of, unnumbered) if unnumbered else {}
    seqs: dict[int, Ints] = {}
    for rank, recording in by_rank.items():
        begin = recording.steps.begin_ns[recording.steps.number >= first_step]
        begins_ns = int(begin[0]) if len(begin) and not recording.steps.said else 0
        launch_ns = recording.calls.launch_ns
        window = np.searchsorted(
            np.array(recording.windows_ns[1:], np.int64), launch_ns, side="right"
        )
        seqs[rank] = np.where(
            recording.calls.of_kind(_joins, np.bool_), recording.calls.seq, NO_SEQ
        )
        for name, rows in rows_of[rank].items():
            if (rank, name) in apart:
                seqs[rank][rows] = apart[rank, name]
            elif name in unnumbered:
                before = int((launch_ns[rows] < begins_ns).sum())
                counted_from = _FIRST_SEQ + window[rows] * _OF_WINDOW - before * (window[rows] == 0)
                seqs[rank][rows] = counted_from + _turns(window[rows])
    return seqs, _unequal(by_rank)


def _rows_by_group(calls: CallColumns) -> dict[str, Ints]:
    joins = calls.kinds.column(_joins, np.bool_)
    groups = calls.kinds.column(_group, np.object_)
    rows_of: dict[str, list[Ints]] = {}
    for number in distinct(calls.kind).tolist():
        if joins[number]:
            rows_of.setdefault(groups[number], []).append(np.flatnonzero(calls.kind == number))
    return {name: np.sort(np.concatenate(rows)) for name, rows in rows_of.items()}


def _turns(values: Ints) -> Ints:
    """Returns, for each value, how many equal values come before it."""
    turns = np.zeros(len(values), np.int64)
    for value in distinct(values):
        chosen = values == value
        turns[chosen] = np.arange(int(chosen.sum()))
    return turns


def _numbers_by_step(
    by_rank: dict[int, RankRecording], rows_of: dict[int, dict[str, Ints]], names: set[str]
) -> dict[tuple[int, str], list[int]]:
    """Returns sequence numbers by rank and group, for groups whose calls differ between ranks.

    If all ranks recorded the same calls in a step, the n-th calls of all ranks get the same number.
    Otherwise each rank gets numbers of its own, so that no calls of the step match.
    """
    common = set[int].intersection(
        *({*recording.steps.number.tolist()} for recording in by_rank.values())
    )
    marked = _have_same_steps(by_rank)
    places: dict[str, dict[int, list[int]]] = {}
    kinds: dict[tuple[str, int], dict[int, list[tuple[str, int]]]] = {}
    for rank, recording in by_rank.items():
        launch_ns, kind = recording.calls.launch_ns, recording.calls.of_kind(_kind, np.object_)
        row = row_containing(recording.steps.begin_ns, recording.steps.end_ns, launch_ns).tolist()
        for name, rows in rows_of[rank].items():
            for place in rows.tolist() if name in names else ():
                at = row[place]
                step = int(recording.steps.number[at]) if marked and at >= 0 else -1
                places.setdefault(name, {}).setdefault(rank, []).append(step)
                kinds.setdefault((name, step), {}).setdefault(rank, []).append(kind[place])
    numbers: dict[tuple[int, str], list[int]] = {}
    for name, steps_of in places.items():
        counts = {rank: Counter(steps) for rank, steps in steps_of.items()}
        kept = common if marked else {-1}
        totals = {sum(count[step] for step in kept) for count in counts.values()}
        unlike = {step for step in kept if not _alike([*kinds.get((name, step), {}).values()])}
        if len(totals) == 1 and not unlike:
            continue
        most = {
            step: max(c[step] for c in counts.values()) for step in set().union(*counts.values())
        }
        first, at = dict[int, int](), _FIRST_SEQ
        differ = {step for step in most if any(c[step] < most[step] for c in counts.values())}
        differ |= (most.keys() - common) | unlike
        for step in sorted(most):
            first[step], at = at, at + (1 + len(counts) * (step in differ)) * most[step]
        for place, (rank, steps) in enumerate(steps_of.items()):
            turn = Counter[int]()
            for step in steps:
                shift = (1 + place) * most[step] if step in differ else 0
                numbers.setdefault((rank, name), []).append(first[step] + shift + turn[step])
                turn[step] += 1
    return numbers


def _have_same_steps(by_rank: dict[int, RankRecording]) -> bool:
    """True if a step index means the same step on all ranks."""
    steps = [recording.steps for recording in by_rank.values()]
    counts = {len(of_rank.number) for of_rank in steps}
    return all(not of_rank.said for of_rank in steps) or (
        all(of_rank.by_updates for of_rank in steps) and len(counts) == 1
    )


def _kind(call: Call) -> tuple[str, int]:
    """Returns the properties that all ranks of a collective share: operation and size.

    The size is -1 if it is not known or may differ between ranks.
    """
    is_even = not call.op.startswith(UNEVEN) and call.dtype != ""
    return form_of(call.op), max(call.bytes_in, call.bytes_out) if is_even else -1


def _alike(of_ranks: Sequence[Sequence[tuple[str, int]]]) -> bool:
    """True if the n-th calls of all ranks agree, for each n.

    Calls agree if their operations and their known sizes are equal. Surplus calls of a rank are not
    compared.
    """
    for kinds in zip(*of_ranks, strict=False):
        if len({op for op, _ in kinds}) > 1 or len({size for _, size in kinds} - {-1}) > 1:
            return False
    return True


def _are_numbers(seq: Ints) -> bool:
    if seq.min() < 0:
        return False
    return bool((seq[1:] > seq[:-1]).all()) or len(np.unique(seq)) == len(seq)


def _group(call: Call) -> str:
    return f"{call.group}/{call.group_ranks}"


def _joins(call: Call) -> bool:
    """True if the call can be matched with the calls of other ranks.

    All ranks of the group must issue the operation, and the group must be known. If a backend of
    the host ran the collective, the root must be known too, because it determines which rank waits.
    """
    root_lacks = call.backend != "" and call.op in ROOTED and not call.root_known
    return call.op not in OF_FEW and call.group_known and not root_lacks


def _unequal(by_rank: dict[int, RankRecording]) -> list[str]:
    counts = {
        rank: int(recording.calls.of_kind(_joins, np.bool_).sum())
        for rank, recording in by_rank.items()
    }
    if len(set(counts.values())) < 2:
        return []
    low, high = min(counts, key=lambda r: counts[r]), max(counts, key=lambda r: counts[r])
    return [
        f"rank {high} has {counts[high]} collectives and rank {low} has {counts[low]}: waiting and "
        "transfer are not known for collectives that some of their ranks did not record"
    ]


def _with_distinct_groups(by_rank: dict[int, RankRecording]) -> dict[int, RankRecording]:
    """Renames groups that share a name but not their ranks, so that names are unique."""
    of_name: dict[str, set[tuple[int, tuple[int, ...]]]] = {}
    for recording in by_rank.values():
        for kind in recording.calls.used():
            of_name.setdefault(kind.group, set()).add((kind.group_size, kind.group_ranks))
    names: dict[tuple[str, int, tuple[int, ...]], str] = {}
    for name, groups in of_name.items():
        several_of = Counter(size for size, _ in groups)
        for size, ranks in groups if name and len(groups) > 1 else ():
            of = counted(size, "rank")
            if several_of[size] > 1 and ranks:
                of = named_ranks(ranks) if size <= _FEW else f"{of} from {ranks[0]} on"
            names[name, size, ranks] = f"{name} ({of})"
    if not names:
        return by_rank

    def renamed(kind: Call) -> Call:
        name = names.get((kind.group, kind.group_size, kind.group_ranks), kind.group)
        return replace(kind, group=name)

    kinds = CallKinds()
    return {
        rank: replace(recording, calls=recording.calls.changed(renamed, kinds))
        for rank, recording in by_rank.items()
    }


def _one_clock(traces: dict[int, Trace]) -> bool:
    machines = {trace.metadata["machine"]["boot_id"] for trace in traces.values()}
    return len(machines) == 1


def _about_size(recordings: Sequence[RankRecording], size_known: bool) -> list[str]:
    if not size_known:
        return [
            "no file says how many ranks the job has, so the process groups of its collectives are "
            "not known, and neither are waiting, transfer and busbw"
        ]
    if _world_size(recordings):
        return []
    return ["no file says how many ranks the job has: the recorded ranks count as all ranks"]


def _about_calls(by_rank: dict[int, RankRecording], size_known: bool) -> list[str]:
    ops, of_none = Counter[str](), 0
    for recording in by_rank.values():
        counts = np.bincount(recording.calls.kind)
        for number in distinct(recording.calls.kind).tolist():
            kind, count = recording.calls.kinds.kinds[number], int(counts[number])
            ops[kind.op] += count
            of_none += 0 if kind.group_known else count
    messages = sum(count for op, count in ops.items() if op in OF_FEW)
    caveats = []
    if messages:
        caveats.append(
            f"waiting and transfer cannot be separated in {counted(messages, 'kernel')} of send, "
            "recv or an unknown operation"
        )
    if of_none and size_known:
        caveats.append(
            f"the process group of {counted(of_none, 'call')} is not recorded, and several of the "
            "job's groups, or none, fit: waiting and transfer are not known"
        )
    if any(op.startswith("all_to_all") for op in ops):
        caveats.append(
            "an all_to_all may have a different size on each rank: a rank with less data finishes "
            "earlier, and its waiting for the others counts in its next collective"
        )
    return caveats


def _context(
    path: Path, begin_ns: int, world_size: int, traces: dict[int, Trace]
) -> dict[str, Any]:
    first = traces[min(traces)]
    return {
        "timestamp": _date(begin_ns),
        "command": "",
        "commprof": "",
        "torch": "unknown",
        "capture": TORCH_PROFILER,
        "recorded_by": TORCH_PROFILER,
        "description": f"Recording: {_name_of(path)}",
        "backend": first.metadata["backend"],
        "threads_per_rank": 0,
        "world_sizes": [world_size],
        "machine": first.metadata["machine"],
        "errors": {},
    }


def _name_of(path: Path) -> str:
    """Returns the name of the file or directory, even if the path is ``.`` or ends in ``..``."""
    whole = os.path.abspath(path)
    return os.path.basename(whole) or whole


def _date(realtime_ns: int) -> str:
    """Returns the date; "unknown" if the times do not count from 1970."""
    if realtime_ns < FIRST_DATE_NS:
        return "unknown"
    try:
        return datetime.fromtimestamp(realtime_ns / 1e9, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "unknown"


assert np.iinfo(np.uint32).max > _FIRST_SEQ + MOST_WINDOWS * _OF_WINDOW
