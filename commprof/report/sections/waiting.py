"""Tables of waiting: by waiting rank and late rank, and by origin and cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commprof.analysis.step.detail import WorldDetail
from commprof.analysis.step.exposure import CAUSES
from commprof.analysis.world import WorldResult
from commprof.report.tabulated import Grid, three_digits

#: Largest number of ranks in a table; ranks with the most waiting are kept.
MOST_RANKS = 32

LEGEND = f"""\
Mean waiting per step in ms. The rank of the row waited because the rank of the column came late to
a collective of both ranks, or because the rank of the column delayed a third rank, for which the
rank of the row waited. With more than {MOST_RANKS} ranks, the table shows only the ranks that wait
or are waited for most."""


def waiting_grid(detail: WorldDetail) -> Grid | None:
    """Makes a table: a row per waiting rank, a column per late rank; None if not known."""
    waited = detail.waited_for_ms
    if detail.world_size < 2 or not detail.clocks_shared:
        return None
    involved = waited.sum(axis=0)  # waiting for each rank; its own waiting is added below
    for row, rank in enumerate(detail.ranks):
        involved[rank] += waited[row].sum()
    chosen = sorted(np.argsort(-involved, kind="stable")[:MOST_RANKS].tolist())
    rows = [
        (f"rank {rank}", *(three_digits(float(waited[row, other])) for other in chosen))
        for row, rank in enumerate(detail.ranks)
        if rank in chosen
    ]
    return Grid(rows, ("waits", *(f"for {rank}" for rank in chosen)), (0,))


CAUSES_TITLE = "Where waiting began"

CAUSES_LEGEND = f"""\
Waiting per step in ms, mean over the ranks of the largest world size. Row: the late rank, where the
waiting began. Column: the activity that took longer on the late rank than on the waiting rank: a
phase of work, a pause of the process, time without a core (runnable, while others ran), or
transfers. unknown: no earlier moment is known at which the late rank and the waiting rank were
synchronised, or no activity took longer on the late rank since then. The table adds up to the
waiting of the mean step. With more than {MOST_RANKS} ranks, the table shows only the ranks where
most waiting began; the last row counts all ranks."""


def causes_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table of causes of waiting, with a row per late rank; None without waiting."""
    costs = worlds[-1].wait_costs if worlds else ()
    if not costs:
        return None
    causes = [cause for cause in CAUSES if any(cost.cause == cause for cost in costs)]
    by_rank: dict[int, dict[str, float]] = {}
    for cost in costs:
        by_rank.setdefault(cost.rank, {})[cost.cause] = cost.wait_ms
    most = sorted(by_rank, key=lambda rank: -sum(by_rank[rank].values()))[:MOST_RANKS]
    total = {cause: sum(of.get(cause, 0.0) for of in by_rank.values()) for cause in causes}
    named = [(f"rank {rank}", by_rank[rank]) for rank in sorted(most)]
    rows = [
        (
            name,
            *(three_digits(of[cause]) if cause in of else "" for cause in causes),
            three_digits(sum(of.values())),
        )
        for name, of in [*named, ("all", total)]
    ]
    return Grid(rows, ("began at", *causes, "= wait"), (0,))
