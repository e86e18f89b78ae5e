"""Finds lines of the script between which a late rank works longer than the other ranks.

If stacks were recorded, the line that issued each operation is known. The training thread's own
work between two issues is attributed to the pair of lines that issued the two operations. Waiting,
pauses and run delay do not count as work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import numpy as np

from commprof.analysis.collectives.kinds import caller
from commprof.analysis.late.costs import LEAST_SHARE
from commprof.analysis.late.stragglers import beyond_the_others
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.measured import MeasuredWorld
from commprof.analysis.step.spent import RankTime
from commprof.analysis.step.waiting import not_split
from commprof.text import in_ms, printable
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.reader import Trace
from commprof.trace.schema import PHASES, Phase
from commprof.units import ns_to_ms

#: Largest number of pairs of lines that are reported for a phase.
_MOST_PAIRS = 3
#: Phase, and the two lines between which the work lies. "" takes the place of a line at the start
#: and at the end of a step.
_Cell: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True)
class LongerLines:
    """Two lines of the script between which one rank works longer than the others.

    Waiting, pauses and run delay do not count as work. Extra time is the rank's time minus the
    median of the other ranks.
    """

    rank: int
    phase: str
    #: Extra time of the whole phase, mean per step.
    phase_ms: float
    #: Line that issued the operation before this work, as ``FILE:LINE FUNCTION``; "" if the work
    #: begins at the start of the step.
    begin: str
    #: Line that issued the operation after this work; "" if the work ends at the step's end.
    end: str
    #: Extra time of the work between these lines, mean per step.
    longer_ms: float


def longer_lines(rank: int, seen: MeasuredWorld) -> tuple[LongerLines, ...]:
    """Finds pairs of lines between which this rank works longer than the other ranks do.

    The phase with the most extra time comes first. Empty if a rank's trace has no stacks.
    """
    if len(seen.ranks) < 2 or not all(trace.stacks for trace in seen.traces):
        return ()
    steps, place = seen.measured.step, seen.ranks.index(rank)
    works = [_work(*each, steps) for each in zip(seen.traces, seen.tables, strict=True)]
    cells = sorted({cell for work in works for cell in work})
    values = np.array([[work.get(cell, 0.0) for cell in cells] for work in works])
    least_ms = LEAST_SHARE * ns_to_ms(float(seen.measured.table("wall").mean(axis=1).mean()))
    found = []
    for phase in PHASES:
        of_phase = [i for i, cell in enumerate(cells) if cell[0] == phase]
        if not of_phase or (len(of_phase) == 1 and "" in cells[of_phase[0]]):
            continue  # with only one line, the pair shows no more than the phase
        left_ms = phase_ms = float(beyond_the_others(values[:, of_phase].sum(axis=1))[place])
        longer = beyond_the_others(values[:, of_phase])[place]
        for i in np.argsort(-longer)[:_MOST_PAIRS].tolist():
            longer_ms = min(float(longer[i]), left_ms)
            if longer_ms < least_ms:
                break
            left_ms -= longer_ms
            _, begin, end = cells[of_phase[i]]
            found.append(LongerLines(rank, phase, phase_ms, begin, end, longer_ms))
    return tuple(sorted(found, key=lambda each: -each.phase_ms))


def sentences(found: Sequence[LongerLines]) -> list[str]:
    """Returns a sentence for each rank and phase in ``found``."""
    texts = []
    for (rank, phase, phase_ms), pairs in groupby(found, lambda e: (e.rank, e.phase, e.phase_ms)):
        parts = (f"{in_ms(pair.longer_ms)} of this {_where(pair)}" for pair in pairs)
        text = f"Rank {rank}'s {phase} takes {in_ms(phase_ms)} longer than on the other ranks"
        if phase == PHASES[Phase.OTHER]:
            text = (
                f"Outside of all phases, rank {rank} takes {in_ms(phase_ms)} longer than the others"
            )
        texts.append(f"{text}: {', '.join(parts)}.")
    return texts


def _where(pair: LongerLines) -> str:
    begin, end = (printable(Path(line.rsplit(" ", 1)[0]).name) for line in (pair.begin, pair.end))
    if begin == end:
        return f"between operations of {begin}" if begin else "in steps without operations"
    return f"between {begin or 'the start of the step'} and {end or 'the end of the step'}"


def _work(trace: Trace, table: Collectives, index: Ints) -> dict[_Cell, float]:
    """Returns the training thread's work by phase and pair of lines, in ms per step.

    ``index``: numbers of the steps to average.
    """
    steps = columns.steps(trace)
    chosen = np.isin(steps.index, index)
    first_ns, last_ns = steps.begin_ns[chosen], steps.end_ns[chosen]
    names, line, issue_ns = _issues(trace, table, int(steps.thread[0]))
    row = np.searchsorted(first_ns, issue_ns, side="right") - 1
    inside = (row >= 0) & (issue_ns < last_ns[row])
    each, none = np.arange(len(first_ns)), np.zeros(len(first_ns), dtype=np.int64)
    time_ns = np.concatenate((first_ns, issue_ns[inside], last_ns))
    of_step = np.concatenate((each, row[inside], each))
    order = np.lexsort((time_ns, of_step))
    time_ns, of_step = time_ns[order], of_step[order]
    line = np.concatenate((none, line[inside], none))[order]
    window = np.flatnonzero(of_step[:-1] == of_step[1:])
    exposed = exposures_of(trace)
    time = RankTime(trace, exposed, not_split(exposed))
    spent = time.spent(time_ns[window], time_ns[window + 1])[:, : len(PHASES)]
    pairs, which = np.unique(
        np.stack((line[window], line[window + 1]), axis=1), axis=0, return_inverse=True
    )
    total = np.zeros((len(pairs), len(PHASES)))
    np.add.at(total, which.reshape(-1), spent)
    return {
        (PHASES[phase], names[pairs[pair, 0]], names[pairs[pair, 1]]): ns_to_ms(
            float(total[pair, phase]) / len(first_ns)
        )
        for pair, phase in np.argwhere(total > 0).tolist()
    }


def _issues(trace: Trace, table: Collectives, thread: int) -> tuple[list[str], Ints, Ints]:
    """Returns all lines; and for each operation, the index of its line and its issue time.

    Operations of other threads count only in backward passes. Elsewhere they do not show where the
    training thread was.
    """
    lines = {number: caller(frames) for number, frames in trace.stacks.items()}
    names = ["", *sorted(set(lines.values()) - {""})]
    place = {number: names.index(line) for number, line in lines.items()}
    numbers = columns.stacks(trace, table.op_id).tolist()
    line = np.array([place.get(number, 0) for number in numbers], dtype=np.int64)
    known = (line > 0) & ((table.thread == thread) | (table.graph_task >= 0))
    return names, line[known], table.issue_ns[known]
