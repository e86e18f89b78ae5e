"""Table cells of a prediction: its scenario, and figures with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

from commprof.forecast.scenario.scenario import Estimate, Scenario
from commprof.report.predicted_words import AS_RUN, bracketed, cap_mib, hook_words
from commprof.report.tabulated import three_digits
from commprof.text import plain_digits


def scenario_cells(scenario: Scenario) -> tuple[str, ...]:
    """Returns the cells of a scenario: ranks, Gbit/s, latency in µs, bucket cap in MiB, hook."""
    return (
        str(scenario.world_size),
        optional(scenario.bandwidth_bytes_per_s, 8e-9),
        optional(scenario.latency_s, 1e6),
        cap_mib(scenario.bucket_cap_bytes),
        hook_words(scenario.hook),
    )


def sharded_cells(scenario: Scenario) -> tuple[str, ...]:
    """Returns the cells of a sharded scenario: ranks, link, sharding, backward passes, dtypes."""
    again = scenario.reshard_after_forward
    return (
        *scenario_cells(scenario)[:3],
        AS_RUN if scenario.shard_ranks is None else str(scenario.shard_ranks),
        AS_RUN if scenario.wrap_blocks is None else str(scenario.wrap_blocks),
        AS_RUN if scenario.accumulate is None else str(scenario.accumulate),
        AS_RUN if again is None else "on" if again else "off",
        *(dtype or AS_RUN for dtype in (scenario.gather_dtype, scenario.reduce_dtype)),
    )


def optional(value: float, factor: float) -> str:
    """Formats ``value * factor``; returns "as run" for NaN, which means the recorded value."""
    return AS_RUN if math.isnan(value) else plain_digits(value * factor)


def within(estimate: Estimate, text: Callable[[float], str], checked: bool = True) -> str:
    """Formats an estimate with its interval; NaN gets no interval.

    ``text`` formats a number. ``checked`` chooses the brackets around the interval.
    """
    if math.isnan(estimate.value):
        return text(estimate.value)
    return f"{text(estimate.value)} {bracketed(text(estimate.low), text(estimate.high), checked)}"


def within_if_wide(estimate: Estimate, text: Callable[[float], str]) -> str:
    """Formats an estimate; leaves out an interval that rounds to one value."""
    value = text(estimate.value)
    return (
        value
        if value == text(estimate.low) == text(estimate.high)
        else within(estimate, text, False)
    )


def ms(value_s: float) -> str:
    """Formats seconds as ms: whole numbers from 100 ms on, three significant digits below."""
    value = value_s * 1e3
    return f"{value:.0f}" if value >= 1000 else three_digits(value)
