"""Whether ranks were started with a core each, and whether they were measured to lack one.

Counting ranks and cores says how a run was started. That a rank waited for a core is said only from
its run delay: the time in which its training thread was ready to run without one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from commprof.analysis.world import WorldResult

#: Share of the exposed time without a core from which a lack of cores is worth acting on.
_WORTH_ACTING = 0.1
#: The same as a share of the step: with less of it, the exposed time itself is too short to matter.
_OF_STEP = 0.02


def usable_cores(machine: Mapping[str, Any]) -> int:
    """Number of physical cores; hardware threads where a run did not record cores."""
    return int(machine.get("usable_core_count", machine["usable_cpu_count"]))


def crowded(context: Mapping[str, Any], world: WorldResult) -> bool:
    """Whether some host was given more threads of ranks than it has cores; says nothing of waits.

    Hosts of missing ranks are taken to be filled evenly.
    """
    hosts = Counter(rank.host for rank in world.ranks)
    evenly = math.ceil(world.world_size / max(len(hosts), int(context.get("nodes", 1))))
    fullest = max(evenly, *hosts.values()) if hosts else evenly
    return fullest * int(context["threads_per_rank"]) > usable_cores(context["machine"])


def no_core_share(world: WorldResult) -> float:
    """Share of the exposed time that was spent ready to run without a core; NaN if not measured."""
    parts = world.parts
    if math.isnan(parts.no_core_ms) or not parts.exposed_ms > 0:
        return math.nan
    return min(1.0, parts.no_core_ms / parts.exposed_ms)


def lacked_cores(world: WorldResult) -> bool:
    """Whether run delay shows that ranks waited for cores."""
    of_step = world.parts.no_core_ms / world.parts.step_ms if world.parts.step_ms > 0 else 0.0
    return no_core_share(world) >= _WORTH_ACTING and of_step >= _OF_STEP


def judged_place(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> int:
    """Position of the world size that a verdict is about.

    The largest of two ranks or more that had a core each; where there is none, the largest.
    """
    places = range(len(worlds))
    roomy = [i for i in places if worlds[i].world_size > 1 and not crowded(context, worlds[i])]
    return max(roomy or places, key=lambda i: worlds[i].world_size)
