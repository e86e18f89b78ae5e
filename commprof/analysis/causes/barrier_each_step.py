"""A barrier stands in the training loop."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import without_calls
from commprof.analysis.causes.facts import Facts, at_lines
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace.operations import names_of

#: Least mean number of barriers per step. Occasional evaluations or checkpoints have fewer
#: barriers.
_PER_STEP = 0.5
#: The cause is named only if the low end of the gain's interval is at least this fraction of the
#: step. The fraction is small, because a script does not issue a barrier in each step by chance.
_LOW = 0.01
_OPS = names_of("barrier")


def _rule(facts: Facts) -> Sighting | None:
    masks = facts.on_all_ranks(
        lambda calls: calls.chosen(_OPS),
        lambda mask: int(mask.sum()) >= _PER_STEP * max(1, facts.steps),
    )
    if not masks:
        return None
    number = min(int(mask.sum()) for mask in masks) / max(1, facts.steps)
    blocked = [calls.blocked_ns(mask) for calls, mask in zip(facts.ranks, masks, strict=True)]
    share = facts.share(blocked)
    if share < WORTH_NAMING:
        return None
    removed = [Removed.whole(calls, mask) for calls, mask in zip(facts.ranks, masks, strict=True)]
    lines = facts.first.lines(masks[0])
    ms = facts.per_step_ms(blocked)
    amount = f"{number:.3g}"
    return Sighting(
        f"The ranks meet at {amount} barrier{'s' * (amount != '1')} per step{at_lines(lines)}, "
        f"for {in_ms(ms)}. "
        "Training needs no barrier: every exchange of gradients keeps the ranks together.",
        share,
        saving_without(facts, removed),
        facts.first.line(masks[0]),
        lines=tuple(lines),
    )


CAUSE = CatalogueCause(
    id="barrier-each-step",
    title="A barrier stands in the training loop",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"There are at least {_PER_STEP:g} barriers per step, and the ranks wait in barriers for "
        f"at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "A barrier makes every rank wait for the slowest one, and for a round trip over the "
        "network. In a training loop, a barrier is mostly left over from timing. Or one rank "
        "writes a checkpoint or a log in every step, and all ranks wait for the disk. Without the "
        "barrier, the ranks would wait for the slowest rank in the next exchange, so the report "
        "does not count this waiting as a gain."
    ),
    fix=(
        "# Delete the barrier. If all ranks must meet now and then:\n"
        "if YOUR_STEP % 1000 == 0:\n"
        "    torch.distributed.barrier()"
    ),
    edit=lambda facts, sighting: without_calls(facts.script, list(sighting.lines), _OPS),
    worth=_LOW,
    source="https://github.com/hpcaitech/Open-Sora/issues/527",
)
