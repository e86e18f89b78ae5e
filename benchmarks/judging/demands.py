"""What a benchmark is asked to show: each figure beside its demand, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """One demand and what was found."""

    #: What was measured, setting included.
    what: str
    #: What was found, with its unit and, where it has one, its interval.
    figure: str
    #: What is demanded of it.
    asked: str
    met: bool

    @property
    def verdict(self) -> str:
        """As it is printed."""
        return "met" if self.met else "NOT met"


def at_least(
    what: str,
    value: float,
    limit: float,
    unit: str = "",
    between: Sequence[float] = (),
    form: str = ".2f",
) -> Demand:
    """Met from ``limit`` on; NaN never is.

    Args:
        what: see :class:`Demand`.
        value: the figure.
        limit: in the same unit.
        unit: printed behind both, with its space if it wants one.
        between: low and high end of the value's interval, if it has one.
        form: how the value is printed.
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
    """Met up to ``limit``; otherwise as :func:`at_least`."""
    figure = _figure(value, unit, between, form)
    return Demand(what, figure, f"at most {limit:g}{unit}", value <= limit)


def of_all(what: str, found: int, tried: int, wanted: int, least: int | None = None) -> Demand:
    """So many of so many tries: ``least`` of ``wanted`` at least, in the same share of more.

    Fewer tries than wanted show nothing yet: not met. ``least`` is all of them if not given.
    """
    share = wanted if least is None else least
    met = tried >= wanted and found * wanted >= share * tried
    return Demand(what, f"{found} of {tried}", f"{share} of {wanted}", met)


def judged(demands: Sequence[Demand]) -> int:
    """Prints a line for each; 1 if one is not met, or if there is none to be met, else 0."""
    print()
    for one in demands:
        print(f"{one.verdict}: {one.what}: {one.figure} (demand: {one.asked})")
    if not demands:
        print("NOT met: nothing was measured that a demand speaks of")
    sys.stdout.flush()
    return 0 if demands and all(one.met for one in demands) else 1


def _figure(value: float, unit: str, between: Sequence[float], form: str) -> str:
    text = f"{value:{form}}{unit}"
    if not between:
        return text
    low, high = between
    return f"{text} [{low:{form}}, {high:{form}}]"
