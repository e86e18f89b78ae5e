"""The script waits for a call in one group before it issues a call in another group."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import issued_at_once
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.units import ns_to_ms

#: Least number of calls in a series.
_LEAST = 4
_OPS = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor")


def _in_turns(calls: RankCalls) -> Mask:
    """Returns a mask of series of calls in which the group changes from each call to the next.

    The training thread waits for each call before it issues the next call.
    """
    table = calls.table
    chosen = calls.chosen(_OPS) & calls.of_script & calls.is_blocking & ~of_objects(calls)
    if not chosen.any():
        return chosen
    keys = np.stack([calls.step, calls.segment, chosen], axis=1)
    begins = np.append(True, (keys[1:] != keys[:-1]).any(axis=1) | (np.diff(table.group) == 0))
    number = np.cumsum(begins) - 1
    mask: Mask = chosen & (np.bincount(number)[number] >= _LEAST)
    return mask


def _wins_ns(calls: RankCalls, mask: Mask) -> float:
    """Returns the total time in calls, without the calls of the slowest group of each step."""
    blocked = np.maximum(calls.wait_end_ns, calls.table.issue_ns) - calls.table.issue_ns
    groups, group_row = np.unique(calls.table.group[mask], return_inverse=True)
    total = np.zeros((len(calls.begin_ns), len(groups)))
    np.add.at(total, (calls.step[mask], group_row), blocked[mask])
    return float((total.sum(axis=1) - total.max(axis=1, initial=0.0)).sum())


def _rule(facts: Facts) -> Sighting | None:
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, _in_turns(calls)),
        lambda in_turns: in_turns[0].per_step(in_turns[1]) >= _LEAST,
    )
    if not of_ranks:
        return None
    masks = [mask for _, mask in of_ranks]
    share = facts.share([_wins_ns(c, mask) for c, mask in zip(facts.ranks, masks, strict=True)])
    if not share >= WORTH_NAMING:
        return None
    first, mask = facts.first, masks[0]
    number, groups = first.per_step(mask), len(np.unique(first.table.group[mask]))
    line = first.line(mask)
    ms = ns_to_ms(first.blocked_ns(mask) / facts.steps)
    return Sighting(
        f"Each step makes {round(number)} calls that alternate between {groups} "
        f"groups{at_line(line)}. The script waits for each call before it issues the next, "
        f"{in_ms(ms)} per step in all. Calls of different groups can run at the same time.",
        share,
        None,
        line,
    )


CAUSE = CatalogueCause(
    id="groups-in-turns",
    title="Calls in several groups run one after the other",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"In a typical step, at least {_LEAST} calls follow one another outside of forward and "
        "backward. Each call uses a different group than the call before it, and the training "
        "thread waits for each call. Without the slowest group, these calls take at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Calls of one group run one after the other, but calls of different groups can run at the "
        "same time. A loop that waits for each call uses only one group at a time. Issue all calls "
        "with `async_op=True`, in the same order on every rank, and wait for them afterwards. Or "
        "join the calls of each group into one call."
    ),
    gain_note=(
        "Not predicted, because calls that run at the same time slow each other down, and this run "
        "does not show by how much."
    ),
    fix=(
        "import torch.distributed as dist\n\n"
        "works = []\n"
        "for value, group in YOUR_VALUES:  # in the same order on every rank\n"
        "    works.append(dist.all_reduce(value, group=group, async_op=True))\n"
        "for work in works:\n"
        "    work.wait()"
    ),
    edit=lambda facts, sighting: issued_at_once(facts.script, sighting.line, _OPS),
    source="https://github.com/pytorch/pytorch/issues/132852",
)
