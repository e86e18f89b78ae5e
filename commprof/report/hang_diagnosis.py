"""Renders the diagnosis of a hang from Flight Recorder dumps, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from commprof.analysis.late.dumped_diagnosis import Diagnosis, GroupProgress
from commprof.analysis.late.standstill import reasons
from commprof.field_groups import plain_fields
from commprof.report.tabulated import tabulated
from commprof.text import counted, fitted, listed, named_ranks, printable, rank_list, wrapped

SCHEMA_VERSION = 1
LEGEND = """\
scheduled, started, completed: number of the last collective that the group's ranks scheduled,
started or completed, counted from 0 as in other reports (SeqNum in c10d's messages is 1 more). If
ranks differ, each number is followed by its ranks. -: not recorded. messages: sends and receives
that are pending. 0-12:4: every fourth rank from 0 to 12."""
_MOST_LINES = 20
_MOST_GROUPS = 10
_MOST_RANGES = 8
_HEADERS = ("group", "ranks", "scheduled", "started", "completed", "messages")


def render(found: Diagnosis, width: int, tables: int | None = None) -> str:
    """Renders a diagnosis for a terminal, with the groups that are involved.

    Args:
        found: the diagnosis.
        width: number of characters at which prose is wrapped.
        tables: number of characters; a wider table is split. None leaves the table whole.
    """
    blocks = [_heading(found), wrapped(found.sentence + ".", width)]
    culprits = [f"- {why}" for why in reasons(found.culprits)]
    if culprits:
        blocks.append(_lines("Culprits", culprits, width))
    chains = [f"- {one.sentence}" for one in found.chains]
    if chains:
        blocks.append(_lines("Who waits for whom", chains, width))
    if found.mismatches:
        said = [f"- {one.sentence}" for one in found.mismatches]
        blocks.append(_lines("Collectives that differ between ranks", said, width))
    named = {one.rank for one in found.culprits}
    shown = [one for one in found.groups if one.uneven or (named & {*one.ranks})]
    if shown:
        rows = [_row(one) for one in shown[:_MOST_GROUPS]]
        table = tabulated(rows, _HEADERS, left=range(len(_HEADERS)), width=tables)
        blocks += [table, fitted(LEGEND, width)]
    more = len(found.groups) - min(len(shown), _MOST_GROUPS)
    if more:
        text = "with operations that are, or may be, pending (--format json shows all groups)."
        blocks.append(wrapped(f"Not shown: {counted(more, 'more group')} {text}", width))
    caveats = [f"- {printable(one)}" for one in found.read.problems]
    if found.lacks.untold and found.kind != "unknown":
        caveats.append(
            f"- operations of {printable(listed(found.lacks.untold))} may be pending, too: Flight "
            "Recorder does not learn when they complete"
        )
    if found.read.missing:
        caveats.append(
            f"- {named_ranks(found.read.missing)} left no readable dump: their state is not known"
        )
    if caveats:
        blocks.append(_lines("Caveats", caveats, width))
    return "\n\n".join(blocks) + "\n"


def document(found: Diagnosis) -> str:
    """Renders a diagnosis as a JSON object."""
    head = {"schema_version": SCHEMA_VERSION, "kind": "flight recorder diagnosis"}
    culprits = [{"rank": one.rank, "why": one.why} for one in found.culprits]
    body = {"verdict": found.sentence, **plain_fields(found), "cause": found.kind}
    body["culprits"] = culprits
    del body["kind"]
    return json.dumps(head | body, indent=1) + "\n"


def _heading(found: Diagnosis) -> str:
    read = found.read
    versions = ", ".join(version or "unknown" for version in read.versions)
    return f"Flight Recorder: dumps of {counted(read.dumps, 'rank')}, version {printable(versions)}"


def _lines(title: str, lines: list[str], width: int) -> str:
    more = len(lines) - _MOST_LINES
    shown = [wrapped(printable(line), width, rest="  ") for line in lines[:_MOST_LINES]]
    return "\n".join(
        [title, *shown, *([f"- {more} more; --format json shows all"] if more > 0 else [])]
    )


def _row(one: GroupProgress) -> tuple[str, ...]:
    name = f"{one.group} {one.description}".strip()
    return (
        printable(name),
        rank_list(one.ranks, most=_MOST_RANGES),
        _numbers(one.scheduled, one.scheduled),
        _numbers(one.started, one.scheduled),
        _numbers(one.completed, one.scheduled),
        str(one.pending_messages) if one.pending_messages else "-",
    )


def _numbers(by_rank: Mapping[int, int], all_ranks: Mapping[int, int]) -> str:
    ranks: dict[int, list[int]] = {}
    for rank, number in by_rank.items():
        ranks.setdefault(number, []).append(rank)
    if not ranks or (len(ranks) == 1 and by_rank.keys() >= all_ranks.keys()):
        return "".join(map(str, ranks)) or "-"
    ordered = sorted(ranks.items(), reverse=True)
    return "; ".join(f"{number}: {rank_list(who, most=_MOST_RANGES)}" for number, who in ordered)
