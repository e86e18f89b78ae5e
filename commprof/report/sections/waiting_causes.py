"""Table of waiting, by the rank and the activity where it began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from commprof.analysis.step.exposure import CAUSES
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, three_digits

#: If waiting began on more ranks than this, the table shows only the costliest ranks and a sum.
_MOST_RANKS = 32
#: Number of costliest ranks in such a table. On these ranks most waiting began.
_COSTLIEST = 10

LEGEND = f"""\
Waiting per step in ms, mean over the ranks of the largest world size. Row: the late rank, where the
waiting began. Column: the activity that took longer on the late rank than on the waiting rank: a
phase of work, a pause of the process, time without a core (runnable, while others ran), or
transfers. unknown: no earlier moment is known at which the late rank and the waiting rank were
synchronised, or no activity took longer on the late rank since then. The table adds up to the
waiting of the mean step. Where waiting began on more than {_MOST_RANKS} ranks, the table shows the
{_COSTLIEST} on which most of it began, host by host, and how the rest is spread."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on where waiting began, if ranks waited."""
    if (grid := causes_grid(report.result.worlds)) is not None:
        grids = (("Waiting per step in ms, by rank and cause", grid),)
        yield Section("causes", "Where waiting began", grids=grids, legend=LEGEND)


def causes_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table of causes of waiting, with a row per late rank; None without waiting."""
    costs = worlds[-1].lateness.wait_costs if worlds else ()
    if not costs:
        return None
    causes = [cause for cause in CAUSES if any(cost.cause == cause for cost in costs)]
    by_rank: dict[int, dict[str, float]] = {}
    for cost in costs:
        by_rank.setdefault(cost.rank, {})[cost.cause] = cost.wait_ms
    named: list[tuple[str, _Causes]] = [(f"rank {rank}", by_rank[rank]) for rank in sorted(by_rank)]
    if len(by_rank) > _MOST_RANKS:
        named = _costliest(worlds[-1], by_rank, causes)
    rows = [
        (
            name,
            *(three_digits(of[cause]) if cause in of else "" for cause in causes),
            three_digits(sum(of.values())),
        )
        for name, of in [*named, ("all", _summed(by_rank.values(), causes))]
    ]
    return Grid(rows, ("began at", *causes, "= wait"), (0,))


_Causes = Mapping[str, float]


def _costliest(
    world: WorldResult, by_rank: Mapping[int, _Causes], causes: Sequence[str]
) -> list[tuple[str, _Causes]]:
    host = {rank.rank: rank.host for rank in world.ranks}
    several = len(set(host.values())) > 1
    in_order = sorted(by_rank, key=lambda rank: -sum(by_rank[rank].values()))
    most, others = in_order[:_COSTLIEST], in_order[_COSTLIEST:]
    costliest_of = {host.get(rank, ""): rank for rank in reversed(most)}
    most.sort(key=lambda rank: (in_order.index(costliest_of[host.get(rank, "")]), rank))
    named: list[tuple[str, _Causes]] = [
        (f"rank {rank} ({host[rank]})" if several and rank in host else f"rank {rank}", of)
        for rank, of in ((rank, by_rank[rank]) for rank in most)
    ]
    each = [sum(by_rank[rank].values()) for rank in others]
    median, largest = three_digits(float(np.median(each))), three_digits(max(each))
    label = f"{len(others)} others (median {median}, at most {largest} each)"
    return [*named, (label, _summed((by_rank[rank] for rank in others), causes))]


def _summed(parts: Iterable[_Causes], causes: Sequence[str]) -> _Causes:
    listed = list(parts)
    return {cause: sum(of.get(cause, 0.0) for of in listed) for cause in causes}
