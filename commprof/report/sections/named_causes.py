"""Causes of the catalogue that a run shows, with their fixes, as text."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.world import WorldResult
from commprof.text import wrapped

TITLE = "What to change in the script"

LEGEND = """\
Mistakes of the catalogue in docs/causes.md that the records show, those that make the result of
training wrong first, then those whose fix wins most. saves: fraction of the mean step [95 %
interval over the steps]; replayed: the recorded steps were replayed without the calls; at most:
time in the calls, if it is not known how much of it the fix wins."""


def blocks(worlds: Sequence[WorldResult], width: int) -> list[str]:
    """Renders the causes of the largest world size; empty for none."""
    causes = worlds[-1].named_causes if worlds else ()
    if not causes:
        return []
    lines = [f"{TITLE}:"]
    for number, cause in enumerate(causes, 1):
        text = f"{cause.title} ({cause.id}). {cause.told}"
        lines.append(wrapped(text, width, f"{number}. ", "   "))
        lines += [f"       {line}" for line in cause.fix.splitlines() if line]
        lines.append(f"   Described in {cause.source}")
    return ["\n".join(lines), LEGEND]
