"""Checks that the ranks may open as many files and sockets as they need."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from commprof.analysis.checks.outcome import FAIL, PASS, WARN, Outcome
from commprof.checks.ranks import Ranks

NAME = "open files"
#: Number of files that a rank opens for Python, torch and a few DataLoader workers.
_OWN = 256
#: Number of sockets that gloo opens in every process for each rank of the job.
_PER_RANK = 8
#: Number of files that DataLoader workers need if they share tensors by file descriptor.
_COMFORTABLE = 4096


def measure(ranks: Ranks) -> tuple[str, int]:
    """Returns the host's name, and the soft limit of open files (-1: no limit)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ranks.host, -1 if limit == resource.RLIM_INFINITY else limit


def judge(values: Sequence[tuple[str, int]]) -> Outcome:
    """Fails if the limit is too low for the ranks; warns if it is too low for their DataLoaders."""
    limited = [(limit, host) for host, limit in values if limit >= 0]
    if not limited:
        return Outcome(NAME, PASS, "no limit")
    limit, host = min(limited)
    needed = _OWN + _PER_RANK * len(values)
    figure = f"limit {limit} on {host}"
    if limit < needed:
        advice = (
            f"with {len(values)} ranks, each needs {needed} files: run ulimit -n "
            f"{max(needed, _COMFORTABLE)}"
        )
        return Outcome(NAME, FAIL, figure, advice)
    if limit < _COMFORTABLE:
        advice = f"DataLoader workers may need more open files: run ulimit -n {_COMFORTABLE}"
        return Outcome(NAME, WARN, figure, advice)
    return Outcome(NAME, PASS, figure)
