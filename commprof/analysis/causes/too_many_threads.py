"""The ranks of a host together run more threads than the host has cores."""

from __future__ import annotations

import math

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.cores import crowded, usable_cores
from commprof.text import counted


def _rule(facts: Facts) -> Sighting | None:
    # A script may set the number of threads after capture began. Then only the traces hold the
    # right number; the run's description does not.
    recorded = (int(trace.metadata.get("threads") or 0) for trace in facts.seen.traces)
    threads = max(int(facts.context.get("threads_per_rank") or 0), *recorded)
    context, world = {**facts.context, "threads_per_rank": threads}, facts.world
    if threads < 2 or not crowded(context, world):
        return None
    share = without_core(facts)
    if not share >= WORTH_NAMING:
        return None
    cores = usable_cores(context["machine"])
    return Sighting(
        f"{counted(world.world_size, 'rank')} run {counted(threads, 'thread')} each on "
        f"{counted(cores, 'usable core')}: for {share:.0%} of the step a rank was ready to run "
        "and had no core.",
        share,
        fix=_fix(facts, f"torch.set_num_threads({max(1, cores // world.world_size)})"),
    )


def _fix(facts: Facts, call: str) -> str:
    """Returns ``call``; if the script has such a call, returns an edit that replaces that one."""
    site = facts.script.only("set_num_threads")
    if site is None or not site.is_whole:
        return call
    return site.source.edit("in place of", *site.source.span(site.statement), call)


def without_core(facts: Facts) -> float:
    """Fraction of the step in which training threads were ready to run and had no core."""
    parts = facts.world.parts
    waiting = 0.0 if math.isnan(parts.no_core_ms) else parts.no_core_ms / parts.step_ms
    delay_ns = facts.seen.measured.column(lambda part: part.host.run_delay_ns)
    working = delay_ns.reshape(len(delay_ns), -1).sum(axis=1).tolist()
    return waiting + facts.share(working)


CAUSE = CatalogueCause(
    id="too-many-threads",
    title="The ranks run more threads than there are cores",
    needs=(),
    rule=_rule,
    looks_like=(
        "The ranks of a host run several threads each, and together more than the host has usable "
        "cores. By the kernel's counts, a rank was ready to run but had no core for at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Each rank starts as many threads as the host has cores unless it is told not to, so that "
        "several ranks compete: threads wait for cores, caches are cold, and the ranks arrive at "
        "their exchanges at different times. `torchrun` sets OMP_NUM_THREADS=1; other launchers "
        "do not."
    ),
    gain_note=(
        "Not predicted, because the run does not show how long compute takes with fewer threads."
    ),
    fix="torch.set_num_threads(1)",
    source="https://github.com/pytorch/pytorch/issues/22260",
)
