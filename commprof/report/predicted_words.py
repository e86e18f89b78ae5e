"""Words for a predicted setting and its interval, for the report and for predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from commprof.text import plain_digits, printable

AS_RUN = "as run"


def cap_mib(cap_bytes: float) -> str:
    """Formats a bucket cap in MiB; NaN means the recorded cap, infinity means one bucket."""
    if math.isnan(cap_bytes):
        return AS_RUN
    return "all" if math.isinf(cap_bytes) else plain_digits(cap_bytes / (1 << 20))


def hook_words(hook: str | None) -> str:
    """Names a DDP communication hook. None means the recorded hook; "" means no hook."""
    return AS_RUN if hook is None else printable(hook) or "none"


#: For each field of a scenario, a function that puts the field's value into words.
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


def bracketed(low: str, high: str, checked: bool) -> str:
    """Formats an interval in brackets if ``checked``, else in parentheses.

    ``checked`` is True if the interval includes the model's error on held-out settings.
    """
    return f"[{low}, {high}]" if checked else f"({low} to {high})"
