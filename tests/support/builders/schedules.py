from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from commprof.forecast.costs.cost_model import OTHER_HOST, CostCurve, Piece
from commprof.forecast.costs.hook_costs import HookCost
from commprof.forecast.costs.machine_profile import LinkProfile, MachineProfile
from commprof.forecast.fit.calibrate import ring_pieces
from commprof.forecast.scenario.schedule import Placement, Schedule, StepBatch

MB = 1_000_000
#: A link with this time in s per byte needs 10 ms for 1 MB.
BETA = 1e-8


def schedule(
    ready_ms: tuple[float, ...] = (10, 20),
    bytes_: tuple[int, ...] = (1 * MB, 2 * MB),
    backward_end_ms: float = 20,
    ranks: int = 2,
    steps: int = 5,
    **values: Any,
) -> Schedule:
    ready = np.broadcast_to(np.array(ready_ms) / 1e3, (steps, ranks, len(ready_ms))).copy()
    shape = (steps, ranks)
    made = Schedule(
        world_size=ranks,
        bucket_bytes=np.array(bytes_, dtype=np.int64),
        ready_s=ready,
        backward_begin_s=np.zeros(shape),
        backward_end_s=np.full(shape, backward_end_ms / 1e3),
        end_s=ready[:, 0] + 0.010,
        period_s=np.full(steps, 0.040),
        copy_s_per_byte=0.0,
        other_wait_s=np.zeros(shape),
        other_calls=(),
        placement=Placement(1.0, 4.0, 1, 1.0),
        link=OTHER_HOST,
        backend="gloo",
        workers=2,
        hook="",
        batch=StepBatch(8.0, 10, "weak"),
        ddp_log={},
    )
    return dataclasses.replace(made, **values)


def curve(alpha_s: float = 0.0, beta_s_per_byte: float = BETA, **values: Any) -> CostCurve:
    made = CostCurve(
        op="all_reduce",
        backend="gloo",
        pieces=tuple(Piece(*piece) for piece in ring_pieces(alpha_s, beta_s_per_byte)),
        step_bytes=(1.0, 1e12),
        world_sizes=(2, 64),
    )
    return dataclasses.replace(made, **values)


def profile(
    link: str = OTHER_HOST,
    bytes_per_s: float = math.nan,
    latency_s: float = math.nan,
    hooks: tuple[HookCost, ...] = (),
    **values: Any,
) -> MachineProfile:
    links = {link: LinkProfile({"all_reduce": curve(**values)}, bytes_per_s, latency_s)}
    return MachineProfile(links, {hook.label: hook for hook in hooks}, ("by hand",))


def hook(label: str = "fp16", **values: Any) -> HookCost:
    made = HookCost(
        label=label,
        exchange="two_phase",
        encode=(0.0, 1e-9),
        reduce=(0.0, 0.5e-9),
        decode=(0.0, 0.5e-9),
        payload_ratio=0.5,
        overhead_s=0.0,
        ranks=2,
        ranks_per_core=math.nan,
        bucket_bytes=(1.0, 1e12),
        compute_s_per_byte=0.0,
    )
    return dataclasses.replace(made, **values)
