#!/usr/bin/env python3
"""Writes docs/causes.md from the catalogue of causes: `python -m tools.make_causes`."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from commprof.analysis.causes.catalogue_cause import CatalogueCause
from commprof.analysis.causes.registry import CAUSES

PAGE = Path(__file__).resolve().parent.parent / "docs/causes.md"

#: Number of characters in a line of prose.
WIDTH = 150

TITLE = "# Mistakes that make distributed training slow or wrong"
HEAD = (
    "Each section describes one mistake from public reports: why the mistake costs time, the lines "
    "that mend it, and how to recognise it. The fixes do not need commprof. `commprof run` looks "
    "for all of these mistakes. Its first screen names the mistake whose fix saves the most time. "
    "`commprof report DIR --all`, the HTML page and the JSON result (`causes`) list the others.",
    "The time that a fix saves is computed by a replay of the recorded steps without the calls "
    "that the fix removes. The report gives this time with its 95 % interval over the steps. Where "
    "a replay is not possible, the report gives the time in the calls, which is the most that the "
    "fix can save, or gives no time. A cause is named only if the recording shows it.",
    "To use the lines of a fix, put them after `init_process_group`, and replace the names that "
    "begin with `YOUR_` by names of your script. If commprof can read the script, the report shows "
    "the same change with the script's own lines and names.",
)


def page() -> str:
    """Returns the page's text."""
    parts = [TITLE, *map(_wrapped, HEAD), *(part for cause in CAUSES for part in _section(cause))]
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _section(cause: CatalogueCause) -> Iterator[str]:
    yield f"## {cause.title}"
    yield _wrapped(cause.why)
    yield f"```python\n{cause.fix}\n```"
    if cause.fix_of_fsdp1:
        yield "With FSDP1 (`FullyShardedDataParallel`):"
        yield f"```python\n{cause.fix_of_fsdp1}\n```"
    first = (
        " The result of training is wrong, so this cause is named first." if cause.is_wrong else ""
    )
    yield _wrapped(f"Recognised as `{cause.id}`: {cause.looks_like}{first}")
    if cause.gain_note:
        yield _wrapped(f"What the fix wins: {cause.gain_note}")
    yield f"Described in [a public report]({cause.source})."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.parse_args().page.write_text(page())


if __name__ == "__main__":
    main()
