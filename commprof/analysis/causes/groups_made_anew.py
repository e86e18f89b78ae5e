"""A process group is made in each step, and used in this step alone."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace import columns
from commprof.units import ns_to_ms

#: Least number of new groups per step, and in all. A script that makes groups late, but only once,
#: makes fewer.
_PER_STEP, _LEAST = 0.5, 5
#: The work before the first calls of these groups is at least this fraction of the step.
_SHARE = 0.03


def _first_calls(calls: RankCalls) -> Mask:
    """First calls, in measured steps, of groups that no other step uses."""
    table = calls.table
    mask = np.zeros(len(table), dtype=bool)
    _, first, number = np.unique(table.group, return_index=True, return_inverse=True)
    number = number.reshape(-1)
    least, most = np.full(len(first), np.iinfo(np.int64).max), np.full(len(first), -2)
    np.minimum.at(least, number, calls.step)
    np.maximum.at(most, number, calls.step)
    chosen = first[(least == most) & (least >= 0)]
    named = [calls.trace.groups.get(group) for group in table.group[chosen].tolist()]
    names = [group.name for group in named if group is not None and _is_count(group.name)]
    # c10d numbers groups in the order in which they are made. If their first calls come in another
    # order, the groups were not made for these steps.
    order = np.argsort(table.issue_ns[chosen], kind="stable")
    if len(names) == len(chosen):
        numbers = np.array(names, dtype=np.int64)[order]
        if (np.diff(numbers) < 0).any():
            return mask
    mask[chosen] = True
    return mask


def _is_count(name: str) -> bool:
    """True if a group's name is a number by which c10d counts groups.

    A decimal name of 19 or more digits is no count: it is a hash of 64 bits by NCCL.
    """
    return name.isdecimal() and len(name) < 19


def _before_ns(calls: RankCalls, mask: Mask) -> float:
    """Total time of the thread from the last phase or wait to the issue of each masked call."""
    issue = calls.table.issue_ns[mask]
    phases = columns.phases(calls.trace)
    ends = np.sort(np.concatenate([phases.end_ns, calls.wait_end_ns, calls.begin_ns]))
    last = np.searchsorted(ends, issue, side="right") - 1
    return float((issue - ends[last])[last >= 0].sum())


def _rule(facts: Facts) -> Sighting | None:
    least = max(_LEAST, _PER_STEP * facts.steps)
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, _first_calls(calls)), lambda of_rank: of_rank[1].sum() >= least
    )
    if not of_ranks:
        return None
    before = [_before_ns(calls, mask) for calls, mask in of_ranks]
    share = facts.share(before)
    if not share >= _SHARE:
        return None
    first, mask = of_ranks[0]
    line, number = first.line(mask), int(mask.sum())
    ms = ns_to_ms(sum(before) / len(before) / number)
    return Sighting(
        f"The script makes {number} process groups in {facts.steps} steps and uses each in one "
        f"step only{at_line(line)}. Before the first call of each group, a rank spends "
        f"{in_ms(ms)}: for a new group all ranks meet and connect anew.",
        share,
        line=line,
    )


CAUSE = CatalogueCause(
    id="groups-made-anew",
    title="A process group is made in every step",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"At least {_LEAST} process groups, and on average at least one per {1 / _PER_STEP:g} "
        "steps, are each used in one step only. The times from the last phase or wait to each "
        f"group's first call together take at least {_SHARE:.0%} of the step."
    ),
    why=(
        "`new_group` makes all ranks meet, exchange addresses and connect, and NCCL allocates "
        "buffers on the GPU for each communicator: milliseconds to seconds, which no profile shows "
        "as communication, and memory that fills up if groups are not destroyed. Make the groups "
        "that the script needs once, or keep them in a dictionary by their ranks."
    ),
    gain_note=(
        "Not predicted, because the time within `new_group` is not recorded. The fix wins at most "
        "the time before the groups' first calls, which also holds other work of the script."
    ),
    fix=(
        "groups = {}  # once, before the loop\n"
        "ranks = tuple(YOUR_RANKS)\n"
        "if ranks not in groups:  # in the same order on every rank\n"
        "    groups[ranks] = torch.distributed.new_group(ranks)\n"
        "group = groups[ranks]"
    ),
    source="https://github.com/pytorch/pytorch/pull/6970",
)
