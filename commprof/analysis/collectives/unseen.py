"""Tells whether the capture could see communication, and what to do if it could not.

If the capture could not see communication, a result without waiting does not show that
communication was fast. The capture in pure Python sees only the collectives of commprof's DDP hook;
the trace of a script without this hook has steps and phases, but no collective. On a GPU, the host
sees only that collectives are issued; device events tell how long a stream waits for them.
"""

from __future__ import annotations

import math

from commprof import invocation
from commprof.analysis.step.mean_step import WORTH_A_LOOK, MeanStep
from commprof.analysis.world import WorldResult


def is_unseen(world: WorldResult, step: MeanStep) -> bool:
    """True for several ranks if the capture could not see them wait, and saw almost no waiting.

    Args:
        world: result of one world size.
        step: mean step of the same world size.
    """
    if world.world_size < 2 or step.exposed_ms >= WORTH_A_LOOK * step.step_ms:
        return False
    return _without_module(world) or _without_device(world)


def how_to_see_it(world: WorldResult) -> tuple[str, str]:
    """Returns advice on how to capture unseen communication, and the command that the advice names.

    The command is empty if the advice names none.
    """
    if _without_module(world):
        return (
            "First make commprof's C++ module available, and repeat the run: without it the "
            "communication of this job is not seen. This command says what is missing:",
            invocation.command("check"),
        )
    if world.no_device_times:
        return (
            "First make device events available, and repeat the run: without them nobody knows "
            f"how long the GPUs waited for collectives. Reason: {world.no_device_times}.",
            "",
        )
    return (
        "First repeat the run with collectives outside of CUDA graphs. In this run, GPU waiting "
        "was not measured for any collective, because all collectives were captured into a graph "
        "or their device events were lost.",
        "",
    )


def _without_module(world: WorldResult) -> bool:
    return math.isnan(world.parts.exposed_ms)


def _without_device(world: WorldResult) -> bool:
    return world.device_collectives > 0 and not world.device_timed and not world.foreign
