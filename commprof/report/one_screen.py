"""Layout of the first screen of a report: at most 24 lines of at most 80 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable

from commprof.report.tabulated import Grid, tabulated
from commprof.text import counted, printable, wrapped

WIDTH, LINES = 80, 24


def command_lines(command: str) -> list[str]:
    """Breaks a command into lines for a shell: between words, or after commas in a long word."""
    lines = [" "]
    for word in _words(printable(command)):
        if len(lines[-1]) + 1 + len(word) > WIDTH - 2 and lines[-1].strip():
            lines[-1] += " \\"
            lines.append("   ")
        first, *rest = _pieces(word, WIDTH - 6)
        lines[-1] += f" {first}"
        for piece in rest:
            lines[-1] += "\\"
            lines.append(piece)
    return lines


def _pieces(word: str, width: int) -> list[str]:
    """Cuts a word longer than ``width`` characters after commas; a quoted word stays whole."""
    if len(word) <= width or "'" in word or '"' in word:
        return [word]
    pieces = [""]
    for part in re.findall(r"[^,]*,|[^,]+", word):
        if pieces[-1] and len(pieces[-1]) + len(part) > width:
            pieces.append("")
        pieces[-1] += part
    return pieces


def _words(command: str) -> list[str]:
    words, open_quote = [""], ""
    for character in command:
        if character in "'\"" and open_quote in ("", character):
            open_quote = "" if open_quote else character
        if character == " " and not open_quote:
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word]


def prose(text: str) -> list[str]:
    """Breaks prose between words into lines of at most 80 columns."""
    return wrapped(text, WIDTH).splitlines()


def whole(items: Iterable[str]) -> list[str]:
    """Joins items into lines of at most 80 columns without breaking an item."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + 3 + len(item) > WIDTH:
            lines.append("")
        lines[-1] += f"   {item}" if lines[-1] else item
    return lines


def cut(line: str, tail: str = "") -> str:
    """Makes text of any origin printable and cuts it to one line; dots mark the cut.

    First, long paths lose their leading folders. If the line is too long even then, it is cut
    between words, or within a word if less than half a line would be left. ``tail``, cut to half a
    line, is put at the end.
    """
    line, tail = printable(line), f" {_cut_to(printable(tail), WIDTH // 2)}" if tail else ""
    width = WIDTH - len(tail)
    if len(line) <= width:
        return line + tail
    line = re.sub(rf"[^ ]{{{WIDTH // 2 + 1},}}", lambda word: _last_folders(word[0]), line)
    if len(line) <= width:
        return line + tail
    words = textwrap.wrap(line, width - 4, break_on_hyphens=False, break_long_words=False)[0]
    return (words if width // 2 <= len(words) <= width - 4 else line[: width - 4]) + f" ...{tail}"


def _cut_to(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 4]} ..."


def _last_folders(path: str) -> str:
    """Shortens a long path to its last folders. Text without a slash stays as it is."""
    kept = path[-(WIDTH // 2 - 3) :]
    whole_names = kept[kept.find("/") :] if "/" in kept else "/" + path.rpartition("/")[2]
    return f"...{whole_names}" if "/" in path else path


def table_lines(grid: Grid, columns: Collection[str], space: int, noun: str) -> list[str]:
    """Renders the rows of a table that fit into ``space`` lines, and counts the rows left out.

    Args:
        grid: the table.
        columns: columns to show, by the first lines of their headers. If the table is too wide,
            the last columns are dropped.
        space: number of lines. If no row fits, no line is returned.
        noun: name of a row, such as "candidate".
    """
    kept = [i for i, header in enumerate(grid.headers) if header.split("\n")[0] in columns]
    lines = [" " * (WIDTH + 1)]
    while max(map(len, lines)) > WIDTH and kept:
        headers = [grid.headers[i] for i in kept]
        left = [place for place, i in enumerate(kept) if i in grid.left]
        lines = tabulated([[row[i] for i in kept] for row in grid.rows], headers, left).splitlines()
        kept.pop()
    lines = [cut(line) for line in lines]
    if len(lines) <= space:
        return lines
    if space < len(lines) - len(grid.rows) + 2:
        return []
    return [*lines[: space - 1], f"... and {counted(len(lines) - space + 1, noun)} more"]
