"""How long a step or a collective may take before the watchdog calls it a hang."""

from __future__ import annotations

import statistics
from collections import deque

from commprof.errors import UsageError
from commprof.stats.intervals import robust_deviation

#: What ``--watchdog`` takes instead of seconds.
AUTO = "auto"
#: What the process beside the job takes where it shall tell of nothing.
OFF = "off"
#: ``auto`` before it has seen ``_LEARN_STEPS`` steps: compilers and first batches take minutes.
START_S = 300.0
#: ``auto`` never says less.
FLOOR_S = 10.0
_LEARN_STEPS = 10
#: Steps that the median is taken of.
_RECENT_STEPS = 500
#: A hang takes so many times the median step, ...
_TIMES_MEDIAN = 10.0
#: ... so many robust standard deviations more than it, ...
_DEVIATIONS = 20.0
#: ... and so many times the longest step that came to an end: a checkpoint, for one.
_TIMES_LONGEST = 3.0
_NS_PER_S = 1e9


def parse_threshold(text: str, given_as: str = "") -> float | None:
    """Reads a threshold in seconds, or None for ``auto``.

    Args:
        text: what was given.
        given_as: how, in the words of the user; as the option if not given.

    Raises:
        UsageError: it is neither.
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
            f"{given} is no threshold (allowed: auto, or a number of seconds, more than 0)"
        )
    return seconds


class Threshold:
    """The time after which a step or collective counts as hung: fixed, or learnt from steps."""

    def __init__(self, fixed_s: float | None) -> None:
        """fixed_s: None to learn it."""
        self._fixed_s = fixed_s
        self._recent_ns: deque[int] = deque(maxlen=_RECENT_STEPS)
        self._longest_ns = 0

    def learn(self, step_ns: int) -> None:
        """Learns from a step of some rank that has ended."""
        self._recent_ns.append(step_ns)
        self._longest_ns = max(self._longest_ns, step_ns)

    @property
    def limit_ns(self) -> int:
        """The limit beyond which a step, or a collective since its issue, counts as hung."""
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
        source = "as asked for" if self._fixed_s is not None else "learnt from the run"
        return f"{self.limit_ns / _NS_PER_S:.3g} s, {source}"
