"""DDP broadcasts the model's buffers at the begin of every forward pass."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace.schema import Phase
from commprof.units import ns_to_ms


def _broadcasts(calls: RankCalls) -> Mask:
    """Broadcasts that were issued in forward passes."""
    return calls.chosen(["broadcast"]) & (calls.phase == Phase.FORWARD)


def _rule(facts: Facts) -> Sighting | None:
    if not facts.ddp_models or 1 not in facts.logged("broadcast_buffers"):
        return None
    masks = [_broadcasts(calls) for calls in facts.ranks]
    if min(calls.per_step(mask) for calls, mask in zip(facts.ranks, masks, strict=True)) < 1:
        return None
    blocked = [calls.blocked_ns(mask) for calls, mask in zip(facts.ranks, masks, strict=True)]
    share = facts.share(blocked)
    if share < WORTH_NAMING:
        return None
    removed = [Removed.whole(calls, mask) for calls, mask in zip(facts.ranks, masks, strict=True)]
    first, mask = facts.first, masks[0]
    size = first.size_bytes[mask].sum() / facts.steps
    number = first.per_step(mask)
    ms = ns_to_ms(sum(blocked) / len(blocked) / facts.steps)
    synced = 1 in facts.logged("has_sync_bn")
    more = " SyncBatchNorm has already made them equal on all ranks." if synced else ""
    return Sighting(
        f"DDP broadcasts the model's buffers from rank 0 at the begin of every forward pass: "
        f"{in_bytes(size)} in {counted(round(number), 'broadcast')} and {in_ms(ms)} per "
        f"step.{more}",
        share,
        saving_without(facts, removed),
    )


CAUSE = CatalogueCause(
    id="ddp-buffers",
    title="DDP broadcasts the model's buffers in every forward pass",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "A DDP model made with `broadcast_buffers=True`, the default, issues at least one "
        "broadcast in each step's forward pass, and the ranks stand in these broadcasts for at "
        f"least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Before each forward pass DDP sends all buffers of the model (running means of BatchNorm, "
        "masks, tables of positions) from rank 0 to all ranks, and waits. Nothing overlaps this, "
        "and every rank waits for rank 0 twice per step. Constant buffers need no exchange, and "
        "running means of BatchNorm are used only for evaluation."
    ),
    fix=(
        "model = DistributedDataParallel(model, broadcast_buffers=False)\n"
        "# BatchNorm: before evaluation or saving, once per epoch\n"
        "for buffer in model.buffers():\n"
        "    torch.distributed.broadcast(buffer, src=0)"
    ),
    source="https://github.com/ultralytics/ultralytics/issues/24410",
)
