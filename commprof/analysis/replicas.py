"""Sentences on the replicas of a job; a replica may have been started several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commprof.text import counted, listed, named_ranks


def replicas_remarks(context: Mapping[str, Any]) -> list[str]:
    """Sentences on the ranks of each replica, and on its training after each of its starts.

    Empty for a job without replicas. ``context["replicas"]`` has the keys that
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
    """Returns a short text on replicas that were started again; empty if none was."""
    lives: Sequence[Mapping[str, Any]] = context.get("replicas") or ()
    again = [
        f"replica {_name(own[-1])} ({len(own)} starts)"
        for number in dict.fromkeys(life["replica"] for life in lives)
        if len(own := [life for life in lives if life["replica"] == number]) > 1
    ]
    if not again:
        return ""
    return f"Started again: {listed(again)}. All figures are of one start of each replica."


def _lived(lives: Sequence[Mapping[str, Any]]) -> str:
    """Describes the lives of a replica: each lasts from a start of the replica to its end."""
    parts = [
        f"from {life['begin_s']:.1f} to {life['end_s']:.1f} s with "
        f"{counted(life['steps'], 'step')} "
        f"({life['directory']}{'; ' + life['ending'] if life['ending'] else ''})"
        for life in lives
    ]
    return (
        f"Replica {_name(lives[-1])} was started {len(lives)} times: {listed(parts)}. All figures "
        "are of the last start after which it communicated with other replicas."
    )


def _name(life: Mapping[str, Any]) -> str:
    return str(life["label"] or life["replica"])
