"""FSDP's units are too small, and their collectives are mostly latency."""

from __future__ import annotations

import ast

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.fsdp_one_unit import BLOCKS, FIX_OF_FSDP1, edit_of_fsdp1
from commprof.analysis.causes.sharded_library import fsdp_of, is_flat, library, unit_gathers
from commprof.analysis.collectives.sharding import FORWARD
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.units import ns_to_ms

#: Least number of units that forward gathers.
_LEAST = 8
#: Largest mean size of the all-gathers.
_MEAN_BYTES = 2**18
#: If the script shards modules one by one, the fix makes about this many units of them.
_UNITS = 4
#: Least exposed time of FSDP's collectives, as a fraction of the step.
_EXPOSED = 0.1


def _rule(facts: Facts) -> Sighting | None:
    sharding = fsdp_of(facts)
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
        f"{library(facts)} shards the model into {sharding.groups} units of {in_bytes(mean)} on "
        f"average. The step waits {in_ms(exposed)} for {calls:.0f} collectives, and most of this "
        "time is latency.",
        share,
    )


def _edit(facts: Facts) -> str:
    if is_flat(facts):
        return edit_of_fsdp1(facts)
    sites = [site for site in facts.script.places("fully_shard") if site.loop is not None]
    sharding = fsdp_of(facts)
    if len(sites) != 1 or sharding is None:
        return ""
    source, loop, call = sites[0].source, sites[0].loop, sites[0].call
    if loop is None or len(loop.body) != 1 or not isinstance(loop.target, ast.Name):
        return ""
    if not call.args or source.segment(call.args[0]) != loop.target.id:
        return ""
    number = max(2, sharding.groups // _UNITS)
    grouped = source.with_first(call, f"units[first : first + {number}]")
    code = (
        f"units = list({source.segment(loop.iter)})  # in the order in which they run\n"
        f"for first in range(0, len(units), {number}):\n"
        f"    {grouped}"
    )
    return source.edit("in place of", loop.lineno, loop.end_lineno or loop.lineno, code)


CAUSE = CatalogueCause(
    id="fsdp-small-units",
    title="FSDP's units are too small, and their collectives are mostly latency",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"Forward gathers at least {_LEAST} units of at most {_MEAN_BYTES // 2**10} KiB on "
        f"average. The training thread waits for FSDP's collectives for at least {_EXPOSED:.0%} of "
        "the step."
    ),
    why=(
        "Each unit needs an all-gather in forward, mostly another all-gather in backward, and a "
        "reduce-scatter. If `fully_shard` is applied to every linear layer or norm, these calls "
        "spend nearly all of their time on latency. A unit should be a whole block of the model, "
        "of some megabytes."
    ),
    gain_note=(
        "Not predicted, because fewer units also save FSDP2's own work for each unit, and the "
        "records do not distinguish this work from the model's work."
    ),
    fix=(
        "from torch.distributed.fsdp import fully_shard\n\n"
        f"{BLOCKS}"
        "for block in blocks:  # whole blocks, not their linear layers\n"
        "    fully_shard(block)\n"
        "fully_shard(YOUR_MODEL)"
    ),
    edit=lambda facts, _: _edit(facts),
    fix_of_fsdp1=FIX_OF_FSDP1,
    source="https://github.com/pytorch/pytorch/pull/176318",
)
