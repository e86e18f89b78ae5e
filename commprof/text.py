"""Formats counts, lists and times for sentences; wraps text and makes it printable."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

#: Text between two lines of code in a call path: "a.py:3 < b.py:7" means that line b.py:7 calls
#: the function that contains line a.py:3.
CALLED_AT: Final = " < "
#: Smallest number of neighbouring ranks, and of equally spaced ranks, that form a range.
_NEIGHBOURS, _SPACED = 3, 4
_MOST_RANGES = 24
#: At most this many digits at the end of a name count as its number.
_MOST_DIGITS = 9


def printable(text: str) -> str:
    """Returns the text in one line, with escapes for control characters.

    Untrusted text, such as a rank's error message, could otherwise control the terminal.
    """
    return "".join(_printable(character) for character in text)


def plural(number: int, noun: str) -> str:
    """Returns the noun, in the plural unless the number is 1."""
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


def named_ranks(ranks: Collection[int], most: int | None = _MOST_RANGES) -> str:
    """Names ranks in a sentence: "rank 3", "ranks 0-3, 8"; "no rank" for none.

    ``most``: as for ``rank_list``.
    """
    if not ranks:
        return "no rank"
    return f"{plural(len(set(ranks)), 'rank')} {rank_list(ranks, ', ', most)}"


def rank_list(ranks: Collection[int], separator: str = ",", most: int | None = None) -> str:
    """Lists ranks in ascending order, with ranges: "0-3,8-11,299".

    Three or more neighbours form a range. Four or more equally spaced ranks form a range too:
    "0-12:4" is every fourth rank from 0 to 12.

    Args:
        ranks: the ranks, in any order.
        separator: text between two ranges.
        most: largest number of ranges and single ranks in the list. Further ranks are only
            counted, as in "and 90 more". None lists all ranks.
    """
    parts = [_range(part) for part in _evenly_spaced(sorted(set(ranks)))]
    if most is None or len(parts) <= most:
        return separator.join(text for text, _ in parts)
    more = sum(count for _, count in parts[most:])
    return separator.join(text for text, _ in parts[:most]) + f" and {more} more"


def name_list(names: Iterable[str], most: int) -> str:
    """Lists names in order, with ranges: "gpu7, node01-node04".

    ``most``: largest number of ranges and single names in the list; further names are only counted.
    """
    parts: list[list[str]] = []
    for name in sorted(set(names), key=_with_number):
        stem, number = _with_number(name)
        if parts and number >= 0 and _with_number(parts[-1][-1]) == (stem, number - 1):
            parts[-1].append(name)
        else:
            parts.append([name])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 1 else part[0] for part in parts[:most]]
    more = sum(len(part) for part in parts[most:])
    return ", ".join(texts) + (f" and {more} more" if more else "")


def _with_number(name: str) -> tuple[str, int]:
    """Divides a name into its beginning and the number at its end; -1 if there is no number."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits[-_MOST_DIGITS:]) if digits else -1


def _range(part: Sequence[int]) -> tuple[str, int]:
    if len(part) == 1:
        return str(part[0]), 1
    step = part[1] - part[0]
    return f"{part[0]}-{part[-1]}" + (f":{step}" if step > 1 else ""), len(part)


def _evenly_spaced(ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    begin = 0
    while begin < len(ranks):
        end = begin + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == ranks[begin + 1] - ranks[begin]:
            end += 1
        step = ranks[begin + 1] - ranks[begin] if end > begin + 1 else 0
        if end - begin < (_NEIGHBOURS if step == 1 else _SPACED):
            end = begin + 1
        yield ranks[begin:end]
        begin = end


def with_ranks(texts: Iterable[tuple[int, str]], everyone: Collection[int] = ()) -> list[str]:
    """Puts ranks before texts, as in "ranks 0-3: no records"; equal texts appear once.

    Args:
        texts: pairs of a rank and a text; the texts keep their order.
        everyone: all ranks of the run. If there are several, a text about all of these ranks
            begins with "all ranks".
    """
    return clauses(((rank, text, text) for rank, text in texts), ": ", everyone)


def clauses(
    said: Iterable[tuple[int, str, str]], between: str = " ", everyone: Collection[int] = ()
) -> list[str]:
    """Makes clauses whose subjects are ranks; ranks with equal plural predicates share a clause.

    Args:
        said: a rank, a predicate in the singular and a predicate in the plural, such as (3, "is
            dead: process 7 is gone", "are dead: their processes are gone").
        between: text between subject and predicate.
        everyone: as for ``with_ranks``.
    """
    ranks_of: dict[str, list[int]] = {}
    alone: dict[str, str] = {}
    for rank, singular, of_several in said:
        ranks_of.setdefault(of_several, []).append(rank)
        alone.setdefault(of_several, singular)
    made = []
    for of_several, ranks in ranks_of.items():
        all_of_them = len(everyone) > 1 and {*ranks} >= {*everyone}
        who = "all ranks" if all_of_them else named_ranks(ranks)
        made.append(who + between + (of_several if len({*ranks}) > 1 else alone[of_several]))
    return made


def plain_digits(value: float, significant: int = 3) -> str:
    """Formats a number with ``significant`` digits; a large number keeps all integer digits.

    12345 becomes "12345", not "1.23e+04".
    """
    large = abs(value) >= 10 ** (significant - 1)
    return f"{value:.0f}" if large else f"{value:.{significant}g}"


def percent_digits(share: float) -> str:
    """Returns a fraction in percent with one decimal, "12.3"; never "-0.0"."""
    return f"{round(100 * share, 1) + 0.0:.1f}"


def in_ms(value: float) -> str:
    """Formats milliseconds for a sentence: three significant digits, or all integer digits."""
    return f"{plain_digits(value)} ms"


def in_bytes(value: float) -> str:
    """Formats bytes for a sentence: whole bytes below 1 kB, else kB or MB as ``plain_digits``."""
    if value < 1e3:
        return counted(round(value), "byte")
    return f"{value / 1e3:.3g} kB" if value < 999.5e3 else f"{plain_digits(value / 1e6)} MB"


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
    """Wraps text between words; paths are not broken, so that they can be copied.

    Args:
        text: text from any source; control characters are escaped.
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
    """Returns the text unchanged, or wrapped again if a line is wider than ``width``."""
    if all(len(line) <= width for line in text.splitlines()):
        return text
    return textwrap.fill(" ".join(text.split()), width, break_long_words=False)
