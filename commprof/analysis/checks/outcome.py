"""What a health check says: its figure, whether that is good, and what to do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from commprof.stats.intervals import robust_deviation

#: The status of a check. A warning makes training slower or less sure, a failure makes it wrong.
PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
STATUSES = (PASS, WARN, FAIL, SKIP)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Outcome:
    """Result of one health check over all ranks."""

    #: Name of the check.
    check: str
    #: One of ``STATUSES``.
    status: str
    #: What was measured, with its unit.
    figure: str
    #: What to do about it; empty for what passes.
    advice: str = ""
    #: More figures, a line each, to be shown as they are.
    details: tuple[str, ...] = ()


def per_host(values: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Returns, by host, what its first rank found."""
    found: dict[str, _T] = {}
    for host, value in values:
        found.setdefault(host, value)
    return found


def far_off(values: Sequence[float], factor: float, deviations: float = 5.0) -> list[int]:
    """Positions of values that are far above the others.

    Above ``factor`` times the median, and above it by ``deviations`` median absolute deviations,
    scaled as for a normal distribution (Iglewicz and Hoaglin, 1993). Of fewer than five values none
    is: there are not enough others to compare with.
    """
    if len(values) < 5:
        return []
    middle = statistics.median(values)
    limit = max(factor * middle, middle + deviations * robust_deviation(values))
    return [position for position, value in enumerate(values) if value > limit]
