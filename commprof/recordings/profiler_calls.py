"""Describes collectives of a torch.profiler trace: operation, group, size and times."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commprof.recordings.element_types import c10d_type, element_bytes
from commprof.recordings.profiler_events import ProfilerEvents
from commprof.recordings.profiler_named import Event
from commprof.recordings.profiler_words import operation
from commprof.trace import schema
from commprof.trace.documents import MOST_RANKS
from commprof.trace.schema import NO_SEQ

Ints = npt.NDArray[np.int64]

#: Upper limit of sizes in bytes.
MOST_BYTES: Final = 2**62
#: Operations with a root.
ROOTED: Final = tuple(schema.OPS[code] for code in schema.ROOTED)


#: Longest time from the end of a wait to the end of the collective's range. The waiting thread may
#: go on before the backend's thread ends the range.
CLOSED_LATE_NS: Final = 100_000


@dataclass(frozen=True)
class Call:
    """One collective or point-to-point message of a rank; times in ns."""

    op: str
    #: Name and description of the process group; empty if the recording has none.
    group: str
    group_description: str
    #: 0 if not known.
    group_size: int
    #: Global ranks of the group; empty if not known.
    group_ranks: tuple[int, ...]
    #: Sequence number of the call in the group; -1 if the recording has none.
    seq: int
    #: Root, source or destination, as rank in the group.
    peer: int
    dtype: str
    #: Number of elements of the input.
    elements: int
    bytes_in: int
    #: -1 if not known, for example because the size of the group is not known.
    bytes_out: int
    #: Time of the launch on the host; ``begin_ns`` if not recorded. For gloo, the begin of c10d's
    #: operator, or of the backend's range if it is not certain which operator belongs to it.
    launch_ns: int
    launch_thread: int
    #: Times of the kernel; for gloo, ``begin_ns`` is ``launch_ns``.
    begin_ns: int
    end_ns: int
    device: int
    #: True if the operation is derived from the kernel's name alone; ``op`` may be "other".
    guessed: bool
    #: True if the recording names the root; ``peer`` is then the root.
    root_known: bool
    #: False if the transfer ran on a device and only the call on the host was recorded.
    timed: bool = True
    #: Rows of c10d's ranges around the launch, or of the operator with the kernel's External id.
    #: The range that names the operation comes first. Empty if there are no such rows, and in calls
    #: on the host.
    launched_in: tuple[int, ...] = ()
    #: Begin and end of each kernel, if the collective has several kernels. For a call on the host
    #: whose range ends after ``end_ns``: begin of the call and end of the range. Otherwise empty.
    kernels: tuple[tuple[int, int], ...] = ()
    #: False if it is not known to which process group the call belongs.
    group_known: bool = True
    #: Name of the backend; empty if not known.
    backend: str = ""
    #: Correlation id of the graph launch that ran the kernel; -1 outside of CUDA graphs.
    replay: int = -1

    @property
    def times_ns(self) -> tuple[tuple[int, int], ...]:
        """Begin and end of each kernel of the call, in ns; empty if they are not known."""
        return self.kernels or ((self.begin_ns, self.end_ns),) * self.timed


def launches(events: ProfilerEvents, correlation: Ints) -> tuple[Ints, Ints]:
    """Returns the launch time and the launching thread of kernels; -1 if not recorded."""
    ids = np.frombuffer(events.launched, np.int64) if events.launched else np.zeros(0, np.int64)
    unknown = np.full(len(correlation), -1, dtype=np.int64)
    if len(ids) == 0 or len(correlation) == 0:
        return unknown, unknown
    order = np.argsort(ids, kind="stable")
    event_row = order[np.minimum(np.searchsorted(ids[order], correlation), len(ids) - 1)]
    is_known = (ids[event_row] == correlation) & (correlation >= 0)
    time_ns = np.frombuffer(events.launched_ns, np.int64)[event_row]
    thread = np.frombuffer(events.launching_thread, np.int64)[event_row]
    return np.where(is_known, time_ns, -1), np.where(is_known, thread, -1)


def external_id(event: Event) -> int:
    """Returns the External id, which kineto gives to an operator and its kernels; 0 if missing."""
    return _whole(event.arguments.get("External id", event.arguments.get("external id")))


def described(name: str, args: dict[str, Any], world_size: int) -> Call:
    """Makes a call without times from a name and arguments."""
    op = operation(name)
    # Without a known type or a number of elements, the size is unknown.
    dtype = c10d_type(str(args.get("dtype", ""))) if "In msg nelems" in args else ""
    size = element_bytes(dtype)
    ranks = _numbers(args.get("Process Group Ranks"))
    in_group = _whole(args.get("Group size"))
    if not 0 < in_group <= MOST_RANKS:
        in_group = len(ranks) or world_size
    given_in, given_out = (_whole(args.get(f"{way} msg nelems")) * size for way in ("In", "Out"))
    if "Out msg nelems" not in args:
        given_out = output_bytes(op, given_in, in_group) if in_group else -1
    return Call(
        op=op,
        group=str(args.get("Process Group Name", "")),
        group_description=str(args.get("Process Group Description", "")),
        group_size=in_group,
        group_ranks=ranks if len(ranks) == in_group else (),
        seq=_seq(args.get("Seq")),
        peer=_peer(op, args, ranks),
        dtype=dtype if size else "",
        elements=_whole(args.get("In msg nelems")),
        bytes_in=min(given_in, MOST_BYTES),
        bytes_out=min(given_out, MOST_BYTES),
        launch_ns=0,
        launch_thread=-1,
        begin_ns=0,
        end_ns=0,
        device=0,
        guessed=False,
        root_known=op in ROOTED and "Rank" in args and _named_op(args) == op,
    )


def _peer(op: str, args: dict[str, Any], ranks: Sequence[int]) -> int:
    """Returns the rank, in the group, of the root or of a message's peer; 0 if not known.

    A message's peer is "Src Rank" or "Dst Rank". A number that is one of the group's global ranks
    counts as a global rank. The root is "Rank", but only if "Collective name" is the operation
    ``op``: in a broadcast that is part of an all-gather, "Rank" is the calling rank.
    """
    if op in ROOTED:
        return _whole(args.get("Rank")) if _named_op(args) == op else 0
    if op == "send" or "recv" in op:
        value = _whole(args.get("Dst Rank" if op == "send" else "Src Rank"))
        return ranks.index(value) if value in ranks else value
    return 0


def _named_op(args: dict[str, Any]) -> str:
    return operation(str(args.get("Collective name", "")))


def of_job(call: Call, world_size: int) -> Call:
    """Returns the call; a missing group size is replaced by the world size."""
    if call.group_size:
        return call
    out = (
        call.bytes_out if call.bytes_out >= 0 else output_bytes(call.op, call.bytes_in, world_size)
    )
    return replace(call, group_size=world_size, bytes_out=min(out, MOST_BYTES))


def output_bytes(op: str, bytes_in: int, ranks: int) -> int:
    """Returns the size of an operation's output, from its input and the number of ranks."""
    if op.startswith("all_gather"):
        return bytes_in * ranks
    if op.startswith("reduce_scatter"):
        return bytes_in // max(1, ranks)
    return bytes_in


def sizes_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns element count and type of an event's first input; empty if not recorded."""
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return {}
    known_type = next((t for t in types if element_bytes(str(t))), None)
    flat = [s for s in shapes if isinstance(s, list) and s and all(type(n) is int for n in s)]
    if known_type is None or not flat:
        return {}
    return {"In msg nelems": math.prod(flat[0]), "dtype": known_type}


def _whole(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value < MOST_BYTES else 0


def _seq(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value < NO_SEQ else -1


def _numbers(value: Any) -> tuple[int, ...]:
    """Returns the ranks in a list or in a text such as "[0, 1]"; empty for other values.

    Texts that torch has shortened count as other values.
    """
    if isinstance(value, str):
        return _numbers_in(value) if len(value) < 1 << 20 else ()
    if not isinstance(value, list) or not all(map(_is_rank, value)):
        return ()
    return tuple(value)


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_RANKS


@lru_cache(maxsize=16)
def _numbers_in(text: str) -> tuple[int, ...]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return _numbers(value) if isinstance(value, list) else ()
