"""Exposed time of FSDP's collectives, by kind, pass and group of parameters.

Groups are numbered from 1 in the order in which forward gathers them. Backward handles the groups
in reverse: it gathers the groups that were resharded after forward, and reduce-scatters the
gradients of each group. Under HSDP, an all-reduce between the model replicas follows. If backward
gathers fewer groups than forward, the sizes of the all-gathers identify the groups.

A pass is a forward and its backward. With gradient accumulation, a step has several passes. The
groups are those that the first pass of most steps gathers. A pass may gather other sizes, for
example for a second model or an evaluation. The calls of such a pass are not assigned to groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.measured import MeasuredWorld, backward_begins
from commprof.text import in_ms
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import row_containing
from commprof.trace.ranks import joined
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, Phase
from commprof.units import ns_to_ms

Mask = npt.NDArray[np.bool_]

FORWARD: Final = "all-gathers in forward"
BACKWARD: Final = "all-gathers in backward"
SCATTER: Final = "reduce-scatters"
SUM: Final = "all-reduces between model replicas"
#: A part below this fraction of the step is not mentioned.
_WORTH_A_WORD = 0.01
_GATHER, _LISTED_GATHER, _SCATTER, _REDUCE = map(
    OPS.index, ("all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "all_reduce")
)


@dataclass(frozen=True)
class ShardedPart:
    """One kind of collective of a sharded step; figures are means over steps and ranks."""

    #: FORWARD, BACKWARD, SCATTER or SUM.
    part: str
    calls: float
    exposed_ms: float
    #: Number of the parameter group with the most exposed time; 0 if calls whose group is unknown
    #: have more.
    group: int
    #: Exposed time of this group in all passes of a step; 0 if ``group`` is 0.
    group_ms: float
    #: Exposed time of the part's last call in a step, which no compute can hide; 0 for
    #: all-gathers.
    last_ms: float


@dataclass(frozen=True)
class Sharding:
    """The parts of a sharded step's communication, the most exposed first."""

    parts: tuple[ShardedPart, ...]
    #: Number of groups that forward gathers in the first pass of most steps.
    groups: int
    #: The run directory, for a command in the report.
    directory: str = ""

    @property
    def most(self) -> ShardedPart:
        """The part with the most exposed time."""
        return self.parts[0]

    def sentence(self, step_ms: float) -> str:
        """Sentence on the exposed parts of a step; empty if all parts are too short to mention."""
        shown = [each for each in self.parts if each.exposed_ms >= _WORTH_A_WORD * step_ms]
        if not shown:
            return ""
        parts = "; ".join(self._words(each) for each in shown)
        return f"Exposed communication of sharded parameters, per step: {parts}."

    def _words(self, part: ShardedPart) -> str:
        details = []
        if part.group and self.groups > 1:
            where = f"parameter group {part.group} of {self.groups}"
            details.append(f"most at {where}, {in_ms(part.group_ms)}")
        if part.last_ms >= _WORTH_A_WORD * part.exposed_ms:
            details.append(f"{in_ms(part.last_ms)} in the last call, which no compute can hide")
        more = f" ({'; '.join(details)})" if details else ""
        return f"{in_ms(part.exposed_ms)} {part.part}{more}"


def sharding(seen: MeasuredWorld, directory: str = "") -> Sharding | None:
    """Finds the exposed communication of sharded steps.

    Returns None if no step was measured, or if no rank issued a reduce-scatter in backward.
    ``directory`` is the run directory, for a command in the report.
    """
    steps = seen.measured.step
    if not len(steps) or not _is_sharded(seen.tables):
        return None
    rows = [
        each
        for trace, table in zip(seen.traces, seen.tables, strict=True)
        for each in _rows(trace, table, steps)
    ]
    if not rows:
        return None
    per = len(steps) * len(seen.traces)
    kinds = dict.fromkeys(row.part for row in rows)
    parts = [_part(kind, [row for row in rows if row.part == kind], per) for kind in kinds]
    parts.sort(key=lambda part: -part.exposed_ms)
    return Sharding(tuple(parts), max(row.groups for row in rows), directory)


def _is_sharded(tables: Sequence[Collectives]) -> bool:
    scatters = np.flatnonzero(joined(tables, "op") == _SCATTER)
    return len(scatters) > 0 and bool((joined(tables, "graph_task")[scatters] >= 0).any())


@dataclass(frozen=True)
class _Row:
    part: str
    group: int
    groups: int
    is_last: bool
    exposed_ns: float


def _rows(trace: Trace, table: Collectives, measured: Ints) -> Iterator[_Row]:
    waits = exposures_of(trace)
    waited = np.zeros(len(table))
    known = waits.collective >= 0
    np.add.at(waited, waits.collective[known], waits.waited_ns[known])
    steps, begins = columns.steps(trace), backward_begins(trace)
    rows = np.flatnonzero(np.isin(steps.index, measured))
    windows = list(zip(steps.begin_ns[rows].tolist(), steps.end_ns[rows].tolist(), strict=True))
    of_part = _of_part(trace, table, windows[0][0])
    found = [_passes(table, of_part, begins, window) for window in windows]
    # The all-gathers of an evaluation before a step's first pass seem to belong to this pass. So
    # the most frequent list of sizes is used.
    firsts = Counter(tuple(table.bytes_out[passes[0][FORWARD]].tolist()) for passes in found)
    whole = max(firsts, key=lambda sizes: (len(sizes) > 0, firsts[sizes]))
    for passes in found:
        is_known = [
            _places(whole, table.bytes_out[each[FORWARD]].tolist()) is not None for each in passes
        ]
        for part in of_part:
            last = max(int(each[part].max(initial=-1)) for each in passes)
            for each, is_usual in zip(passes, is_known, strict=True):
                sizes = table.bytes_out[each[part]].tolist()
                groups = _groups(part, whole, sizes) if is_usual else [0] * len(sizes)
                for row, group in zip(each[part].tolist(), groups, strict=True):
                    is_last = part in (SCATTER, SUM) and row == last
                    yield _Row(part, group, len(whole), is_last, float(waited[row]))


def _of_part(trace: Trace, table: Collectives, begin_ns: int) -> dict[str, Mask]:
    """Returns a mask over the table for each part.

    Calls on activations are left out. If the first reduce-scatter of a process group is in forward,
    the group's calls belong to sequence parallelism. An all-reduce belongs to the model replicas
    only if its input has the size of the last reduce-scatter's output.

    Args:
        trace: the rank's recording.
        table: the rank's collectives.
        begin_ns: begin of the first measured step.
    """
    scatters = np.flatnonzero((table.op == _SCATTER) & (table.issue_ns >= begin_ns))
    group, first = np.unique(table.group[scatters], return_index=True)
    of_parameters = np.isin(table.group, group[table.graph_task[scatters[first]] >= 0])
    backward = table.graph_task >= 0
    gather = (table.op == _GATHER) & of_parameters
    if not gather.any():
        gather = (table.op == _LISTED_GATHER) & of_parameters & _in_passes(trace, table)
    scatter = (table.op == _SCATTER) & of_parameters & backward
    rows = np.flatnonzero(scatter)
    before = np.searchsorted(rows, np.arange(len(table))) - 1
    reduced = table.bytes_in == np.append(table.bytes_out[rows], -1)[before]
    return {
        FORWARD: gather & ~backward,
        BACKWARD: gather & backward,
        SCATTER: scatter,
        SUM: (table.op == _REDUCE) & backward & reduced,
    }


def _in_passes(trace: Trace, table: Collectives) -> Mask:
    """True for the calls that forward and backward issue.

    FSDP1 gathers CPU tensors with the same operation that scripts use for metrics.
    """
    phases = columns.phases(trace)
    begun = (phases.key == Phase.FORWARD) | (phases.key == Phase.BACKWARD)
    order = np.argsort(phases.begin_ns[begun], kind="stable")
    begin_ns, end_ns = phases.begin_ns[begun][order], phases.end_ns[begun][order]
    inside: Mask = row_containing(begin_ns, end_ns, table.issue_ns) >= 0
    return inside | (table.graph_task >= 0)


def gathers(trace: Trace, table: Collectives, begin_ns: int) -> Mask:
    """Returns a mask of the all-gathers of sharded parameters.

    ``begin_ns``: begin of the first measured step.
    """
    of_part = _of_part(trace, table, begin_ns)
    return of_part[FORWARD] | of_part[BACKWARD]


def reductions(trace: Trace, table: Collectives, begin_ns: int) -> Mask:
    """Returns a mask of the calls that reduce gradients of sharded parameters.

    These are the reduce-scatters and, under HSDP, the all-reduces between model replicas.
    ``begin_ns``: begin of the first measured step.
    """
    of_part = _of_part(trace, table, begin_ns)
    return of_part[SCATTER] | of_part[SUM]


def _passes(
    table: Collectives, of_part: dict[str, Mask], begins: Ints, window: tuple[int, int]
) -> list[dict[str, Ints]]:
    """Returns the rows of each part in each pass of one step.

    Args:
        table: the rank's collectives.
        of_part: mask over the table for each part.
        begins: begins of the rank's backward passes.
        window: begin and end of the step in ns.
    """
    first, last = np.searchsorted(table.issue_ns, window)
    calls = {part: first + np.flatnonzero(chosen[first:last]) for part, chosen in of_part.items()}
    in_backward = table.issue_ns[np.concatenate([calls[BACKWARD], calls[SCATTER], calls[SUM]])]
    in_backward = np.append(in_backward, begins[slice(*np.searchsorted(begins, window))])
    later = _later_passes(table.issue_ns[calls[FORWARD]], in_backward)
    at = {part: np.searchsorted(later, table.issue_ns[r], "right") for part, r in calls.items()}
    return [
        {part: rows[at[part] == number] for part, rows in calls.items()}
        for number in range(len(later) + 1)
    ]


def _later_passes(forward_ns: Ints, backward_ns: Ints) -> Ints:
    """Returns the begins of the passes of a step, without the first pass.

    A pass that gathers nothing in forward counts as part of the pass before it.

    Args:
        forward_ns: when forward's all-gathers were issued.
        backward_ns: times in each backward pass, at least one per pass.
    """
    issued = np.sort(forward_ns)
    before = np.searchsorted(np.sort(backward_ns), issued, "right")
    return issued[1:][np.diff(before) > 0]


def _groups(part: str, whole: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Assigns the calls of one part of a pass to groups; 0 where the group is unknown.

    Args:
        part: FORWARD, BACKWARD, SCATTER or SUM.
        whole: sizes of the all-gathers of all groups, in forward's order.
        sizes: output sizes of the calls in order. For reductions, only their number counts.
    """
    if part == FORWARD:
        # In reverse, the calls of forward have backward's order.
        return groups_in_reverse(whole, sizes[::-1])[::-1]
    if part == BACKWARD:
        return groups_in_reverse(whole, sizes)
    # There may be more calls than groups, because a pass that gathers nothing in forward counts as
    # part of the pass before it.
    has_one_call_per_group = len(sizes) == len(whole)
    return [len(whole) - at if has_one_call_per_group else 0 for at in range(len(sizes))]


def groups_in_reverse(forward: Sequence[int], backward: Sequence[int]) -> list[int]:
    """Assigns backward's all-gathers to groups by their sizes.

    Args:
        forward: sizes of forward's all-gathers, one for each group.
        backward: sizes of backward's all-gathers, which gather some of the groups from last to
            first.

    Returns:
        The group of each call of backward, counted from 1 in forward's order; 0 if the group is
        uncertain.
    """
    there = list(reversed(forward))
    earliest = _places(there, backward)
    latest = _places(forward, list(reversed(backward)))
    if earliest is None or latest is None:
        return [0] * len(backward)
    # A call's place is certain if the earliest possible place is also the latest.
    last = [len(there) - 1 - place for place in reversed(latest)]
    return [
        len(there) - place if place == other else 0
        for place, other in zip(earliest, last, strict=True)
    ]


def _places(sizes: Sequence[int], wanted: Sequence[int]) -> list[int] | None:
    """Returns the earliest indices at which ``wanted`` is a subsequence of ``sizes``, or None."""
    places: list[int] = []
    for size in wanted:
        begin = places[-1] + 1 if places else 0
        place = next((at for at in range(begin, len(sizes)) if sizes[at] == size), None)
        if place is None:
            return None
        places.append(place)
    return places


def _part(kind: str, rows: Sequence[_Row], per: int) -> ShardedPart:
    by_group: dict[int, float] = {}
    for row in rows:
        by_group[row.group] = by_group.get(row.group, 0.0) + row.exposed_ns
    group = max(by_group, key=lambda each: by_group[each])
    exposed_ns, last_ns = (
        sum(row.exposed_ns for row in rows if row.is_last or everything)
        for everything in (True, False)
    )
    return ShardedPart(
        part=kind,
        calls=len(rows) / per,
        exposed_ms=ns_to_ms(exposed_ns / per),
        group=group,
        group_ms=ns_to_ms(by_group[group] / per) if group else 0.0,
        last_ms=ns_to_ms(last_ns / per),
    )
