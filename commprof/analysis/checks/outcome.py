"""Result of a health check: its figure, its status, and advice."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from commprof.stats.intervals import robust_deviation

#: Status of a check. A warning means that training is slower or less reliable. A failure means that
#: training is wrong.
PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
STATUSES = (PASS, WARN, FAIL, SKIP)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Outcome:
    """Result of one health check over all ranks."""

    check: str
    #: One of ``STATUSES``.
    status: str
    #: The measured figure, with its unit.
    figure: str
    #: Advice if the check did not pass; else empty.
    advice: str = ""
    details: tuple[str, ...] = ()


def per_host(values: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Returns one value per host: the value of the host's first rank.

    ``values``: host and value of each rank, in order of rank.
    """
    found: dict[str, _T] = {}
    for host, value in values:
        found.setdefault(host, value)
    return found


def far_off(values: Sequence[float], factor: float, deviations: float = 5.0) -> list[int]:
    """Returns the indices of values that are far above the others.

    Such a value exceeds ``factor`` times the median. It also exceeds the median by more than
    ``deviations`` times the median absolute deviation. This deviation is scaled to the standard
    deviation of a normal distribution (Iglewicz and Hoaglin, 1993). The result is empty for fewer
    than five values.
    """
    if len(values) < 5:
        return []
    middle = statistics.median(values)
    limit = max(factor * middle, middle + deviations * robust_deviation(values))
    return [position for position, value in enumerate(values) if value > limit]
