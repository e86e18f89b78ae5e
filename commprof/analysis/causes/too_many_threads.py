"""The ranks of a host together run more threads than the host has cores."""

from __future__ import annotations

import math

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.cores import crowded, ranks_of_fullest_host, usable_cores
from commprof.text import counted


def _rule(facts: Facts) -> Sighting | None:
    # If the script sets the number of threads after capture began, only the traces have the right
    # number.
    recorded = (int(trace.metadata.get("threads") or 0) for trace in facts.seen.traces)
    threads = max(int(facts.context.get("threads_per_rank") or 0), *recorded)
    context, world = {**facts.context, "threads_per_rank": threads}, facts.world
    if threads < 2 or not crowded(context, world):
        return None
    share = without_core(facts)
    if not share >= WORTH_NAMING:
        return None
    cores, ranks = usable_cores(context["machine"]), ranks_of_fullest_host(context, world)
    of_host = "" if ranks == world.world_size else " of a host"
    return Sighting(
        f"{counted(ranks, 'rank')}{of_host} run {counted(threads, 'thread')} each on "
        f"{counted(cores, 'usable core')}. For {share:.0%} of the step, a rank was ready to run "
        "but had no core.",
        share,
        fix=_fix(facts, f"torch.set_num_threads({max(1, cores // ranks)})"),
    )


def _fix(facts: Facts, call: str) -> str:
    """Returns ``call``, or an edit that puts ``call`` in place of such a call in the script."""
    site = facts.script.only("set_num_threads")
    if site is None or not site.is_whole:
        return call
    return site.source.edit("in place of", *site.source.span(site.statement), call)


def without_core(facts: Facts) -> float:
    """Returns the fraction of the step in which training threads could run but had no core."""
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
        "Each rank runs several threads, and the ranks of a host together run more threads than "
        "the host has usable cores. According to the kernel, ranks were ready to run but had no "
        f"core for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "By default, each rank starts as many threads as the host has cores. The threads of "
        "several ranks then wait for cores, and the ranks arrive at their exchanges at different "
        "times. `torchrun` sets OMP_NUM_THREADS=1; other launchers do not."
    ),
    gain_note=(
        "Not predicted, because the run does not show how long compute takes with fewer threads."
    ),
    fix="torch.set_num_threads(1)",
    source="https://github.com/pytorch/pytorch/issues/22260",
)
