"""Checks whether ranks have a core each, and whether they waited for cores.

Run delay is the time in which a rank's training thread was ready to run but had no core. Only run
delay shows that a rank waited for a core. More threads than cores do not prove a wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commprof.analysis.align.interfaces import machine_of
from commprof.analysis.world import WorldResult
from commprof.trace.reader import Trace

#: A lack of cores matters only if ranks had no core for at least this fraction of the exposed time.
_WORTH_ACTING = 0.1
#: The time without a core must also be at least this fraction of the step.
_OF_STEP = 0.02


def usable_cores(machine: Mapping[str, Any]) -> int:
    """Number of physical cores, or of hardware threads if the run did not record cores."""
    return int(machine.get("usable_core_count", machine["usable_cpu_count"]))


def with_all_cpus(machine: Mapping[str, Any], traces: Iterable[Trace]) -> dict[str, Any]:
    """Returns the machine that a rank's trace describes, with the CPUs of all ranks on it.

    A rank describes only the CPUs that it may use itself. Launchers such as Slurm can bind each
    rank to CPUs of its own.
    """
    name = machine.get("boot_id") or machine.get("hostname")
    here = [trace.metadata["machine"] for trace in traces if machine_of(trace) == name]
    cpus = {cpu for each in here for cpu in each.get("usable_cpus", ())}
    if len(cpus) <= machine["usable_cpu_count"]:
        return dict(machine)
    in_order = sorted(cpus, key=lambda cpu: (len(cpu), cpu))
    return {**machine, "usable_cpu_count": len(cpus), "usable_cpus": in_order}


def ranks_of_fullest_host(context: Mapping[str, Any], world: WorldResult) -> int:
    """Number of ranks on the host with the most ranks.

    Missing ranks are assumed to be spread evenly over hosts.
    """
    hosts = Counter(rank.host for rank in world.ranks)
    evenly = math.ceil(world.world_size / max(len(hosts), int(context.get("nodes", 1))))
    return max(evenly, *hosts.values()) if hosts else evenly


def crowded(context: Mapping[str, Any], world: WorldResult) -> bool:
    """True if the ranks of some host have more threads than the host has cores."""
    threads = ranks_of_fullest_host(context, world) * int(context["threads_per_rank"])
    return threads > usable_cores(context["machine"])


def no_core_share(world: WorldResult) -> float:
    """Fraction of the exposed time in which ranks were ready to run but had no core.

    NaN if this time was not measured, or if there is no exposed time.
    """
    parts = world.parts
    if math.isnan(parts.no_core_ms) or not parts.exposed_ms > 0:
        return math.nan
    return min(1.0, parts.no_core_ms / parts.exposed_ms)


def lacked_cores(world: WorldResult) -> bool:
    """True if run delay shows that ranks waited for cores."""
    of_step = world.parts.no_core_ms / world.parts.step_ms if world.parts.step_ms > 0 else 0.0
    return no_core_share(world) >= _WORTH_ACTING and of_step >= _OF_STEP


def judged_place(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> int:
    """Index in ``worlds`` of the world size that a verdict is about.

    This is the largest world size above 1 that has a core for each thread. If there is none, it is
    the largest world size.
    """
    places = range(len(worlds))
    roomy = [i for i in places if worlds[i].world_size > 1 and not crowded(context, worlds[i])]
    return max(roomy or places, key=lambda i: worlds[i].world_size)
