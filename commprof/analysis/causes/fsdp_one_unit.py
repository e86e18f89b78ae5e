"""FSDP shards the whole model as one unit."""

from __future__ import annotations

import ast

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import FSDP1
from commprof.analysis.causes.edits.script import Code
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.sharded_library import fsdp_of, is_flat, library, unit_gathers
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.units import ns_to_ms

#: Least exposed time of FSDP's collectives, as a fraction of the step.
_EXPOSED = 0.1
#: Least size of the gather. Dividing a smaller model saves little, because its gather is mostly
#: latency.
_LEAST_BYTES = 2**20
#: On CPUs, FSDP gathers in the training thread, so no compute hides a gather.
_ON_CPU = " This job runs on CPUs, where more units save memory but may lengthen the step."
#: Code that finds the blocks of a model: the members of the module list with the most parameters.
BLOCKS = (
    "lists = (torch.nn.ModuleList, torch.nn.Sequential)\n"
    "found = [m for m in YOUR_MODEL.modules() if isinstance(m, lists)]\n"
    "blocks = max(found, key=lambda m: sum(p.numel() for p in m.parameters()))\n"
)
POLICY = (
    "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n\n"
    f"{BLOCKS}"
    "policy = ModuleWrapPolicy({type(block) for block in blocks})"
)
FIX_OF_FSDP1 = (
    "from torch.distributed.fsdp import FullyShardedDataParallel\n"
    f"{POLICY}\n"
    'options = {"auto_wrap_policy": policy, "device_id": torch.device(YOUR_DEVICE)}\n'
    "model = FullyShardedDataParallel(YOUR_MODEL, **options)"
)


def _rule(facts: Facts) -> Sighting | None:
    sharding = fsdp_of(facts)
    if sharding is None or sharding.groups != 1:
        return None
    first = facts.first
    gathers = unit_gathers(first)
    if not gathers.any():
        return None
    size = float(first.size_bytes[gathers].max())
    exposed = sum(part.exposed_ms for part in sharding.parts)
    share = exposed / ns_to_ms(facts.step_ns)
    if share < _EXPOSED or size < _LEAST_BYTES:
        return None
    return Sighting(
        f"{library(facts)} shards the whole model as one unit. One call gathers all "
        f"{in_bytes(size)} before forward begins, and all gradients are reduced after backward has "
        f"ended. No compute can hide these calls, which take {in_ms(exposed)} per step."
        f"{'' if facts.on_device else _ON_CPU}",
        share,
    )


def _edit(facts: Facts) -> str:
    if is_flat(facts):
        return edit_of_fsdp1(facts)
    sites = [site for site in facts.script.places("fully_shard") if site.loop is None]
    site = sites[0] if len(sites) == 1 else None
    if site is None or not site.call.args or not isinstance(site.call.args[0], ast.Name):
        return ""
    source, model = site.source, site.call.args[0].id
    call = source.with_first(site.call, "block")
    code = f"{BLOCKS.replace('YOUR_MODEL', model)}for block in blocks:\n    {call}"
    return source.before(site.statement, code)


def edit_of_fsdp1(facts: Facts) -> str:
    """Returns the script's call of FSDP1, with a policy that makes each block a unit."""
    site = facts.script.only(*FSDP1)
    if site is None or not site.call.args or not isinstance(site.call.args[0], ast.Name):
        return ""
    policy = POLICY.replace("YOUR_MODEL", site.call.args[0].id)
    changed = site.source.with_settings(site.call, {"auto_wrap_policy": Code("policy")})
    return f"{site.source.before(site.statement, policy)}\n{changed}" if changed else ""


CAUSE = CatalogueCause(
    id="fsdp-one-unit",
    title="FSDP shards the whole model as one unit",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "Each pass gathers the parameters in a single all-gather of at least "
        f"{_LEAST_BYTES // 2**20} MiB. The training thread waits for FSDP's collectives for at "
        f"least {_EXPOSED:.0%} of the step."
    ),
    why=(
        "A single call of `fully_shard(model)` puts all parameters into one unit. The all-gather "
        "of this unit must end before the first layer computes, and its reduce-scatter begins "
        "after the last gradient. Meanwhile the whole model is in memory. If each block is a unit, "
        "FSDP gathers the next block while the current block computes."
    ),
    gain_note=(
        "Not predicted, because a run with one unit does not show how long each block computes. On "
        "CPUs, FSDP2 gathers in the training thread, so no compute can hide a gather. More units "
        "then save memory but lengthen the step: by a quarter to a third in two jobs of two ranks "
        "over gloo."
    ),
    fix=(
        "from torch.distributed.fsdp import fully_shard\n\n"
        f"{BLOCKS}"
        "for block in blocks:\n"
        "    fully_shard(block)\n"
        "fully_shard(YOUR_MODEL)"
    ),
    edit=lambda facts, _: _edit(facts),
    fix_of_fsdp1=FIX_OF_FSDP1,
    source="https://github.com/pytorch/pytorch/pull/176318",
)
