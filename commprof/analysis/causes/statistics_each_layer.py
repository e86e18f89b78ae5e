"""Layers exchange the statistics of their batches, as SyncBatchNorm does, in every pass."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.ddp_small_buckets import buckets_of_ddp
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.scalars_one_by_one import of_loss
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace.columns import Ints
from commprof.trace.lookup import among
from commprof.trace.operations import codes_of
from commprof.trace.schema import Phase

_OPS = ("all_reduce", "all_gather", "all_gather_into_tensor")
#: Largest mean size of the calls in bytes, which is enough for 4,096 channels.
_MEAN_BYTES = 2**15
#: Least number of calls in forward per step.
_LEAST = 4
#: Key of DDP's log. Its value is 1 if the model has SyncBatchNorm layers.
_SYNC = "has_sync_bn"
#: The calls take at least this fraction of the step.
_SHARE = 0.05
#: Statistics of a norm have gradients, so backward must make such calls too: at least ``_LEAST``,
#: or at least this fraction of forward's number. Some models run in forward only.
_BACK = 0.5
_WITHOUT_GRADIENT = (
    " Backward has few such calls. If only later steps use these values, as with codebooks, one "
    "call after backward is enough."
)
_FIX_OF_BUFFERS = (
    "# what only later steps use (codebooks, running sums, FP8 scales): keep this\n"
    "# step's sums, and exchange those of all layers at once after backward\n"
    "sums = YOUR_SUMS_OF_ALL_LAYERS\n"
    "flat = torch.cat([tensor.reshape(-1) for tensor in sums])\n"
    "torch.distributed.all_reduce(flat)\n"
    "for tensor, part in zip(sums, flat.split([t.numel() for t in sums])):\n"
    "    tensor.copy_(part.view_as(tensor))"
)


def _forward(calls: RankCalls, group: Ints) -> Mask:
    mask: Mask = calls.chosen(_OPS) & (calls.phase == Phase.FORWARD) & ~calls.in_backward
    return mask & np.isin(calls.table.group, group) & calls.is_blocking & ~of_loss(calls)


def _statistics(calls: RankCalls, world_size: int) -> tuple[Mask, Mask]:
    """Returns masks of the small calls in forward and in backward.

    Only calls over the ranks that share gradients count.
    """
    buckets = buckets_of_ddp(calls)
    # Only the last call of a pass is certainly a bucket. The other calls may be of layers.
    rows = np.flatnonzero(buckets)
    _, from_end = np.unique(calls.table.graph_task[rows][::-1], return_index=True)
    last = rows[::-1][from_end]
    group = np.unique(calls.table.group[last])
    # If DDP's group has all ranks, the layers may use another group of all ranks.
    whole = [
        number for number, group_of in calls.trace.groups.items() if group_of.size == world_size
    ]
    descriptions = [calls.trace.groups.get(int(number)) for number in group]
    if any(described is not None and described.size == world_size for described in descriptions):
        group = np.union1d(group, np.array(whole, dtype=np.int64))
    forward = _forward(calls, group)
    experts = among(calls.table.op, *codes_of("all_to_all")) & (calls.phase == Phase.FORWARD)
    if (experts & (calls.step >= 0)).any():
        forward[:] = False  # the calls may exchange token counts of experts
    backward = calls.chosen(_OPS) & calls.in_backward & calls.is_blocking
    backward &= np.isin(calls.table.group, group) & (calls.size_bytes <= _MEAN_BYTES)
    # DDP also waits for the last bucket of a pass right after its issue.
    backward[last] = False
    return forward, backward


def _rule(facts: Facts) -> Sighting | None:
    if not facts.ddp_models:
        return None
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, *_statistics(calls, facts.world.world_size)),
        lambda of_rank: (
            of_rank[0].per_step(of_rank[1]) >= _LEAST
            and float(of_rank[0].size_bytes[of_rank[1]].mean()) <= _MEAN_BYTES
        ),
    )
    if not of_ranks:
        return None
    both = [(calls, forward | backward) for calls, forward, backward in of_ranks]
    blocked = [calls.blocked_ns(mask) for calls, mask in both]
    share = facts.share(blocked)
    if not share >= _SHARE:
        return None
    first, mask = both[0]
    is_norm = all(_has_gradients(*of_rank) for of_rank in of_ranks) or any(facts.logged(_SYNC))
    line, ms = first.line(of_ranks[0][1]), facts.per_step_ms(blocked)
    gone = [(calls, mask if is_norm else _joined(calls, mask)) for calls, mask in both]
    like = "as SyncBatchNorm does with its statistics" if is_norm else "without gradients"
    return Sighting(
        f"Layers exchange small tensors{at_line(line)}, {like}: "
        f"{counted(round(first.per_step(mask)), 'call')} per step "
        f"({in_bytes(float(first.size_bytes[mask].mean()))} on average). The ranks wait for each "
        f"call before the next layer computes, {in_ms(ms)} per step in all."
        f"{'' if is_norm else _WITHOUT_GRADIENT}",
        share,
        saving_without(facts, [Removed.whole(*of_rank) for of_rank in gone]),
        line,
        "" if is_norm else _FIX_OF_BUFFERS,
    )


def _has_gradients(calls: RankCalls, forward: Mask, backward: Mask) -> bool:
    return calls.per_step(backward) >= min(_LEAST, _BACK * calls.per_step(forward))


def _joined(calls: RankCalls, mask: Mask) -> Mask:
    """Returns the calls that joining removes: all but the first of each kind in a step.

    Calls of one kind have the same operation, reduction, type and group.
    """
    table, rows = calls.table, np.flatnonzero(mask)
    columns = (calls.step, table.op, table.reduce_op, table.dtype, table.group)
    keys = np.stack([column[rows] for column in columns], axis=1).astype(np.int64)
    _, first = np.unique(keys, axis=0, return_index=True)
    joined = mask.copy()
    joined[rows[first]] = False
    return joined


CAUSE = CatalogueCause(
    id="statistics-each-layer",
    title="Layers exchange the statistics of their batches, as SyncBatchNorm does",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"DDP exchanges the job's gradients. Forward passes make at least {_LEAST} all-reduces or "
        "all-gathers per step over the ranks that share gradients. The mean size of these calls is "
        f"at most {_MEAN_BYTES // 2**10} KiB, and the training thread waits for each call. With "
        f"the similar calls in backward, these calls take at least {_SHARE:.0%} of the step. The "
        "cause is not named if forward passes have all-to-alls, as in models with layers of "
        "experts."
    ),
    why=(
        "SyncBatchNorm computes means over the batches of all ranks. Each such layer waits for one "
        "small collective in forward and one in backward, so a hundred layers wait for two hundred "
        "collectives. This is worth the time only if each rank has very few samples, as in "
        "detection. Otherwise use BatchNorm, or a norm that does not depend on other samples, such "
        "as GroupNorm. Or convert only the layers that need SyncBatchNorm. Values that only update "
        "buffers, such as codebooks, can be exchanged for all layers in one call after backward."
    ),
    gain_note=(
        "The steps are replayed without these calls. The fix changes the result of training, "
        "because each rank then uses the statistics of its own batch. Compute that another norm "
        "may save is not counted. If backward has few such calls, one joined call of each "
        "operation and type stays in each step, and is assumed to take as long as the first call "
        "that it replaces."
    ),
    fix=(
        "# this changes the result: a rank then normalises by its own samples.\n"
        "# If each rank has many samples per layer, delete\n"
        "# torch.nn.SyncBatchNorm.convert_sync_batchnorm(model);\n"
        "# for layers that see few samples per rank:\n"
        "norm = torch.nn.GroupNorm(num_groups=32, num_channels=YOUR_CHANNELS)"
    ),
    source="https://github.com/pytorch/pytorch/issues/36452",
)
