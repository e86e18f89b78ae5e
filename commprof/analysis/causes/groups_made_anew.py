"""A new process group is made in each step and used only in this step."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.evidence import Figure
from commprof.text import in_ms
from commprof.trace import columns
from commprof.units import ns_to_ms

#: Least number of new groups per step, and in all steps together. A script that makes groups late,
#: but only once, makes fewer.
_PER_STEP, _LEAST = 0.5, 5
#: Least time before the first calls of these groups, as a fraction of the step.
_SHARE = 0.03


def _first_calls(calls: RankCalls) -> Mask:
    """Returns a mask of the first call of each group that is used in one measured step only."""
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
    # c10d numbers groups in the order in which they are made. If the first calls come in a
    # different order, the groups were not made in these steps.
    order = np.argsort(table.issue_ns[chosen], kind="stable")
    if len(names) == len(chosen):
        numbers = np.array(names, dtype=np.int64)[order]
        if (np.diff(numbers) < 0).any():
            return mask
    mask[chosen] = True
    return mask


def _is_count(name: str) -> bool:
    """True if the name of a group is its number in c10d.

    Names of 19 or more digits are 64-bit hashes by NCCL.
    """
    return name.isdecimal() and len(name) < 19


def _before_ns(calls: RankCalls, mask: Mask) -> float:
    """Returns the total ns from the last phase, wait or begin of a step to each masked call."""
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
        f"In {facts.steps} steps, the script makes {number} process groups and uses each of them "
        f"in only one step{at_line(line)}. Before the first call of a group, a rank spends "
        f"{in_ms(ms)} on average: all ranks have to connect for a new group.",
        share,
        line=line,
    )


CAUSE = CatalogueCause(
    id="groups-made-anew",
    title="A process group is made in every step",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"At least {_LEAST} process groups, and at least one per {1 / _PER_STEP:g} steps on "
        "average, are used in only one step each. The work of the script before the first calls of "
        f"these groups takes at least {_SHARE:.0%} of the step."
    ),
    why=(
        "For each `new_group`, all ranks exchange addresses and connect, and NCCL allocates "
        "buffers on the GPU. This takes milliseconds to seconds, which no profile shows as "
        "communication. If groups are not destroyed, the GPU runs out of memory. Make each group "
        "once, before the loop, or keep groups in a dictionary with the ranks as keys."
    ),
    gain_note=(
        "Not predicted, because the time within `new_group` is not recorded. The fix saves at most "
        "the time before the first calls of the groups, which includes other work of the script."
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
