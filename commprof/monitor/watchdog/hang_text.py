"""Makes the text of ``hang_N.txt``: the diagnosis and the ranks' states.

In a small job, every rank has its own lines. In a large job, ranks in the same state share lines.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from commprof.text import counted, name_list, named_ranks, printable

#: If a job has more ranks than this, ranks in the same state share lines.
_MOST_RANKS = 16
#: Largest number of listed states, and of listed hosts.
_MOST_ROWS = 10
#: A line names at most this many hosts, process groups, or ranges of ranks.
_MOST_RANGES = 8

_Rank = dict[str, Any]


def hang_text(value: dict[str, Any]) -> str:
    """Formats the content of a ``hang_N.json`` for people."""
    lines = [f"Hang {value['number']} on {value['host']}, found {value['found']}", ""]
    lines += [value["sentence"], ""]
    if "threshold" in value:
        lines.append(f"Threshold: {value['threshold']}")
    lines += value["reasons"]
    ranks: list[_Rank] = value["ranks"]
    accused = {accusation["rank"] for accusation in value["accused"]}
    lines += _hosts([rank for rank in ranks if rank["rank"] in accused], ranks)
    lines.append("")
    if len(ranks) <= _MOST_RANKS:
        lines += [line for rank in ranks for line in _alone(rank)]
    else:
        lines += _by_state(ranks, accused)
    lines.append("")
    for stack in value["stacks"]:
        lines.append(f"Stacks of rank {stack['rank']}: {stack['file'] or stack['problem']}")
    if value["ended_after_s"] is not None:
        lines.append(f"The hang ended {value['ended_after_s']:.1f} s after commprof found it.")
    return "\n".join(printable(line) for line in lines) + "\n"


def _hosts(accused: Sequence[_Rank], ranks: Sequence[_Rank]) -> list[str]:
    """Lists the hosts with ranks at fault; empty if the job has a single host."""
    if len({rank["host"] for rank in ranks}) < 2:
        return []
    of_host: dict[str, list[_Rank]] = {}
    for rank in accused:
        of_host.setdefault(rank["host"], []).append(rank)
    most = sorted(of_host.items(), key=lambda item: -len(item[1]))
    lines = [f"on {host}{_place(found[0])}: {_named(found)}" for host, found in most[:_MOST_ROWS]]
    left = most[_MOST_ROWS:]
    if left:
        count = sum(len(found) for _, found in left)
        lines.append(f"on {counted(len(left), 'more host')}: {counted(count, 'rank')}")
    return lines


def _named(ranks: Sequence[_Rank]) -> str:
    return named_ranks([rank["rank"] for rank in ranks], _MOST_RANGES)


def _place(rank: _Rank) -> str:
    """Names the network switches above a rank's host; empty if they are not known."""
    switches, _, _ = rank.get("topology", "").rpartition(".")
    return f" (network switches: {switches.replace('.', ', ')})" if switches else ""


def _alone(rank: _Rank) -> list[str]:
    process = f", process {rank['pid']}, {rank['process'] or 'on another host'}"
    last = rank["last_record_s_ago"]
    seen = f", last record {last:.1f} s ago" if last is not None else ""
    lines = [
        f"rank {rank['rank']} ({rank['host']}{process}): step {rank['step']}, {rank['phase']}{seen}"
    ]
    lines += [
        f"    next collective of group {g!r}: number {n}"
        for g, n in rank["next_collective"].items()
    ]
    for operation in rank["pending"]:
        since = f" for {operation['pending_s']:.1f} s" if operation["pending_s"] is not None else ""
        lines.append(f"    pending{since}: {_operation(operation, repr(operation['group']))}")
    return lines


def _operation(operation: dict[str, Any], group: str) -> str:
    bucket = f", bucket {operation['bucket']}" if operation["bucket"] >= 0 else ""
    size = f"{operation['bytes_in']} bytes"
    return f"{operation['op']} {operation['seq']} of group {group}{bucket}, {size}"


def _by_state(ranks: Sequence[_Rank], accused: set[int]) -> list[str]:
    alike: dict[Hashable, list[_Rank]] = {}
    for rank in ranks:
        alike.setdefault(_state(rank, accused), []).append(rank)
    ordered = sorted(
        alike.values(),
        key=lambda rows: (rows[0]["rank"] not in accused, -len(rows)),
    )
    lines = [line for rows in ordered[:_MOST_ROWS] for line in _together(rows)]
    left = ordered[_MOST_ROWS:]
    if left:
        others = [rank for rows in left for rank in rows]
        lines.append(f"{_named(others)}: in {counted(len(left), 'other state')}, see the JSON file")
    return lines


def _state(rank: _Rank, accused: set[int]) -> Hashable:
    pending = tuple(
        (operation["op"], operation["seq"], operation["bucket"]) for operation in rank["pending"]
    )
    return rank["rank"] in accused, rank["process"], rank["step"], rank["phase"], pending


def _together(alike: Sequence[_Rank]) -> list[str]:
    hosts = name_list({rank["host"] for rank in alike}, _MOST_RANGES)
    first = alike[0]
    process = first["process"] or "on another host"
    seen = _span([rank["last_record_s_ago"] for rank in alike], "last record ", " ago")
    lines = [f"{_named(alike)} ({hosts}; {process}): step {first['step']}, {first['phase']}{seen}"]
    for position, operation in enumerate(first["pending"]):
        groups = {rank["pending"][position]["group"] for rank in alike}
        times = [rank["pending"][position]["pending_s"] for rank in alike]
        named = _operation(operation, name_list(groups, _MOST_RANGES))
        lines.append(f"    pending: {named}{_span(times, 'for ')}")
    return lines


def _span(values: Sequence[float | None], before: str, after: str = "") -> str:
    """Formats a range of times: ", last record 1.0 to 2.0 s ago"; empty if no time is known."""
    known_values = [value for value in values if value is not None]
    if not known_values:
        return ""
    least, largest = f"{min(known_values):.1f}", f"{max(known_values):.1f}"
    return f", {before}{least if least == largest else f'{least} to {largest}'} s{after}"
