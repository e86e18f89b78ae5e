"""Defines the form that every cause of the catalogue has.

A cause is a mistake that public reports of slow jobs describe. Each cause has a file of its own
with a :class:`CatalogueCause`: a rule that finds the mistake in the records, a text about the
mistake, the change of the script that mends it, and the public report. The list of causes is in
:mod:`commprof.analysis.causes.registry`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from commprof.analysis.causes.facts import Facts
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving

#: A cause is named if it takes at least this fraction of the mean step, unless its file sets
#: another limit.
WORTH_NAMING = 0.03
#: Value of ``worth`` for causes that act in few steps, but never by chance. Resampled steps may
#: contain none of these steps, so the low end of the gain's bootstrap interval means nothing.
FEW_STEPS = -math.inf


@dataclass(frozen=True)
class Sighting:
    """Evidence that a rule has found in a recording."""

    #: Sentences with the figures of this job.
    sentence: str
    #: Fraction of the mean step that the cause takes; NaN if not known. If ``saving`` is None, this
    #: is the most that the fix can win.
    share: float = math.nan
    #: Predicted gain of the fix; None if not known.
    saving: Saving | None = None
    #: Line of code that issues the calls, as "FILE:LINE FUNCTION"; empty if not recorded.
    line: str = ""
    #: Change of the script for this job; empty if the cause's own ``fix`` suits every job.
    fix: str = ""
    #: All lines of code that issue the calls, for causes that change several lines.
    lines: tuple[str, ...] = ()
    #: Operation of the calls; empty if the fix does not depend on the operation.
    op: str = ""


@dataclass(frozen=True)
class CatalogueCause:
    """One mistake, and how to mend it."""

    #: Name in the JSON result and in docs/causes.md, of lower-case words with hyphens.
    id: str
    title: str
    #: Figures that a recording must support for the rule to be applied.
    needs: tuple[Figure, ...]
    #: Looks for the mistake; returns None without evidence for it.
    rule: Callable[[Facts], Sighting | None]
    #: What the rule looks for, with its thresholds, as sentences.
    looks_like: str
    #: Why it costs time, or harms the result, for a reader who does not know commprof.
    why: str
    #: Lines of code, or a setting, for the script. Names that begin with ``YOUR_`` stand for names
    #: of the script.
    fix: str
    #: The fix for a model that FSDP1 shards, if ``fix`` is for FSDP2; else empty.
    fix_of_fsdp1: str = field(default="", kw_only=True)
    #: Writes the fix with the script's own lines and names, see
    #: :mod:`commprof.analysis.causes.edits`. Returns "" if the script does not show enough.
    edit: Callable[[Facts, Sighting], str] | None = field(default=None, kw_only=True)
    #: Address of a public report that describes the mistake.
    source: str
    #: Sentences on how the gain of the fix is predicted, or on why it is not. Empty if the steps
    #: are replayed without the calls that the fix removes.
    gain_note: str = ""
    #: A cause whose gain is known is named only if the low end of the gain's interval is at least
    #: this fraction of the step.
    worth: float = WORTH_NAMING
    #: True if the rule counts calls, whose number does not depend on chance. The high end of the
    #: gain's interval is then compared with ``worth``.
    is_certain: bool = False
    #: True if the mistake makes the result of training wrong. Such a cause is named first.
    is_wrong: bool = False
