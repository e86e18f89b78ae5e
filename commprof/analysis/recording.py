"""State of the recordings of one world size: ranks, clocks, devices, and what was lost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commprof.analysis.align.device_timeline import (
    clock_error_ns,
    device_collectives,
    timed_collectives,
)
from commprof.analysis.collectives.calls import assumes_threads
from commprof.analysis.step.measured import MeasuredSteps, MeasuredWorld
from commprof.field_groups import FieldGroup
from commprof.trace import schema
from commprof.trace.packed import in_parts
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun
from commprof.units import ns_to_ms, ns_to_us


@dataclass(frozen=True)
class WorldRecording(FieldGroup):
    """State of the recordings of one world size."""

    missing_ranks: tuple[int, ...]
    dropped_records: int
    #: Number of collectives on a GPU.
    device_collectives: int
    #: True if the ranks' times can be compared.
    clocks_shared: bool
    #: Bound on the error of a rank's clock against that of rank 0; 0 on a shared clock, NaN if
    #: unknown.
    clock_error_us: float
    problems: tuple[str, ...]
    #: Number of ``device_collectives`` whose completion or wait was timed by a device event.
    device_timed: int = 0
    #: Bound on the error of device times against the host's clock; NaN if they were not compared.
    device_clock_error_us: float = math.nan
    #: True if a trace lacks a gloo group's number of threads, so that torch's default is assumed.
    gloo_threads_assumed: bool = False
    #: True if another profiler recorded the run.
    foreign: bool = False
    #: In a long run, figures of single calls come from some stretches of steps only. These are the
    #: first and last step of each stretch. Empty if all steps are used.
    sampled_steps: tuple[tuple[int, int], ...] = ()
    #: Number of measured steps that are left out of all figures, because the run is very long.
    left_out_steps: int = 0
    #: Mean length of all steps; NaN if no step is left out.
    mean_of_all_ms: float = math.nan
    #: In a long run: pairs of an operation and the number of its calls that failed.
    failed_calls: tuple[tuple[str, int], ...] = ()

    @property
    def between_ranks_us(self) -> float:
        """Bound in µs on the error of time differences between ranks, device clocks included."""
        on_devices = 2 * self.device_clock_error_us
        return self.clock_error_us + (0.0 if math.isnan(on_devices) else on_devices)


def world_recording(run: WorldRun, seen: MeasuredWorld) -> WorldRecording:
    """Returns the state of the recordings of one world size."""
    whole = seen.all_steps
    return WorldRecording(
        missing_ranks=tuple(sorted(set(range(run.world_size)).difference(seen.ranks))),
        dropped_records=sum(trace.dropped for trace in run.traces.values()),
        device_collectives=sum(map(device_collectives, run.traces.values())),
        clocks_shared=seen.clocks_shared,
        clock_error_us=whole.clock_error_us,
        problems=run.problems,
        device_timed=sum(timed_collectives(trace) for trace in whole.recorded),
        device_clock_error_us=_device_clock_error_us(whole.recorded),
        gloo_threads_assumed=any(assumes_threads(trace) for trace in whole.traces),
        foreign=seen.recorded[0].is_foreign,
        sampled_steps=() if whole is seen else _stretches(seen, whole),
        left_out_steps=0 if whole.left_out is None else whole.left_out.steps,
        mean_of_all_ms=math.nan if whole.left_out is None else ns_to_ms(whole.left_out.mean_ns),
        failed_calls=() if whole is seen else _failed_calls(whole.recorded),
    )


def _stretches(sample: MeasuredSteps, whole: MeasuredSteps) -> tuple[tuple[int, int], ...]:
    """Returns the first and last step number of each stretch of consecutive steps in a sample."""
    step = sample.measured.step
    places = np.searchsorted(whole.measured.step, step)
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    return tuple((int(part[0]), int(part[-1])) for part in np.split(step, cuts))


def _failed_calls(traces: list[Trace]) -> tuple[tuple[str, int], ...]:
    failed = np.zeros(256, dtype=np.int64)
    for trace in traces:
        for op, flags in in_parts(trace.records, schema.Kind.END, "op", "flags"):
            failed += np.bincount(op[flags & schema.FLAG_FAILED != 0], minlength=256)
    return tuple((schema.op_name(op), int(failed[op])) for op in np.flatnonzero(failed).tolist())


def _device_clock_error_us(traces: list[Trace]) -> float:
    known = [error for trace in traces if not math.isnan(error := clock_error_ns(trace))]
    return ns_to_us(max(known)) if known else math.nan
