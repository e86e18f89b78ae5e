"""Readers of rates, times, numbers and lists on a command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from commprof.errors import UsageError

_Value = TypeVar("_Value")

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
#: Bytes/s of each unit; ``b`` and ``bit`` mean bits, and ``B`` means bytes. ``gb/s`` and other
#: lower-case prefixes before ``b/s`` are refused, because some people write ``gb/s`` for gigabytes.
_BYTES_PER_S = {
    spelled + unit: factor * size_bytes
    for prefix, factor in _PREFIXES.items()
    for spelled, units in (
        (prefix, {"bps": 1 / 8, "bit/s": 1 / 8, "B/s": 1.0}),
        (prefix.upper(), {"bps": 1 / 8, "bit/s": 1 / 8, "b/s": 1 / 8, "B/s": 1.0, "Bps": 1.0}),
    )
    for unit, size_bytes in units.items()
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER_AND_UNIT = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµ/]+)")


def rate(option: str, text: str) -> float:
    """Reads ``100Gbps`` (bits) or ``12.5GB/s`` (bytes) as bytes/s, or raises UsageError."""
    example = "such as 25Gbps, 100Mbps (bits) or 3GB/s (bytes)"
    return _with_unit(option, text, _BYTES_PER_S, example)


def duration(option: str, text: str) -> float:
    """Reads a time such as ``20us`` or ``1.5ms`` as seconds, or raises UsageError."""
    return _with_unit(option, text, _SECONDS, "such as 20us or 1.5ms")


def number(option: str, text: str, least: float) -> float:
    """Reads a finite number that is at least ``least``, or raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise UsageError(
            f"{option} {text!r} is out of range (allowed: a number, {least:g} or more)"
        )
    return value


def whole(option: str, text: str) -> int:
    """Reads a whole number of 1 or more, or raises UsageError."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{option} {text!r} is not a whole number of 1 or more")
    return int(text)


def listed(
    option: str, text: str | None, read: Callable[[str, str], _Value], missing: _Value
) -> list[_Value]:
    """Reads a comma-separated list; returns ``[missing]`` if the option is not given."""
    if text is None:
        return [missing]
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} {text!r} has no value")
    return [read(option, word) for word in words]


def _with_unit(option: str, text: str, units: dict[str, float], example: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    factor = units.get(match[2]) if match else None
    if match is None or factor is None or float(match[1]) <= 0:
        raise UsageError(
            f"{option} {text!r} cannot be read (allowed: a number with a unit, {example})"
        )
    return float(match[1]) * factor
