"""The ranks exchange their data over a slow interface, and a faster one is idle."""

from __future__ import annotations

import math

from commprof.analysis.align.interfaces import cross_check_sources
from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.evidence import Figure
from commprof.text import listed

#: The rated speed of the idle interface must be at least this many times the rated speed in use.
_FASTER = 2.0
#: Least exposed time, as a fraction of the step.
_EXPOSED = 0.1
_EXAMPLE = "ib0"
_FIX = f"""\
import os

# before init_process_group, on every rank
os.environ["NCCL_SOCKET_IFNAME"] = "{_EXAMPLE}"
os.environ["GLOO_SOCKET_IFNAME"] = "{_EXAMPLE}\""""


def _rule(facts: Facts) -> Sighting | None:
    links, parts = facts.world.communication.host_links, facts.world.parts
    if links is None or not links.idle or len(links.interfaces) != 1:
        return None
    used = links.interfaces[0]
    rates = [cross_check_sources(t).get("rated_mbit_per_s") or {} for t in facts.seen.traces]
    slow = max((int(rate.get(used) or 0) for rate in rates), default=0)
    fast = {
        name: speed
        for name in links.idle
        if (speed := min(int(rate.get(name) or 0) for rate in rates)) >= _FASTER * slow > 0
    }
    share = (
        parts.exposed_ms if math.isnan(parts.transfer_ms) else parts.transfer_ms
    ) / parts.step_ms
    if not fast or not share >= _EXPOSED:
        return None
    best = max(fast, key=lambda name: fast[name])
    return Sighting(
        f"The hosts exchange their data over {used} (rated {slow / 1000:g} Gbit/s), while "
        f"{listed(sorted(fast))} (rated {'up to ' * (len(fast) > 1)}{fast[best] / 1000:g} Gbit/s) "
        f"{'is' if len(fast) == 1 else 'are'} idle.",
        share * (1 - slow / fast[best]),
        fix=_FIX.replace(_EXAMPLE, best),
    )


CAUSE = CatalogueCause(
    id="slow-interface",
    title="The hosts exchange data over a slow interface, and a faster one is idle",
    needs=(Figure.EXPOSED,),
    rule=_rule,
    looks_like=(
        "The ranks are on several hosts, and one interface carries their data. Every host has "
        f"another interface that is rated at least {_FASTER:g} times as fast, but carries nearly "
        "no data. Exposed transfer, or all exposed time if the transfer is not known, takes at "
        f"least {_EXPOSED:.0%} of the step."
    ),
    why=(
        "gloo uses the interface to which the host's name resolves, and NCCL uses the first "
        "suitable interface. This may be a slow management network, a bridge of containers, or "
        "Ethernet on a host that also has InfiniBand. Nothing fails, but the job is several times "
        "slower."
    ),
    gain_note=(
        "Not predicted, because the idle interface was not measured. The fix saves at most the "
        "given share of the step, if both interfaces reach their rated speeds."
    ),
    fix=_FIX,
    source="https://github.com/areal-project/AReaL/issues/639",
)
