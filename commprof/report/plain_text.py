"""Text of unknown origin, made safe to print."""

from __future__ import annotations

import textwrap


def printable(text: str) -> str:
    """Without anything that a terminal would obey: control characters as escapes, in one line.

    A rank's error message, a processor's name or a path may hold whatever it likes.
    """
    return "".join(_printable(character) for character in text)


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """In lines, broken between words; a path stays whole, so that it can be copied.

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
    """Text of several lines as it stands; wrapped anew where one of them is wider."""
    if all(len(line) <= width for line in text.splitlines()):
        return text
    return textwrap.fill(" ".join(text.split()), width, break_long_words=False)
