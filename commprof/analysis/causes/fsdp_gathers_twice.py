"""FSDP2 gathers the parameters again in backward, though they would fit into memory."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.collectives.sharding import BACKWARD, FORWARD
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.trace.exchanged import trained_by
from commprof.units import ns_to_ms

#: Exposed time of backward's all-gathers. Gathering twice is FSDP2's default and saves memory: it
#: is a mistake only where it costs much, ...
_EXPOSED = 0.2
#: ... and the whole model's parameters are at most this.
_SMALL_BYTES = 2**30


def _rule(facts: Facts) -> Sighting | None:
    sharding = facts.world.sharding
    if sharding is None:
        return None
    parts = {part.part: part for part in sharding.parts}
    trained = trained_by(facts.first.trace.metadata)
    if not {FORWARD, BACKWARD} <= parts.keys() or trained is None or not trained.sharded:
        return None
    whole = trained.parameter_bytes * facts.world.world_size
    backward = parts[BACKWARD]
    share = backward.exposed_ms / ns_to_ms(facts.step_ns)
    if share < _EXPOSED or not 0 < whole <= _SMALL_BYTES:
        return None
    return Sighting(
        f"FSDP2 gathers the parameters twice per step: the {backward.calls:.0f} all-gathers of "
        f"backward delay the step by {in_ms(backward.exposed_ms)}, though the whole model is "
        f"{in_bytes(whole)} and could stay in memory between forward and backward.",
        share,
    )


CAUSE = CatalogueCause(
    id="fsdp-gathers-twice",
    title="FSDP2 gathers the parameters twice, though they would fit into memory",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"The training thread waits for the all-gathers of backward for at least {_EXPOSED:.0%} "
        f"of the step, and all parameters take at most {_SMALL_BYTES // 2**30} GiB."
    ),
    why=(
        "By default FSDP2 frees the gathered parameters of a unit after its forward pass and "
        "gathers them again for backward. That saves memory and costs a third of the "
        "communication. A model that fits into memory needs only its gradients and its "
        "optimizer's state sharded."
    ),
    fix=(
        "from torch.distributed.fsdp import fully_shard\n\n"
        "for block in model.layers:\n"
        "    fully_shard(block, reshard_after_forward=False)\n"
        "fully_shard(model, reshard_after_forward=False)"
    ),
    source="https://github.com/meta-pytorch/torchtune/issues/2402",
)
