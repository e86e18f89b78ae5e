"""Schedule of a recorded run's steps, in the form that a replay needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.clocks import on_common_clock, rank_clocks
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.align.interfaces import (
    Host,
    ddp_logs,
    host_of_each,
    machine_of,
    trained_no_ddp,
)
from commprof.analysis.collectives.calls import DEFAULT_GLOO_THREADS, DEVICE_STREAMS
from commprof.analysis.step.measured import (
    count_warmup,
    in_turns,
    samples_read,
    step_signatures,
)
from commprof.errors import CommprofError
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.scenario.rank_steps import Cycle, OtherCall, cycles, other_calls
from commprof.forecast.scenario.scenario import Scenario
from commprof.recordings.profiler_steps import with_passes
from commprof.text import named_ranks
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import FLAG_DEVICE_ASYNC, FLAG_DEVICE_TIME

Floats = npt.NDArray[np.float64]

LEAST_STEPS = 3
#: Name of DDP's own mean in a trace's metadata.
_PLAIN_HOOK = "mean all-reduce"


@dataclass(frozen=True)
class Placement:
    """How ranks share hosts and cores."""

    ranks_per_host: float
    #: Cores that a host's ranks may use; fractional if containers share them.
    cores_per_host: float
    #: Intra-op threads of a rank.
    threads: int
    #: Processor time of the training thread divided by its wall time, without DDP's finalisation
    #: or, in sharded steps, without waits; NaN if unknown.
    busy: float

    @property
    def ranks_per_core(self) -> float:
        """Ranks per core, at least 1."""
        return max(1.0, self.ranks_per_host / self.cores_per_host)

    @property
    def threads_per_core(self) -> float:
        """Intra-op threads of the host's ranks, per core."""
        return self.ranks_per_host * self.threads / self.cores_per_host

    @property
    def threads_sharing(self) -> float:
        """Threads per core, at least 1."""
        return max(1.0, self.threads_per_core)

    def crowding(self) -> float:
        """Returns the processor time that ranks want, divided by the cores' time; at least 1.

        If ``busy`` is unknown, all threads are assumed to compute all the time.
        """
        return max(1.0, self.threads_per_core * self.busy_share)

    @property
    def busy_share(self) -> float:
        """``busy`` clipped to 0..1; 1 if ``busy`` is unknown."""
        return 1.0 if math.isnan(self.busy) else min(1.0, max(0.0, self.busy))

    def per_core_words(self, recorded: Placement) -> str:
        """Describes how many ranks or threads share a core, here and in ``recorded``."""
        what = "ranks" if self.threads == 1 else "threads"
        return (
            f"{self.threads_sharing:.3g} {what} per core (measured: {recorded.threads_sharing:.3g})"
        )

    def changed(self, scenario: Scenario) -> Placement:
        """Returns the placement of a scenario's ranks."""
        per_host, cores = scenario.ranks_per_host, scenario.cores_per_host
        return Placement(
            min(scenario.world_size, self.ranks_per_host if math.isnan(per_host) else per_host),
            self.cores_per_host if math.isnan(cores) else cores,
            self.threads,
            self.busy,
        )


@dataclass(frozen=True)
class StepBatch:
    """Batch of a job; unknown numbers are 0, and an unknown ``scaling`` is empty."""

    #: Samples per rank and step.
    per_rank: float
    steps_per_epoch: int
    #: "weak" or "strong".
    scaling: str


@dataclass(frozen=True)
class RecordedSteps:
    """Measured steps of one world size, of DDP or of a sharded strategy."""

    world_size: int
    #: [steps]: time from one synchronisation of the ranks to the next.
    period_s: Floats
    placement: Placement
    #: SAME_HOST or OTHER_HOST.
    link: str
    backend: str
    #: Compressor, as given to ``--hook``; empty for DDP's own mean.
    hook: str
    batch: StepBatch


@dataclass(frozen=True)
class Schedule(RecordedSteps):
    """Recorded DDP steps; times in seconds since the ranks last synchronised."""

    #: Size of each bucket, in order of issue.
    bucket_bytes: Ints
    #: [steps, ranks, buckets]: when the bucket is ready.
    ready_s: Floats
    #: [steps, ranks]: begin of backward; NaN if no phase was recorded.
    backward_begin_s: Floats
    #: [steps, ranks]: when DDP begins to wait.
    backward_end_s: Floats
    #: [steps, buckets]: when the exchange is complete on all ranks.
    end_s: Floats
    #: Time to copy gradients out of a bucket.
    copy_s_per_byte: float
    #: [steps, ranks]: time that the training thread waits for ``other_calls``.
    other_wait_s: Floats
    other_calls: tuple[OtherCall, ...]
    #: Number of all-reduces that can run at the same time.
    workers: int
    #: DDP's log of the model; empty if the trace does not have exactly one log.
    ddp_log: Mapping[str, Any]
    #: Number of DDP models. Their buckets form one sequence.
    models: int = 1

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients per step and rank."""
        return int(self.bucket_bytes.sum())


def checked_name(run: WorldRun, by: str = "a prediction", done: str = "predicted") -> str:
    """Checks that all steps of a run were timed with the same settings; returns the run's name.

    Args:
        run: one recorded world size.
        by: subject of error messages: what needs the steps.
        done: participle for error messages, such as "predicted".

    Raises:
        CommprofError: a rank is missing or only has a summary, device times were not recorded, or
            a trial switched settings between the steps.
    """
    name = f"{run.directory} ({run.world_size} ranks)"
    missing = [rank for rank in range(run.world_size) if rank not in run.traces]
    if missing:
        raise CommprofError(f"{name}: no trace of {named_ranks(missing)}; {by} needs all ranks")
    for rank, trace in sorted(run.traces.items()):
        if trace.summary is not None and not len(columns.steps(trace)):
            raise CommprofError(
                f"{name}: rank {rank} was recorded in always-on mode, which keeps no single step, "
                f"so its steps cannot be {done}; record in full mode (--mode full)"
            )
    if reason := _untimed(list(run.traces.values())):
        raise CommprofError(
            f"{name}: the waiting time of its GPUs was not recorded ({reason}), so its steps "
            f"cannot be {done}"
        )
    if in_turns(run):
        raise CommprofError(
            f"{name}: a trial switched settings between its steps; {by} needs steps of one "
            "setting: record them without --trial"
        )
    return name


def _untimed(traces: Sequence[Trace]) -> str:
    """Returns the reason why collectives on a device were not timed; "" if all were timed."""
    for trace in traces:
        reason = str(trace.metadata.get("no_device_times", ""))
        if reason and (trace.records["flags"] & FLAG_DEVICE_ASYNC).any():
            return reason
    return ""


def timed_traces(run: WorldRun) -> list[Trace]:
    """Returns the traces of a run's ranks, in rank order, with the GPUs' times if recorded.

    Traces converted from another profiler's recording also get records of backward passes.
    """
    return [on_device_timeline(with_passes(run.traces[rank])) for rank in range(run.world_size)]


def read_schedule(run: WorldRun) -> Schedule:
    """Reads the schedule of one world size.

    Raises:
        CommprofError: the run's steps cannot be predicted; the message gives the reason.
    """
    name = checked_name(run)
    recorded = timed_traces(run)
    if all(trained_no_ddp(trace) for trace in recorded):
        raise CommprofError(
            f"{name}: no model of DistributedDataParallel was trained while capture ran, so its "
            "steps cannot be predicted; record a job that trains with DDP, FSDP2, HSDP or ZeRO "
            "stage 1"
        )
    clocks = rank_clocks(recorded)
    traces = on_common_clock(recorded, clocks) if clocks else recorded
    measured = measured_steps(traces)
    by_rank = [{cycle.step: cycle for cycle in cycles(trace, measured)} for trace in traces]
    common = _common_cycles(by_rank)
    if len(common) < LEAST_STEPS:
        raise CommprofError(
            f"{name}: {len(common)} of {len(measured)} measured steps have exactly one "
            f"synchronised backward pass of DistributedDataParallel, and the most common buckets "
            f"on all ranks; a prediction needs "
            f"{LEAST_STEPS}: record more steps, or a job with one such pass per step"
        )
    times = _relative(common, clocks is not None)
    metadata, logs = traces[0].metadata, ddp_logs(traces[0])
    device = any(bool((trace.records["flags"] & FLAG_DEVICE_TIME).any()) for trace in traces)
    return Schedule(
        world_size=run.world_size,
        bucket_bytes=np.array(common[0][0].bytes, dtype=np.int64),
        **times,
        copy_s_per_byte=_copy_s_per_byte(common),
        other_wait_s=np.array([[c.other_wait_ns for c in row] for row in common]) / 1e9,
        other_calls=other_calls(traces[0], measured),
        placement=placement_of(
            traces, _median_of_known([c.cpu_share for row in common for c in row])
        ),
        link=SAME_HOST if len(hosts_of(traces)) == 1 else OTHER_HOST,
        backend=str(metadata["backend"]) or "gloo",
        workers=DEVICE_STREAMS if device else _gloo_threads(traces[0]),
        hook=hook_label(traces[0]),
        batch=batch_of(traces, measured),
        ddp_log=logs[0] if len(logs) == 1 else {},
        models=max(1, len(logs)),
    )


def measured_steps(traces: Sequence[Trace]) -> Ints:
    """Returns the indices of the steps that all ranks completed, without warm-up steps."""
    tables = [columns.steps(trace) for trace in traces]
    common = set(tables[0].index.tolist()).intersection(
        *(set(t.index.tolist()) for t in tables[1:])
    )
    trained = [trace.metadata.get("job", {}).get("steps") for trace in traces]
    last = min((steps for steps in trained if isinstance(steps, int)), default=None)
    chosen = np.array(sorted(i for i in common if last is None or i < last), dtype=np.int64)
    if len(chosen) == 0:
        return chosen
    wall = [(t.end_ns - t.begin_ns)[np.isin(t.index, chosen)] for t in tables]
    signatures = step_signatures(tables[0], columns.collectives(traces[0]))
    signatures = signatures[np.isin(tables[0].index, chosen)]
    slowest = np.max(wall, axis=0).astype(np.float64)
    return chosen[count_warmup(slowest, signatures) :]


def _common_cycles(by_rank: Sequence[dict[int, Cycle]]) -> list[list[Cycle]]:
    """Returns the steps with the most frequent bucket sizes; each has a cycle per rank."""
    steps = sorted(set(by_rank[0]).intersection(*by_rank[1:]))
    rows = [[cycles_[step] for cycles_ in by_rank] for step in steps]
    same = [row for row in rows if len({cycle.bytes for cycle in row}) == 1 and _ended(row)]
    if not same:
        return []
    usual = Counter(row[0].bytes for row in same).most_common(1)[0][0]
    return [row for row in same if row[0].bytes == usual]


def _ended(row: Sequence[Cycle]) -> bool:
    return all(end > 0 for cycle in row for end in cycle.end_ns)


def _relative(common: Sequence[Sequence[Cycle]], common_clock: bool) -> dict[str, Floats]:
    """Returns the cycles' times in s since the last rank ended the previous finalisation.

    Without a common clock, a rank's times count from the end of the rank's previous finalisation.
    """
    begin = np.array([[cycle.begin_ns for cycle in row] for row in common])
    if common_clock:
        begin = np.broadcast_to(begin.max(axis=1, keepdims=True), begin.shape)
    finalize = np.array([[cycle.finalize_ns for cycle in row] for row in common])
    backward = np.array([[cycle.backward_ns for cycle in row] for row in common])
    ready = np.array([[cycle.ready_ns for cycle in row] for row in common])
    end = np.array([[cycle.end_ns for cycle in row] for row in common])
    return {
        "ready_s": (ready - begin[:, :, None]) / 1e9,
        "end_s": (end - begin[:, :, None]).max(axis=1) / 1e9,
        "backward_begin_s": (backward - begin) / 1e9,
        "backward_end_s": (finalize[:, :, 0] - begin) / 1e9,
        "period_s": (finalize[:, :, 1] - begin).max(axis=1) / 1e9,
    }


def _copy_s_per_byte(common: Sequence[Sequence[Cycle]]) -> float:
    """Returns DDP's median time to copy gradients out of buckets, in s per byte.

    This is the time of the finalisation in which the thread was not blocked.
    """
    working = [
        max(0, c.finalize_ns[1] - c.finalize_ns[0] - c.blocked_ns) / max(1, sum(c.bytes))
        for row in common
        for c in row
    ]
    return float(np.median(working)) / 1e9


def _median_of_known(values: Sequence[float]) -> float:
    known_values = [value for value in values if not math.isnan(value)]
    return float(np.median(known_values)) if known_values else math.nan


def hosts_of(traces: Sequence[Trace]) -> list[Host]:
    """Returns the known hosts of the ranks."""
    return sorted({host for host in host_of_each(traces) if host is not None})


def placement_of(traces: Sequence[Trace], busy: float) -> Placement:
    """Returns the ranks' placement, assuming that they share hosts and cores evenly.

    ``busy`` is as in ``Placement``.
    """
    hosts = hosts_of(traces)
    machines = {host[0] for host in hosts}
    cores = machine_cpus(traces) * len(machines) / len(hosts)
    threads = max(1, int(traces[0].metadata["threads"]))
    return Placement(len(traces) / len(hosts), cores, threads, busy)


def machine_cpus(traces: Sequence[Trace]) -> int:
    """Returns the number of CPUs that the ranks of one machine may use together.

    If machines differ, the largest number is returned. If the traces do not record CPUs, one CPU
    per rank is assumed.
    """
    together: dict[str, set[int]] = {}
    for trace in traces:
        named = together.setdefault(machine_of(trace), set())
        named.update(trace.metadata["machine"].get("usable_cpus", ()))
    count = int(traces[0].metadata["machine"]["usable_cpu_count"])
    return max(count, *map(len, together.values())) or len(traces)


def _gloo_threads(trace: Trace) -> int:
    counts = [n for n in trace.metadata.get("gloo_threads", {}).values() if isinstance(n, int)]
    return max(1, min(counts, default=DEFAULT_GLOO_THREADS))


def hook_label(trace: Trace) -> str:
    """Returns the label of the compressor in the DDP hook; empty for a plain mean."""
    job = trace.metadata.get("job", {}).get("compressor", "")
    if job:
        return str(job)
    last = trace.metadata["hooks"][0].split(", then ")[-1] if trace.metadata["hooks"] else ""
    return "" if last in ("", _PLAIN_HOOK) else last


def batch_of(traces: Sequence[Trace], measured: Ints) -> StepBatch:
    """Returns the job's batch.

    If the job did not state its samples, the samples that were read from DataLoaders are counted.
    """
    job = traces[0].metadata.get("job", {})
    passes = int(job.get("training", {}).get("accumulate", 1))
    per_rank = float(job.get("per_rank_batch", 0)) * passes
    if not per_rank:
        read = [samples / len(measured) for samples in samples_read(traces, measured)]
        per_rank = 0.0 if math.isnan(sum(read)) else sum(read) / len(read)
    return StepBatch(per_rank, int(job.get("steps_per_epoch", 0)), str(job.get("scaling", "")))
