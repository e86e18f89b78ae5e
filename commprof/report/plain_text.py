"""Text of unknown origin, made safe to print, and broken into lines."""

from __future__ import annotations

import textwrap

from commprof.text import printable

__all__ = ("printable", "wrapped")


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """Wraps text between words; a path stays whole, so that it can be copied.

    Args:
        text: of any origin.
        width: of a line; a longer word has a line of its own.
        first: before the first line.
        rest: before the others.
    """
    return textwrap.fill(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def fitted(text: str, width: int) -> str:
    """Returns text as it stands, or wrapped anew where a line is too wide."""
    if all(len(line) <= width for line in text.splitlines()):
        return text
    return textwrap.fill(" ".join(text.split()), width, break_long_words=False)
