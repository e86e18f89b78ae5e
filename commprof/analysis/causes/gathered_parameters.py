"""All sharded parameters are gathered in every step, outside of the passes that need them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.causes.sharded_library import library
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace.exchanged import trained_by
from commprof.trace.operations import names_of
from commprof.trace.schema import Phase
from commprof.trace.stretches import Stretches, outside, stretches

_OPS = names_of("all_gather")
#: The gathers of a step count as gathers of the parameters if they send at least this fraction of
#: the rank's own shards.
_OF_SHARDS = 0.5


def after_backward(calls: RankCalls) -> Mask:
    """Gathers of the script after backward.

    Gathers of optimizers are left out: they may need the updated parameters.
    """
    mask: Mask = calls.chosen(_OPS) & calls.of_script & ~of_objects(calls) & calls.after_backward
    return mask & (calls.phase != Phase.OPTIMIZER)


def _after_update(calls: RankCalls) -> Mask:
    """Gathers after the update: those between backward and the update are of gradients."""
    return after_backward(calls) & ~calls.before_update


def in_forward(calls: RankCalls) -> Mask:
    """Gathers that a forward pass issued."""
    mask: Mask = calls.chosen(_OPS) & (calls.phase == Phase.FORWARD) & ~calls.in_backward
    return mask


def holds_model(calls: RankCalls, mask: Mask) -> bool:
    """True if these calls send most of the rank's shards in more than half of the steps."""
    trained = trained_by(calls.trace.metadata)
    if trained is None or not trained.sharded:
        return False
    least = _OF_SHARDS * trained.parameter_bytes
    sizes, steps = calls.table.bytes_in[mask], len(calls.begin_ns)
    sent = np.bincount(calls.step[mask], weights=sizes, minlength=steps)
    return least > 0 and int((sent >= least).sum()) > steps / 2


def without(facts: Facts, position: int, mask: Mask) -> Removed:
    """The gathers, and the work between two of them that whole tensors take more than shards.

    Without the time of the whole call that gathers a tensor, its own work counts as work at that
    tensor. All ranks hold equal parts.
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


def _rule(facts: Facts) -> Sighting | None:
    if facts.world.communication.sharding is None:
        return None
    # Forward must gather too: if it does not, the script's gathers may serve the forward pass.
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, _after_update(calls)),
        lambda seen: holds_model(*seen) and holds_model(seen[0], in_forward(seen[0])),
    )
    if not of_ranks:
        return None
    blocked = [calls.blocked_ns(mask) for calls, mask in of_ranks]
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    first, mask = of_ranks[0]
    line, ms = first.line(mask), facts.per_step_ms(blocked)
    return Sighting(
        f"After backward, each step gathers {library(facts)}'s shards to "
        f"{in_bytes(float(first.size_bytes[mask].sum()) / facts.steps)} of parameters, in "
        f"{counted(round(first.per_step(mask)), 'call')}{at_line(line)}, for {in_ms(ms)}. An "
        "average of the weights can be kept as shards.",
        share,
        saving_without(
            facts, [without(facts, row, mask) for row, (_, mask) in enumerate(of_ranks)]
        ),
        line,
    )


CAUSE = CatalogueCause(
    id="gathered-parameters",
    title="Sharded parameters are gathered in every step, as for an average",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "FSDP shards the job's parameters. In more than half of the steps, all-gathers between "
        "the update and the next forward pass, other than those of the optimizer, send at "
        f"least {_OF_SHARDS:.0%} of a rank's shards, and the all-gathers in forward do so "
        "too. The ranks stand in the all-gathers outside of forward for at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "`full_tensor()`, `summon_full_params` and a full state dict send the whole model to all "
        "ranks, and nothing overlaps this. An exponential moving average of the weights needs "
        "none of it: it is computed element by element, so each rank can average its own shards, "
        "in a fraction of the memory. Gather the average only to save it. An engine that "
        "generates with the new weights does need them whole, once per round of generation."
    ),
    gain_note=(
        "The steps are replayed without these gathers and without the time that `full_tensor()` "
        "takes itself. Of the work between one gather and the next, which averages whole tensors, "
        "only the part of a rank's own shards remains. The work after the last gather is not "
        "known, and stays."
    ),
    fix=(
        "# YOUR_AVERAGES = [p.detach().to_local().clone()\n"
        "#                  for p in YOUR_MODEL.parameters()]\n"
        "with torch.no_grad():\n"
        "    for average, parameter in zip(YOUR_AVERAGES, YOUR_MODEL.parameters()):\n"
        "        average.lerp_(parameter.to_local(), 1 - YOUR_DECAY)"
    ),
    fix_of_fsdp1=(
        "# YOUR_AVERAGES = [p.detach().clone() for p in YOUR_MODEL.parameters()]\n"
        "with torch.no_grad():  # not within summon_full_params: these are shards\n"
        "    for average, parameter in zip(YOUR_AVERAGES, YOUR_MODEL.parameters()):\n"
        "        average.lerp_(parameter, 1 - YOUR_DECAY)"
    ),
    source="https://github.com/thu-ml/Causal-Forcing/pull/20",
)
