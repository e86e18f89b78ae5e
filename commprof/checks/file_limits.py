"""Whether the ranks may open as many files and sockets as they need."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from commprof.analysis.checks.outcome import FAIL, PASS, WARN, Outcome
from commprof.checks.ranks import Ranks

NAME = "open files"
#: Python, torch and a few DataLoader workers; per rank of the job, gloo's sockets of some groups.
_OWN = 256
_PER_RANK = 8
#: What DataLoader workers that share tensors by file descriptor soon need.
_COMFORTABLE = 4096


def measure(ranks: Ranks) -> tuple[str, int]:
    """Reads the host's soft limit of open files; -1 for none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ranks.host, -1 if limit == resource.RLIM_INFINITY else limit


def judge(values: Sequence[tuple[str, int]]) -> Outcome:
    """Fails below what the job itself needs, warns below what DataLoaders like."""
    limited = [(limit, host) for host, limit in values if limit >= 0]
    if not limited:
        return Outcome(NAME, PASS, "no limit")
    limit, host = min(limited)
    needed = _OWN + _PER_RANK * len(values)
    figure = f"limit {limit} on {host}"
    if limit < needed:
        advice = f"{len(values)} ranks need some {needed}: ulimit -n {max(needed, _COMFORTABLE)}"
        return Outcome(NAME, FAIL, figure, advice)
    if limit < _COMFORTABLE:
        advice = f"DataLoader workers may run out of files: ulimit -n {_COMFORTABLE}"
        return Outcome(NAME, WARN, figure, advice)
    return Outcome(NAME, PASS, figure)
