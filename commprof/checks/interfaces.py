"""Compares the speeds of the hosts' network interfaces that are up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commprof.analysis.checks.outcome import PASS, SKIP, WARN, Outcome, per_host
from commprof.checks.ranks import Ranks

NAME = "network"
_DIRECTORY = Path("/sys/class/net")


def measure(ranks: Ranks) -> tuple[str, dict[str, int]]:
    """Returns the host's name, and the speeds of its network interfaces (see :func:`speeds`)."""
    return ranks.host, speeds(_DIRECTORY)


def speeds(directory: Path) -> dict[str, int]:
    """Returns the speed in Mbit/s of each interface that is up, except loopback; 0 if unknown."""
    found = {}
    for path in sorted(directory.glob("*")):
        try:
            if path.name == "lo" or (path / "operstate").read_text().strip() != "up":
                continue
        except OSError:
            continue
        try:
            found[path.name] = max(0, int((path / "speed").read_text()))
        except (OSError, ValueError):
            found[path.name] = 0
    return found


def judge(values: Sequence[tuple[str, dict[str, int]]]) -> Outcome:
    """Warns if the speeds of the hosts' fastest interfaces differ."""
    hosts = per_host(values)
    fastest = {host: max(speeds.values(), default=0) for host, speeds in hosts.items()}
    known = {host: speed for host, speed in fastest.items() if speed}
    shown = ", ".join(
        f"{name} {f'{speed / 1000:g} Gbit/s' if speed else 'of unknown speed'} on {host}"
        for host, speeds in sorted(hosts.items())
        for name, speed in speeds.items()
    )
    if not known:
        return Outcome(NAME, SKIP, shown or "no interface except loopback is up")
    if len(set(known.values())) > 1:
        slow = min(known, key=lambda host: known[host])
        advice = (
            "all hosts wait for the slowest one: find out why the fastest interface of "
            f"{slow} has only {known[slow] / 1000:g} Gbit/s"
        )
        return Outcome(NAME, WARN, shown, advice)
    return Outcome(NAME, PASS, shown)
