"""A pipeline has so few micro batches that its stages often wait for each other."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, RankCalls, at_line
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace import columns
from commprof.trace.schema import OPS, Phase

_SENDS, _RECEIVES = ("send",), ("recv",)
#: Least idle time that the schedule causes, and least time of waiting for messages, as fractions of
#: the step.
_IDLE, _WAITING = 0.2, 0.1
#: With this many micro batches per stage, the schedule leaves at most a fifth of the step idle.
_ENOUGH = 4


def _peers(calls: RankCalls) -> dict[int, int]:
    """Returns how many messages per step come from each peer.

    A peer is a rank with which messages are exchanged in both directions.
    """
    sent, received = calls.measured(_SENDS), calls.measured(_RECEIVES)
    both = np.intersect1d(calls.table.peer[sent], calls.table.peer[received])
    return {
        int(peer): round(calls.per_step(received & (calls.table.peer == peer))) for peer in both
    }


def _stages(facts: Facts) -> tuple[list[int], int]:
    """Finds the ranks of the first rank's pipeline, and the number of micro batches per step.

    Ranks are given as positions in ``facts.ranks``.
    """
    position_of = {rank: position for position, rank in enumerate(facts.seen.ranks)}
    stages, reached = [0], {0}
    messages: list[int] = []
    for position in stages:
        for peer, number in _peers(facts.ranks[position]).items():
            messages.append(number)
            if peer in position_of and position_of[peer] not in reached:
                reached.add(position_of[peer])
                stages.append(position_of[peer])
    return stages, (min(messages) if messages else 0)


def _is_chain(facts: Facts, stages: list[int]) -> bool:
    """True if two stages have one neighbour and all other stages have two.

    The idle time is known only for such a chain. In a ring, for example, ranks may average weights
    with their neighbours.
    """
    peers = sorted(len(_peers(facts.ranks[row])) for row in stages)
    return peers == [1, 1, *[2] * (len(stages) - 2)]


def _receives_before_backward(calls: RankCalls) -> bool:
    """True if a backward pass begins after the first message in most steps.

    Also true if no backward pass was recorded. Messages after backward are not activations.
    """
    phases = columns.phases(calls.trace)
    begun = np.sort(phases.begin_ns[phases.key == Phase.BACKWARD])
    if not len(begun):
        return True
    rows = np.flatnonzero(calls.measured(_RECEIVES))
    steps, first = np.unique(calls.step[rows], return_index=True)
    issue_ns, end_ns = calls.table.issue_ns[rows[first]], calls.end_ns[steps]
    number = np.searchsorted(begun, end_ns) - np.searchsorted(begun, issue_ns)
    return bool((number > 0).mean() > 0.5)


def _rule(facts: Facts) -> Sighting | None:
    stages, micro = _stages(facts)
    if len(stages) < 2 or micro < 1 or not _is_chain(facts, stages):
        return None
    if not all(_receives_before_backward(facts.ranks[row]) for row in stages):
        return None
    idle = (len(stages) - 1) / (micro + len(stages) - 1)
    if idle < _IDLE:
        return None
    masks = [(facts.ranks[row], facts.ranks[row].measured(_RECEIVES)) for row in stages]
    waiting = [float(calls.exposed_ns[mask].sum()) for calls, mask in masks]
    share = facts.share(waiting)
    if not share >= _WAITING:
        return None
    first, mask = masks[0]
    line = first.line(mask)
    enough = _ENOUGH * len(stages)
    then = (len(stages) - 1) / (enough + len(stages) - 1)
    return Sighting(
        f"The model is a pipeline of {len(stages)} stages, and a step has {micro} micro "
        f"batch{'es' * (micro > 1)}. Each stage waits {in_ms(facts.per_step_ms(waiting))} per step "
        f"for other stages{at_line(line)}. This schedule leaves {idle:.0%} of a step idle. With "
        f"{enough} smaller micro batches, {then:.0%} would be idle.",
        min(share, idle),
        line=line,
        op=OPS[int(first.table.op[mask][0])],
    )


CAUSE = CatalogueCause(
    id="pipeline-bubble",
    title="A pipeline has too few micro batches, and its stages wait for one another",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "In each step, pairs of ranks send messages to each other, and these pairs form a chain of "
        "stages. The messages arrive before a backward pass. One message per step and direction "
        "counts as one micro batch. The schedule then leaves (stages - 1) / (micro batches + "
        f"stages - 1) of the step idle. This fraction is at least {_IDLE:.0%}, and the ranks wait "
        f"for messages for at least {_WAITING:.0%} of the step."
    ),
    why=(
        "A stage can compute only after the previous stage has sent its result. With one batch per "
        "step, only one stage computes at a time, so the job is no faster than one GPU. If the "
        "batch is divided into micro batches, several stages can compute at the same time. With "
        "four micro batches per stage, less than a fifth of the time is idle. Stages that wait for "
        "each other in this way are not slow ranks."
    ),
    gain_note=(
        "Not predicted, because smaller micro batches use a GPU less efficiently, and this run "
        "does not show by how much."
    ),
    fix=(
        "from torch.distributed.pipelining import Schedule1F1B\n\n"
        "# YOUR_STAGE: a PipelineStage; n_microbatches must divide the batch's size\n"
        "schedule = Schedule1F1B(YOUR_STAGE, n_microbatches=8, loss_fn=YOUR_LOSS)\n"
        "schedule.step(YOUR_BATCH, target=YOUR_TARGETS)\n"
        "# stages between the first and the last call schedule.step() without arguments"
    ),
    source="https://github.com/huggingface/transformers/issues/9766",
)
