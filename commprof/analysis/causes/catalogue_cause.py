"""The form that every cause of the catalogue has.

A cause is one mistake that public reports of slow jobs describe. Each has a file of its own with a
:class:`CatalogueCause`: how the mistake looks in the records, as a rule with named thresholds; the
text about it; the change of the script that mends it; and the public report. The list is in
:mod:`commprof.analysis.causes.registry`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from commprof.analysis.causes.facts import Facts
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving

#: A cause is named if it takes at least this fraction of the mean step.
WORTH_NAMING = 0.03
#: Value of ``worth`` for causes that act in few steps, but certainly not by chance. Resampled steps
#: may contain none of these steps, so the low end of the gain's bootstrap interval means nothing.
FEW_STEPS = -math.inf


@dataclass(frozen=True)
class Sighting:
    """Evidence that a rule has found in a recording."""

    #: Sentences with the figures of this job.
    sentence: str
    #: Fraction of the mean step that the cause takes; NaN if not known. If ``saving`` is None, the
    #: fix wins at most this fraction.
    share: float = math.nan
    #: Predicted gain of the fix; None if not known.
    saving: Saving | None = None
    #: Line of code that issues the calls that the cause is about, as "FILE:LINE FUNCTION"; empty if
    #: not recorded.
    line: str = ""
    #: Change of the script, if it depends on the job; empty to use the cause's own.
    fix: str = ""
    #: All lines of code that issue the calls that the cause is about, if there are several.
    lines: tuple[str, ...] = ()
    #: Operation of the calls that the cause is about, if the fix depends on the operation.
    op: str = ""


@dataclass(frozen=True)
class CatalogueCause:
    """One mistake, and how to mend it."""

    #: Name in the JSON result and in docs/causes.md, of lower-case words with hyphens.
    id: str
    #: What is wrong, as a heading.
    title: str
    #: Figures that a recording must support for the rule to be applied.
    needs: tuple[Figure, ...]
    #: Looks for the mistake; returns None without evidence for it.
    rule: Callable[[Facts], Sighting | None]
    #: What the rule looks for, with its thresholds, as sentences.
    looks_like: str
    #: Why it costs time, or harms the result, for a reader who does not know commprof.
    why: str
    #: Lines of code, or a setting, that can be pasted into the script once names that begin with
    #: ``YOUR_`` are replaced by the script's own names.
    fix: str
    #: The fix for a model that FSDP1 shards, if ``fix`` is for FSDP2; else empty.
    fix_of_fsdp1: str = field(default="", kw_only=True)
    #: Writes the fix with the lines and names of the job's own script, see
    #: :mod:`commprof.analysis.causes.edits`; returns "" if the script does not show enough.
    edit: Callable[[Facts, Sighting], str] | None = field(default=None, kw_only=True)
    #: Address of a public report that describes the mistake.
    source: str
    #: How the gain of the fix is predicted, as sentences; or "Not predicted, because ...". Empty if
    #: it is predicted by a replay of the steps without the calls that the fix removes.
    gain_note: str = ""
    #: If the gain of the fix is known, the cause is named only if the low end of the gain's
    #: interval is at least this fraction of the step.
    worth: float = WORTH_NAMING
    #: True if the rule counts calls, whose number does not depend on chance. The cause is then
    #: named if there is a gain and the high end of its interval is at least ``worth``.
    is_certain: bool = False
    #: True if the mistake makes the result of training wrong; it is then named first.
    is_wrong: bool = False
