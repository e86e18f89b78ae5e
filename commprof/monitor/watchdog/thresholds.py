"""Time limits of steps and collectives, after which the watchdog reports a hang."""

from __future__ import annotations

import statistics
from collections import deque

from commprof.errors import UsageError
from commprof.stats.intervals import robust_deviation

#: Value of ``--watchdog`` with which the limit is learnt.
AUTO = "auto"
#: Value of ``--threshold`` with which no hangs are reported.
OFF = "off"
#: Limit of ``auto`` until ``_LEARN_STEPS`` steps after the first have ended. The first steps can
#: take minutes.
START_S = 300.0
#: Smallest limit that ``auto`` sets.
FLOOR_S = 10.0
_LEARN_STEPS = 10
#: Number of recent steps from which the median and the deviation are computed.
_RECENT_STEPS = 500
#: The limit of ``auto`` is at least this multiple of the median step.
_TIMES_MEDIAN = 10.0
#: The limit of ``auto`` is at least the median step plus this many robust standard deviations.
_DEVIATIONS = 20.0
#: The limit of ``auto`` is at least this multiple of the longest completed step. The longest step
#: may contain a checkpoint.
_TIMES_LONGEST = 3.0
_NS_PER_S = 1e9


def parse_threshold(text: str, given_as: str = "") -> float | None:
    """Parses a threshold. Returns the seconds, or None for ``auto``.

    Args:
        text: the value to parse.
        given_as: the option with its value, for error messages; empty for ``--watchdog``.

    Raises:
        UsageError: the value is neither ``auto`` nor a number of seconds above 0.
    """
    if text == AUTO:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        given = given_as or f"--watchdog {text!r}"
        raise UsageError(
            f"{given} is not a threshold (allowed: auto, or a number of seconds above 0)"
        )
    return seconds


class Threshold:
    """The time after which a step or collective counts as hung: fixed, or learnt from steps."""

    def __init__(self, fixed_s: float | None) -> None:
        """Sets a fixed threshold; None to learn it from steps."""
        self._fixed_s = fixed_s
        #: The first rank that completed a step.
        self._rank: int | None = None
        #: Durations of that rank's recent steps.
        self._recent_ns: deque[int] = deque(maxlen=_RECENT_STEPS)
        self._longest_ns = 0

    def learn(self, step_ns: int, rank: int = 0) -> None:
        """Adds the duration of a completed step.

        Only one rank's steps count for the median. All ranks' steps count for the longest step.
        """
        if self._rank is None:
            self._rank = rank
        if rank == self._rank:
            self._recent_ns.append(step_ns)
        self._longest_ns = max(self._longest_ns, step_ns)

    @property
    def limit_ns(self) -> int:
        """Time in ns after which a step or a collective counts as hung."""
        if self._fixed_s is not None:
            return int(self._fixed_s * _NS_PER_S)
        if len(self._recent_ns) < _LEARN_STEPS:
            return int(START_S * _NS_PER_S)
        median = statistics.median(self._recent_ns)
        return int(
            max(
                FLOOR_S * _NS_PER_S,
                _TIMES_MEDIAN * median,
                median + _DEVIATIONS * robust_deviation(self._recent_ns),
                _TIMES_LONGEST * self._longest_ns,
            )
        )

    @property
    def text(self) -> str:
        """The limit and its origin, in words."""
        if self._fixed_s is not None:
            source = "as asked for"
        elif len(self._recent_ns) < _LEARN_STEPS:
            source = f"the limit until {_LEARN_STEPS} steps have ended"
        else:
            source = "learnt from the run"
        return f"{self.limit_ns / _NS_PER_S:.3g} s, {source}"
