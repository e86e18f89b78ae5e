"""torch compares every collective between the ranks, because a setting for debugging is left on."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.script import Site
from commprof.analysis.causes.facts import Facts
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_ms
from commprof.units import ns_to_ms

_LEVEL = "DETAIL"
#: A script can set the debug level by this call, which overrules the environment variable.
_SETTER = "set_debug_level"
_FIX = "torch.distributed.set_debug_level(torch.distributed.DebugLevel.OFF)"


def _rule(facts: Facts) -> Sighting | None:
    if any(calls.trace.metadata.get("debug_level") != _LEVEL for calls in facts.ranks):
        return None
    compared = [calls.in_call_ns[(calls.step >= 0)] for calls in facts.ranks]
    if len({len(of_rank) for of_rank in compared}) > 1 or not len(compared[0]):
        return None
    # The rank that comes last waits for nobody, so its time in the call is the comparison's time.
    cost_ns = np.min(compared, axis=0)
    share = facts.share([float(cost_ns.sum())])
    number = int((cost_ns > 0).sum()) / facts.steps
    if number < 1 or not share >= WORTH_NAMING:
        return None
    ms = ns_to_ms(float(cost_ns.sum()) / facts.steps)
    setter = _setter(facts)
    setting = "TORCH_DISTRIBUTED_DEBUG=DETAIL"
    if setter is not None:
        setting = f"The debug level DETAIL, set at {setter.source.path.name}:{setter.call.lineno},"
    return Sighting(
        f"{setting} is left on: inside each call that issues a collective, "
        "torch compares the call between all ranks over gloo, "
        f"{counted(round(number), 'time')} per step, for {in_ms(ms)} on the rank that comes last.",
        share,
    )


def _setter(facts: Facts) -> Site | None:
    sites = [
        site
        for site in facts.script.places(_SETTER)
        if any(_LEVEL in site.source.segment(argument) for argument in site.call.args)
    ]
    return sites[0] if len(sites) == 1 else None


def _edit(facts: Facts, _: Sighting) -> str:
    setter = _setter(facts)
    if setter is not None:
        return setter.source.deleted([setter.statement]) if setter.is_whole else ""
    site = facts.script.only("init_process_group")
    return site.source.before(site.statement, _FIX) if site is not None else ""


CAUSE = CatalogueCause(
    id="debug-detail",
    title="TORCH_DISTRIBUTED_DEBUG=DETAIL is left on",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "Capture found this setting on all ranks, and the calls that issue "
        f"collectives take at least {WORTH_NAMING:.0%} of the step. The time of a call is taken "
        "from the rank where the call is shortest."
    ),
    why=(
        "With this setting, the ranks first tell each other what they are about to call, over an "
        "additional gloo group, and then issue the call. This finds ranks that call different "
        "collectives. But each call costs round trips over TCP, on GPUs too, and nothing overlaps "
        "these round trips. Use the setting to find a hang, and unset it afterwards."
    ),
    gain_note=(
        "Not predicted, because without the setting ranks wait for late ranks in the collectives "
        "instead of in the comparisons. The fix wins at most the time that the comparisons take on "
        "the rank that comes last."
    ),
    fix=f"# before init_process_group:\n{_FIX}",
    edit=_edit,
    source="https://github.com/pytorch/pytorch/issues/46434",
)
