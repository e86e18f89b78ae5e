"""Changes the collectives of a recorded step as a scenario asks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from commprof.analysis.replay.program import ISSUE, WAIT
from commprof.errors import CommprofError
from commprof.forecast.scenario.scenario import DTYPE_BYTES, Scenario
from commprof.forecast.sharded.steps import (
    ALL,
    ALONE,
    REPLICATE,
    SHARD,
    ShardedCall,
    ShardedSteps,
    ranks_among,
)
from commprof.forecast.sharded.wrapping import Wrapped, wrapped

_GATHER, _SCATTER, _REDUCE = "all_gather", "reduce_scatter", "all_reduce"


def as_recorded(scenario: Scenario, steps: ShardedSteps) -> Scenario:
    """Returns the scenario with the recorded sharding, element types and backward passes."""
    scenario = replace(scenario, accumulate=steps.passes)
    sharded = [call for call in steps.calls if call.op in (_GATHER, _SCATTER)]
    if not sharded:
        return scenario
    names = {size: name for name, size in reversed(DTYPE_BYTES.items())}
    dtypes = [
        next((names.get(call.item_bytes) for call in sharded if call.op == op), None)
        for op in (_GATHER, _SCATTER)
    ]
    return replace(
        scenario,
        gather_dtype=dtypes[0],
        reduce_dtype=dtypes[1],
        reshard_after_forward=any(c.op == _GATHER and c.in_backward for c in sharded),
        shard_ranks=steps.shard_ranks,
    )


@dataclass(frozen=True)
class Placed:
    """An event of the changed step. Its time is derived from a recorded event."""

    kind: int
    #: Index among the changed step's collectives.
    call: int
    #: Index among the recorded step's events.
    recorded: int
    #: Number of backward passes before this event's pass.
    passes: int = 0


@dataclass(frozen=True)
class ChangedCall:
    """One collective of the changed step."""

    call: ShardedCall
    ranks: int
    #: Index of the recorded collective that ``call`` is derived from.
    recorded: int


@dataclass(frozen=True)
class ShardedChange:
    """The recorded step after a scenario's changes: events and collectives, in order."""

    calls: tuple[ChangedCall, ...]
    events: tuple[Placed, ...]
    shard_ranks: int
    remarks: tuple[str, ...]
    #: Number of backward passes of the step.
    passes: int = 1


def change(steps: ShardedSteps, scenario: Scenario) -> ShardedChange:
    """Changes the recorded step as a scenario asks.

    Raises:
        CommprofError: the changed step cannot be derived from the recorded one.
    """
    _require_only_sharding(steps)
    shard = _shard_ranks(steps, scenario)
    remarks: list[str] = []
    dropped = _gathered_again(steps, scenario, remarks)
    units = _units(steps, scenario, remarks)
    dropped |= units.dropped
    calls: list[ChangedCall] = []
    numbers: dict[int, tuple[int, ...]] = {}
    copies = scenario.world_size // shard
    for number, recorded in enumerate(steps.calls):
        call = units.calls.get(number, recorded)
        made = [] if number in dropped else _changed(steps, scenario, number, call, shard)
        if made and copies > 1 and call.op == _SCATTER and steps.shard_ranks == steps.world_size:
            # HSDP also sums gradients over the copies of the model.
            size = made[0].call.size_bytes / shard
            summed = replace(call, op=_REDUCE, size_bytes=size, among=REPLICATE)
            made.append(ChangedCall(summed, copies, number))
        numbers[number] = tuple(range(len(calls), len(calls) + len(made)))
        calls += made
    if copies > 1 and steps.shard_ranks == steps.world_size:
        remarks.append(
            "the run has no all-reduces between copies of the model; such an all-reduce is "
            "assumed after each reduce-scatter, and its time is computed from the time of the "
            "reduce-scatter and from fitted costs"
        )
    events = _events(steps, numbers, units.issued_at)
    changed = ShardedChange(tuple(calls), events, shard, tuple(remarks))
    return _accumulated(steps, changed, scenario.accumulate)


def _require_only_sharding(steps: ShardedSteps) -> None:
    """Raises ``CommprofError`` if ranks also divide layers or sequences among themselves."""
    needs = "a prediction of sharded steps needs a run of FSDP2, HSDP or ZeRO stage 1 alone"
    if any(call.op in (_GATHER, _SCATTER) and call.among == REPLICATE for call in steps.calls):
        raise CommprofError(
            "the ranks that shard parameters among themselves do not have consecutive numbers, "
            f"perhaps because tensor parallelism divides layers among consecutive ranks; {needs}"
        )
    scatters = [call for call in steps.calls if call.op == _SCATTER]
    if scatters and not scatters[0].in_backward:
        raise CommprofError(
            "a step issues reduce-scatters before backward, as sequence parallelism does for "
            f"activations; {needs}"
        )


def _accumulated(steps: ShardedSteps, once: ShardedChange, passes: int | None) -> ShardedChange:
    """Repeats forward and backward ``passes`` times; None keeps the recorded number of passes.

    Only the last pass has collectives other than all-gathers.
    """
    if passes is None or passes == steps.passes:
        return replace(once, passes=steps.passes)
    if steps.passes > 1:
        raise CommprofError(
            f"--accumulate {passes}: a recorded step has {steps.passes} backward passes, so steps "
            "with another number of passes cannot be predicted from this run (allowed: "
            f"{steps.passes}); record a run with one backward pass per step"
        )
    calls: list[ChangedCall] = []
    events: list[Placed] = []
    for number in range(passes):
        is_last = number == passes - 1
        kept = [n for n, c in enumerate(once.calls) if is_last or c.call.op == _GATHER]
        place = {call: len(calls) + at for at, call in enumerate(kept)}
        calls += [once.calls[call] for call in kept]
        events += [
            replace(event, call=place[event.call], passes=number)
            for event in once.events
            if event.call in place
        ]
    remarks = [
        f"{passes} backward passes per step: each pass is assumed to take as long as the recorded "
        "pass. This is too long for all passes but the last, because only the last pass copies "
        "gradients for their reduction. Whole gradients stay in memory between passes"
    ]
    others = {
        changed.call.op
        for changed in once.calls
        if changed.call.op not in (_GATHER, _SCATTER) and changed.call.among != REPLICATE
    }
    if others:
        remarks.append(
            f"{', '.join(sorted(others))}: assumed to happen only in the step's last pass"
        )
    return replace(
        once,
        calls=tuple(calls),
        events=tuple(events),
        remarks=(*once.remarks, *remarks),
        passes=passes,
    )


def _events(
    steps: ShardedSteps, numbers: dict[int, tuple[int, ...]], issued_at: dict[int, int]
) -> tuple[Placed, ...]:
    """Returns the changed step's events, in order.

    ``numbers`` maps each recorded collective to the collectives that replace it. ``issued_at`` maps
    each all-gather that is issued earlier than recorded to the event at which it is now issued.
    All keys and values are indices.

    An additional all-reduce follows the wait for its reduce-scatter.
    """
    placed: list[Placed] = []
    moved = {place: call for call, place in issued_at.items()}
    for place, (kind, call) in enumerate(steps.events):
        if place in moved:
            placed += [Placed(ISSUE, first, place) for first in numbers[moved[place]][:1]]
        first, *more = numbers[call] or (-1,)
        if first >= 0 and not (kind == ISSUE and call in issued_at):
            placed.append(Placed(kind, first, place))
        if kind == WAIT:
            placed += [Placed(each, number, place) for number in more for each in (ISSUE, WAIT)]
    return tuple(placed)


def _changed(
    steps: ShardedSteps, scenario: Scenario, number: int, call: ShardedCall, shard: int
) -> list[ChangedCall]:
    """Returns the changed collective in a list, which is empty if only one rank takes part.

    ``number`` is the index of the recorded collective. ``call`` is this collective, or the one that
    replaces it if blocks are wrapped together. ``shard`` is the number of ranks per copy of the
    model.
    """
    is_parameters = call.op in (_GATHER, _SCATTER)
    among = call.among
    if is_parameters and among != ALONE:
        among = ALL if shard == scenario.world_size else SHARD
    ranks = ranks_among(among, scenario.world_size, shard)
    if ranks < 2:
        return []
    size = call.size_bytes
    if call.among == REPLICATE:
        size *= steps.shard_ranks / shard
    dtype = scenario.gather_dtype if call.op == _GATHER else scenario.reduce_dtype
    if dtype is not None and (is_parameters or call.among == REPLICATE):
        if not call.item_bytes:
            raise CommprofError(
                f"the element type of {call.op} was not recorded, so another type cannot be "
                "predicted; leave --gather-dtype and --reduce-dtype out"
            )
        size *= DTYPE_BYTES[dtype] / call.item_bytes
    return [ChangedCall(replace(call, size_bytes=size, among=among), ranks, number)]


def _units(steps: ShardedSteps, scenario: Scenario, remarks: list[str]) -> Wrapped:
    if scenario.wrap_blocks is None or scenario.wrap_blocks == 1:
        return Wrapped()
    remarks.append(
        f"{scenario.wrap_blocks} neighbouring blocks wrapped together: their copies into and out "
        f"of collectives keep the recorded times, and all {scenario.wrap_blocks} blocks are in "
        "memory at the same time"
    )
    return wrapped(steps, scenario.wrap_blocks)


def _shard_ranks(steps: ShardedSteps, scenario: Scenario) -> int:
    ranks = scenario.world_size
    if ranks < 2:
        raise CommprofError(
            "1 rank exchanges nothing, so its step cannot be predicted from sharded steps; record "
            "a run of 1 rank"
        )
    if steps.world_size < 2:
        raise CommprofError(
            "the run has 1 rank, which exchanges nothing, so it does not show how long collectives "
            "take; record 2 ranks or more, or choose another --from-world-size"
        )
    if steps.shard_ranks < 2:
        raise CommprofError(
            "each rank of the run held a whole copy of the model, so the run does not show how "
            "long ranks take to exchange parameters; record a run in which 2 ranks or more share "
            "each copy"
        )
    shard = scenario.shard_ranks
    if shard is None:
        shard = ranks if steps.shard_ranks == steps.world_size else steps.shard_ranks
    if not any(call.op == _SCATTER for call in steps.calls) and shard != ranks:
        raise CommprofError("--shard-ranks needs a run of FSDP2; this run shards no parameters")
    if not 2 <= shard <= ranks or ranks % shard:
        fitting = [str(n) for n in range(2, ranks + 1) if ranks % n == 0]
        raise CommprofError(
            f"{shard} ranks per copy of the model do not divide {ranks} (allowed for "
            f"--shard-ranks: {', '.join(fitting)})"
        )
    return shard


def _gathered_again(steps: ShardedSteps, scenario: Scenario, remarks: list[str]) -> frozenset[int]:
    """Returns the indices of backward's all-gathers if the scenario drops them."""
    again = [n for n, call in enumerate(steps.calls) if call.op == _GATHER and call.in_backward]
    if scenario.reshard_after_forward is None or scenario.reshard_after_forward == bool(again):
        return frozenset()
    if scenario.reshard_after_forward:
        raise CommprofError(
            "the run kept its parameters after forward, so it is unknown when backward would "
            "gather them; record it with reshard_after_forward=True"
        )
    remarks.append(
        "without reshard_after_forward: the predicted time includes the copies into and out of the "
        "dropped all-gathers, and all parameters stay in memory"
    )
    return frozenset(again)
