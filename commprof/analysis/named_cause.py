"""A cause from the catalogue that a recording shows, and the time that its fix saves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from commprof.stats.intervals import Interval
from commprof.text import percent_digits


@dataclass(frozen=True)
class Saving:
    """Time that the fix of a cause saves."""

    #: Saved fraction of the mean step, with a 95 % bootstrap interval over the steps.
    saved: Interval
    #: "replayed" if the recorded steps were replayed with the fix; "measured" if the records show
    #: the saved time.
    basis: str


@dataclass(frozen=True)
class NamedCause:
    """A cause from the catalogue that a recording shows."""

    id: str
    title: str
    sentence: str
    line: str
    fix: str
    #: Fraction of the mean step that the cause takes up; NaN if not known.
    share: float
    saving: Saving | None
    source: str
    is_wrong: bool

    @property
    def wins(self) -> str:
        """The saving, as the end of a sentence; empty if not known."""
        if self.saving is not None:
            saved = self.saving.saved
            value, low, high = map(percent_digits, (saved.value, saved.low, saved.high))
            return f"saves {value} % of the step [{low}, {high}] ({self.saving.basis})"
        return f"saves at most {100 * self.share:.1f} % of the step" if self.share > 0 else ""

    @property
    def told(self) -> str:
        """The sentences on the cause, including the saving by its fix."""
        return f"{self.sentence} The fix {self.wins}." if self.wins else self.sentence

    @property
    def weight(self) -> float:
        """Sort key: the fraction of the step that the fix saves, or that the cause takes."""
        if self.saving is not None:
            return self.saving.saved.value
        return 0.0 if math.isnan(self.share) else self.share
