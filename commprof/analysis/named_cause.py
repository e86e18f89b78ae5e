"""A cause from the catalogue that was found in a recording, and the saving by its fix."""

from __future__ import annotations

import math
from dataclasses import dataclass

from commprof.stats.intervals import Interval
from commprof.text import percent_digits


@dataclass(frozen=True)
class Saving:
    """The saving by the fix of a cause."""

    #: Fraction of the mean step that is saved, with its 95 % bootstrap interval over the steps.
    saved: Interval
    #: "replayed": the recorded steps were replayed as if the fix were made; "measured": the saved
    #: time was read from the records.
    basis: str


@dataclass(frozen=True)
class NamedCause:
    """A cause from the catalogue that was found in a recording."""

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
        """The saving, as the end of a sentence; empty if nothing is known."""
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
        """Sort key: the fraction of the step that the fix saves, or else that the cause takes."""
        if self.saving is not None:
            return self.saving.saved.value
        return 0.0 if math.isnan(self.share) else self.share
