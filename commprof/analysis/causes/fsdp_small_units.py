"""FSDP2's units are so small that latency rules."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.fsdp_one_unit import FIX_OF_FSDP1
from commprof.analysis.causes.sharded_library import library, unit_gathers
from commprof.analysis.collectives.sharding import FORWARD
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.units import ns_to_ms

#: Fewest units, and largest mean size of their all-gathers.
_LEAST, _MEAN_BYTES = 8, 2**18
#: Exposed time of the sharded collectives.
_EXPOSED = 0.1


def _rule(facts: Facts) -> Sighting | None:
    sharding = facts.world.communication.sharding
    if sharding is None or sharding.groups < _LEAST:
        return None
    first = facts.first
    gathers = unit_gathers(first)
    if not gathers.any() or not any(part.part == FORWARD for part in sharding.parts):
        return None
    mean = float(first.size_bytes[gathers].mean())
    exposed = sum(part.exposed_ms for part in sharding.parts)
    share = exposed / ns_to_ms(facts.step_ns)
    if mean > _MEAN_BYTES or share < _EXPOSED:
        return None
    calls = sum(part.calls for part in sharding.parts)
    return Sighting(
        f"{library(facts)} shards {sharding.groups} units of {in_bytes(mean)} on average: "
        f"{calls:.0f} collectives per step, for which the step waits {in_ms(exposed)}, cost their "
        "latency and hardly any transfer.",
        share,
    )


CAUSE = CatalogueCause(
    id="fsdp-small-units",
    title="FSDP's units are so small that latency rules",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"Forward gathers at least {_LEAST} units of at most {_MEAN_BYTES // 2**10} KiB on "
        "average, and the training thread waits for the sharded collectives for at least "
        f"{_EXPOSED:.0%} of the step."
    ),
    why=(
        "Each unit takes an all-gather in forward, mostly another in backward, and a "
        "reduce-scatter. If `fully_shard` is applied to every linear layer or norm, these calls "
        "cost their latency and hardly any transfer. A unit should be a whole block of the model, "
        "of some megabytes."
    ),
    gain_note=(
        "Not predicted, because FSDP2's own work for each unit goes with the unit, and the records "
        "do not tell it from the work of the model."
    ),
    fix=(
        "from torch.distributed.fsdp import fully_shard\n\n"
        "for block in model.layers:  # whole blocks, not their linear layers\n"
        "    fully_shard(block)\n"
        "fully_shard(model)"
    ),
    fix_of_fsdp1=FIX_OF_FSDP1,
    source="https://github.com/pytorch/pytorch/pull/176318",
)
