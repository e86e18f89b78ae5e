"""Table of waiting, by waiting rank and late rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commprof.analysis.detail import WorldDetail
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, three_digits

MOST_RANKS = 32

TITLE = "Who waits for whom"

LEGEND = f"""\
Mean waiting per step in ms. The rank of the row waited because the rank of the column came late to
a collective of both ranks, or because the rank of the column delayed a third rank, for which the
rank of the row waited. With more than {MOST_RANKS} ranks, the table shows only the ranks that wait
or are waited for most."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on who waits for whom on a page; a terminal has no room for it."""
    grids = tuple(
        (f"{detail.world_size} ranks", grid)
        for detail in report.details
        if (grid := waiting_grid(detail)) is not None
    )
    if grids and medium.is_page:
        yield Section("waiting", TITLE, grids=grids, legend=LEGEND)


def waiting_grid(detail: WorldDetail) -> Grid | None:
    """Makes a table with a row per waiting rank and a column per late rank; None if unknown."""
    waited = detail.waited_for_ms
    if detail.world_size < 2 or not detail.clocks_shared:
        return None
    # time that others waited for a rank, plus time that the rank waited itself
    involved = waited.sum(axis=0)
    for row, rank in enumerate(detail.ranks):
        involved[rank] += waited[row].sum()
    chosen = sorted(np.argsort(-involved, kind="stable")[:MOST_RANKS].tolist())
    rows = [
        (f"rank {rank}", *(three_digits(float(waited[row, other])) for other in chosen))
        for row, rank in enumerate(detail.ranks)
        if rank in chosen
    ]
    return Grid(rows, ("waits", *(f"for {rank}" for rank in chosen)), (0,))
