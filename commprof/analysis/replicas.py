"""Writes sentences about the replicas of a job and their restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commprof.text import counted, listed, named_ranks


def replicas_remarks(context: Mapping[str, Any]) -> list[str]:
    """Returns sentences about the ranks and the starts of each replica.

    The list is empty for a job without replicas. ``context["replicas"]`` has the keys that
    ``commprof.trace.run.run_directory`` writes.
    """
    lives: Sequence[Mapping[str, Any]] = context.get("replicas") or ()
    if not lives:
        return []
    told = [life for life in lives if life["ranks"]]
    which = listed(
        [
            f"{named_ranks(each['ranks'])} {'is' if len(each['ranks']) == 1 else 'are'} "
            f"replica {_name(each)} ({each['directory']})"
            for each in told
        ]
    )
    found = [f"{counted(len(told), 'replica')} trained together: {which}."]
    for each in told:
        own = [life for life in lives if life["replica"] == each["replica"]]
        if len(own) > 1:
            found.append(_lived(own))
    return found


def times_started(context: Mapping[str, Any]) -> str:
    """Returns a short text on restarted replicas; empty if there are none."""
    lives: Sequence[Mapping[str, Any]] = context.get("replicas") or ()
    again = [
        f"replica {_name(own[-1])} ({len(own)} starts)"
        for number in dict.fromkeys(life["replica"] for life in lives)
        if len(own := [life for life in lives if life["replica"] == number]) > 1
    ]
    if not again:
        return ""
    return f"Started again: {listed(again)}. The figures of a replica come from one of its starts."


def _lived(lives: Sequence[Mapping[str, Any]]) -> str:
    parts = [
        f"from {life['begin_s']:.1f} to {life['end_s']:.1f} s with "
        f"{counted(life['steps'], 'step')} "
        f"({life['directory']}{'; ' + life['ending'] if life['ending'] else ''})"
        for life in lives
    ]
    return (
        f"Replica {_name(lives[-1])} was started {len(lives)} times: {listed(parts)}. All figures "
        "come from the last start after which this replica communicated with other replicas."
    )


def _name(life: Mapping[str, Any]) -> str:
    return str(life["label"] or life["replica"])
