"""Converts one torch.profiler trace to a trace in commprof's own form.

A communication kernel counts as issued when it begins, because its rank has arrived then, and as
complete when it ends. The training thread counts as waiting while the device runs communication,
but no other kernel and no copy within the device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commprof.errors import TraceError
from commprof.recordings.profiler_call_columns import CallColumns, in_columns, kinds_of
from commprof.recordings.profiler_calls import Call
from commprof.recordings.profiler_caveats import about_host, caveats, of_other_devices
from commprof.recordings.profiler_collectives import as_collectives
from commprof.recordings.profiler_device_calls import device_calls
from commprof.recordings.profiler_events import Intervals, ProfilerEvents
from commprof.recordings.profiler_gaps import launches_of, lost_kernels, recorded_steps
from commprof.recordings.profiler_handed_over import handed_over, hands_over
from commprof.recordings.profiler_host import host_backend, host_calls, no_host_calls
from commprof.recordings.profiler_processes import written_by
from commprof.recordings.profiler_steps import (
    FoundSteps,
    find_phases,
    find_steps,
    pass_records,
    phases_of_launches,
)
from commprof.recordings.profiler_unnamed import with_unnamed_communication
from commprof.recordings.profiler_waiting import HostWaiting, host_waiting, only_hidden
from commprof.recordings.profiler_words import is_operator_of_c10d
from commprof.recordings.profiler_work import HostWork, host_work, no_host_work
from commprof.trace import schema
from commprof.trace.device_activity import DeviceActivity
from commprof.trace.documents import MOST_RANKS, Group, backends_by_device
from commprof.trace.lookup import distinct, numbered
from commprof.trace.packed import in_order
from commprof.trace.reader import TORCH_PROFILER, Trace
from commprof.trace.recorded import Recorded
from commprof.trace.schema import KINDS, OPS, PHASES, Kind, Records
from commprof.trace.stretches import Stretches, between, each_once, gaps, rows_within, stretches

Ints = npt.NDArray[np.int64]

#: Name of the group for calls whose group is not recorded.
UNNAMED_GROUP: Final = "unnamed"
#: Folder into which Ascend's profiler writes. The job chooses the name of the folder above it.
_OF_ASCEND: Final = "ASCEND_PROFILER_OUTPUT"
_RANK_IN_NAME = re.compile(
    r"(?:rank|worker|trainer|gpu)[-_= ]?(\d{1,6})(?!\d)|(?:^|[-_.])r?(\d{1,4})(?=\.)", re.I
)
#: File names of torch's handler for TensorBoard: host, process and time, without a rank.
_PROCESS_IN_NAME = re.compile(r"_\d+\.\d{9,}\.pt\.trace\.json")
#: Folder names of Ascend's handler: host, process and time, without a rank.
_PROCESS_OF_ASCEND = re.compile(r"_\d+_\d{9,}_ascend_pt$")
#: Name of a file beside the folder ``_OF_ASCEND``; the name contains the rank.
_INFO_OF_ASCEND = re.compile(r"profiler_info_(\d{1,6})\.json")


@dataclass
class RankRecording:
    """Recording of one rank by torch.profiler."""

    name: str
    rank: int | None
    world_size: int
    events: ProfilerEvents
    calls: CallColumns
    steps: FoundSteps
    #: Device whose kernels count; None if only the host was recorded.
    device: int | None
    work: Intervals
    #: Times of the training thread, if only the host was recorded.
    host: HostWork
    #: True if the rank was read from the file's name; the rank may then count within one host.
    by_name: bool = False
    problems: list[str] = field(default_factory=list)
    #: Time at which each file begins, if several files were joined; empty for a single file.
    windows_ns: tuple[int, ...] = ()
    #: True if a device computed and the host transferred: the calls then have the host's times.
    by_host: bool = False
    #: True if the number of ranks of the job is known.
    job_size_known: bool = True


def recorded_rank(name: str, events: ProfilerEvents, beside: int | None = None) -> RankRecording:
    """Makes the recording of one rank from its trace.

    Args:
        name: the file's name.
        events: the events of the trace.
        beside: the rank according to another file in the folder; used if the trace does not name
            its rank.

    Raises:
        TraceError: the trace has no usable events, or has events of several processes.
    """
    if len(events.of_host) > 1:
        raise TraceError(
            f"it holds the events of {len(events.of_host)} processes: some tool has merged the "
            "traces of several ranks; give the original traces, one per rank, in one folder"
        )
    events = with_unnamed_communication(events)
    about = events.about
    world_size = _whole(about.get("world_size")) or 0
    device = _device(events)
    of_host, host, by_host = no_host_calls(), no_host_work(), False
    kinds = kinds_of(events)
    if device is None:
        of_host = host_calls(events)
        host = host_work(events, of_host.blocking, of_host.part_copies)
        calls, work = in_columns(kinds, of_host.calls), host.work
        if (hands_over(events) or not calls) and not calls.timed.any():
            calls = in_columns(kinds, handed_over(events, 0))
            of_host = no_host_calls()
    else:
        calls = as_collectives(device_calls(events, device, world_size))
        if not calls and not hands_over(events):
            of_host = host_calls(events)  # the device computes and gloo transfers
            by_host = any(call.timed for call in of_host.calls)
            calls = in_columns(kinds, of_host.calls) if by_host else calls
        of_host = of_host if by_host else no_host_calls()
        calls = calls or in_columns(kinds, handed_over(events, world_size))
        work = _on(events.kernels, device)
    if not calls and len(work) == 0:
        nothing = "it holds no events of kernels, operators or collectives"
        if events.problem:
            nothing = f"it is damaged ({events.problem}) before any event that commprof reads"
        about_it = nothing, written_by(events.processes), of_other_devices(events)
        raise TraceError("; ".join(filter(None, about_it)))
    busy, gaps_said = _busy(calls, work), list[str]()
    steps = find_steps(events, calls, busy)
    if device is not None:
        launches = launches_of(events)
        steps, gaps_said = recorded_steps(events, launches, steps, busy)
        gaps_said += lost_kernels(events, launches, steps) if calls.timed.any() else []
    rank = _whole(about.get("rank"))
    rank = beside if rank is None else rank
    return RankRecording(
        *(name, rank_in_name(name) if rank is None else rank, world_size, events, calls, steps),
        *(device, work, host, rank is None),
        [*caveats(events, calls, steps, device), *about_host(of_host, events), *gaps_said],
        by_host=by_host,
    )


def trace_of(
    recording: RankRecording, rank: int, world_size: int, seqs: Ints, dtypes: Sequence[str]
) -> Trace:
    """Makes the trace of one rank.

    Args:
        recording: the rank's recording.
        rank: the rank in the job.
        world_size: number of ranks of the job.
        seqs: sequence number of each call in its group, the same on all ranks.
        dtypes: names of the element types, by the code in the records.
    """
    groups, of_call = _groups(recording, rank)
    calls = _calls(recording, of_call, seqs, dtypes)
    thread, computing = 0, _union(recording.work)
    activity = _activity(recording, computing)
    if activity is None:
        waiting = host_waiting(
            recording.host, recording.calls, recording.steps, recording.events.copied_back_ns
        )
    else:
        waiting = only_hidden(activity.hiding)
    records = (
        *(calls, _completions(recording, calls)),
        _waits(calls, recording, waiting, thread),
        _step_records(recording.steps, thread),
        _phase_records(recording, computing, thread),
    )
    return Trace(
        path=Path(recording.name),
        metadata=_metadata(recording, rank, world_size, dtypes),
        groups=groups,
        records=in_order(records),
        complete=True,
        dropped=0,
        problems=tuple(recording.problems),
        device_activity=activity,
        passes=pass_records(
            *(
                recording.events,
                recording.calls,
                recording.steps,
                recording.work,
                recording.device,
                thread,
            )
        ),
        recorded=_recorded(recording, seqs),
    )


def _activity(recording: RankRecording, computing: Stretches) -> DeviceActivity | None:
    if recording.device is None:
        return None
    return DeviceActivity(
        communication=stretches(*recording.calls.transfers()[1:])
        if recording.calls.all_timed()
        else None,
        compute=computing,
        copies_within=_union(_on(recording.events.copies, recording.device)),
        other_copies=_union(_on(recording.events.other_copies, recording.device)),
    )


def _recorded(recording: RankRecording, seqs: Ints) -> Recorded:
    calls = recording.calls
    only, _ = _only_group(recording.events.about)
    events = recording.events
    has_operators = len(events.operators) + len(events.backward) > 0
    of_host = has_operators or events.issued.any_named(is_operator_of_c10d)
    return Recorded(
        device=recording.device is not None,
        training_thread=_ran_in_a_step(recording) if recording.device is None else of_host,
        times=calls.timed,
        number=(calls.seq == seqs) & (seqs >= 0),
        operation=calls.of_kind(_tells_operation, np.bool_),
        size=calls.of_kind(_tells_size, np.bool_),
        group=calls.of_kind(
            _tells_group if only == UNNAMED_GROUP else _tells_whether_group, np.bool_
        ),
        root=calls.of_kind(_tells_root, np.bool_),
        phase=None if recording.device is None else phases_of_launches(recording.events, calls),
        steps_marked=not recording.steps.repeats,
        job_size=recording.job_size_known,
        unread_device=recording.events.other_device > 0,
    )


def _ran_in_a_step(recording: RankRecording) -> bool:
    """True if the training thread has an event within a step, besides the step's own range."""
    ran_ns, steps = recording.host.ran_ns, recording.steps
    before = np.searchsorted(ran_ns, steps.begin_ns, side="right")
    return bool((np.searchsorted(ran_ns, steps.end_ns, side="left") > before).any())


def _tells_operation(kind: Call) -> bool:
    return kind.op != "other" and not kind.guessed


def _tells_size(kind: Call) -> bool:
    return kind.dtype != ""


def _tells_whether_group(kind: Call) -> bool:
    return kind.group_known


def _tells_group(kind: Call) -> bool:
    return kind.group_known and kind.group != ""


def _tells_root(kind: Call) -> bool:
    return kind.root_known


def _device(events: ProfilerEvents) -> int | None:
    """Returns the device with the most communication kernels; None if there are no kernels.

    Without communication kernels, all kernels are counted.
    """
    devices = events.communication.table.device
    if not len(devices):
        devices = np.array(events.kernels.device, np.int64)
    if len(distinct(devices)) < 2:
        return int(devices[0]) if len(devices) else None
    values, first, counts = np.unique(devices, return_index=True, return_counts=True)
    return int(values[np.lexsort((first, -counts))[0]])


def _on(some: Intervals, device: int) -> Intervals:
    chosen = np.frombuffer(some.device, np.int64) == device if len(some) else np.zeros(0, bool)
    if chosen.all():
        return some
    intervals = Intervals()
    for name in ("begin_ns", "end_ns", "tag", "device"):
        getattr(intervals, name).frombytes(
            np.frombuffer(getattr(some, name), np.int64)[chosen].tobytes()
        )
    return intervals


def _ends(*several: Intervals) -> tuple[Ints, Ints]:
    begin, end = (
        np.concatenate([np.frombuffer(getattr(some, name), np.int64) for some in several])
        for name in ("begin_ns", "end_ns")
    )
    return begin, end


def _union(some: Intervals) -> Stretches:
    return stretches(*_ends(some))


def _busy(calls: CallColumns, work: Intervals) -> Stretches:
    begin, end = _ends(work)
    _, begin_ns, end_ns = calls.transfers()
    return stretches(np.concatenate((begin, begin_ns)), np.concatenate((end, end_ns)))


def _calls(recording: RankRecording, group: Ints, seqs: Ints, dtypes: Sequence[str]) -> Records:
    calls = recording.calls
    rows = np.zeros(len(calls), dtype=schema.RECORD_DTYPE)
    rows["kind"], rows["op_id"] = Kind.ISSUE, np.arange(1, len(rows) + 1)
    rows["group"], rows["seq"], rows["reduce_op"] = group, seqs, schema.UNKNOWN_REDUCE_OP
    by_device = recording.device is not None and not recording.by_host
    rows["flags"] = np.where(by_device | ~calls.timed, schema.FLAG_DEVICE_ASYNC, 0)
    rows["timestamp_ns"] = calls.begin_ns
    for name, value in _FIELDS.items():
        rows[name] = calls.of_kind(value)
    different, kind_row = numbered(calls.kind)
    names = [calls.kinds.kinds[kind].dtype for kind in different.tolist()]
    numbers = [min(dtypes.index(name), 255) for name in names]
    rows["dtype"] = np.array(numbers, np.int64)[kind_row]
    return rows


def _op_code(kind: Call) -> int:
    return OPS.index(kind.op)


def _peer(kind: Call) -> int:
    return min(kind.peer, 2**31)


def _bytes_in(kind: Call) -> int:
    return kind.bytes_in


def _bytes_out(kind: Call) -> int:
    return kind.bytes_out


_FIELDS: Final = {
    **{"op": _op_code, "aux": _peer, "bytes_in": _bytes_in, "bytes_out": _bytes_out},
}


def _completions(recording: RankRecording, calls: Records) -> Records:
    timed = recording.calls.timed
    rows = np.zeros(int(timed.sum()), dtype=schema.RECORD_DTYPE)
    rows["kind"], rows["op_id"] = Kind.END, calls["op_id"][timed]
    rows["timestamp_ns"] = recording.calls.end_ns[timed]
    by_device = recording.device is not None and not recording.by_host
    rows["flags"] = schema.FLAG_DEVICE_TIME if by_device else 0
    return rows


def _waits(calls: Records, recording: RankRecording, waiting: HostWaiting, thread: int) -> Records:
    """Makes records of waits: times of exposed communication, split at step boundaries."""
    of_call, begin_ns, end_ns = recording.calls.transfers()
    row, alone = each_once(
        np.concatenate((begin_ns, waiting.late.begin_ns)),
        np.concatenate((end_ns, waiting.late.end_ns)),
    )
    row = np.concatenate((of_call, waiting.row))[row]
    part, alone = rows_within(alone, gaps(waiting.hiding))
    row = row[part]
    moments = np.concatenate((recording.steps.begin_ns, recording.steps.end_ns))
    part, alone = rows_within(alone, between(moments))
    rows = np.zeros(len(alone), dtype=schema.RECORD_DTYPE)
    rows["kind"], rows["thread"] = Kind.WAIT, thread
    rows["op_id"] = calls["op_id"][row[part]]
    rows["timestamp_ns"], rows["value"] = alone.begin_ns, alone.end_ns
    return rows


def _step_records(steps: FoundSteps, thread: int) -> Records:
    rows = np.zeros(2 * len(steps.number), dtype=schema.RECORD_DTYPE)
    rows["kind"], rows["thread"], rows["seq"] = Kind.STEP, thread, schema.STEP_DECLARED
    rows["op_id"] = np.repeat(steps.number, 2)
    rows["timestamp_ns"][::2], rows["timestamp_ns"][1::2] = steps.begin_ns, steps.end_ns
    rows["aux"][1::2] = 1
    return rows


def _phase_records(recording: RankRecording, computing: Stretches, thread: int) -> Records:
    """Makes records of the phases of steps; idle time of a device belongs to no phase."""
    phase, when = find_phases(recording.events, recording.work, recording.device)
    if recording.device is not None:
        row, when = rows_within(when, computing)
        phase = phase[row]
    moments = np.concatenate((recording.steps.begin_ns, recording.steps.end_ns))
    row, when = rows_within(when, between(moments))
    rows = np.zeros(len(when), dtype=schema.RECORD_DTYPE)
    rows["kind"], rows["thread"], rows["aux"] = Kind.PHASE, thread, phase[row]
    rows["timestamp_ns"], rows["value"] = when.begin_ns, when.end_ns
    return rows


def _backend(recording: RankRecording) -> str:
    """Returns the backend of the default process group; empty if the trace does not name it."""
    listed = recording.events.about.get("pg_config")
    # the group that was created first
    default = listed[0] if isinstance(listed, list) and listed else None
    pairs = str(default.get("backend_config", "")) if isinstance(default, dict) else ""
    name = str(recording.events.about.get("backend", ""))
    by_device = backends_by_device(name, pairs)
    of_host = recording.device is None or recording.by_host
    if of_host and (called := host_backend(recording.events)) in by_device.values():
        return called
    devices = sorted(by_device, key=lambda device: (device == "cpu") != of_host)
    return by_device[devices[0]] if devices else name


def _groups(recording: RankRecording, rank: int) -> tuple[dict[int, Group], Ints]:
    """Returns the process groups by id, and each call's group id.

    Calls whose group is not known belong to a group without a name. The size of a group is 0 if it
    is not known.
    """
    backend, only = _backend(recording), _only_group(recording.events.about)
    number: dict[tuple[str, tuple[int, ...], int], int] = {}
    groups: dict[int, Group] = {}
    different, kind_of_call = numbered(recording.calls.kind)
    first = np.full(len(different), len(kind_of_call))
    first[kind_of_call[::-1]] = np.arange(len(kind_of_call))[::-1]  # the first call of each kind
    of_kind = np.zeros(len(different), np.int64)
    for turn in np.argsort(first).tolist():  # in the order of their first calls
        call = recording.calls.kinds.kinds[int(different[turn])]
        key = call.group, call.group_ranks, call.group_size
        if key not in number:
            number[key] = len(number) + 1
            rank_in_group = call.group_ranks.index(rank) if rank in call.group_ranks else rank
            named = call.group, call.group_description
            groups[number[key]] = Group(
                *(number[key], *(named if call.group or not call.group_known else only)),
                *(backend, rank_in_group, call.group_size),
            )
        of_kind[turn] = number[key]
    return groups, of_kind[kind_of_call]


def _only_group(about: dict[str, Any]) -> tuple[str, str]:
    """Returns name and description of the process group if ``about`` lists exactly one group.

    Otherwise, the name is ``UNNAMED_GROUP`` and the description is empty.
    """
    listed = about.get("pg_config")
    if isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], dict):
        name = listed[0].get("pg_name")
        if isinstance(name, str) and name:
            return name, str(listed[0].get("pg_desc", ""))
    return UNNAMED_GROUP, ""


def _metadata(
    recording: RankRecording, rank: int, world_size: int, dtypes: Sequence[str]
) -> dict[str, Any]:
    host = recording.events.head.get("host_name")
    begin = int(min(recording.steps.begin_ns, default=0))
    gpus = recording.events.head.get("deviceProperties")
    return {
        **{"rank": rank, "world_size": world_size, "local_rank": rank, "restart_count": 0},
        **{"pid": 0, "main_thread": 0, "command": [], "python": "", "torch": "unknown"},
        **{"commprof": "", "threads": 0, "capture": TORCH_PROFILER, "ring_prefix": ""},
        "backend": _backend(recording) or "unknown",
        "machine": {
            "hostname": host if isinstance(host, str) else "unknown",
            # Ranks share a clock only if they name the same host and no device was recorded.
            "boot_id": host
            if isinstance(host, str) and recording.device is None
            else f"rank {rank}",
            **dict.fromkeys(("time_namespace", "pid_namespace", "kernel"), ""),
            **{"cpu_model": "unknown", "cpu_count": 0, "usable_cpu_count": 0, "usable_cpus": []},
            "memory_bytes": 0,
            "cuda_devices": len(gpus) if isinstance(gpus, list) else 0,
        },
        "clock": {"source": "unix", "monotonic_ns": begin, "realtime_ns": begin},
        "record_bytes": schema.RECORD_DTYPE.itemsize,
        **{"kinds": list(KINDS), "ops": list(OPS), "phases": list(PHASES)},
        **{"dtypes": list(dtypes), "hooks": []},
    }


def rank_in_name(name: str) -> int | None:
    """Returns the rank in a file's name, or in its folder's name; None if there is none.

    The rank is the number after "rank", "worker", "trainer" or "gpu"; else a number of at most four
    digits before a dot in the file's name. If the folder is ``ASCEND_PROFILER_OUTPUT``, the name of
    the folder above is read instead. If torch's handler for TensorBoard named the file, "gpu" and
    numbers without a word do not count. If Ascend's handler named the folder, the only word that
    counts is "rank".
    """
    file = Path(name)
    folder = file.parent.parent if file.parent.name == _OF_ASCEND else file.parent
    words = [match for part in (file.name, folder.name) for match in _RANK_IN_NAME.finditer(part)]
    of_host = _PROCESS_IN_NAME.search(file.name) is not None
    of_npu = _PROCESS_OF_ASCEND.search(folder.name) is not None
    no_rank = ("gpu",) * of_host + ("gpu", "wor", "tra") * of_npu
    named = [match for match in words if match[1] and match[0].lower()[:3] not in no_rank]
    if named:
        return int(min(named, key=lambda match: match[0].lower()[:4] != "rank")[1])
    numbers = [match[2] for match in _RANK_IN_NAME.finditer(file.name) if match[2]]
    return int(numbers[0]) if numbers and not of_host else None


def rank_beside(file: Path) -> int | None:
    """Returns the rank in the name of ``profiler_info_RANK.json``.

    None if there is no such file, or if such files name different ranks.

    Ascend's profiler writes this file beside the trace's folder, ``ASCEND_PROFILER_OUTPUT``.
    """
    if file.parent.name != _OF_ASCEND:
        return None
    try:
        names = [entry.name for entry in file.parent.parent.iterdir()]
    except OSError:
        return None
    ranks = {int(match[1]) for name in names if (match := _INFO_OF_ASCEND.fullmatch(name))}
    return ranks.pop() if len(ranks) == 1 else None


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    return value if type(value) is int and 0 <= value < MOST_RANKS else None
