"""Every rank evaluates all samples, although each rank could evaluate a part of them."""

from __future__ import annotations

import math

import numpy as np

from commprof.analysis.causes.catalogue_cause import (
    FEW_STEPS,
    WORTH_NAMING,
    CatalogueCause,
    Sighting,
)
from commprof.analysis.causes.data_passes import DataPasses, data_passes, is_data_parallel
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.trace.stretches import stretches
from commprof.units import ns_to_ms

#: Least number of passes over the same samples.
_LEAST = 2


def _shared_passes(facts: Facts) -> list[DataPasses]:
    """Returns, for each rank, the evaluation passes whose batches are equal on all ranks.

    Empty if there are fewer than ``_LEAST`` such passes in measured steps, or if the ranks made
    different numbers of evaluation passes.
    """
    evaluated = [of_rank.evaluating for of_rank in data_passes(facts)]
    if not evaluated or len({len(of_rank.checksum) for of_rank in evaluated}) > 1:
        return []
    checksums = np.array([of_rank.checksum for of_rank in evaluated])
    is_same = (checksums == checksums[0]).all(axis=0)
    for calls, of_rank in zip(facts.ranks, evaluated, strict=True):
        is_same &= of_rank.contents >= 2
        is_same &= row_containing(calls.begin_ns, calls.end_ns, of_rank.begin_ns) >= 0
    rows = np.flatnonzero(is_same)
    return [of_rank.chosen(rows) for of_rank in evaluated] if len(rows) >= _LEAST else []


def _rule(facts: Facts) -> Sighting | None:
    passes = _shared_passes(facts)
    if not passes or not is_data_parallel(facts):
        return None
    ranks = facts.world.world_size
    spared = 1 - 1 / ranks
    taken = [float((of_rank.end_ns - of_rank.begin_ns).sum()) for of_rank in passes]
    share = facts.share(taken) * spared
    if not share >= WORTH_NAMING:
        return None
    number = len(passes[0].begin_ns)
    ms = ns_to_ms(float(np.mean(taken)) / number)
    batches = round(float(np.median(passes[0].batches)))
    return Sighting(
        f"All ranks load the same samples for an evaluation, {number} times in {facts.steps} "
        f"steps. Each evaluation has {batches} batches and takes {in_ms(ms)}. If each of the "
        f"{ranks} ranks evaluated only its own part, an evaluation would take 1/{ranks} of this "
        "time, unless each rank already computes only a part of the samples.",
        share,
        saving_without(facts, _removed(facts, passes)),
    )


def _removed(facts: Facts, passes: list[DataPasses]) -> list[Removed]:
    """Keeps one rank's part of each pass, and removes the other parts."""
    ranks = facts.world.world_size
    first: list[list[Ints]] = []
    for calls, of_rank in zip(facts.ranks, passes, strict=True):
        low, high = (
            np.searchsorted(calls.table.issue_ns, times)
            for times in (of_rank.begin_ns, of_rank.end_ns)
        )
        first.append([low, high])
    counts = np.array([high - low for low, high in first])
    # A call can be removed only if all ranks make it.
    least = counts.min(axis=0)
    removed = []
    for calls, of_rank, (low, _) in zip(facts.ranks, passes, first, strict=True):
        mask = np.zeros(len(calls.table), dtype=bool)
        begin = of_rank.begin_ns + (of_rank.end_ns - of_rank.begin_ns) // ranks
        for row, number in enumerate(least):
            stays = math.ceil(int(number) / ranks)
            gone = np.arange(low[row] + stays, low[row] + number)
            mask[gone] = True
            if len(gone):
                begin[row] = calls.table.issue_ns[gone[0]]
        spans = stretches(begin, np.maximum(of_rank.end_ns, begin))
        removed.append(Removed(mask, spans.begin_ns, spans.end_ns))
    return removed


CAUSE = CatalogueCause(
    id="evaluated-by-all",
    title="Every rank evaluates all samples",
    needs=(Figure.CALLS, Figure.PARTS),
    rule=_rule,
    looks_like=(
        "DDP exchanges gradients over all ranks, and no other calls divide a batch among ranks. At "
        f"least {_LEAST} passes over a DataLoader are evaluations: DDP's forward pass begins for "
        "most of their batches, and no backward pass begins. In each of these passes, the first 4 "
        "batches are the same on all ranks, but not all alike. Passes do not count if a part of a "
        "batch cannot be compared, for example because it is on a device, or if the batches "
        "consist of indices. An evaluation that calls `YOUR_MODEL.module` does not count, because "
        "its forward passes are not recorded. Dividing the samples would save the ranks at least "
        f"{WORTH_NAMING:.0%} of all time. The cause is also named, wrongly, for a script in which "
        "each rank loads a whole batch and then takes its part of the batch."
    ),
    why=(
        "If every rank evaluates all samples, every rank gets the same result, and the evaluation "
        "takes as long as on a single rank. If each rank evaluates a part, and the ranks then add "
        "up their sums, the time is divided by the number of ranks. A DistributedSampler repeats a "
        "few samples if the number of samples is not a multiple of the number of ranks. For exact "
        "results, do not count the repeated samples."
    ),
    gain_note="The steps are replayed as if each rank evaluated only its part of the samples.",
    fix=(
        "from torch.utils.data.distributed import DistributedSampler\n"
        "\n"
        "sampler = DistributedSampler(YOUR_DATA, shuffle=False)\n"
        'options = {"sampler": sampler, "batch_size": YOUR_BATCH_SIZE}\n'
        "loader = torch.utils.data.DataLoader(YOUR_DATA, **options)\n"
        "totals = YOUR_EVALUATION(YOUR_MODEL.module, loader)  # sums of this part\n"
        "torch.distributed.all_reduce(totals)"
    ),
    source="https://github.com/pytorch/examples/issues/461",
    worth=FEW_STEPS,
)
