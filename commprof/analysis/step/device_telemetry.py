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
    if not (samples := int(_number(found, "samples", 0))):
        return None
    read = _number(found, "limits_read", 0)
    limited = found.get("limited")
    named = limited if isinstance(limited, dict) and read > 0 else {}
    return DeviceTelemetry(
        samples=samples,
        utilisation_percent=_figure(found, "utilisation_percent", "mean"),
        sm_clock_mhz=_figure(found, "sm_clock_mhz", "mean"),
        least_sm_clock_mhz=_figure(found, "sm_clock_mhz", "least"),
        power_w=_figure(found, "power_w", "mean"),
        memory_used_bytes=_figure(found, "memory_used_bytes", "most"),
        limited={str(name): _number(named, name, 0) / read for name in named},
    )


def _figure(found: Mapping[str, Any], name: str, which: str) -> float:
    figure = found.get(name)
    return _number(figure, which, math.nan) if isinstance(figure, dict) else math.nan


def _number(found: Mapping[str, Any], name: str, missing: float) -> float:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else missing
