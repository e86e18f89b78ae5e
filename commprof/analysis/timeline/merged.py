"""Events of torch.profiler on the clock of a run, beside the rank that they belong to.

torch.profiler writes Unix time, commprof ``CLOCK_MONOTONIC``. The trace of each rank holds both
clocks, read one right after the other when capture began. Their difference moves torch's times
onto the rank's monotonic clock; from there they go to rank 0's as all times of that rank do. So the
two agree as well as the wall clock kept its rate since capture began: NTP slews it by 500 ppm at
most, and a step of it shifts all that torch.profiler saw.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from commprof.analysis.timeline.overview import Overview, Window
from commprof.errors import CommprofError
from commprof.trace.columns import Ints
from commprof.trace.torch_trace import TorchTrace

#: Events moved at a time.
_CHUNK = 4096
#: Process ids of the ranks are below it, those of merged traces above.
_FIRST_PID = 1_000_000
#: After all that a 64-bit clock shows.
_NEVER_NS = 2**63 - 1
#: Arrows of torch's own are numbered from here on, per trace.
_FIRST_ARROW = 2**40


def rank_index(view: Overview, trace: TorchTrace) -> int:
    """Which of ``view.ranks`` a trace belongs to.

    By the rank in it, else by its process id, else by its file's name.

    Raises:
        CommprofError: by none of these.
    """
    named = re.search(r"rank[_-]?(\d+)", trace.path.name)
    same_pid = [rank for rank, pid in zip(view.ranks, view.pids, strict=True) if pid in trace.pids]
    if trace.rank is not None:
        wanted = trace.rank
    elif len(same_pid) == 1:
        wanted = same_pid[0]
    else:
        wanted = int(named[1]) if named else -1
    if wanted not in view.ranks:
        raise CommprofError(
            f"{trace.path} belongs to no rank of this run: it names "
            f"{'no rank' if wanted < 0 else f'rank {wanted}'} and none of their processes; allowed "
            f"are traces of the ranks {', '.join(map(str, view.ranks))}, or name the file rank_N"
        )
    return view.ranks.index(wanted)


def with_all_of(view: Overview, traces: Sequence[TorchTrace]) -> Overview:
    """The overview with a window that holds every event of these traces too.

    It begins with the first event of all: viewers drop what lies before 0.
    """
    begins = [view.window.begin_ns]
    for trace in traces:
        if math.isfinite(trace.first_us):
            begins += _common_ns(view, rank_index(view, trace), trace, [trace.first_us]).tolist()
    return replace(view, window=Window(min(begins), _NEVER_NS)) if traces else view


def torch_events(view: Overview, trace: TorchTrace, number: int) -> Iterator[dict[str, Any]]:
    """The trace's events that begin in the window, in processes of their own.

    ``ts`` becomes the time since the begin of the window, in µs.

    Args:
        view: of the run.
        trace: of one of its ranks.
        number: of the trace among those that are merged, from 0.

    Raises:
        CommprofError: see :func:`rank_index`.
    """
    index = rank_index(view, trace)
    pids: dict[Any, int] = {}
    events = trace.events()
    while chunk := list(islice(events, _CHUNK)):
        times_us = [event.get("ts") or 0.0 if event.get("ph") != "M" else 0.0 for event in chunk]
        common_ns = _common_ns(view, index, trace, times_us)
        shown = view.window.holds(common_ns)
        since_ns = common_ns - view.window.begin_ns
        for event, time_ns, is_shown in zip(chunk, since_ns.tolist(), shown.tolist(), strict=True):
            if is_shown or event.get("ph") == "M":
                place = pids.setdefault(str(event.get("pid")), len(pids))
                pid = _FIRST_PID * (number + 1) + place
                arrow = _FIRST_ARROW * (number + 1)
                yield from _moved(event, pid, view.ranks[index], place, time_ns, arrow)


def _common_ns(view: Overview, index: int, trace: TorchTrace, times_us: Sequence[float]) -> Ints:
    """Times of a trace by the common clock."""
    offset_ns = trace.base_ns - view.unix_offsets_ns[index]
    own_ns = [round(time_us * 1000) + offset_ns for time_us in times_us]
    return view.clocks[index].to_common(np.array(own_ns, dtype=np.int64))


def _moved(
    event: dict[str, Any], pid: int, rank: int, place: int, time_ns: int, first_arrow: int
) -> Iterator[dict[str, Any]]:
    """One event in its new place; the order of processes is ours."""
    name = event.get("name")
    if name == "process_sort_index":
        return
    event = {**event, "pid": pid}
    if name == "process_name" and isinstance(event.get("args"), dict):
        event["args"] = {"name": f"rank {rank}, torch.profiler: {event['args'].get('name', '')}"}
        order = {"sort_index": sort_index(rank) + 1 + place}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": order}
    if "ts" in event and event.get("ph") != "M":
        event["ts"] = time_ns / 1000
    if isinstance(event.get("id"), int) and event.get("ph") in ("s", "t", "f"):
        event["id"] += first_arrow
    yield event


def sort_index(rank: int) -> int:
    """Of a rank's process; those of its merged traces follow."""
    return 1000 * rank
