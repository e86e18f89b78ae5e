"""Collects the caveats of one rank's recording by torch.profiler."""

from __future__ import annotations

from typing import Final

import numpy as np

from commprof.recordings.profiler_call_columns import CallColumns
from commprof.recordings.profiler_calls import Call
from commprof.recordings.profiler_events import ProfilerEvents
from commprof.recordings.profiler_host import HostCalls
from commprof.recordings.profiler_steps import FoundSteps, find_buckets
from commprof.recordings.profiler_words import is_operator_of_c10d
from commprof.text import counted, printable
from commprof.trace.lookup import distinct
from commprof.trace.stretches import Stretches, rows_within, stretches
from commprof.units import ns_to_ms

#: A caveat is made if more than this fraction of the communication is outside of complete steps.
_WORTH_A_WORD: Final = 0.01


def caveats(
    events: ProfilerEvents, calls: CallColumns, steps: FoundSteps, device: int | None
) -> list[str]:
    """Returns the caveats of this rank's recording, as sentences."""
    texts = [text for text in (steps.said, find_buckets(events, calls, steps)) if text]
    if events.problem:
        texts.append(f"only the first part of the trace could be read, because {events.problem}")
    if events.unusable:
        texts.append(f"commprof left out {counted(events.unusable, 'event')} without usable times")
    quotes = "torch.profiler does not escape double quotes in names"
    if events.passed_over:
        texts.append(
            f"commprof left out {counted(events.passed_over, 'event')} with text that is not JSON "
            f"({quotes})"
        )
    if events.passed_over_in_head:
        texts.append(
            "a part of what the trace says about the job (rank, process groups, metadata) is not "
            f"JSON and was left out ({quotes} and descriptions)"
        )
    if events.unreadable:
        texts.append(
            f"kernels such as {events.unreadable_name} ({events.unreadable} in all) move data "
            "between ranks outside of c10d: they count as compute, because the recording has no "
            "details of them"
        )
    if unread := of_other_devices(events):
        of_host = "no figure counts what the device did, and all times are those of the host"
        texts.append(f"{unread}: {of_host if device is None else 'no figure counts them'}")
    devices = distinct(events.communication.table.device)
    if len(devices) > 1:
        texts.append(f"the file holds {len(devices)} devices; only device {device} is analysed")
    if events.graph_launched:
        texts.append(
            f"CUDA graphs were launched {counted(len(events.graph_launched), 'time')}: "
            f"{_unknown_in_graphs(calls)} of the kernels in them are not known"
        )
    guessed = int(calls.of_kind(_is_guessed, np.bool_).sum())
    if guessed:
        texts.append(
            f"the operation of {counted(guessed, 'collective')} is known only from the kernel's "
            "name, which NCCL also uses for other operations"
        )
    return texts + _outside_steps(calls, steps)


def _unknown_in_graphs(calls: CallColumns) -> str:
    told = calls.of_kind(_is_described, np.bool_)[calls.replay >= 0]
    return "phases" if len(told) and told.all() else "sizes, groups and phases"


def _is_described(kind: Call) -> bool:
    return kind.dtype != "" and kind.group != ""


def of_other_devices(events: ProfilerEvents) -> str:
    """Returns a clause on device events that commprof does not read; empty if there are none."""
    if not events.other_device:
        return ""
    are = "is" if events.other_device == 1 else "are"
    return (
        f"{counted(events.other_device, 'event')} of a device such as {events.other_device_name} "
        f"{are} of a kind that is not read"
    )


def about_host(of_host: HostCalls, events: ProfilerEvents) -> list[str]:
    """Returns caveats about collectives on the host that are not in the figures, as sentences."""
    about = []
    if of_host.calls and not _shows_all_threads(events):
        about.append(
            "the recording lacks collectives issued by other Python threads than the profiled one, "
            "unless torch.profiler recorded all threads (profile_all_threads)"
        )
    if of_host.unseen:
        about.append(
            f"no range shows when {counted(of_host.unseen, 'collective')} of c10d ran: all "
            "figures leave out such collectives"
        )
    if of_host.doubtful:
        about.append(
            f"{counted(of_host.doubtful, 'range')} such as {printable(of_host.doubtful_name[:60])} "
            "may be the script's own, or belong to a backend that the recording does not name: all "
            "figures leave out such ranges"
        )
    return about


def _shows_all_threads(events: ProfilerEvents) -> bool:
    """True if two or more threads issued collectives, not counting threads of backward passes.

    torch.profiler may miss all threads except autograd's and the thread that started the profiler
    (``findings/profiler_misses_other_threads.sh``).
    """
    issued = events.issued.table.rows(events.issued.rows_named(is_operator_of_c10d))
    return len({*issued.thread.tolist()} - {*events.backward.tag}) > 1


def _is_guessed(kind: Call) -> bool:
    return kind.guessed and kind.op != "other"


def _outside_steps(calls: CallColumns, steps: FoundSteps) -> list[str]:
    timed = calls.timed
    if not timed.any():
        return []
    alone = stretches(calls.begin_ns[timed], calls.end_ns[timed])
    inside = rows_within(alone, Stretches(steps.begin_ns, steps.end_ns))[1]
    total, left = int(alone.length_ns.sum()), int(alone.length_ns.sum() - inside.length_ns.sum())
    if left <= _WORTH_A_WORD * total:
        return []
    return [
        f"{ns_to_ms(left):.3g} of {ns_to_ms(total):.3g} ms of communication are outside of "
        "complete steps and not included in any figure of a step"
    ]
