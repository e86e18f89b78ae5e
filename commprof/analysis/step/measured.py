"""Brings the traces of one world size onto a common clock, and selects the measured steps.

Warm-up steps, and steps that some rank did not complete, are left out. This module also recognises
trials, which switch between settings, and counts the samples that a script reads.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.clocks import (
    ClockMap,
    clock_error_us,
    on_common_clock,
    rank_clocks,
)
from commprof.analysis.align.device_timeline import has_device_times, on_device_timeline
from commprof.analysis.align.matching import Matching, match
from commprof.analysis.step.breakdown import Breakdown, Floats, of_split
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.joined import joined
from commprof.analysis.step.merged import merged_steps
from commprof.analysis.step.origins import Origins, origins
from commprof.analysis.step.rank_parts import BlockParts, RankParts, common_steps, parts_of
from commprof.analysis.step.waiting import Waiting, not_split, split
from commprof.analysis.step.windows import StepWindows, steps_in, stretch, windows_of
from commprof.memory import return_free_memory
from commprof.stats.intervals import robust_deviation
from commprof.trace import columns, schema
from commprof.trace.columns import Collectives, Ints, Steps, steps_of_ranks, tables_of
from commprof.trace.packed import columns_of
from commprof.trace.ranks import firsts, firsts_of, ranks_of, rows_containing
from commprof.trace.ranks import joined as joined_columns
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Kind, Phase


def samples_read(traces: Sequence[Trace], step: Ints) -> list[float]:
    """Returns, per rank, how many samples the training thread read in these steps.

    NaN if the thread read no batch, or if the number of samples in some batch is unknown.
    """
    samples = columns_of([trace.records for trace in traces], Kind.PHASE, "seq").astype(np.int64)
    if not samples.any():
        return [math.nan] * len(traces)
    steps, phases = (tables_of(traces, make) for make in (columns.steps, columns.phases))
    first_step = firsts_of(steps)
    of_step = np.append(joined_columns(steps, "thread"), -1)[first_step[:-1]]
    thread = np.where(np.diff(first_step) > 0, of_step, -1)
    rank = ranks_of(firsts_of(phases))
    read = np.flatnonzero((samples > 0) & (joined_columns(phases, "thread") == thread[rank]))
    samples, rank, begin_ns = samples[read], rank[read], joined_columns(phases, "begin_ns")[read]
    chosen, first_chosen = steps_of_ranks(traces, step)
    row = rows_containing(
        chosen.begin_ns,
        chosen.end_ns,
        first_chosen,
        begin_ns,
        firsts(np.bincount(rank, minlength=len(traces))),
    )
    inside = row >= 0
    batches, uncounted, total = (
        np.bincount(rank[inside], weights=values[inside], minlength=len(traces))
        for values in (np.ones(len(rank)), samples == schema.SAMPLES_UNKNOWN, samples)
    )
    return np.where((batches > 0) & (uncounted == 0), total, np.nan).tolist()


def median_per_step(steps: Steps, measured: Ints, begin_ns: Ints) -> int:
    """Returns the median number of events per step; 0 without steps.

    Args:
        steps: steps of one rank.
        measured: indices of the steps in which events are counted.
        begin_ns: begin of each event.
    """
    chosen = np.isin(steps.index, measured)
    if not chosen.any():
        return 0
    at = np.searchsorted(np.sort(begin_ns), (steps.begin_ns[chosen], steps.end_ns[chosen]))
    return int(np.median(at[1] - at[0]))


def backward_passes(trace: Trace, measured: Ints) -> int:
    """Returns the training thread's median number of backward passes per measured step."""
    return median_per_step(columns.steps(trace), measured, backward_begins(trace))


def backward_begins(trace: Trace) -> Ints:
    """Returns when each backward pass of the training thread began."""
    steps, phases = columns.steps(trace), columns.phases(trace)
    mine = (phases.key == Phase.BACKWARD) & np.isin(phases.thread, steps.thread)
    return phases.begin_ns[mine]


#: A long step exceeds the median of the later steps by this many robust standard deviations.
_DEVIATIONS = 5.0
#: A long step also takes more than this many times the median of the later steps.
_LONGER = 1.1


def count_warmup(wall_ns: npt.NDArray[np.float64], signatures: npt.NDArray[np.uint64]) -> int:
    """Returns the number of warm-up steps, at most half of all steps.

    The first step is warm-up: it allocates memory, and DDP rebuilds its buckets after it. Warm-up
    continues while a step takes far longer than the steps of the run's second half, or has a
    sequence of collectives that no step of the second half has. A run of one step has no warm-up.

    Args:
        wall_ns: length of each step on its slowest rank.
        signatures: result of :func:`step_signatures`.
    """
    count = len(wall_ns)
    if count < 2:
        return 0
    later = wall_ns[count // 2 :]
    median = float(np.median(later))
    deviation = robust_deviation(later)
    limit = max(median + _DEVIATIONS * deviation, median * _LONGER)
    usual = np.unique(signatures[count // 2 :])
    warmup = 1
    while warmup < count // 2 and (wall_ns[warmup] > limit or signatures[warmup] not in usual):
        warmup += 1
    return warmup


def step_signatures(steps: Steps, table: Collectives) -> npt.NDArray[np.uint64]:
    """Returns a hash of each step's sequence of operations and their sizes."""
    first = np.searchsorted(table.issue_ns, steps.begin_ns)
    last = np.searchsorted(table.issue_ns, steps.end_ns)
    content = np.stack([table.op, table.bytes_in], axis=1)
    return np.array(
        [
            hash(content[i:j].tobytes()) & 0xFFFFFFFFFFFFFFFF
            for i, j in zip(first, last, strict=True)
        ],
        dtype=np.uint64,
    )


def in_turns(run: WorldRun) -> bool:
    """True if some rank's trace contains the begin of a trial, which switches between settings."""
    return any(trial_of(trace) is not None for trace in run.traces.values())


def trial_of(trace: Trace) -> dict[str, Any] | None:
    """Returns the trial that began in this trace; None if there was none.

    Later traces of the same process name the trial in their metadata too, but the trial did not
    begin in one of their steps.
    """
    trial: dict[str, Any] | None = trace.metadata.get("trial")
    if trial is None:
        return None
    steps = columns.steps(trace)
    at = np.flatnonzero(steps.index == trial["first_step"])
    began = int(trial["begin_monotonic_ns"])
    inside = (steps.begin_ns[at] <= began) & (began < steps.end_ns[at])
    return trial if inside.any() else None


@dataclass(frozen=True)
class LeftOut:
    """Steps whose parts are not kept in a run with too many steps; see ``StepWindows.kept``."""

    #: Number of these steps; only measured steps count.
    steps: int
    #: Mean wall time of the slowest rank, over all measured steps, including the kept steps.
    mean_ns: float


@dataclass(frozen=True)
class MeasuredSteps:
    """Parts of the steps of one world size, and the traces; ``MeasuredWorld`` adds the calls."""

    #: Global ranks that left a trace.
    ranks: list[int]
    #: Traces as they were written.
    recorded: list[Trace]
    #: Traces on rank 0's clock, if the clocks can be compared. A trace with events of a device has
    #: the times of these events.
    traces: list[Trace]
    #: Parts of the steps of all ranks, including warm-up. Only steps that all ranks completed are
    #: included. Steps that measure overhead, and steps of several iterations, are left out.
    parts: RankParts
    #: Number of leading steps in ``parts`` that count as warm-up.
    warmup: int
    #: Number of steps that are left out because each holds several iterations.
    merged: int
    #: True if the ranks' times can be compared.
    clocks_shared: bool
    #: Bound on the error of a rank's clock against rank 0's; 0 on a shared clock, NaN if unknown.
    clock_error_us: float
    #: The steps whose parts are not kept; None if the parts of all steps are kept.
    left_out: LeftOut | None

    @cached_property
    def measured(self) -> RankParts:
        """Parts of all ranks' steps after warm-up; all figures are computed from these steps."""
        return self.parts.since(self.warmup)

    @cached_property
    def on_host(self) -> list[Trace]:
        """Traces with the steps and phases of the host's threads.

        These are ``traces``, or ``recorded`` if a trace has times of a device: phases on a device
        differ from phases on the host, and steps may be missing.
        """
        on_device = any(map(has_device_times, self.recorded))
        return self.recorded if on_device else self.traces

    @cached_property
    def steps(self) -> Steps:
        """Steps of the first rank; ``Steps.source`` is the same on every rank."""
        return columns.steps(self.traces[0])


@dataclass(frozen=True)
class MeasuredWorld(MeasuredSteps):
    """Steps of one world size with their calls; for a long run, a sample of the steps."""

    tables: Sequence[Collectives]
    #: Assignment of the tables' rows to collectives.
    matching: Matching
    #: All steps of a long run, without their calls; None if the run is not long.
    whole: MeasuredSteps | None = None

    @property
    def all_steps(self) -> MeasuredSteps:
        """All steps of the run, whether it is long or not."""
        return self if self.whole is None else self.whole


@dataclass(frozen=True)
class Observed:
    """One rank's measured steps, together with its whole trace."""

    trace: Trace
    tables: Sequence[Collectives]
    #: Measured steps of all ranks.
    parts: RankParts
    #: Index of this rank in ``tables`` and ``parts``.
    index: int

    @property
    def table(self) -> Collectives:
        """The rank's collectives."""
        return self.tables[self.index]

    @property
    def measured(self) -> Breakdown:
        """The rank's measured steps."""
        return self.parts[self.index]

    def total_ns(self, name: str) -> float:
        """Returns the sum of a part over the rank's measured steps."""
        return self.parts.sums(name)[self.index]


def observed_ranks(seen: MeasuredWorld) -> list[Observed]:
    """Returns each rank's measured steps with its trace."""
    return [
        Observed(trace, seen.tables, seen.measured, index)
        for index, trace in enumerate(seen.traces)
    ]


def measured_world(
    run: WorldRun,
    watch: Callable[[MeasuredWorld], None] | None = None,
    all_calls: bool = False,
) -> MeasuredWorld | None:
    """Brings the ranks' traces onto one clock and one set of steps; None if there is no trace.

    Args:
        run: the ranks' recordings.
        watch: is called with the calls of all steps. In a long run, it is called once per window
            of steps.
        all_calls: True to hold the calls of all steps in memory, even for a long run.
    """
    usable = sorted(run.traces)
    if not usable:
        return None
    recorded = [run.traces[rank] for rank in usable]
    cut = None if all_calls else windows_of(recorded)
    if cut is not None:
        return _long_world(run.world_size, recorded, usable, cut, watch)
    calls = _calls(run.world_size, recorded, usable)
    trained = min(_trained_steps(trace) for trace in calls.traces)
    merged = merged_steps(calls.traces, calls.tables)
    parts = _trained_parts(calls.parts, common_steps(calls.parts), trained, merged)
    signatures = calls.signatures(parts.step)
    # If another profiler recorded the run, its schedule has already left warm-up out.
    warmup = 0 if recorded[0].is_foreign else count_warmup(slowest_ns(parts), signatures)
    seen = calls.world(parts, warmup, len(merged))
    if watch is not None:
        watch(seen)
    return seen


def _long_world(
    world_size: int,
    recorded: list[Trace],
    ranks: list[int],
    cut: StepWindows,
    watch: Callable[[MeasuredWorld], None] | None,
) -> MeasuredWorld:
    """Measures the steps of a long run in windows, then the calls of a sample of the steps."""
    clocks = rank_clocks(recorded)
    stretches = cut.kept(len(ranks))
    kept_steps = np.concatenate(stretches)
    keeps_all = len(kept_steps) == len(cut.steps)
    windows: list[RankParts] = []
    signatures: list[npt.NDArray[np.uint64]] = []
    for steps in cut.windows():
        calls = _calls(world_size, [stretch(trace, [steps]) for trace in recorded], ranks, clocks)
        chosen = np.intersect1d(steps, kept_steps, assume_unique=True)
        common = parts_of(calls.parts, np.intersect1d(common_steps(calls.parts), chosen))
        windows.append(common.in_one_block())
        signatures.append(calls.signatures(common.step))
        if watch is not None:
            watch(calls.world(common, 0, 0))
        del calls, common
    of_kept = recorded if keeps_all else [stretch(trace, stretches) for trace in recorded]
    merged = merged_steps(of_kept)
    trained = min(_trained_steps(trace) for trace in recorded)
    of_ranks = RankParts.joined(windows)
    numbers = of_ranks.step
    parts = of_ranks.rows(_trained_steps_of(np.unique(numbers), trained, merged))
    del of_ranks
    sequence = np.concatenate(signatures)[np.isin(numbers, parts.step)]
    warmup = count_warmup(slowest_ns(parts), sequence)
    whole = MeasuredSteps(
        ranks=ranks,
        recorded=recorded,
        traces=on_common_clock(of_kept, clocks) if clocks else of_kept,
        parts=parts,
        warmup=warmup,
        merged=len(merged),
        clocks_shared=clocks is not None,
        clock_error_us=clock_error_us(clocks, of_kept),
        left_out=None
        if keeps_all
        else _left_out(recorded, cut.steps[cut.steps < trained], kept_steps, parts.step[warmup:]),
    )
    sample = cut.sample(whole.measured.step)
    calls = _calls(world_size, [stretch(trace, sample) for trace in recorded], ranks, clocks)
    numbers = common_steps(calls.parts)
    numbers = numbers[steps_in(numbers, sample)]
    parts = _trained_parts(calls.parts, numbers, trained, merged)
    return replace(calls.world(parts, 0, 0), whole=whole)


def _left_out(
    recorded: list[Trace], steps: Ints, kept_steps: Ints, measured_steps: Ints
) -> LeftOut:
    """Counts the measured steps that are not kept, and computes the mean of all measured steps.

    All steps before the first of ``measured_steps`` are warm-up.
    """
    steps = steps[steps >= measured_steps[0]]
    slowest: Floats = np.zeros(len(steps))
    for trace in recorded:
        of_rank = columns.steps(trace)
        rows = np.searchsorted(of_rank.index, steps)
        np.maximum(slowest, (of_rank.end_ns - of_rank.begin_ns)[rows], out=slowest)
    left_out = int((~np.isin(steps, kept_steps, assume_unique=True)).sum())
    return LeftOut(left_out, float(slowest.mean()))


@dataclass(frozen=True)
class _Calls:
    ranks: list[int]
    recorded: list[Trace]
    traces: list[Trace]
    tables: Sequence[Collectives]
    matching: Matching
    parts: list[BlockParts]
    clocks_shared: bool
    clock_error_us: float

    def signatures(self, step: Ints) -> npt.NDArray[np.uint64]:
        steps = columns.steps(self.traces[0])
        return step_signatures(steps, self.tables[0])[np.isin(steps.index, step)]

    def world(self, parts: RankParts, warmup: int, merged: int) -> MeasuredWorld:
        return MeasuredWorld(
            ranks=self.ranks,
            recorded=self.recorded,
            traces=self.traces,
            parts=parts,
            warmup=warmup,
            merged=merged,
            clocks_shared=self.clocks_shared,
            clock_error_us=self.clock_error_us,
            left_out=None,
            tables=self.tables,
            matching=self.matching,
        )


def _calls(
    world_size: int,
    recorded: list[Trace],
    ranks: list[int],
    clocks: Sequence[ClockMap] | None = None,
) -> _Calls:
    """Matches the calls of all ranks, and splits each rank's complete steps into their parts.

    ``clocks``: maps to rank 0's clock; None to fit them to these traces.
    """
    traces = [on_device_timeline(trace) for trace in recorded]
    clocks = clocks or rank_clocks(traces)
    clock_error = clock_error_us(clocks, traces)
    traces = on_common_clock(traces, clocks) if clocks else traces
    blocks, waits = joined(traces), list[Waiting]()
    tables = tables_of(traces, columns.collectives)
    matching = match(traces, tables)
    known = match_arrivals(matching, traces, tables) if clocks else None
    for block in blocks:
        calls = block.join_calls(tables[block.places])
        block.find_exposures(calls)
        exposed = exposures_of(block.trace)
        if known:
            waits.append(split(exposed, calls, block.arrivals(known[block.places])))
        else:
            waits.append(not_split(exposed))
        del calls, exposed
    began: list[Origins | None] = [None] * len(blocks)
    if known:
        known = [of_rank.without_times() for of_rank in known]
        began = [*origins(traces, tables, known, blocks, waits)]
    del known
    parts: list[BlockParts] = []
    for block, waiting, began_at in zip(blocks, waits, began, strict=True):
        calls = block.join_calls(tables[block.places])
        whole = of_split(block.trace, calls, waiting, world_size, began_at)
        parts.append(BlockParts(whole, block.steps))
        block.hand_tables_to(traces[block.places])
    del waits, began
    return_free_memory()
    clocks_shared = clocks is not None
    return _Calls(ranks, recorded, traces, tables, matching, parts, clocks_shared, clock_error)


def slowest_ns(parts: Sequence[Breakdown]) -> Floats:
    """Wall time of the slowest rank, per step."""
    slowest: Floats = RankParts.of(parts).table("wall").max(axis=0)
    return slowest


def _trained_steps(trace: Trace) -> int:
    """Number of steps before a workload measures overhead; ``sys.maxsize`` for a script."""
    job = trace.metadata.get("job")
    steps = job.get("steps") if isinstance(job, dict) else None
    return steps if isinstance(steps, int) else sys.maxsize


def _trained_parts(
    blocks: Sequence[BlockParts], numbers: Ints, trained: int, merged: set[int]
) -> RankParts:
    return parts_of(blocks, _trained_steps_of(numbers, trained, merged))


def _trained_steps_of(numbers: Ints, trained: int, merged: set[int]) -> Ints:
    return numbers[(numbers < trained) & ~np.isin(numbers, list(merged))]
