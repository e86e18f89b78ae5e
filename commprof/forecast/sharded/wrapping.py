"""Joins the collectives of FSDP2 blocks that one ``fully_shard`` wraps together.

A unit is a group of blocks whose parameters FSDP2 gathers in one all-gather. The units of a
recorded step are recognised from its all-gathers: backward gathers the units of forward again, in
reverse order. If backward has one all-gather fewer, the first all-gather of forward belongs to the
root module, whose parameters stay gathered.

In backward, a unit's all-gather is issued when the preceding unit begins. The unit's gradients are
reduced when the unit ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from commprof.analysis.replay.program import ISSUE
from commprof.errors import CommprofError
from commprof.forecast.sharded.steps import REPLICATE, ShardedCall, ShardedSteps


@dataclass
class Wrapped:
    """Changes to the recorded collectives, which are given by their indices."""

    #: Collectives that another collective replaces.
    dropped: set[int] = field(default_factory=set)
    #: Collectives of whole units.
    calls: dict[int, ShardedCall] = field(default_factory=dict)
    #: For each all-gather that is issued earlier than recorded: the event at which it is issued.
    issued_at: dict[int, int] = field(default_factory=dict)


def wrapped(steps: ShardedSteps, blocks: int) -> Wrapped:
    """Wraps ``blocks`` neighbouring blocks in each unit; the last unit may have fewer.

    Raises:
        CommprofError: the blocks cannot be recognised in the recorded collectives.
    """
    if steps.passes > 1:
        raise CommprofError(
            f"--wrap-blocks {blocks}: a recorded step has {steps.passes} backward passes, so its "
            "blocks cannot be recognised; record a run with one backward pass per step"
        )
    forward, backward = (_numbers(steps, "all_gather", again) for again in (False, True))
    root = len(forward) - len(backward)
    if not backward or root not in (0, 1):
        raise CommprofError(
            f"--wrap-blocks {blocks}: a step has {len(forward)} all-gathers before backward and "
            f"{len(backward)} in backward; its blocks can be recognised only if backward gathers "
            "each block again; record FSDP2 with reshard_after_forward=True"
        )
    result = Wrapped()
    count = len(backward)
    units = [range(first, min(first + blocks, count)) for first in range(0, count, blocks)]
    for unit in units:
        _joined(steps, [forward[root + block] for block in unit], 0, result)
    reduced = [_numbers(steps, "reduce_scatter", True)]
    if any(call.among == REPLICATE for call in steps.calls):
        reduced.append([n for n, call in enumerate(steps.calls) if call.among == REPLICATE])
    for numbers in reduced:
        if len(numbers) != len(forward):
            raise CommprofError(
                f"--wrap-blocks {blocks}: a step has {len(forward)} all-gathers before backward "
                f"but reduces gradients {len(numbers)} times, so its blocks cannot be recognised; "
                "predict without --wrap-blocks"
            )
    before: Sequence[int] = ()
    for unit in reversed(units):
        again = [backward[count - 1 - block] for block in reversed(unit)]
        _joined(steps, again, 0, result)
        if len(before) > 1 and _is_prefetched(steps, again[0], reduced[0][count - unit.stop - 1]):
            # The all-gather is prefetched when the preceding unit begins. In the recorded step, the
            # all-gather of the preceding unit's second block was issued at this time.
            result.issued_at[again[0]] = steps.events.index((ISSUE, before[1]))
        for numbers in reduced:
            _joined(steps, [numbers[count - 1 - block] for block in reversed(unit)], -1, result)
        before = again
    return result


def _is_prefetched(steps: ShardedSteps, gather: int, reduce_before: int) -> bool:
    """True if the all-gather is issued before the preceding block's gradients are reduced."""
    events = steps.events
    return events.index((ISSUE, gather)) < events.index((ISSUE, reduce_before))


def _numbers(steps: ShardedSteps, op: str, in_backward: bool) -> list[int]:
    calls = enumerate(steps.calls)
    return [n for n, call in calls if call.op == op and call.in_backward == in_backward]


def _joined(steps: ShardedSteps, numbers: list[int], kept: int, found: Wrapped) -> None:
    """Joins a unit's collectives into collective ``numbers[kept]``; changes ``found``."""
    size = sum(steps.calls[number].size_bytes for number in numbers)
    one = numbers[kept]
    found.dropped.update(number for number in numbers if number != one)
    found.calls[one] = replace(steps.calls[one], size_bytes=size)
