"""Formats counts, lists and times for sentences; makes untrusted text printable, and wraps it."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from itertools import pairwise


def printable(text: str) -> str:
    """Returns the text in one line, with escapes for control characters, which terminals obey.

    A rank's error message, a processor's name or a path may hold any character.
    """
    return "".join(_printable(character) for character in text)


def plural(number: int, noun: str) -> str:
    """Returns the noun as it follows the number: "rank" for 1, else "ranks"."""
    return noun if number == 1 else f"{noun}s"


def counted(numbers: int | Sequence[int], noun: str) -> str:
    """Returns one or several numbers with the noun: "1 rank", "1, 2 and 4 ranks"."""
    if isinstance(numbers, int):
        return f"{numbers} {plural(numbers, noun)}"
    return f"{listed(numbers)} {plural(numbers[0] if len(numbers) == 1 else 2, noun)}"


def listed(words: Collection[object]) -> str:
    """Joins words as in a sentence: "1", "1 and 2", "1, 2 and 4"."""
    *before, last = map(str, words)
    return f"{', '.join(before)} and {last}" if before else last


def named_ranks(ranks: Collection[int]) -> str:
    """Lists ranks by number: "rank 3", "ranks 0, 2"; "no rank" if there are none."""
    if not ranks:
        return "no rank"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def rank_list(ranks: Sequence[int]) -> str:
    """Formats ascending numbers: ``0-3`` for neighbours, ``0-12:4`` for every fourth."""
    steps = {later - sooner for sooner, later in pairwise(ranks)}
    if len(ranks) < 3 or len(steps) > 1:
        return ",".join(map(str, ranks))
    step = steps.pop()
    return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")


def plain_digits(value: float, significant: int = 3) -> str:
    """Formats significant digits, or all integer digits if those are more; never "1.2e+04"."""
    large = abs(value) >= 10 ** (significant - 1)
    return f"{value:.0f}" if large else f"{value:.{significant}g}"


def in_ms(value: float) -> str:
    """Formats milliseconds for a sentence: three significant digits, or all integer digits."""
    return f"{plain_digits(value)} ms"


def in_micros(value: float) -> str:
    """Formats microseconds for a sentence, in milliseconds from 1000 on."""
    return in_ms(value / 1000) if abs(value) >= 1000 else f"{plain_digits(value)} µs"


def in_seconds(ms: float) -> str:
    """Formats milliseconds as seconds for a sentence."""
    return f"{plain_digits(ms / 1000)} s"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """Wraps text between words; never breaks a path, so that it can be copied.

    Args:
        text: the text, of any origin: it is made printable.
        width: columns of a line; a longer word gets a line of its own.
        first: prefix of the first line.
        rest: prefix of the other lines.
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
    """Returns the text unchanged, or wrapped anew if a line is wider than ``width``."""
    if all(len(line) <= width for line in text.splitlines()):
        return text
    return textwrap.fill(" ".join(text.split()), width, break_long_words=False)
