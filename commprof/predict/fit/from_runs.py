"""Cost curves from recorded steps, whatever their ranks share."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.predict.fit.calibrate import calibrate
from commprof.predict.fit.cost_model import CostCurve
from commprof.predict.replay.schedule import RecordedSteps, Schedule
from commprof.predict.sharded.fit import fit_sharded
from commprof.predict.sharded.steps import ShardedSteps


def curves_of(recorded: Sequence[RecordedSteps]) -> dict[str, CostCurve]:
    """By operation, of runs without a compressor over links of one class, of 2 ranks or more."""
    plain = [each for each in recorded if each.world_size > 1 and not each.hook]
    sharded = [each for each in plain if isinstance(each, ShardedSteps)]
    replicated = [each for each in plain if isinstance(each, Schedule)]
    curves = fit_sharded(sharded) if sharded else {}
    return {**curves, "all_reduce": calibrate(replicated)} if replicated else curves
