"""Computes the results of a run at one world size, that is, one number of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from commprof.analysis.align.device_timeline import (
    clock_error_ns,
    timed_collectives,
)
from commprof.analysis.checks.cross_checks import cross_checks, theory_checks
from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.checks.losses import differing_weights, global_losses
from commprof.analysis.collectives.apart import TrainedApart, trained_apart
from commprof.analysis.collectives.calls import assumes_threads
from commprof.analysis.collectives.compression import CompressionRow, compression_rows
from commprof.analysis.collectives.devices import kernel_times
from commprof.analysis.collectives.host_links import HostLinks, host_links
from commprof.analysis.collectives.in_flight import TimeInFlight, times_in_flight
from commprof.analysis.collectives.kinds import CollectiveRow, collective_rows
from commprof.analysis.collectives.sharding import Sharding, sharding
from commprof.analysis.evidence import Evidence, Figure, evidence_of
from commprof.analysis.late.costs import LongerPhase, WaitCost, longer_phase, wait_costs
from commprof.analysis.late.functions import GrownFunctions, grown_functions
from commprof.analysis.late.lines import LongerLines, longer_lines
from commprof.analysis.late.stragglers import (
    LateRank,
    few_steps,
    late_rank,
    late_rank_of_few_steps,
    of_ranks,
)
from commprof.analysis.named_cause import NamedCause
from commprof.analysis.rank_summary import (
    RankSummary,
    StepParts,
    mean_parts,
    rank_summary,
    samples_trained,
)
from commprof.analysis.replay.gains import Gains, gains
from commprof.analysis.step.breakdown import Breakdown, caused_in_all
from commprof.analysis.step.exposure import NO_CORE
from commprof.analysis.step.measured import (
    MeasuredWorld,
    Observed,
    backward_passes,
    median_per_step,
    slowest_ns,
)
from commprof.analysis.step.overhead import Overhead, overhead
from commprof.analysis.step.stalls import stalled
from commprof.trace import columns, schema
from commprof.trace.columns import Ints
from commprof.trace.exchanged import exchanged_by
from commprof.trace.found_steps import DECLARED
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun, run_of
from commprof.trace.schema import Phase
from commprof.units import ms_to_ns, ns_to_ms, ns_to_us, us_to_ns


@dataclass(frozen=True)
class Repeats:
    """Numbers of backward passes, optimizer updates and DDP's gradient exchanges in a step.

    Each number is the median over the measured steps of one rank; 0 if not recorded.
    """

    backward_passes: int = 0
    updates: int = 0
    #: Number of backward passes at whose end DDP waited for its buckets.
    exchanges: int = 0

    @property
    def sentences(self) -> list[str]:
        """Sentences on updates or backward passes that occur more than once per step."""
        found = []
        if self.updates > 1:
            found.append(
                f"A step has {self.updates} optimizer updates, for example of several "
                "optimizers; the optimizer's time includes all updates."
            )
        if self.updates and self.backward_passes > self.updates:
            text = (
                f"A step has {self.backward_passes} backward passes before "
                f"{'its update' if self.updates == 1 else f'{self.updates} updates'}: gradients "
                "are accumulated."
            )
            if 0 < self.exchanges < self.backward_passes:
                text += (
                    f" DDP exchanges them in {self.exchanges} of these {self.backward_passes} "
                    "passes."
                )
            found.append(text)
        return found


def repeats(trace: Trace, measured_steps: Ints) -> Repeats:
    """Counts backward passes, updates and DDP's gradient exchanges in one rank's measured steps."""
    steps, phases = columns.steps(trace), columns.phases(trace)
    updates = phases.begin_ns[phases.key == Phase.OPTIMIZER]
    exchanges = columns.finalizations(trace).span.begin_ns
    return Repeats(
        backward_passes(trace, measured_steps),
        median_per_step(steps, measured_steps, updates),
        median_per_step(steps, measured_steps, exchanges),
    )


@dataclass(frozen=True)
class WorldResult:
    """Figures of all ranks of one world size over the measured steps."""

    world_size: int
    #: Number of trained steps; the first ``warmup_steps`` are left out of all figures.
    steps: int
    warmup_steps: int
    #: Samples of all ranks divided by the time of the slowest of ``ranks``, in measured steps. NaN
    #: if the samples of a rank are unknown, for example if it left neither a trace nor an account.
    samples_per_s: float
    #: Fewest and most samples of a step, over all ranks; NaN without the loop's account.
    samples_per_step: tuple[float, float]
    #: Median, 95th percentile and quartiles over steps of the slowest rank's wall time.
    step_median_ms: float
    step_p95_ms: float
    step_quartiles_ms: tuple[float, float]
    #: Mean over ranks and steps.
    parts: StepParts
    #: Largest divided by mean own work (step less exposed) of the ranks, less 1.
    imbalance: float
    #: Mean over ranks of the last epoch's mean loss.
    average_loss: float
    #: Figures per rank.
    ranks: tuple[RankSummary, ...]
    late_rank: LateRank | None
    overhead: Overhead | None
    #: Median number of records per step of rank 0.
    records_per_step: float
    #: Cost of one record, measured in rank 0 at the end of the run.
    record_cost_ns: float
    #: Steps after training that measure commprof's cost: label (see ``overhead.Samples``), wall
    #: time of the slowest rank and CPU time of all ranks' training threads, in ns; the CPU time is
    #: NaN if a rank did not report it.
    overhead_samples: tuple[tuple[str, float, float], ...]
    missing_ranks: tuple[int, ...]
    dropped_records: int
    #: Number of collectives on a GPU.
    device_collectives: int
    #: True if the ranks' times can be compared.
    clocks_shared: bool
    #: Bound on the error of a rank's clock against rank 0's; 0 on a shared clock, NaN if unknown.
    clock_error_us: float
    problems: tuple[str, ...]
    #: Comparisons of the figures with other measurements of the same run.
    cross_checks: tuple[CrossCheck, ...]
    #: Decides which figures the recordings support; the others are NaN, None or empty.
    evidence: Evidence
    #: Event that ends a step: "declared" by the script, an optimizer's "update", or "backward".
    steps_end: str = DECLARED
    #: Kinds of collectives, the most exposed time first.
    collectives: tuple[CollectiveRow, ...] = ()
    #: Sorted by scheme and bucket; empty without a compressor.
    compression: tuple[CompressionRow, ...] = ()
    #: Number of steps left out because they hold several iterations in one.
    merged_steps: int = 0
    #: Counts of the first rank that left a trace.
    repeats: Repeats = field(default_factory=Repeats)
    #: Why no DDP model exchanged its gradients by DDP's own all-reduce, which a trial needs, as a
    #: clause; empty if one did.
    no_ddp: str = ""
    #: Source of the sample counts: the training "loop", the "dataloader", or "" for none.
    samples_source: str = "loop"
    #: True if a trace lacks a gloo group's number of threads, so that torch's default is assumed.
    gloo_threads_assumed: bool = False
    #: Number of ``device_collectives`` whose completion or waiting a device event timed.
    device_timed: int = 0
    #: Bound on the error of device times against the host's clock; NaN if they were not compared.
    device_clock_error_us: float = math.nan
    #: Mean loss over all ranks' samples per trained step, and the number of these samples; empty
    #: without the account of every rank.
    step_losses: tuple[float, ...] = ()
    step_samples: tuple[int, ...] = ()
    #: Ranks whose weights after training differ from most ranks' weights, if all must be equal.
    weights_differ: tuple[int, ...] = ()
    #: Times in flight per operation.
    times_in_flight: tuple[TimeInFlight, ...] = ()
    #: Number and wall time in ms (slowest rank) of steps that stalled, see ``mean_step.stalled``.
    #: They are in the means above, but are left out of the verdict and the late rank.
    stalled_steps: tuple[tuple[int, float], ...] = ()
    #: Ranks or parameters that are trained without an exchange of gradients; None if there are
    #: none, or if too little is known to say so.
    apart: TrainedApart | None = None
    #: None if all ranks ran on one host, or the hosts are unknown.
    host_links: HostLinks | None = None
    #: True if another profiler recorded the run.
    foreign: bool = False
    #: Gains of replayed changes; None if the steps cannot be replayed.
    gains: Gains | None = None
    #: None if no parameters are sharded.
    sharding: Sharding | None = None
    #: Waiting per rank and cause; adds up to ``parts.wait_ms``. Empty if arrivals are not known.
    wait_costs: tuple[WaitCost, ...] = ()
    #: None if the kernel's counters show no phase that is longer on one rank than on the others.
    longer_phase: LongerPhase | None = None
    #: Lines of the script between which the late rank's phases take longer; empty without stacks.
    longer_lines: tuple[LongerLines, ...] = ()
    #: Functions in which the late rank takes longer; None without a late rank or samples.
    grown_functions: GrownFunctions | None = None
    #: Causes of the catalogue that the recordings show, those that make the result of training
    #: wrong first, then those whose fix wins most.
    named_causes: tuple[NamedCause, ...] = ()

    @property
    def measured_steps(self) -> int:
        """Number of steps that the figures are based on."""
        return self.steps - self.warmup_steps

    @property
    def relative_spread(self) -> float:
        """Interquartile range of the step divided by its median; NaN without a median above 0."""
        low, high = self.step_quartiles_ms
        return (high - low) / self.step_median_ms if self.step_median_ms > 0 else math.nan

    def known(self, name: str) -> list[float]:
        """Returns the field ``name`` of each rank in ``ranks``; leaves out unknown values (NaN)."""
        values = [getattr(rank, name) for rank in self.ranks]
        return [value for value in values if not math.isnan(value)]

    @property
    def unlisted_exposed_ms(self) -> float:
        """Exposed time per step that is in no row of ``collectives``.

        In this time, the training thread waited for a collective that was not recorded or was
        issued in another step, or it stood still although every recorded collective was complete.
        """
        return self.parts.exposed_ms - sum(row.exposed_ms for row in self.collectives)


def world_result(run: WorldRun, seen: MeasuredWorld) -> WorldResult:
    """Computes the figures of one world size.

    Losses and commprof's own cost come from the account that the built-in training loop writes on
    each rank (``rank_N.json``). Without this account (in a user's own loop, or if a rank was
    killed) they are NaN, and samples are counted from the batches that DataLoaders returned.
    """
    traces, tables, measured = seen.traces, seen.tables, seen.measured
    observed = [Observed(*x) for x in zip(traces, tables, measured, strict=True)]
    step = measured[0].step
    summary = _summarise(run, seen)
    kernels = kernel_times(seen.matching, traces, tables, step, seen.clocks_shared)
    foreign = seen.recorded[0].is_foreign
    checks = () if foreign else (*cross_checks(run, observed), *theory_checks(run, observed))
    result = replace(
        summary,
        ranks=tuple(replace(r, kernels=k) for r, k in zip(summary.ranks, kernels, strict=True)),
        foreign=foreign,
        collectives=collective_rows(seen.matching, traces, tables, step, seen.clocks_shared),
        times_in_flight=times_in_flight(traces, tables, step),
        compression=compression_rows(traces, step, run.world_size),
        steps_end=seen.steps.source,
        merged_steps=seen.merged,
        repeats=Repeats() if foreign else repeats(traces[0], step),
        no_ddp="" if foreign else _no_ddp(seen.recorded),
        apart=None if foreign else _apart(run, seen),
        gloo_threads_assumed=any(assumes_threads(trace) for trace in traces),
        host_links=None if foreign else host_links(run.world_size, observed),
        cross_checks=checks,
        device_timed=sum(timed_collectives(trace) for trace in seen.recorded),
        device_clock_error_us=_device_clock_error_us(seen.recorded),
        sharding=None if foreign else sharding(seen, str(run_of(run.directory, run.world_size))),
        wait_costs=wait_costs(measured),
        longer_phase=longer_phase(seen.ranks, measured),
        gains=gains(seen),
    )
    result = replace(result, **_late_rank(seen, result), evidence=_with_costs(result))
    result = _supported(result)
    late = result.late_rank
    if late is None:
        return result
    return replace(
        result,
        longer_lines=longer_lines(late.rank, seen),
        grown_functions=grown_functions(late.rank, run, seen),
    )


def _apart(run: WorldRun, seen: MeasuredWorld) -> TrainedApart | None:
    """Returns ``WorldResult.apart``; None if records are missing that may show an exchange."""
    if any(trace.dropped for trace in seen.recorded):
        return None
    by_python = any(trace.metadata.get("capture") == "python" for trace in seen.recorded)
    found = [exchanged_by(trace) for trace in seen.recorded]
    return trained_apart(found, run.world_size, sees_all=not by_python)


def _no_ddp(traces: Sequence[Trace]) -> str:
    """Returns ``WorldResult.no_ddp``, from what the ranks recorded."""
    sources = [trace.metadata.get("cross_check_sources", {}) for trace in traces]
    logs = [log for each in sources for log in each.get("ddp_logs", ())]
    own = [str(log.get("own_exchange") or "") for log in logs if isinstance(log, dict)]
    if own and all(own):
        return f"{own[0]} exchanges the gradients instead of DDP's all-reduce"
    by_ddp = (columns.finalizations(trace).span.key for trace in traces)
    buckets = (columns.buckets(trace).index for trace in traces)
    if any(map(len, by_ddp)) or any(map(len, buckets)):
        return ""
    return "no DDP model exchanged gradients in this run"


def _with_costs(result: WorldResult) -> Evidence:
    """Returns the evidence, with the rank that caused most waiting."""
    shares: dict[int, float] = {}
    for cost in result.wait_costs:
        shares[cost.rank] = shares.get(cost.rank, 0.0) + cost.share
    most = max(shares, key=lambda rank: shares[rank], default=-1)
    found = result.evidence
    return replace(found, most_waited_for=most, most_waited_share=shares.get(most, math.nan))


def _supported(result: WorldResult) -> WorldResult:
    """Returns the result without the figures that the recordings do not support."""
    evidence, changes = result.evidence, dict[str, Any]()
    if not evidence.supports(Figure.EXPOSED):
        unknown = StepParts.unseen if evidence.supports(Figure.PARTS) else StepParts.unknown
        changes |= {
            "ranks": tuple(replace(rank, parts=unknown(rank.parts)) for rank in result.ranks),
            "parts": unknown(result.parts),
            "imbalance": math.nan,
            "sharding": None,
            "collectives": tuple(replace(row, exposed_ms=math.nan) for row in result.collectives),
        }
    if not evidence.supports(Figure.LATE):
        changes |= {"late_rank": None}
    if not evidence.supports(Figure.SPLIT):
        changes |= {"wait_costs": ()}
    if not evidence.supports(Figure.PARTS):
        changes |= {"longer_phase": None}
    if not evidence.supports(Figure.CALLS):
        rows = changes.get("collectives", result.collectives)
        changes |= {"collectives": tuple(map(CollectiveRow.untimed, rows)), "times_in_flight": ()}
    return replace(result, **changes)


def _late_rank(seen: MeasuredWorld, result: WorldResult) -> dict[str, Any]:
    """Returns the values of ``WorldResult.late_rank`` and ``WorldResult.stalled_steps``, by name.

    Only the steps that did not stall are searched for a late rank.
    """
    slowest = slowest_ns(seen.measured)
    hung = stalled(slowest)
    step_ns, error_ns = ms_to_ns(result.step_median_ms), us_to_ns(_between_ranks_us(seen))
    caused = caused_in_all(seen.measured, ~hung)
    by_waiting = np.zeros((result.world_size, result.world_size))
    for rank, part in zip(seen.ranks, seen.measured, strict=True):
        by_waiting[rank] = part.caused[np.flatnonzero(~hung)].by_rank_ns(without=NO_CORE)
    if result.foreign and few_steps(waited_for := of_ranks(caused), by_waiting):
        late = late_rank_of_few_steps(waited_for, step_ns, error_ns, by_waiting)
        if late is not None and late.late_steps < late.measured_steps:
            late = None  # some rank is the last in each step; only the same one in all says more
    else:
        own = np.stack([part.by_origin_ns[:, ~hung] for part in seen.measured])
        late = late_rank(caused, by_waiting, own, seen.ranks, step_ns, error_ns)
    if late is not None and late.phase == "other" and any(_lacks_phases(p) for p in seen.measured):
        late = replace(late, phase=None, phase_share=math.nan)  # "other" includes unknown phases
    stalls = zip(seen.measured[0].step[hung].tolist(), slowest[hung].tolist(), strict=True)
    return {
        "late_rank": late,
        "stalled_steps": tuple((step, ns_to_ms(ns)) for step, ns in stalls),
    }


def _lacks_phases(part: Breakdown) -> bool:
    """True if kernels of the rank's device ran whose phase is not known."""
    return bool((part.unphased_compute_ns > 0).any())


def _summarise(run: WorldRun, seen: MeasuredWorld) -> WorldResult:
    usable, parts, measured = seen.ranks, seen.parts, seen.measured
    slowest = slowest_ns(measured)
    median_ns, p95_ns, low_ns, high_ns = (
        np.percentile(slowest, [50, 95, 25, 75]) if len(slowest) else [np.nan] * 4
    )
    ranks = tuple(
        rank_summary(run, rank, part) for rank, part in zip(usable, measured, strict=True)
    )
    own_work = np.array([rank.parts.own_work_ms for rank in ranks])
    duration_s = max(rank.duration_s for rank in ranks)
    counted = _samples(run, ranks, measured[0].step)
    labelled = _overhead_samples(run)
    losses, samples = global_losses(run)
    return WorldResult(
        world_size=run.world_size,
        steps=len(parts[0].step),
        warmup_steps=seen.warmup,
        samples_per_s=counted / duration_s if duration_s > 0 else math.nan,
        samples_per_step=_samples_per_step(run, measured[0].step.tolist()),
        step_median_ms=ns_to_ms(median_ns),
        step_p95_ms=ns_to_ms(p95_ns),
        step_quartiles_ms=(ns_to_ms(low_ns), ns_to_ms(high_ns)),
        parts=mean_parts([rank.parts for rank in ranks]),
        imbalance=float(own_work.max() / own_work.mean() - 1) if own_work.mean() > 0 else 0.0,
        average_loss=float(np.mean([rank.average_loss for rank in ranks])),
        ranks=ranks,
        late_rank=None,
        overhead=overhead(labelled),
        records_per_step=_records_per_step(run, usable[0], measured[0]),
        record_cost_ns=float(run.results.get(usable[0], {}).get("record_cost_ns", math.nan)),
        overhead_samples=labelled,
        missing_ranks=tuple(r for r in range(run.world_size) if r not in usable),
        dropped_records=sum(trace.dropped for trace in run.traces.values()),
        device_collectives=sum(_on_device(trace) for trace in run.traces.values()),
        clocks_shared=seen.clocks_shared,
        clock_error_us=seen.clock_error_us,
        problems=run.problems,
        cross_checks=(),
        evidence=evidence_of(seen),
        samples_source="" if math.isnan(counted) else _samples_source(run, ranks),
        step_losses=losses,
        step_samples=samples,
        weights_differ=differing_weights(run),
    )


def _samples(run: WorldRun, ranks: tuple[RankSummary, ...], steps: Ints) -> float:
    """Returns the samples of all ranks in these steps; NaN if a rank's samples are unknown.

    For a rank without a trace, the number of samples comes from the file ``rank_N.json`` that the
    built-in training loop writes on each rank.
    """
    recorded = {rank.rank: rank.samples for rank in ranks}
    others = [rank for rank in range(run.world_size) if rank not in recorded]
    if any(rank not in run.results for rank in others):
        return math.nan
    by_account = (samples_trained(run.results[rank], steps) for rank in others)
    return sum(recorded.values()) + sum(by_account)


def _samples_source(run: WorldRun, ranks: tuple[RankSummary, ...]) -> str:
    return "loop" if all(rank.rank in run.results for rank in ranks) else "dataloader"


def _overhead_samples(run: WorldRun) -> tuple[tuple[str, float, float], ...]:
    """Returns label, wall time and CPU time (ns) of each step that measures commprof's cost.

    See ``WorldResult.overhead_samples`` for the three values.

    All ranks switch capture on or off at the same steps, so the ranks' lists are joined by
    position. Empty if a rank left no ``rank_N.json``.
    """
    if len(run.results) < run.world_size:
        return ()
    found = []
    accounts = run.results.values()
    per_rank = [result.get("overhead_cpu_ns") for result in accounts]
    for index, rows in enumerate(zip(*(one["overhead"] for one in accounts), strict=False)):
        cpu = [one[index] for one in per_rank if one is not None and index < len(one)]
        total = float(sum(cpu)) if len(cpu) == len(rows) else math.nan
        found.append((str(rows[0][0]), float(max(row[1] for row in rows)), total))
    return tuple(found)


def _records_per_step(run: WorldRun, rank: int, part: Breakdown) -> float:
    steps = columns.steps(run.traces[rank])
    times = run.traces[rank].records["timestamp_ns"]
    chosen = np.isin(steps.index, part.step)
    begin = np.searchsorted(times, steps.begin_ns[chosen].astype(np.uint64))
    end = np.searchsorted(times, steps.end_ns[chosen].astype(np.uint64))
    return float(np.median(end - begin)) if len(begin) else 0.0


def _samples_per_step(run: WorldRun, steps: list[int]) -> tuple[float, float]:
    if len(run.results) < run.world_size or not steps:
        return math.nan, math.nan
    totals = [
        sum(result["step_samples"][step] for result in run.results.values()) for step in steps
    ]
    return float(min(totals)), float(max(totals))


def _between_ranks_us(seen: MeasuredWorld) -> float:
    """Bound in µs on the error of time differences between ranks, device clock errors included."""
    on_devices = 2 * _device_clock_error_us(seen.recorded)
    return seen.clock_error_us + (0.0 if math.isnan(on_devices) else on_devices)


def _device_clock_error_us(traces: list[Trace]) -> float:
    known = [error for trace in traces if not math.isnan(error := clock_error_ns(trace))]
    return ns_to_us(max(known)) if known else math.nan


def _on_device(trace: Trace) -> int:
    flags = columns.of_kind(trace.records, schema.Kind.ISSUE)["flags"]
    return int((flags & schema.FLAG_DEVICE_ASYNC != 0).sum())
