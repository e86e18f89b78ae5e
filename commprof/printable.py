"""Text of unknown origin, made safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without anything that a terminal would obey: control characters as escapes, in one line.

    A rank's error message, a processor's name or a path may hold whatever it likes.
    """
    return "".join(_printable(character) for character in text)


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()
