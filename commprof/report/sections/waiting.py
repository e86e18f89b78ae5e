"""Who waits for whom, as a table."""

from __future__ import annotations

import numpy as np

from commprof.analysis.step.detail import WorldDetail
from commprof.report.tabulated import Grid, three_digits

#: Ranks in the table: those with the most waiting, for others or of others for them.
MOST_RANKS = 32

LEGEND = f"""\
Mean waiting per step in ms: the rank of the row waited because the rank of the column came late,
to a collective of both or to one of another group that made a third rank late.
Of more than {MOST_RANKS} ranks those that wait or are waited for most."""


def waiting_grid(detail: WorldDetail) -> Grid | None:
    """A row per waiting rank, a column per rank waited for; None where arrivals are not known."""
    waited = detail.waited_for_ms
    if detail.world_size < 2 or not detail.timeline.clocks_shared:
        return None
    involved = waited.sum(axis=0)  # of the others for it; then its own for them
    for row, rank in enumerate(detail.ranks):
        involved[rank] += waited[row].sum()
    chosen = sorted(np.argsort(-involved, kind="stable")[:MOST_RANKS].tolist())
    rows = [
        (f"rank {rank}", *(three_digits(float(waited[row, other])) for other in chosen))
        for row, rank in enumerate(detail.ranks)
        if rank in chosen
    ]
    return Grid(rows, ("waits", *(f"for {rank}" for rank in chosen)), (0,))
