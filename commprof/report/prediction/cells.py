"""Table cells of a prediction: its scenario, and figures with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from commprof.forecast.replay.scenario import Estimate, Scenario
from commprof.report.tabulated import three_digits
from commprof.text import plain_digits, printable

AS_RUN = "as run"


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
        *(each or AS_RUN for each in (scenario.gather_dtype, scenario.reduce_dtype)),
    )


def cap_mib(cap_bytes: float) -> str:
    """Formats a bucket cap in MiB; NaN means the recorded cap, infinity means one bucket."""
    if math.isnan(cap_bytes):
        return AS_RUN
    return "all" if math.isinf(cap_bytes) else plain_digits(cap_bytes / (1 << 20))


def hook_words(hook: str | None) -> str:
    """Returns words for a DDP communication hook; None means the recorded hook, "" no hook."""
    return AS_RUN if hook is None else printable(hook) or "none"


#: Words for a field of a scenario, from its value.
_CHANGES: Final[dict[str, Callable[[Any], str]]] = {
    "bandwidth_bytes_per_s": lambda rate: f"{rate * 8e-9:.4g} Gbit/s",
    "latency_s": lambda latency: f"{latency * 1e6:.4g} µs",
    "bucket_cap_bytes": lambda cap: (
        "one bucket" if math.isinf(cap) else f"bucket cap {cap_mib(cap)} MiB"
    ),
    "hook": lambda hook: f"hook {hook_words(hook)}",
    "ranks_per_host": lambda number: f"{number:g} ranks per host",
    "cores_per_host": lambda number: f"{number:g} cores per host",
    "scaling": lambda scaling: f"{scaling} scaling",
    "algorithm": lambda algorithm: f"{algorithm} algorithm",
    "gather_dtype": lambda dtype: f"parameters gathered in {dtype}",
    "reduce_dtype": lambda dtype: f"gradients reduced in {dtype}",
    "reshard_after_forward": lambda again: f"resharding {'on' if again else 'off'}",
    "shard_ranks": lambda ranks: f"{ranks} ranks per copy of the model",
    "wrap_blocks": lambda blocks: f"{blocks} blocks wrapped together",
    "accumulate": lambda passes: f"{passes} backward pass{'' if passes == 1 else 'es'} per step",
}


def change_words(name: str, value: Any) -> str:
    """Returns words for a field of a scenario that differs from the recorded setting."""
    words = _CHANGES.get(name)
    return f"{name} {value}" if words is None else words(value)


def optional(value: float, factor: float) -> str:
    """Formats ``value * factor``; returns "as run" for NaN, which means the recorded value."""
    return AS_RUN if math.isnan(value) else plain_digits(value * factor)


def within(found: Estimate, text: Callable[[float], str], checked: bool = True) -> str:
    """Formats an estimate and its interval with ``text``; a NaN is formatted without an interval.

    ``checked`` chooses the brackets around the interval, see ``bracketed``.
    """
    if math.isnan(found.value):
        return text(found.value)
    return f"{text(found.value)} {bracketed(text(found.low), text(found.high), checked)}"


def bracketed(low: str, high: str, checked: bool) -> str:
    """Formats an interval in brackets if ``checked``, else in parentheses.

    ``checked`` is True if the interval was widened by the model's own error on held-out settings.
    """
    return f"[{low}, {high}]" if checked else f"({low} to {high})"


def within_if_wide(found: Estimate, text: Callable[[float], str]) -> str:
    """Formats an estimate, with its interval if the bounds print differently."""
    value = text(found.value)
    return value if value == text(found.low) == text(found.high) else within(found, text, False)


def ms(value_s: float) -> str:
    """Formats seconds as ms: whole numbers from 100 ms on, three significant digits below."""
    value = value_s * 1e3
    return f"{value:.0f}" if value >= 1000 else three_digits(value)
