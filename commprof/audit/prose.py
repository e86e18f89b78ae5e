"""What sentences and lists of a report state: few forms, which leave no doubt what is meant."""

from __future__ import annotations

import re
from collections.abc import Sequence

from commprof.audit.document import Statement
from commprof.audit.figure import Figure, parse_figure
from commprof.audit.quantities import COUNTS, classify, hourly_price, parse_ranks

_NUMBER = r"[~≈<>≤≥]?\s?\d[\d.,]*(?:[-–]\d[\d.,]*)?"
_FROM_TO = re.compile(
    r"(?<![\d.])(\d{1,6})\s*(?:→|->|to)\s*(\d{1,6})[ -](?:process|gpu|rank|node)", re.I
)
_SPEEDUP = re.compile(rf"({_NUMBER}\s?[x×])\W{{0,4}}(?:the )?speed-?up", re.I)
_EFFICIENCY = re.compile(rf"({_NUMBER}\s?%)\s(?:(?:parallel|scaling) )?efficiency", re.I)
_AT = re.compile(r"\bat (\d{1,6}) (?:process|gpu|rank|node)", re.I)
_AMDAHL = re.compile(rf"^\W*N\s*=\s*(\d{{1,6}})\W.{{0,20}}speed-?up\W{{0,4}}({_NUMBER})", re.I)
_PARALLEL = re.compile(r"^\W*P\s*=\s*(?:[A-Za-z ]{1,60}=\s*)?([\d.]+\s?%?)(?=$|[\s(])")
_LISTED = re.compile(r"\s*(?:[-*•+]|\d+\.)?\s*\**([A-Za-z][\w /-]{0,60}?)\**\s*:\**\s*(\S.*)")
_OVERHEAD = re.compile(rf"(?:^|[\s(])({_NUMBER}\s?%)\s(?:communication )?overhead", re.I)
#: Facts that a list may state for all world sizes.
_FACTS = (
    "batch",
    "rank_batch",
    "global_batch",
    "epochs",
    "parallel_share",
    "overhead",
    "accumulation",
)


def statements(lines: Sequence[str]) -> list[Statement]:
    """Speed-up and efficiency of sentences such as "1→4 processes: 3.9x speedup"."""
    found = []
    for number, line in enumerate(lines, start=1):
        if "|" in line:
            continue
        where = f"line {number}"
        span, at = _FROM_TO.search(line), _AT.search(line)
        speedup, efficiency = _SPEEDUP.search(line), _EFFICIENCY.search(line)
        figures = {
            name: figure
            for name, match in (("speedup", speedup), ("efficiency", efficiency))
            if match and (figure := parse_figure(match[1], where))
        }
        if not figures or bool(span) == bool(at):
            continue
        base, ranks = (int(span[1]), int(span[2])) if span else (1, int(at[1]) if at else 0)
        if 0 < base < ranks:
            found.append(Statement(base, ranks, figures))
    return found


def amdahl_speedups(lines: Sequence[str]) -> list[tuple[int, Figure]]:
    """Lines such as ``N=8: Speedup = 5.93x``."""
    found = []
    for number, line in enumerate(lines, start=1):
        match = _AMDAHL.match(line)
        figure = parse_figure(match[2], f"line {number}") if match else None
        if match and figure and int(match[1]):
            found.append((int(match[1]), figure))
    return found


def facts(lines: Sequence[str]) -> list[tuple[str, Figure]]:
    """Batch, epochs, parallel share and communication overhead, where no world size is named."""
    found = []
    for number, line in enumerate(lines, start=1):
        if "|" in line:
            continue
        where = f"line {number}"
        share = _PARALLEL.match(line)
        if share and (figure := parse_figure(share[1], where)):
            found.append(("parallel_share", figure))
        if parse_ranks(line) is None:
            found += _facts_of_line(line, where)
    return found


def price(lines: Sequence[str]) -> tuple[Figure, bool] | None:
    """The first price per hour of the text, and whether it says that it is per rank."""
    for number, line in enumerate(lines, start=1):
        found = hourly_price(line, f"line {number}")
        if found:
            return found
    return None


def _facts_of_line(line: str, where: str) -> list[tuple[str, Figure]]:
    listed = _LISTED.fullmatch(line)
    if listed:
        quantity = classify(listed[1])
        if quantity is None or quantity.name not in _FACTS or not _is_of_all(listed[1]):
            return []
        text = listed[2].rpartition("=")[2].strip()
        figure = parse_figure(text, where, quantity.unit, quantity.name in COUNTS)
        is_share = quantity.name != "overhead" or (figure is not None and figure.unit == "%")
        return [(quantity.name, figure)] if figure and is_share else []
    match = _OVERHEAD.search(line)
    figure = parse_figure(match[1], where) if match else None
    return [("overhead", figure)] if figure else []


def _is_of_all(key: str) -> bool:
    """Whether an overhead is communication's, as a share of the whole."""
    text = key.lower()
    return "overhead" not in text or bool(
        re.fullmatch(
            r"(percentage |(total )?comm(unication)?\.? |gradient sync\w* |sync\w* )?overhead", text
        )
    )
