"""Where a rank's training thread spends its time, by phase: py-spy's samples and the records.

py-spy's format ``chrometrace`` holds, by its own clock, when each frame was first seen and when it
was first seen to be gone. Between two such events every sample found the same stack. So each stack
counts for one sampling period at each of the moments at which it was sampled, in the phase that the
rank's records say ran at that moment. py-spy's clock begins when it starts, which is known to some
milliseconds only; samples that are as near to a phase's begin or end may be in the wrong one, and
are counted.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: Phase of moments for which the records have none.
NO_PHASE = "other"
_FAR_NS = 1 << 62
_NS_PER_US = 1000
_MAIN_THREAD = "MainThread"
#: Of each thread that ``threading`` started.
_BOOTSTRAP = "_bootstrap"


@dataclass(frozen=True)
class Stretch:
    """Time in which all samples of a thread found one stack; by py-spy's clock."""

    begin_ns: int
    end_ns: int
    #: Outermost first, as "function (file)".
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Flames:
    """Samples by stack."""

    #: Nanoseconds by phase and frames, outermost first.
    time_ns: dict[tuple[str, ...], int]
    #: Samples behind them.
    samples: int
    #: Of them, so near to a phase's begin or end that they may belong to the one beside it.
    doubtful: int


def read_stretches(text: str) -> list[Stretch]:
    """Those of the main thread in a file of py-spy's format ``chrometrace``.

    Raises:
        ValueError: it is no such file.
    """
    events = json.loads(text)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError("py-spy's file holds no list of events")
    try:
        return list(_stretches(events))
    except (KeyError, TypeError) as error:
        raise ValueError(f"py-spy's file has an event of another form: {error}") from None


def fold(
    stretches: Sequence[Stretch],
    phases: Sequence[tuple[int, int, str]],
    begin_ns: int,
    period_ns: int,
    error_ns: int,
) -> Flames:
    """Time by phase and stack.

    Args:
        stretches: see ``read_stretches``.
        phases: begin, end and name, by ``CLOCK_MONOTONIC``, in order, none within another.
        begin_ns: the same clock when py-spy's was 0.
        period_ns: between two samples.
        error_ns: bound on the error of ``begin_ns``.
    """
    begins = [phase[0] for phase in phases]
    time_ns: dict[tuple[str, ...], int] = {}
    samples = doubtful = 0
    for stretch in stretches:
        for moment in range(stretch.begin_ns, stretch.end_ns, period_ns):
            name, margin = _phase_at(begin_ns + moment, phases, begins)
            key = name, *stretch.frames
            time_ns[key] = time_ns.get(key, 0) + period_ns
            samples += 1
            doubtful += margin < error_ns
    return Flames(time_ns, samples, doubtful)


def _phase_at(
    time_ns: int, phases: Sequence[tuple[int, int, str]], begins: Sequence[int]
) -> tuple[str, int]:
    """The phase that ran then, and how far away its nearer end, or that of a neighbour, is."""
    after = bisect_right(begins, time_ns)
    before = phases[after - 1] if after else None
    following = begins[after] - time_ns if after < len(begins) else _FAR_NS
    if before is None:
        return NO_PHASE, following
    begin, end, name = before
    if time_ns < end:
        return name, min(time_ns - begin, end - time_ns)
    return NO_PHASE, min(time_ns - end, following)


def _stretches(events: list[dict[str, Any]]) -> Iterator[Stretch]:
    thread = _main_thread(events)
    stack: list[str] = []
    begin_us = 0
    for event in events:
        if event["ph"] not in ("B", "E") or event["tid"] != thread:
            continue
        at_us = int(event["ts"])
        if stack and at_us > begin_us:
            yield Stretch(begin_us * _NS_PER_US, at_us * _NS_PER_US, tuple(stack))
        begin_us = at_us
        if event["ph"] == "B":
            stack.append(f"{event['name']} ({event['args']['filename']})")
        elif stack:
            stack.pop()


def _main_thread(events: list[dict[str, Any]]) -> int:
    """The thread of that name; in a forked process py-spy may not know it.

    Then the first one whose outermost frame is not that of ``threading``.
    """
    for event in events:
        if event["ph"] == "M" and str(event["args"].get("name", "")).endswith(_MAIN_THREAD):
            return int(event["tid"])
    outermost: dict[int, str] = {}
    for event in events:
        if event["ph"] == "B":
            outermost.setdefault(int(event["tid"]), str(event["name"]))
    started = [tid for tid, name in outermost.items() if not name.endswith(_BOOTSTRAP)]
    return (started or [*outermost] or [0])[0]
