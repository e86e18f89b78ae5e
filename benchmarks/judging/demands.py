"""Demands on the figures of a benchmark, and the exit code that follows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """A demand on a measured figure."""

    #: Name of the figure.
    what: str
    #: The figure, as text with its unit.
    figure: str
    #: What the figure must be, as text.
    asked: str
    met: bool

    @property
    def verdict(self) -> str:
        """Whether the demand is met, as text."""
        return "met" if self.met else "NOT met"


def at_least(
    what: str,
    value: float,
    limit: float,
    unit: str = "",
    between: Sequence[float] = (),
    form: str = ".2f",
) -> Demand:
    """Demands a value of at least ``limit``; NaN does not meet the demand.

    Args:
        what: see :class:`Demand`.
        value: the figure.
        limit: the least value, in the same unit.
        unit: unit of value and limit, with a leading space if needed.
        between: low and high end of the value's interval, if it has one.
        form: format of the value.
    """
    figure = _figure(value, unit, between, form)
    return Demand(what, figure, f"at least {limit:g}{unit}", value >= limit)


def at_most(
    what: str,
    value: float,
    limit: float,
    unit: str = "",
    between: Sequence[float] = (),
    form: str = ".2f",
) -> Demand:
    """Demands a value of at most ``limit``; see :func:`at_least` for the arguments."""
    figure = _figure(value, unit, between, form)
    return Demand(what, figure, f"at most {limit:g}{unit}", value <= limit)


def of_all(what: str, found: int, tried: int, wanted: int, least: int | None = None) -> Demand:
    """Demands that at least ``least`` of ``wanted`` tries succeeded; by default, all tries.

    After more tries, the same share of tries must have succeeded. After fewer tries, the demand is
    not met.
    """
    share = wanted if least is None else least
    met = tried >= wanted and found * wanted >= share * tried
    return Demand(what, f"{found} of {tried}", f"{share} of {wanted}", met)


def judged(demands: Sequence[Demand]) -> int:
    """Prints a line per demand; returns 1 if a demand is not met or there is none, else 0."""
    print()
    for one in demands:
        print(f"{one.verdict}: {one.what}: {one.figure} (demand: {one.asked})")
    if not demands:
        print("NOT met: no figure with a demand was measured")
    sys.stdout.flush()
    return 0 if demands and all(one.met for one in demands) else 1


def _figure(value: float, unit: str, between: Sequence[float], form: str) -> str:
    text = f"{value:{form}}{unit}"
    if not between:
        return text
    low, high = between
    return f"{text} [{low:{form}}, {high:{form}}]"
