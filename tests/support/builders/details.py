"""A world size step by step, built by hand."""

from __future__ import annotations

import math

import numpy as np

from commprof.analysis.step.detail import PARTS, WorldDetail
from commprof.analysis.timeline.drawn_timeline import Timeline


def detail(world_size: int = 2, steps: int = 20, **parts: object) -> WorldDetail:
    """Steps of 100 ms; `parts` of them, one number or one per step, are the same on all ranks.

    Also `epoch_samples` and `no_core_share`. What is left of the step is other; exposed is wait
    and wire.
    """
    epoch_samples = float(parts.pop("epoch_samples", math.nan))  # type: ignore[arg-type]
    no_core_share = float(parts.pop("no_core_share", 0.0))  # type: ignore[arg-type]
    given = {name: np.broadcast_to(np.asarray(x, float), (steps,)) for name, x in parts.items()}
    zero = np.zeros(steps)
    values = {name: given.get(name, zero) for name in PARTS}
    values["step"] = given.get("step", zero + 100)
    values["exposed"] = given.get(
        "exposed", np.nan_to_num(values["wait"]) + np.nan_to_num(values["wire"])
    )
    named = ("data", "forward", "backward", "exposed", "optimizer")
    values["other"] = values["step"] - sum(values[name] for name in named)
    return WorldDetail(
        world_size=world_size,
        ranks=tuple(range(world_size)),
        steps=np.arange(steps),
        parts_ms={name: np.tile(row, (world_size, 1)) for name, row in values.items()},
        slowest_ms=values["step"],
        waited_for_ms=np.zeros((world_size, world_size)),
        timeline=Timeline(np.arange(steps), steps, (), (), clocks_shared=True),
        epoch_samples=epoch_samples,
        no_core_share=no_core_share,
    )
