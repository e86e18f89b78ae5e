"""DDP broadcasts the model's buffers before every forward pass."""

from __future__ import annotations

import re

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import DDP
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace.schema import Phase

#: From this version of torch on, the setting ``broadcast_buffers`` is called
#: ``forward_sync_buffers``.
_RENAMED = (2, 13)


def _broadcasts(calls: RankCalls) -> Mask:
    return calls.chosen(["broadcast"]) & (calls.phase == Phase.FORWARD)


def _with_copies(facts: Facts, position: int, mask: Mask) -> Removed:
    """Returns the broadcasts, with DDP's copies of the buffers before and after them.

    Copies that were not recorded count as long as the median of the recorded copies.
    """
    calls = facts.ranks[position]
    rows = np.flatnonzero(mask & (calls.wait_end_ns > 0))
    # The broadcasts of one forward pass follow one another within the same phase.
    segment, first = np.unique(calls.segment[rows], return_index=True)
    if not len(segment):
        return Removed.whole(calls, mask)
    begin = calls.table.issue_ns[rows][first]
    end = np.maximum.reduceat(calls.wait_end_ns[rows], first)
    noted_begin, noted_end = facts.noted_ns(position, "ddp_buffer_syncs")
    if not len(noted_begin):
        return Removed.whole(calls, mask)
    pass_row = np.clip(np.searchsorted(noted_begin, begin, side="right") - 1, 0, None)
    is_known = (noted_begin[pass_row] <= begin) & (end <= noted_end[pass_row])
    if not is_known.any():
        return Removed.whole(calls, mask)
    before, after = begin - noted_begin[pass_row], noted_end[pass_row] - end
    before, after = (
        np.where(is_known, ns, np.median(ns[is_known])).astype(np.int64) for ns in (before, after)
    )
    return Removed(mask, begin - before, end + after)


def _rule(facts: Facts) -> Sighting | None:
    if not facts.ddp_models or 1 not in facts.logged("broadcast_buffers"):
        return None
    masks = [_broadcasts(calls) for calls in facts.ranks]
    if min(calls.per_step(mask) for calls, mask in zip(facts.ranks, masks, strict=True)) < 1:
        return None
    removed = [_with_copies(facts, position, mask) for position, mask in enumerate(masks)]
    taken = [float((spans.end_ns - spans.begin_ns).sum()) for spans in removed]
    share = facts.share(taken)
    if not share >= WORTH_NAMING:
        return None
    first, mask = facts.first, masks[0]
    size = first.size_bytes[mask].sum() / facts.steps
    number = first.per_step(mask)
    ms = facts.per_step_ms(taken)
    synced = 1 in facts.logged("has_sync_bn")
    more = " SyncBatchNorm has already made these buffers equal on all ranks." if synced else ""
    return Sighting(
        f"DDP broadcasts the model's buffers from rank 0 before every forward pass: "
        f"{in_bytes(size)} in {counted(round(number), 'broadcast')} and {in_ms(ms)} per "
        f"step.{more}",
        share,
        saving_without(facts, removed),
        fix=CAUSE.fix.replace("broadcast_buffers=", f"{_setting(facts)}="),
    )


def _setting(facts: Facts) -> str:
    number = re.match(r"(\d+)\.(\d+)", str(facts.first.trace.metadata.get("torch", "")))
    renamed = number is not None and tuple(map(int, number.groups())) >= _RENAMED
    return "forward_sync_buffers" if renamed else "broadcast_buffers"


def _edit(facts: Facts) -> str:
    site = facts.script.only(*DDP)
    if site is None:
        return ""
    # torch 2.13 accepts both names, but only one of them in a call.
    names = [keyword.arg for keyword in site.call.keywords]
    name = "broadcast_buffers" if "broadcast_buffers" in names else _setting(facts)
    changed = site.source.with_settings(site.call, {name: False})
    if not changed or not site.target:
        return changed
    return (
        f"{changed}\n# with BatchNorm, once per epoch, before evaluation or saving:\n"
        f"# for b in {site.target}.buffers(): torch.distributed.broadcast(b, src=0)"
    )


CAUSE = CatalogueCause(
    id="ddp-buffers",
    title="DDP broadcasts the model's buffers in every forward pass",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "A DDP model has `broadcast_buffers=True`, which is the default, and issues at least one "
        "broadcast in each step's forward pass. Together with DDP's copies of the buffers, the "
        f"broadcasts take at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Before each forward pass DDP sends all buffers of the model (running means of BatchNorm, "
        "masks, tables of positions) from rank 0 to all ranks, and waits. Nothing overlaps this. "
        "Every rank waits for rank 0 here, and again in the exchange of gradients. "
        "Constant buffers need no exchange, and running means of BatchNorm are used only "
        "for evaluation. From torch 2.13 on the setting is called `forward_sync_buffers`."
    ),
    fix=(
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        "model = DistributedDataParallel(YOUR_MODEL, broadcast_buffers=False)\n"
        "# with BatchNorm, once per epoch, before evaluation or saving\n"
        "for buffer in model.buffers():\n"
        "    torch.distributed.broadcast(buffer, src=0)"
    ),
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/ultralytics/ultralytics/issues/24410",
)
