"""One rank reads every batch, and sends the others their part before each forward pass."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.trace import columns
from commprof.trace.exchanged import trained_by
from commprof.trace.schema import Phase

_OPS = ("broadcast", "scatter")
#: Least number of bytes that the calls send in a step. Flags and sizes have fewer bytes.
_LEAST_BYTES = 2**14
#: Least fraction of the step for which the ranks that receive batches wait in the calls.
_SHARE = 0.05
#: If the bytes of a step differ from the bytes of the trained parameters by at most this fraction,
#: the calls broadcast weights, not batches.
_ALIKE = 0.02


def _before_forward(calls: RankCalls) -> Mask:
    phases = columns.phases(calls.trace)
    forward = np.sort(phases.begin_ns[phases.key == Phase.FORWARD])
    first = np.append(forward, np.iinfo(np.int64).max)[np.searchsorted(forward, calls.begin_ns)]
    mask: Mask = calls.chosen(_OPS) & calls.of_script & ~of_objects(calls)
    rows = np.flatnonzero(mask)
    step = calls.step[rows]
    is_before = calls.table.issue_ns[rows] < first[step]
    mask[rows] = is_before & (first[step] < calls.end_ns[step])
    return mask


def _rule(facts: Facts) -> Sighting | None:
    exchanges = facts.ddp_models > 0 or facts.world.communication.sharding is not None
    if not exchanges or facts.on_device:
        return None
    masks = [_before_forward(calls) for calls in facts.ranks]
    first, mask = facts.first, masks[0]
    if not mask.any():
        return None
    root, group = first.table.peer[mask], first.table.group[mask]
    described = first.trace.groups.get(int(group[0]))
    # The ranks of a model-parallel group need the same batch, so a broadcast to them is no mistake.
    if described is None or described.size != facts.world.world_size or (group != group[0]).any():
        return None
    if (root != root[0]).any() or first.per_step(mask) < 1:
        return None
    size = float(first.size_bytes[mask].sum()) / facts.steps
    waiting = [
        float(calls.exposed_ns[chosen].sum())
        for calls, chosen in zip(facts.ranks, masks, strict=True)
        if calls.rank != int(root[0])
    ]
    share = facts.share(waiting)
    if size < _LEAST_BYTES or not share >= _SHARE or _is_of_weights(facts, size):
        return None
    ms = facts.per_step_ms(waiting)
    return Sighting(
        f"Rank {int(root[0])} reads every batch and sends it to the others before the first "
        f"forward pass: {in_bytes(size)} per step. Each other rank waits {in_ms(ms)} per step for "
        "this.",
        share,
        line=first.line(mask),
    )


def _is_of_weights(facts: Facts, step_bytes: float) -> bool:
    trained = trained_by(facts.first.trace.metadata)
    if trained is None:
        return False
    sizes = (trained.parameter_bytes, trained.parameter_bytes / 2)  # as trained, and in 16 bits
    return any(abs(step_bytes - size) <= _ALIKE * size for size in sizes)


CAUSE = CatalogueCause(
    id="batches-from-one-rank",
    title="One rank reads every batch and sends it to the others",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "In a job that exchanges gradients, each step begins with broadcasts or scatters from the "
        f"same rank to all others. They send at least {_LEAST_BYTES // 2**10} KiB per step, and "
        f"the other ranks wait in them for at least {_SHARE:.0%} of the step. This cause is not "
        "named for jobs on GPUs."
    ),
    why=(
        "One process then reads and decodes the samples of all ranks, while the other processes "
        "wait. Every batch also crosses the network before it is used. The time grows with the "
        "number of ranks. Accelerate does this for iterable data sets by default. Let each rank "
        "read its own part, with workers that read ahead."
    ),
    gain_note=(
        "Not predicted, because the records do not show how long each rank would take to read its "
        "own part. The fix wins at most the time for which ranks wait in the calls."
    ),
    fix=(
        "sampler = torch.utils.data.distributed.DistributedSampler(YOUR_DATA)\n"
        'options = {"sampler": sampler, "num_workers": 2}\n'
        "loader = torch.utils.data.DataLoader(YOUR_DATA, YOUR_BATCH_SIZE, **options)\n"
        "# Accelerate: DataLoaderConfiguration(dispatch_batches=False)"
    ),
    source="https://github.com/huggingface/transformers/issues/24999",
)
