"""Finds the backward pass to which each call belongs, and the lines that call the model."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.facts import Mask, RankCalls
from commprof.analysis.collectives.kinds import call_path
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.operations import codes_of
from commprof.trace.schema import Phase

_GATHERS = codes_of("all_gather")


def pass_numbers(calls: RankCalls) -> tuple[Ints, Ints]:
    """Counts, for each call, the backward passes since the last update before it.

    The first result counts the passes before the call. The second result counts all passes until
    the next update. Both are 0 for calls after the last update.
    """
    phases, steps = columns.phases(calls.trace), columns.steps(calls.trace)
    mine = phases.thread == steps.thread[0]
    update, backward = (
        np.sort(phases.begin_ns[mine & (phases.key == key)])
        for key in (Phase.OPTIMIZER, Phase.BACKWARD)
    )
    begun = np.concatenate(([0], np.searchsorted(backward, update)))
    number = np.searchsorted(update, calls.table.issue_ns, side="right")
    is_before = number < len(update)
    since = np.searchsorted(backward, calls.table.issue_ns, side="right") - begun[number]
    whole = begun[np.minimum(number + 1, len(update))] - begun[number]
    return (since * is_before).astype(np.int64), (whole * is_before).astype(np.int64)


def lines_of_passes(calls: RankCalls) -> tuple[set[str], set[str]]:
    """Returns the call paths of gathers in forward: in first passes of updates, and in later ones.

    Calls outside of the measured steps count too, because stacks are recorded in the first steps
    only. Both results are empty without stacks.
    """
    since, whole = pass_numbers(calls)
    numbers = columns.stacks(calls.trace, calls.table.op_id)
    forward: Mask = (calls.phase == Phase.FORWARD) & ~calls.in_backward & (numbers > 0)
    forward &= np.isin(calls.table.op, _GATHERS) & (whole >= 2)
    first, later = (
        {call_path(calls.trace.stacks.get(int(number), ())) for number in np.unique(numbers[rows])}
        for rows in (forward & (since == 0), forward & (since >= 1) & (since < whole))
    )
    return first, later
