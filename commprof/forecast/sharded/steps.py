"""Measured steps of a run of FSDP2, HSDP or ZeRO stage 1, in the form that a replay needs.

A wait for a complete collective may be too short to be recorded. Such a wait is placed at its usual
position, which other steps or ranks show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.analysis.replay.engine import ReplayedCalls, calls
from commprof.analysis.replay.program import Program, programs, replayed_steps
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.measured import MeasuredWorld, backward_passes, measured_world
from commprof.errors import CommprofError
from commprof.forecast.costs.algorithms import canonical
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.scenario.rank_steps import cpu_times
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.scenario.schedule import (
    LEAST_STEPS,
    RecordedSteps,
    batch_of,
    checked_name,
    hosts_of,
    placement_of,
)
from commprof.forecast.sharded.cycles import Event, RankCycle, rank_cycles
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import ELEMENT_BYTES, OPS, Phase, op_name
from commprof.trace.stretches import covered


def usual_events(cycles: Sequence[RankCycle]) -> tuple[Event, ...]:
    """Merges the event orders of all cycles into one order.

    A cycle may lack events, because short waits may not be recorded. The most frequent order is
    taken first. An order that contradicts the merged order is left out.
    """
    before: dict[Event, set[Event]] = {}
    result: tuple[Event, ...] = ()
    for events, _ in Counter(cycle.events for cycle in cycles).most_common():
        if _places(events, result) is not None:
            continue
        grown = {event: {*earlier} for event, earlier in before.items()}
        for event in events:
            grown.setdefault(event, set())
        for first, second in pairwise(events):
            grown[second].add(first)
        try:
            result = tuple(TopologicalSorter(grown).static_order())
        except CycleError:
            continue
        before = grown
    return result


def _places(events: Sequence[Event], order: Sequence[Event]) -> npt.NDArray[np.int64] | None:
    """Returns each event's index in ``order``; None if an event is missing or out of order."""
    place = {event: number for number, event in enumerate(order)}
    if not all(event in place for event in events):
        return None
    at = np.array([place[event] for event in events], dtype=np.int64)
    return None if (np.diff(at) <= 0).any() else at


def in_usual_order(cycle: RankCycle, events: Sequence[Event]) -> Floats | None:
    """Returns a cycle's ``own_ns``, ``update_ns`` and ``extra_ns`` (rows) at ``events`` (columns).

    The value is NaN for an event that the cycle lacks. Returns None if the cycle has other events,
    or another order of events.
    """
    places = _places(cycle.events, events)
    if places is None:
        return None
    values = np.full((3, len(events)), np.nan)
    values[:, places] = cycle.own_ns, cycle.update_ns, cycle.extra_ns
    return values


def filled(table: Floats) -> Floats:
    """Replaces missing times (NaN) of a table with a row per cycle and a column per event.

    A missing time is placed between the nearest known times of its row, at the event's median
    position in other rows. If no known time follows, the last known time is used.
    """
    padded = np.concatenate([np.zeros((len(table), 1)), table], axis=1)
    result = padded.copy()
    for event in np.flatnonzero(np.isnan(padded).any(axis=0)).tolist():
        for cycle in np.flatnonzero(np.isnan(padded[:, event])).tolist():
            known_rows = np.flatnonzero(~np.isnan(padded[cycle]))
            before = known_rows[known_rows < event].max()
            after = known_rows[known_rows > event].min(initial=len(padded[cycle]) - 1)
            if np.isnan(padded[cycle, after]):
                result[cycle, event] = padded[cycle, before]
                continue
            begin, end = padded[cycle, [before, after]]
            result[cycle, event] = begin + (end - begin) * _share(padded, before, event, after)
    return result[:, 1:]


def _share(table: Floats, before: int, event: int, after: int) -> float:
    """Returns an event's median relative position between two other events, from 0 to 1."""
    length = table[:, after] - table[:, before]
    part = (table[:, event] - table[:, before])[length > 0] / length[length > 0]
    part = part[~np.isnan(part)]
    return float(np.clip(np.median(part), 0, 1)) if len(part) else 0.0


Floats = npt.NDArray[np.float64]

#: Groups of ranks that take part in a collective: all ranks, the ranks of one copy of the model,
#: the ranks that hold the same part of the model, or single ranks.
ALL, SHARD, REPLICATE, ALONE = "all", "shard", "replicate", "alone"
_SHARDING = tuple(map(OPS.index, ("all_gather_into_tensor", "reduce_scatter_tensor")))


@dataclass(frozen=True)
class ShardedCall:
    """One collective of a step."""

    #: Name in ``algorithms.OPERATIONS``, or the name of another operation.
    op: str
    #: Size as defined by nccl-tests.
    size_bytes: float
    #: One of ALL, SHARD, REPLICATE and ALONE.
    among: str
    #: Bytes of an element; 0 if unknown.
    item_bytes: int
    #: True if a backward pass issued the collective.
    in_backward: bool


@dataclass(frozen=True)
class ShardedSteps(RecordedSteps):
    """Recorded steps of sharded training; times in ns."""

    calls: tuple[ShardedCall, ...]
    #: Issues and waits, in the same order on all ranks.
    events: tuple[Event, ...]
    #: [steps, ranks, events]: as in ``RankCycle``, but ``own_ns`` counts from the time when the
    #: last rank began the cycle.
    own_ns: Floats
    update_ns: Floats
    #: [steps, ranks]: own time outside of the optimizer: data, forward and backward.
    pass_ns: Floats
    #: [steps, ranks, events]: as in ``RankCycle``.
    extra_ns: Floats
    #: [steps, ranks, calls]: time from when a collective could begin until its end.
    transfer_ns: Floats
    #: Number of ranks that share one copy of the model.
    shard_ranks: int
    #: Processor time that training threads wanted, divided by the time that they got; NaN if
    #: unknown. If known, ``placement.busy`` counts the time that they wanted.
    lacked: float = float("nan")
    #: Number of backward passes of a step.
    passes: int = 1
    #: Processor time of a rank's helper threads per step; 0 if unknown.
    helpers_ns: float = 0.0

    @property
    def units(self) -> int:
        """Number of reduce-scatters in a step, one per unit of FSDP2 or HSDP; 0 for ZeRO."""
        return sum(call.op == "reduce_scatter" for call in self.calls)


def ranks_among(among: str, world_size: int, shard_ranks: int) -> int:
    """Returns the number of ranks in each group that issues a collective.

    ``among`` is one of ALL, SHARD, REPLICATE and ALONE.
    """
    copies = world_size // shard_ranks
    return {ALL: world_size, SHARD: shard_ranks, REPLICATE: copies, ALONE: 1}[among]


def passes_of(steps: RecordedSteps, scenario: Scenario) -> float:
    """Returns a scenario's number of backward passes per step, divided by the recorded number.

    Returns 1 if the scenario does not set the number, or if the steps are not sharded.
    """
    if scenario.accumulate is None or not isinstance(steps, ShardedSteps):
        return 1.0
    return scenario.accumulate / steps.passes


def is_sharded(trace: Trace) -> bool:
    """True if a rank issued FSDP2's collectives, or a sharded optimizer's broadcasts."""
    table = columns.collectives(trace)
    if (np.isin(table.op, _SHARDING) & (table.graph_task >= 0)).any():
        return True
    broadcast = table.issue_ns[table.op == OPS.index("broadcast")]
    phases = columns.phases(trace)
    updates = phases.key == Phase.OPTIMIZER
    begin, end = np.sort(phases.begin_ns[updates]), np.sort(phases.end_ns[updates])
    if not len(begin):
        return False
    at = np.searchsorted(begin, broadcast, side="right") - 1
    inside = (at >= 0) & (broadcast < end[np.maximum(at, 0)])
    return int(inside.sum()) >= len(begin)


def read_sharded(run: WorldRun) -> ShardedSteps:
    """Reads the sharded steps of one world size.

    Raises:
        CommprofError: the run's steps cannot be predicted; the message gives the reason.
    """
    name = checked_name(run)
    seen = measured_world(run)
    if seen is None or not seen.clocks_shared:
        raise CommprofError(
            f"{name}: the ranks' clocks cannot be compared, so sharded steps cannot be predicted"
        )
    if len(seen.measured.step) < LEAST_STEPS + 1:
        raise CommprofError(
            f"{name}: {len(seen.measured.step)} measured steps; a prediction needs "
            f"{LEAST_STEPS + 1}: record more"
        )
    (step,) = replayed_steps(seen, most=1)
    made = programs(seen, step)
    (replayed,) = calls(seen, [made])
    rows = _alike([{c.step: c for c in rank_cycles(p, replayed, len(step))} for p in made], seen)
    if len(rows) < LEAST_STEPS:
        raise CommprofError(
            f"{name}: in {len(rows)} of {len(step)} measured steps, all ranks issued the same "
            "collectives, the most common ones, and waited for none of an earlier step; a "
            f"prediction needs {LEAST_STEPS} such steps: record more steps"
        )
    return _steps(run.world_size, seen, replayed, made, rows)


def _alike(by_rank: Sequence[dict[int, RankCycle]], seen: MeasuredWorld) -> list[list[RankCycle]]:
    """Returns the steps that have the most common collectives, with a cycle per rank.

    The operations, element types and sizes must be equal on all ranks of a step.
    """
    table = np.stack([_column(seen, name) for name in ("op", "dtype", "bytes_in", "bytes_out")])
    whole = sorted(set(by_rank[0]).intersection(*by_rank[1:]))
    rows = [[cycles[step] for cycles in by_rank] for step in whole]
    kinds = [{table[:, list(cycle.rows)].tobytes() for cycle in row} for row in rows]
    usual = Counter(next(iter(kind)) for kind in kinds if len(kind) == 1).most_common(1)
    return [row for row, kind in zip(rows, kinds, strict=True) if usual and kind == {usual[0][0]}]


def _column(seen: MeasuredWorld, name: str) -> npt.NDArray[np.int64]:
    return np.concatenate([getattr(table, name) for table in seen.tables])


def _steps(
    world_size: int,
    seen: MeasuredWorld,
    known: ReplayedCalls,
    made: Sequence[Program],
    rows: list[list[RankCycle]],
) -> ShardedSteps:
    events = usual_events([cycle for row in rows for cycle in row])
    ordered = [[in_usual_order(cycle, events) for cycle in row] for row in rows]
    kept = [n for n, row in enumerate(ordered) if all(values is not None for values in row)]
    rows = [rows[n] for n in kept]
    if len(rows) < LEAST_STEPS:
        raise CommprofError(
            f"in only {len(rows)} steps, all ranks waited for their collectives in the same order; "
            f"a prediction needs {LEAST_STEPS}: record more steps. Possible reason: the streams of "
            "a GPU wait in a different order on each rank"
        )
    # [steps, ranks, (own, update, extra), events]
    values = np.array([ordered[n] for n in kept], dtype=np.float64)
    shape = (*values.shape[:2], len(events))
    own, update = (filled(values[:, :, n].reshape(-1, len(events))).reshape(shape) for n in (0, 1))
    begin, end = (
        np.array([[getattr(cycle, name) for cycle in row] for row in rows])
        for name in ("begin_ns", "end_ns")
    )
    met = begin.max(axis=1, keepdims=True)
    sharded_calls = _calls(seen, rows[0])
    hosts = hosts_of(seen.traces)
    busy, lacked = _processor_time(seen)
    return ShardedSteps(
        world_size=world_size,
        period_s=(end.max(axis=1) - met[:, 0]) / 1e9,
        placement=placement_of(seen.traces, busy),
        lacked=lacked,
        helpers_ns=_helpers_ns(seen),
        passes=max(1, backward_passes(seen.traces[0], seen.measured.step)),
        pass_ns=np.maximum(0.0, own[:, :, -1] - update[:, :, -1]),
        link=SAME_HOST if len(hosts) == 1 else OTHER_HOST,
        backend=str(seen.traces[0].metadata["backend"]) or "gloo",
        hook="",
        batch=batch_of(seen.traces, seen.measured.step),
        calls=sharded_calls,
        events=events,
        own_ns=own + (begin - met)[:, :, np.newaxis],
        update_ns=update,
        extra_ns=np.nan_to_num(values[:, :, 2]),
        transfer_ns=_transfers(seen, known, rows),
        shard_ranks=_shard_ranks(world_size, seen, rows[0], sharded_calls),
    )


def _helpers_ns(seen: MeasuredWorld) -> float:
    """Returns the CPU time of a rank's helper threads per measured step, in ns (median of ranks).

    Helper threads are all threads of the process other than the training thread.
    """
    helpers_ns = []
    for trace in seen.traces:
        steps, helpers = columns.steps(trace), columns.helpers_cpu(trace)
        measured = np.isin(steps.index, seen.measured.step)
        mine = helpers.thread == steps.thread[0]
        window = steps.begin_ns[measured][:1], steps.end_ns[measured][-1:]
        amount = helpers.key[mine].astype(np.float64)
        inside = covered(helpers.begin_ns[mine], helpers.end_ns[mine], amount, *window)
        helpers_ns.append(float(inside.sum()) / int(measured.sum()))
    return float(np.median(helpers_ns))


def _processor_time(seen: MeasuredWorld) -> tuple[float, float]:
    """Returns the ratios ``busy`` and ``lacked``; NaN if unknown.

    A training thread wanted the CPU time that it used, plus its run delay. ``busy`` is the wanted
    CPU time divided by the time without waits. ``lacked`` is the wanted CPU time divided by the
    used CPU time.
    """
    shares = []
    for trace in seen.traces:
        ended, waits = columns.finalizations(trace).span, exposures_of(trace)
        used, delays = cpu_times(trace), columns.run_delays(trace)
        mine, end_ns = np.isin(delays.thread, ended.thread), np.sort(ended.end_ns)
        got_ns = np.diff([used.get(end, float("nan")) for end in end_ns.tolist()])
        wanted_ns = got_ns + _sums(end_ns, delays.begin_ns[mine], delays.key[mine])
        own_ns = np.diff(end_ns) - _sums(end_ns, waits.begin_ns, waits.waited_ns)
        known = (own_ns > 0) & (got_ns > 0)
        got_ns, wanted_ns, own_ns = got_ns[known], wanted_ns[known], own_ns[known]
        shares.append(np.stack([np.minimum(1.0, wanted_ns / own_ns), wanted_ns / got_ns]))
    ratios = np.concatenate(shares, axis=1)
    if not ratios.size:
        return float("nan"), float("nan")
    share, lacked = np.median(ratios, axis=1).tolist()
    has_run_delays = any(len(columns.run_delays(trace)) for trace in seen.traces)
    return share, lacked if has_run_delays else float("nan")


def _sums(borders_ns: Ints, at_ns: Ints, amount_ns: Ints | Floats) -> Floats:
    """Returns the sum of the amounts between each two successive borders.

    ``at_ns`` holds the time of each amount.
    """
    place = np.searchsorted(borders_ns, at_ns, side="right")
    total = np.bincount(place, weights=amount_ns, minlength=len(borders_ns) + 1)
    return total[1:-1].astype(np.float64)


def _transfers(seen: MeasuredWorld, calls: ReplayedCalls, rows: list[list[RankCycle]]) -> Floats:
    """Returns the time of each transfer in ns, as ``[step, rank, collective]``.

    A transfer begins when all ranks that the collective depends on have issued it, and earlier
    collectives of the group have ended. A transfer's time is 0 if an earlier collective ended
    later: the two collectives are assumed to share a link and to end together.
    """
    transfer, end = calls.transfer_ns, calls.end_ns
    group = seen.matching.group
    found = np.zeros((len(rows), len(rows[0]), len(rows[0][0].rows)))
    for step, row in enumerate(rows):
        for rank, cycle in enumerate(row):
            latest: dict[int, float] = {}
            for number, each in enumerate(cycle.rows):
                before = latest.get(int(group[each]), 0.0)
                begin = float(end[each]) - float(transfer[each])
                found[step, rank, number] = max(0.0, float(end[each]) - max(begin, before))
                latest[int(group[each])] = max(before, float(end[each]))
    return found


def _calls(seen: MeasuredWorld, row: Sequence[RankCycle]) -> tuple[ShardedCall, ...]:
    first = list(row[0].rows)
    op, dtype, task, bytes_in, bytes_out = (
        _column(seen, name)[first]
        for name in ("op", "dtype", "graph_task", "bytes_in", "bytes_out")
    )
    names = seen.traces[0].metadata["dtypes"]
    members = [_members(seen, row, number) for number in range(len(first))]
    size = sizes_bytes(op, bytes_in, bytes_out, np.array([len(each[0]) for each in members]))
    return tuple(
        ShardedCall(
            canonical(op_name(int(op[n]))),
            float(size[n]),
            _among(members[n]),
            _item_bytes(names[int(dtype[n])] if int(dtype[n]) < len(names) else ""),
            bool(task[n] >= 0),
        )
        for n in range(len(first))
    )


def _members(seen: MeasuredWorld, row: Sequence[RankCycle], number: int) -> list[list[int]]:
    """Returns the ranks of each group that issues the step's collective at index ``number``."""
    groups: dict[int, list[int]] = {}
    for rank, cycle in enumerate(row):
        groups.setdefault(int(seen.matching.group[cycle.rows[number]]), []).append(rank)
    return [*groups.values()]


def _item_bytes(dtype: str) -> int:
    """Returns the bytes of an element; 0 if unknown.

    ``Byte`` counts as unknown, because FSDP2 gathers parameters of mixed types as bytes.
    """
    return 0 if dtype == "Byte" else ELEMENT_BYTES.get(dtype, 0)


def _among(groups: Sequence[Sequence[int]]) -> str:
    if len(groups) == 1:
        return ALL
    if len({len(group) for group in groups}) > 1:
        raise CommprofError(
            "the groups of ranks that share parameters have different sizes; a prediction needs "
            "groups of one size"
        )
    if len(groups[0]) == 1:
        return ALONE
    neighbours = all(group[-1] - group[0] == len(group) - 1 for group in groups)
    return SHARD if neighbours else REPLICATE


def _shard_ranks(
    world_size: int,
    seen: MeasuredWorld,
    row: Sequence[RankCycle],
    sharded_calls: Sequence[ShardedCall],
) -> int:
    sharded = [n for n, call in enumerate(sharded_calls) if call.among == SHARD]
    if sharded:
        return len(_members(seen, row, sharded[0])[0])
    parameters = {
        call.among for call in sharded_calls if call.op in ("all_gather", "reduce_scatter")
    }
    return 1 if parameters == {ALONE} else world_size
