"""Finds gathers of the whole sharded model outside of forward and backward, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.causes.sharded_library import fsdp_of, library
from commprof.analysis.named_cause import Saving
from commprof.text import counted, in_bytes, in_ms
from commprof.trace.exchanged import trained_by
from commprof.trace.operations import names_of
from commprof.trace.schema import Phase
from commprof.trace.stretches import Stretches, outside, stretches

_OPS = names_of("all_gather")
#: The gathers of a step are of the whole model if they send at least this fraction of a rank's
#: shards.
OF_SHARDS = 0.5


@dataclass(frozen=True)
class GatheredShards:
    """Gathers of most of the model's shards in most steps, and their cost."""

    #: Object of a sentence with "gathers", for example "FSDP2's shards into 12 MB".
    what: str
    #: End of this sentence, for example "in 4 calls at train.py:12, for 8 ms".
    how: str
    #: Fraction of the step for which ranks wait for these gathers.
    share: float
    saving: Saving | None
    #: Line of the script that makes the gathers; empty if not known.
    line: str


def gathered_shards(facts: Facts, chosen: Callable[[RankCalls], Mask]) -> GatheredShards | None:
    """Returns the cost of the chosen gathers of the whole model; None if the cost is small.

    Also returns None if the job has no FSDP, if the chosen gathers send less than most of the
    shards, or if forward does not gather the model: it may then use the result of these gathers.

    ``chosen``: returns a mask of a rank's gathers that may be needless.
    """
    if fsdp_of(facts) is None:
        return None
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, chosen(calls)),
        lambda seen: _holds_model(*seen) and _holds_model(seen[0], _in_forward(seen[0])),
    )
    if not of_ranks:
        return None
    blocked = [calls.blocked_ns(mask) for calls, mask in of_ranks]
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    first, mask = of_ranks[0]
    line, ms = first.line(mask), facts.per_step_ms(blocked)
    sent = in_bytes(float(first.size_bytes[mask].sum()) / facts.steps)
    calls_per_step = counted(round(first.per_step(mask)), "call")
    removed = [_without(facts, row, mask) for row, (_, mask) in enumerate(of_ranks)]
    return GatheredShards(
        f"{library(facts)}'s shards into {sent}",
        f"in {calls_per_step}{at_line(line)}, for {in_ms(ms)}",
        share,
        saving_without(facts, removed),
        line,
    )


def after_backward(calls: RankCalls) -> Mask:
    """Returns a mask of the script's gathers after backward, without those of optimizers."""
    mask: Mask = calls.chosen(_OPS) & calls.of_script & ~of_objects(calls) & calls.after_backward
    return mask & (calls.phase != Phase.OPTIMIZER)


def _in_forward(calls: RankCalls) -> Mask:
    mask: Mask = calls.chosen(_OPS) & (calls.phase == Phase.FORWARD) & ~calls.in_backward
    return mask


def _holds_model(calls: RankCalls, mask: Mask) -> bool:
    """True if these calls send most of the rank's shards in more than half of the steps."""
    trained = trained_by(calls.trace.metadata)
    if trained is None or not trained.sharded:
        return False
    least = OF_SHARDS * trained.parameter_bytes
    sizes, steps = calls.table.bytes_in[mask], len(calls.begin_ns)
    sent = np.bincount(calls.step[mask], weights=sizes, minlength=steps)
    return least > 0 and int((sent >= least).sum()) > steps / 2


def _without(facts: Facts, position: int, mask: Mask) -> Removed:
    """Removes the gathers, and all but 1 / ranks of the work between the gathers.

    All ranks hold equal parts of a tensor, so the same work on a rank's own shards takes 1 / ranks
    of the time.
    """
    calls, ranks = facts.ranks[position], facts.world.world_size
    noted = None
    if not facts.on_device:
        noted = Removed.with_noted(calls, mask, facts.noted_ns(position, "full_tensors"))
    whole = noted or Removed.whole(calls, mask)
    rows = np.flatnonzero(mask & (calls.wait_end_ns > 0))
    follows = (np.diff(rows) == 1) & (np.diff(calls.segment[rows]) == 0)
    follows &= np.diff(calls.step[rows]) == 0
    between = Stretches(
        calls.wait_end_ns[rows[:-1]][follows], calls.table.issue_ns[rows[1:]][follows]
    )
    between = outside(between, stretches(whole.begin_ns, whole.end_ns))
    begin_ns = between.end_ns - (between.length_ns * (1 - 1 / ranks)).astype(np.int64)
    every = stretches(
        np.concatenate((whole.begin_ns, begin_ns)), np.concatenate((whole.end_ns, between.end_ns))
    )
    return replace(whole, begin_ns=every.begin_ns, end_ns=every.end_ns)
