"""Demands on the figures of a benchmark, and the exit code that follows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """One demand, with the measured figure."""

    #: Name of the figure, with its setting.
    what: str
    #: The figure with its unit and, if it has one, its interval.
    figure: str
    #: The demand on the figure.
    asked: str
    met: bool

    @property
    def verdict(self) -> str:
        """The word that is printed."""
        return "met" if self.met else "NOT met"


def at_least(
    what: str,
    value: float,
    limit: float,
    unit: str = "",
    between: Sequence[float] = (),
    form: str = ".2f",
) -> Demand:
    """Makes a demand that is met from ``limit`` on; NaN never meets it.

    Args:
        what: see :class:`Demand`.
        value: the figure.
        limit: the least value, in the same unit.
        unit: printed after both, with a leading space if needed.
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
    """Makes a demand that is met up to ``limit``; otherwise as :func:`at_least`."""
    figure = _figure(value, unit, between, form)
    return Demand(what, figure, f"at most {limit:g}{unit}", value <= limit)


def of_all(what: str, found: int, tried: int, wanted: int, least: int | None = None) -> Demand:
    """Makes a demand on a share of tries: at least ``least`` of ``wanted``.

    With more tries than ``wanted``, the same share is demanded; with fewer, the demand is not met.
    If ``least`` is not given, it is ``wanted``.
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
