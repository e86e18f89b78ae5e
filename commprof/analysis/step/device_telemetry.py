"""Utilisation, clock, power and throttling of a rank's GPU, as NVML said while capture ran."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commprof.analysis.align.interfaces import own_metadata
from commprof.trace.reader import Trace


@dataclass(frozen=True)
class DeviceTelemetry:
    """One GPU over all samples; NaN for what the driver did not say."""

    samples: int
    #: Share of the time in which any kernel ran, in percent. A kernel of NCCL that waits runs too.
    utilisation_percent: float
    sm_clock_mhz: float
    least_sm_clock_mhz: float
    power_w: float
    #: At most, of everybody on this GPU.
    memory_used_bytes: float
    #: Shares of the samples in which this held the clock down; empty if the driver did not say.
    limited: Mapping[str, float]


def device_telemetry(trace: Trace) -> DeviceTelemetry | None:
    """Returns what one rank's trace says; None where nothing was read."""
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
