from __future__ import annotations

import math
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from commprof.analysis.step.exposure import CAUSES
from commprof.analysis.step.measured import measured_world
from commprof.analysis.world import world_result
from tests.support.builders.exact import truth
from tests.support.builders.exact.drawn import Drawn
from tests.support.builders.exact.recorded import recorded
from tests.support.builders.exact.simulation import simulate
from tests.support.builders.traces import world_run


@dataclass(frozen=True)
class Outcome:
    rank: int | None
    cause: str | None
    #: The largest errors as fractions of the step: of the waiting that one rank caused for one
    #: cause, of one rank's waiting, and of one rank's transfer.
    cost_error: float
    wait_error: float
    transfer_error: float
    true_share: float

    def is_right(self, drawn: Drawn) -> bool:
        return self.rank == (drawn.late[0].rank if drawn.late else None)

    def cause_is_right(self, drawn: Drawn) -> bool:
        return self.is_right(drawn) and self.cause == drawn.late[0].cause


def outcome(drawn: Drawn) -> Outcome:
    """Compares the analysis of a report with the truth.

    The replay that predicts gains is left out, because it would take half of the time.
    """
    times = simulate(drawn.job)
    true = truth.truth_of(drawn.job, times)
    run = world_run(recorded(drawn.job, times))
    seen = measured_world(run)
    assert seen is not None
    with patch("commprof.analysis.world.gains", return_value=None):
        parts, late = seen.measured, world_result(run, seen).lateness.late_rank
    used = parts[0].step
    step_ns = float(times.wall_ns[used].mean())
    wait, wire = (
        np.stack([np.nan_to_num(part.part_ns(name)) for part in parts], axis=1)
        for name in ("wait", "transfer")
    )
    columns = [CAUSES.index(cause) for cause in truth.CAUSES]
    caused = sum(part.caused_ns.sum(axis=0) for part in parts)
    assert isinstance(caused, np.ndarray)
    of_all = len(used) * len(parts)
    by_rank = true.caused_ns[used].sum(axis=(0, 2))
    cost = np.abs(caused[:, columns] - true.caused_ns[used].sum(axis=0)) / of_all
    return Outcome(
        rank=None if late is None else late.rank,
        cause=None if late is None else late.phase,
        cost_error=float(cost.max()) / step_ns,
        wait_error=float(np.abs(wait - true.wait_ns[used]).mean(axis=0).max()) / step_ns,
        transfer_error=float(np.abs(wire - true.transfer_ns[used]).mean(axis=0).max()) / step_ns,
        true_share=math.nan if late is None else float(by_rank[late.rank] / by_rank.sum()),
    )
