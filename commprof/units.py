"""Conversions between units. Sizes are decimal, as in nccl-tests: 1 MB = 1e6 bytes."""

from __future__ import annotations

NS_PER_US = 1e3
NS_PER_MS = 1e6
NS_PER_S = 1e9
#: The start of the year 2000, in ns since 1970. Smaller times are not dates: they count from the
#: boot of a host or from the beginning of a trace.
FIRST_DATE_NS = 946_684_800 * 10**9


def ns_to_us(value_ns: float) -> float:
    """Converts nanoseconds to microseconds."""
    return value_ns / NS_PER_US


def us_to_ns(value_us: float) -> float:
    """Converts microseconds to nanoseconds."""
    return value_us * NS_PER_US


def ns_to_ms(value_ns: float) -> float:
    """Converts nanoseconds to milliseconds."""
    return value_ns / NS_PER_MS


def ns_to_s(value_ns: float) -> float:
    """Converts nanoseconds to seconds."""
    return value_ns / NS_PER_S


def ms_to_ns(value_ms: float) -> float:
    """Converts milliseconds to nanoseconds."""
    return value_ms * NS_PER_MS
