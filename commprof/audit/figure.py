"""Printed numbers as intervals: an interval holds all values that are printed with the same digits.

Two figures disagree if their intervals do not overlap.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

#: Relative difference that the last bits of a double can cause.
_BITS = 1e-9
#: Number of leading digits of a whole number that are significant even if they are zeros. Later
#: zeros may come from rounding. ``_ROUGH_DIGITS`` is for numbers that are marked as approximate.
_DIGITS = 3
_ROUGH_DIGITS = 2

UNIT_S = {
    **dict.fromkeys(("ns",), 1e-9),
    **dict.fromkeys(("us", "µs", "μs"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("day", "days"), 86_400.0),
}
"""Seconds per unit of time."""

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?|\.\d+"
_FIGURE = re.compile(
    rf"(?P<mark>[~≈<>≤≥$€\s]*)(?P<first>{_NUMBER})\s*(?P<percent>%?)"
    rf"(?:\s*(?:-|–|—|to|\.\.)\s*\$?(?P<last>{_NUMBER}))?"
    rf"(?:\s*(?:±|\+/-)\s*(?P<spread>{_NUMBER}))?"
    r"(?P<thousand>[KkM](?![A-Za-z]))?(?P<open>\+(?!\d))?\s*(?P<unit>%|×|[A-Za-zµμ]+)?"
)
_JUNK = re.compile(r"[*_`]")
#: A number whose thousands are separated by spaces.
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?:\s\d{3})+(?!\d)")
#: Matches after a number that is part of something else, such as a date or "1,5".
_PART_OF_MORE = re.compile(r"[-:,.]\d")
#: One part of a time in several units, such as "1h 23m".
_TIME_PART = re.compile(rf"[\s,]*(?:and\s+)?({_NUMBER})\s*([A-Za-z]+)")
_TIME_PART_S = {**UNIT_S, "d": 86_400.0, "m": 60.0}
#: The last part of a time such as "1h 30", which has no unit.
_BARE_PART = re.compile(r"\s*([0-5]?\d(?:\.\d+)?)(?=\s*(?:$|\())")
_OVER_BARE_S = (3600.0, 60.0)


@dataclass(frozen=True)
class Span:
    """Interval of non-negative values from ``low`` to ``high``; messages print ``value``."""

    low: float
    value: float
    high: float

    def __mul__(self, other: Span) -> Span:
        return Span(
            _times(self.low, other.low), self.value * other.value, _times(self.high, other.high)
        )

    def __truediv__(self, other: Span) -> Span:
        """Returns the interval of all quotients; it reaches infinity if the divisor may be 0."""
        return Span(
            _over(self.low, other.high), _over(self.value, other.value), _over(self.high, other.low)
        )

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.value + other.value, self.high + other.high)

    def meets(self, other: Span) -> bool:
        """True if the intervals overlap."""
        room = _BITS * max(abs(self.value), abs(other.value))
        return self.low <= other.high + room and other.low <= self.high + room


def exact(value: float) -> Span:
    """Returns the interval that contains only ``value``, for a number that is not rounded."""
    return Span(value, value, value)


@dataclass(frozen=True)
class StatedFigure:
    """A number that a report states."""

    text: str
    #: Value in seconds, as a fraction of 1, or as a count.
    span: Span
    #: Place in the report: a line of the file, or a path within JSON.
    where: str
    #: Unit written after the number, in lower case: "%", "x", "ms", ...; may be empty.
    unit: str = ""


def parse_figure(
    text: str, where: str = "", unit: str = "", count: bool = False
) -> StatedFigure | None:
    """Reads the number at the beginning of a cell; None if there is no number.

    A figure stands for all values that become this figure when rounded or truncated. ``~`` allows
    one unit of the last digit more or less. ``<`` and ``>`` leave one side open. ``a-b`` and
    ``a ± b`` are intervals, and ``1h 23m`` is one time. ``36m`` is read only if ``unit`` is a unit
    of time, because it may mean millions.

    Args:
        text: the cell.
        where: place of the cell, for messages.
        unit: unit of a cell that states no unit: a unit of time, or "%".
        count: True for a count, which is exact unless a mark such as ``~`` precedes it, or K or M
            follows it.
    """
    cell = _JUNK.sub("", text).strip().replace("\u202f", " ").replace("\u00a0", " ")
    cell = _SPACED.sub(lambda number: "".join(number[0].split()), cell)
    time = None if count else _time_in_parts(cell, where)
    if time is not None:
        return time
    match = _FIGURE.match(cell)
    if match is None or _PART_OF_MORE.match(cell, match.end()):
        return None
    written = (match["percent"] or match["unit"] or "").lower().replace("×", "x")
    if written == "m":
        if unit not in UNIT_S:
            return None
        written = "min"
    scale = _scale(written, unit)
    scale *= {"k": 1e3, "m": 1e6}.get((match["thousand"] or "").lower(), 1.0)
    span = _span(match, count and not match["thousand"])
    if span is None or not math.isfinite(span.value * scale):
        return None
    return StatedFigure(_shown(cell, match, written, unit), span * exact(scale), where, written)


def _time_in_parts(cell: str, where: str) -> StatedFigure | None:
    """Reads a time in several units, the longest unit first; None for any other text.

    All parts except the last one are exact.
    """
    end = len(cell) - len(cell.lstrip("~≈<>≤≥ "))
    mark = cell[:end]
    is_rough = "~" in mark or "≈" in mark
    parts: list[tuple[str, float]] = []
    while match := _TIME_PART.match(cell, end):
        unit_s = _TIME_PART_S.get(match[2].lower(), math.inf)
        if unit_s >= (parts[-1][1] if parts else math.inf):
            break
        parts.append((match[1], unit_s))
        end = match.end()
    bare = _BARE_PART.match(cell, end) if parts and parts[-1][1] in _OVER_BARE_S else None
    if bare is not None:
        parts.append((bare[1], parts[-1][1] / 60))
        end = bare.end()
    if len(parts) < 2:
        return None
    *whole, (digits, unit_s) = parts
    span = _of_digits(digits, False, is_rough) * exact(unit_s)
    for text, each_s in whole:
        span = span + exact(float(text.replace(",", "")) * each_s)
    if not math.isfinite(span.value):
        return None
    return StatedFigure(cell[:end], _opened(replace(span, low=max(0.0, span.low)), mark), where)


def as_share(figure: StatedFigure) -> StatedFigure:
    """Converts a percentage to a fraction, unless ``parse_figure`` has already converted it."""
    return figure if figure.unit == "%" else replace(figure, span=figure.span * exact(0.01))


def _shown(cell: str, match: re.Match[str], written: str, unit: str) -> str:
    """Returns the number with its unit, without the words after it."""
    if match["unit"] and (written in UNIT_S or written in ("x", "%")):
        return cell[: match.end()]
    number = cell[: match.start("unit") if match["unit"] else match.end()].strip()
    return f"{number} {unit}" if unit in UNIT_S and not match["percent"] else number


def _scale(written: str, unit: str) -> float:
    for name in (written, unit):
        if name == "%":
            return 0.01
        if name in UNIT_S:
            return UNIT_S[name]
    return 1.0


def _span(match: re.Match[str], is_count: bool) -> Span | None:
    mark = match["mark"]
    first = _of_digits(match["first"], is_count, "~" in mark or "≈" in mark)
    value = first.value
    low, high = first.low, first.high
    if match["last"]:
        last = _of_digits(match["last"], is_count, "~" in mark or "≈" in mark)
        if last.value < value:
            return None
        value, high = (value + last.value) / 2, last.high
    if match["spread"]:
        spread = _of_digits(match["spread"], False, False).high
        low, high = low - spread, high + spread
    return _opened(Span(max(0.0, low), value, high), mark + ">" * bool(match["open"]))


def _opened(span: Span, mark: str) -> Span:
    if ">" in mark or "≥" in mark:
        return Span(span.value, span.value, math.inf)
    if "<" in mark or "≤" in mark:
        return Span(0.0, span.value, span.value)
    return span


def _of_digits(text: str, is_count: bool, is_rough: bool) -> Span:
    """Returns the interval of values that are printed with these digits."""
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        return exact(value)
    digits, _, exponent = text.replace(",", "").lower().partition("e")
    whole, point, decimals = digits.partition(".")
    padding = len(whole) - len(whole.rstrip("0")) if whole.strip("0") else 0
    places = 0
    if point:
        places = -len(decimals)
    elif not exponent:
        digits_shown = _ROUGH_DIGITS if is_rough else _DIGITS
        places = min(padding, max(0, len(whole) - digits_shown))
    unit = 10.0 ** (places + int(exponent or 0))
    if is_rough:
        return Span(value - unit, value, value + unit)
    if is_count:
        return exact(value)
    return Span(value - unit / 2, value, value + unit)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _over(a: float, b: float) -> float:
    if b == 0:
        return math.inf
    return 0.0 if math.isinf(b) else a / b
