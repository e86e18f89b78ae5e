"""Kernel times per step of each rank's device, and telemetry of each rank's GPU.

Kernel times are known if the recording holds a device's kernels. Communication is the time in which
at least one communication kernel ran. Compute is the time in which at least one other kernel ran.
Copies is the time in which copies or fills of memory ran, but no compute and no exposed
communication. So

    exposed communication + compute + copies + idle = step

A communication kernel waits until the last rank has begun, and transfers from then on. If it is
unknown when the last rank began, the kernel's time is unsplit. If communication kernels do not
overlap each other,

    communication = wait + transfer + unsplit

The rules are in :mod:`commprof.trace.device_activity`.

Telemetry is the utilisation, clock, power and throttling that NVML reported during capture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.interfaces import own_metadata
from commprof.analysis.align.matching import Matching
from commprof.analysis.collectives.calls import CallTimes, calls_of
from commprof.analysis.step.device_times import device_times
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import is_in, rows_of
from commprof.trace.reader import Trace
from commprof.units import ns_to_ms


@dataclass(frozen=True)
class KernelTimes:
    """Kernel times of one rank: means per measured step, in milliseconds."""

    #: Time in which communication kernels ran, whether or not other kernels ran too.
    communication_ms: float
    #: Time in which other kernels ran.
    compute_ms: float
    #: Time in which any kernel ran.
    busy_ms: float
    #: Time without kernels, copies and fills of memory.
    idle_ms: float
    #: Time of communication kernels until the last rank had begun, summed over kernels that may
    #: overlap; NaN if unknown.
    wait_ms: float
    #: Time of communication kernels after the last rank had begun, as a sum like ``wait_ms``; NaN
    #: if unknown.
    transfer_ms: float
    #: Time of communication kernels for which the last rank's begin is unknown.
    unsplit_ms: float
    #: Time in which copies or fills of memory ran, but no compute and no exposed communication.
    copies_ms: float


def kernel_times(
    matching: Matching,
    traces: Sequence[Trace],
    tables: Sequence[Collectives],
    measured_steps: Ints,
    clocks_shared: bool,
) -> list[KernelTimes | None]:
    """Returns kernel times per rank; None without kernels in its trace, or measured steps."""
    if all(trace.device_activity is None for trace in traces) or len(measured_steps) == 0:
        return [None] * len(traces)
    calls = calls_of(matching, traces, tables, measured_steps, clocks_shared)
    ranks = [trace.rank for trace in traces]
    first, end = (np.searchsorted(calls.rank, ranks, side).tolist() for side in ("left", "right"))
    return [
        None
        if trace.device_activity is None
        else _of_rank(trace, rows_of(calls.times, slice(*of_rank)), measured_steps)
        for trace, *of_rank in zip(traces, first, end, strict=True)
    ]


def _of_rank(trace: Trace, calls: CallTimes, measured: Ints) -> KernelTimes:
    steps, ran = columns.steps(trace), device_times(trace)
    chosen = is_in(steps.index, measured)
    count = int(chosen.sum())

    def mean_ms(part_ns: npt.NDArray[np.float64]) -> float:
        return ns_to_ms(float(part_ns[chosen].sum())) / count

    copies_ms, communication_ms = mean_ms(ran.copies_ns), mean_ms(ran.communication_ns)
    run_ms = mean_ms(ran.exposed_ns) + mean_ms(ran.compute_ns) + copies_ms
    wall_ms = ns_to_ms(float((steps.end_ns - steps.begin_ns)[chosen].sum())) / count
    known = ~np.isnan(calls.wait_ns)
    any_known = bool(known.any())
    is_recorded = not math.isnan(communication_ms)
    unsplit_ns = np.nansum(calls.duration_ns[~known])
    return KernelTimes(
        communication_ms=communication_ms,
        compute_ms=mean_ms(ran.compute_ns),
        busy_ms=mean_ms(ran.kernels_ns),
        idle_ms=max(0.0, wall_ms - run_ms) if is_recorded else math.nan,
        wait_ms=ns_to_ms(float(calls.wait_ns[known].sum())) / count if any_known else math.nan,
        transfer_ms=ns_to_ms(float(calls.transfer_ns[known].sum())) / count
        if any_known
        else math.nan,
        unsplit_ms=ns_to_ms(float(unsplit_ns)) / count if is_recorded else math.nan,
        copies_ms=copies_ms,
    )


@dataclass(frozen=True)
class DeviceTelemetry:
    """Telemetry of one GPU over all samples; NaN for figures that the driver did not report."""

    samples: int
    #: Percentage of the time in which any kernel ran. A waiting kernel of NCCL counts as running.
    utilisation_percent: float
    sm_clock_mhz: float
    least_sm_clock_mhz: float
    power_w: float
    #: Largest memory use by all processes on this GPU.
    memory_used_bytes: float
    #: For each reason, the fraction of samples in which the reason limited the clock; empty if not
    #: reported.
    limited: Mapping[str, float]


def device_telemetry(trace: Trace) -> DeviceTelemetry | None:
    """Returns the GPU telemetry of one rank's trace; None if nothing was sampled."""
    found = own_metadata(trace, "device_telemetry")
    if not (samples := found.get("samples", 0)):
        return None
    read = found["limits_read"]
    return DeviceTelemetry(
        samples=samples,
        utilisation_percent=_figure(found, "utilisation_percent", "mean"),
        sm_clock_mhz=_figure(found, "sm_clock_mhz", "mean"),
        least_sm_clock_mhz=_figure(found, "sm_clock_mhz", "least"),
        power_w=_figure(found, "power_w", "mean"),
        memory_used_bytes=_figure(found, "memory_used_bytes", "most"),
        limited={name: times / read for name, times in found["limited"].items() if read},
    )


def _figure(found: Mapping[str, Any], name: str, which: str) -> float:
    return (found.get(name) or {}).get(which, math.nan)
