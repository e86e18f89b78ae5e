"""Reads the events that commprof uses from one torch.profiler trace.

Communication and ranges keep their names (``Event``). Other events are kept in columns, without
their names.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

import numpy as np

from commprof.recordings.json_events import EventReader
from commprof.recordings.profiler_words import (
    backend_of,
    has_certain_word,
    is_backend_of_torch,
    is_collective_range,
)
from commprof.text import printable

#: Largest valid times: of events, in µs, and of ``baseTimeNanoseconds``.
_MOST_US: Final = 2.3e15
_MOST_BASE_NS: Final = 2_300_000_000_000_000_000
_MOST_NAMED: Final = 400_000
#: Names of kernels of NCCL, RCCL, oneCCL and MSCCL, and of kernels of inference servers and
#: symmetric memory that wait for their peers.
_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|oneccl|(?:^|[^a-z])ccl_|cross_device_reduce|all_?reduce_(?:fusion|prototype)|"
    r"(?:one|two)_?shot_all_?reduce|multimem_\w*(?:reduce|gather)",
    re.IGNORECASE,
)
#: Names of kernels that communicate between ranks, about which a recording has no details.
_UNREADABLE = re.compile(
    r"deep_?ep|nvshmem|rocshmem|intranode::|internode::|symm_mem|userbuffers_|pplx|flux::",
    re.IGNORECASE,
)
#: Copies within a device, by CUDA, HIP and Level Zero; and those between two devices.
_WITHIN_DEVICE = re.compile(r"DtoD|D2D|DeviceToDevice|Device -> Device", re.IGNORECASE)
_BETWEEN_DEVICES = re.compile(r"PtoP|P2P|Peer", re.IGNORECASE)
#: Kernels that copy or fill memory: ROCm before 7.2 records copies as kernels.
_COPYING_KERNEL = re.compile(r"^MEMORY_COPY_|^__amd_rocclr_(?:copy|fill)Buffer")
_GRAPH_LAUNCH = ("cudaGraphLaunch", "hipGraphLaunch")
_RANGES = re.compile(
    r"ProfilerStep#\d|DistributedDataParallel\.forward|"
    r"FullyShardedDataParallel\.forward|FSDP::|Optimizer\.step#|enumerate\(DataLoader\)|"
    r"^#* ?(?:forward|backward|optimizer)(?: \d+)? ?#*$|^PP:\d",
    re.IGNORECASE,
)
_BACKWARD_OP = "autograd::engine::evaluate_function"
#: Begin of the names of autograd's own nodes.
_NODES = "torch::autograd::"
#: Range in which DDP, after waiting for a bucket, copies it back into the gradients.
_COPIED_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
#: Name of an operator that waits, such as ``_c10d_functional::wait_tensor``.
_WAITS = re.compile(r"(?:^|[^a-z])waits?(?:$|[^a-z])", re.IGNORECASE)
#: Arguments of a communication kernel that are kept.
_ARGUMENTS: Final[tuple[str, ...]] = (
    *("Collective name", "Process Group Name", "Process Group Description", "Group size", "Seq"),
    *("dtype", "In msg nelems", "Out msg nelems", "Process Group Ranks", "Src Rank", "Dst Rank"),
    *("Rank", "Input Dims", "Input type", "Concrete Inputs", "External id", "external id"),
)


@dataclass(frozen=True)
class Event:
    """A communication kernel, a c10d operator or an annotated range of the host, with its name."""

    name: str
    begin_ns: int
    end_ns: int
    #: Host thread of the event; for a kernel, its stream.
    thread: int
    device: int
    correlation: int
    arguments: dict[str, Any]


@dataclass
class Intervals:
    """Unnamed events in columns; ``tag``: correlation id of a kernel or copy, else the thread."""

    begin_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    tag: array[int] = field(default_factory=lambda: array("q"))
    device: array[int] = field(default_factory=lambda: array("q"))

    def add(self, begin_ns: int, end_ns: int, tag: int, device: int = 0) -> None:
        """Adds one event."""
        self.begin_ns.append(begin_ns)
        self.end_ns.append(end_ns)
        self.tag.append(tag)
        self.device.append(device)

    def __len__(self) -> int:
        """Number of events."""
        return len(self.begin_ns)


@dataclass
class ProfilerEvents:
    """Events of one trace; times in ns since 1970."""

    head: dict[str, Any] = field(default_factory=dict)
    #: Communication on a device, in the order of the file.
    communication: list[Event] = field(default_factory=list)
    #: Host ranges of communication, steps or phases.
    ranges: list[Event] = field(default_factory=list)
    #: Operators of c10d on the host.
    issued: list[Event] = field(default_factory=list)
    #: Copies between devices; they are in ``other_copies``, too.
    between_devices: list[Event] = field(default_factory=list)
    #: All other kernels, and copies within a device, tagged with the correlation id.
    kernels: Intervals = field(default_factory=Intervals)
    copies: Intervals = field(default_factory=Intervals)
    #: Copies between devices or between host and device, and fills, tagged likewise.
    other_copies: Intervals = field(default_factory=Intervals)
    #: Host operators, tagged with the thread: autograd's evaluations of its nodes, operators that
    #: wait, functions without a namespace, which only call others, and all others except c10d's.
    backward: Intervals = field(default_factory=Intervals)
    waits: Intervals = field(default_factory=Intervals)
    callers: Intervals = field(default_factory=Intervals)
    operators: Intervals = field(default_factory=Intervals)
    #: Begins of DDP's copies of buckets into gradients.
    copied_back_ns: array[int] = field(default_factory=lambda: array("q"))
    #: Launches: begin, thread and correlation id.
    launched_ns: array[int] = field(default_factory=lambda: array("q"))
    launching_thread: array[int] = field(default_factory=lambda: array("q"))
    launched: array[int] = field(default_factory=lambda: array("q"))
    graph_launches: int = 0
    #: Number of kernels that communicate between ranks without recorded details; the first's name.
    unreadable: int = 0
    unreadable_name: str = ""
    #: Number of events without usable times.
    unusable: int = 0
    problem: str = ""

    @property
    def about(self) -> dict[str, Any]:
        """What the trace says about the job: rank, world size, backend and process groups."""
        about = self.head.get("distributedInfo")
        return about if isinstance(about, dict) else {}

    @property
    def backends(self) -> set[str]:
        """Names of the job's backends, in lower case."""
        listed = self.about.get("pg_config")
        listed = listed if isinstance(listed, list) else []
        groups = [group for group in listed if isinstance(group, dict)]
        named = [self.about.get("backend"), *(group.get("backend_config") for group in groups)]
        text = ",".join(name.lower() for name in named if isinstance(name, str))
        return {pair.rpartition(":")[2] for pair in text.split(",") if pair}

    @property
    def backend_ranges(self) -> list[Event]:
        """Ranges of collectives by backends of torch, or of the job.

        Without those of other names, which may be the script's own, such as ``data:gather``. If the
        recording does not name the job's backends, words that only a collective has are enough.
        """
        backends = self.backends
        return [
            event
            for event in self.ranges
            if is_collective_range(event.name)
            and (
                is_backend_of_torch(event.name)
                or backend_of(event.name) in backends
                or (not backends and has_certain_word(event.name))
            )
        ]


#: Fields of ``ProfilerEvents`` that are columns; those of a device have correlation ids as tags.
COLUMNS_OF_DEVICE: Final = ("kernels", "copies", "other_copies")
COLUMNS: Final = (*COLUMNS_OF_DEVICE, "backward", "waits", "callers", "operators")
#: Fields that are lists of events.
NAMED: Final = ("communication", "between_devices", "ranges", "issued")

#: Function that keeps an event of one category: the event, its name, begin, end and arguments.
Taker = Callable[[dict[str, Any], str, int, int, dict[str, Any], ProfilerEvents], None]


def is_communication(kernel_name: str) -> bool:
    """True if the name is that of a communication kernel, such as one of NCCL."""
    return _COMMUNICATION.search(kernel_name) is not None


def read_events(stream: BinaryIO) -> ProfilerEvents:
    """Reads one trace to its end, or to the place where it is damaged.

    Raises:
        ValueError: the file is not a trace at all.
    """
    reader = EventReader(stream)
    found, pairs = ProfilerEvents(head=reader.head), _Pairs()
    for events in reader.events():
        for event in events:
            if type(event) is not dict:
                continue
            if event.get("ph") == "X":
                _take(event, event, found)
            elif event.get("ph") == "B":
                pairs.begin(event)
            elif event.get("ph") == "E":
                begun = pairs.begun_by(event)
                if begun is not None:
                    _take(begun, event, found)
    found.unusable += pairs.unended
    found.problem = reader.problem
    base = reader.head.get("baseTimeNanoseconds")
    if type(base) is int and 0 < base <= _MOST_BASE_NS:
        _shift(found, base)
    if not reader.found_events:
        raise ValueError("it holds no traceEvents")
    return found


def _shift(found: ProfilerEvents, by_ns: int) -> None:
    """Converts times from the trace's own zero to times since 1970."""
    for named in NAMED:
        events: list[Event] = getattr(found, named)
        events[:] = [
            replace(e, begin_ns=e.begin_ns + by_ns, end_ns=e.end_ns + by_ns) for e in events
        ]
    columns = [found.launched_ns, found.copied_back_ns]
    for name in COLUMNS:
        some: Intervals = getattr(found, name)
        columns += [some.begin_ns, some.end_ns]
    for column in columns:
        if column:
            np.frombuffer(column, dtype=np.int64)[:] += by_ns


class _Pairs:
    """Matches events that some tools write in two parts, one for the begin and one for the end."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        #: Number of events that have begun and not ended.
        self.unended = 0

    def begin(self, event: dict[str, Any]) -> None:
        """Keeps the begin of an event until its end is read."""
        place = event.get("pid"), event.get("tid")
        if self.unended < _MOST_NAMED and all(type(each) in (str, int) for each in place):
            self._open.setdefault(place, []).append(event)
            self.unended += 1

    def begun_by(self, end: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the thread's last open event, which ``end`` ends; None if no event is open.

        The returned event has the arguments of its begin and of its end.
        """
        place = end.get("pid"), end.get("tid")
        if not all(type(each) in (str, int) for each in place) or not self._open.get(place):
            return None
        self.unended -= 1
        begun = self._open[place].pop()
        arguments = [one for one in (begun.get("args"), end.get("args")) if type(one) is dict]
        return {**begun, "args": {key: one[key] for one in arguments for key in one}}


def _take(event: dict[str, Any], end: dict[str, Any], found: ProfilerEvents) -> None:
    """Keeps an event if its category is used.

    Args:
        event: the event, with its begin.
        end: the same event, or the one that marks its end.
        found: the events kept.
    """
    category, name = event.get("cat"), event.get("name")
    take = _TAKERS.get(category) if type(category) is str else None
    if take is None or not isinstance(name, str):
        return
    try:
        begin = _moment_ns(event["ts"])
        # A length is in the unit of the begin: some tools write ns since 1970.
        in_ns = type(event["ts"]) is int and event["ts"] >= _MOST_US
        length = end.get("dur", 0) if end is event else 0
        until = begin + (_whole_ns(length) if in_ns else _ns(length))
        if end is not event:
            until = _moment_ns(end["ts"])
        if until < begin:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        found.unusable += 1
        return
    arguments = event.get("args")
    take(event, name, begin, until, arguments if type(arguments) is dict else {}, found)


def _moment_ns(value: Any) -> int:
    return _whole_ns(value) if type(value) is int and value >= _MOST_US else _ns(value)


def _ns(value_us: Any) -> int:
    """Converts µs to ns: integers exactly, floats rounded to the nearest ns."""
    if isinstance(value_us, str):  # very old traces
        value_us = float(value_us)
    if not 0 <= value_us < _MOST_US:
        raise ValueError
    if type(value_us) is int:
        return value_us * 1000
    whole = math.floor(value_us)
    return whole * 1000 + round((value_us - whole) * 1000)


def _whole_ns(value: Any) -> int:
    if not 0 <= value < _MOST_BASE_NS:
        raise ValueError
    return int(value)


def _kernel(
    event: dict[str, Any], name: str, begin: int, end: int, args: dict[str, Any], f: ProfilerEvents
) -> None:
    correlation, device = _int(args.get("correlation")), _int(args.get("device"))
    if "Collective name" in args or is_communication(name):
        stream = _int(args.get("stream", event.get("tid")))
        kept = {key: args[key] for key in _ARGUMENTS if key in args}
        _keep(f.communication, Event(name, begin, end, stream, device, correlation, kept))
        return
    if _COPYING_KERNEL.search(name):
        within = "copyBuffer" in name or "DEVICE_TO_DEVICE" in name
        (f.copies if within else f.other_copies).add(begin, end, correlation, device)
        return
    if _UNREADABLE.search(name):
        f.unreadable += 1
        f.unreadable_name = f.unreadable_name or printable(name[:60])
    f.kernels.add(begin, end, correlation, device)


def _copy(
    event: dict[str, Any], name: str, begin: int, end: int, args: dict[str, Any], f: ProfilerEvents
) -> None:
    correlation, device = _int(args.get("correlation")), _int(args.get("device"))
    between = _BETWEEN_DEVICES.search(name) is not None or "Collective name" in args
    if between:
        stream = _int(args.get("stream", event.get("tid")))
        of_call = {key: args[key] for key in _ARGUMENTS if key in args}
        _keep(f.between_devices, Event(name, begin, end, stream, device, correlation, of_call))
    kept = f.copies if _WITHIN_DEVICE.search(name) and not between else f.other_copies
    kept.add(begin, end, correlation, device)


def _launch(
    event: dict[str, Any], name: str, begin: int, end: int, args: dict[str, Any], f: ProfilerEvents
) -> None:
    if name in _GRAPH_LAUNCH:
        f.graph_launches += 1
    if ("aunch" in name and "HostFunc" not in name) or "emcpy" in name:
        f.launched_ns.append(begin)
        f.launching_thread.append(_int(event.get("tid")))
        f.launched.append(_int(args.get("correlation")))


def _range(
    event: dict[str, Any], name: str, begin: int, end: int, args: dict[str, Any], f: ProfilerEvents
) -> None:
    if _RANGES.search(name) or is_collective_range(name):
        kept = {key: args[key] for key in _ARGUMENTS if key in args}
        _keep(f.ranges, Event(name, begin, end, _int(event.get("tid")), 0, -1, kept))


def _operator(
    event: dict[str, Any], name: str, begin: int, end: int, args: dict[str, Any], f: ProfilerEvents
) -> None:
    thread, has_namespace = _int(event.get("tid")), "::" in name
    is_range = not has_namespace and (_RANGES.search(name) or is_collective_range(name))
    if is_range:  # torch up to 1.11 has no other category
        _range(event, name, begin, end, args, f)
    elif has_namespace and _WAITS.search(name.rpartition("::")[2]):
        f.waits.add(begin, end, thread)
    elif name.startswith("c10d::") or name == "record_param_comms":
        kept = {key: args[key] for key in _ARGUMENTS if key in args}
        _keep(f.issued, Event(name, begin, end, thread, 0, -1, kept))
    elif name.startswith(_BACKWARD_OP):
        f.backward.add(begin, end, thread)
    elif not has_namespace or name.startswith(_NODES):
        f.callers.add(begin, end, thread)
    else:
        f.operators.add(begin, end, thread)
        if name == _COPIED_BACK:
            f.copied_back_ns.append(begin)


_TAKERS: Final[dict[str, Taker]] = {
    "kernel": _kernel,
    "Kernel": _kernel,
    "gpu_memcpy": _copy,
    "Memcpy": _copy,
    "gpu_memset": _copy,
    "Memset": _copy,
    "cuda_runtime": _launch,
    "cuda_driver": _launch,
    "Runtime": _launch,
    **dict.fromkeys(("xpu_runtime", "xpu_driver"), _launch),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), _launch),
    "user_annotation": _range,
    "cpu_op": _operator,
    "Operator": _operator,
}


def _keep(kept: list[Event], event: Event) -> None:
    if len(kept) < _MOST_NAMED:
        kept.append(event)


def _int(value: Any) -> int:
    """Returns an integer that a column can hold; -1 for any other value."""
    if type(value) is str and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and -(2**62) <= value < 2**62 else -1
