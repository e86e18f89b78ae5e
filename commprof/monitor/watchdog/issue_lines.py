"""Finds the lines of code that issued the ranks' latest collectives.

The lines come from the stacks in the ranks' traces. In full mode, a trace has the stacks of its
first operations, or of all operations if this was requested. In always-on mode, traces have no
stacks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import lru_cache

from commprof.analysis.collectives.kinds import call_path
from commprof.analysis.collectives.mismatches import issue_rows
from commprof.monitor.watchdog.feed import RankFeed
from commprof.trace.schema import Kind

#: Number of collectives that are kept for each rank. The latest are enough, because collectives are
#: compared as soon as they are recorded.
_MOST_KEPT = 512
#: For one mismatch, the lines of about ``_MOST_LOOKED_UP`` calls are looked up, summed over the
#: ranks. At least the last ``_LEAST_LOOKED_UP`` collectives are looked up.
_MOST_LOOKED_UP, _LEAST_LOOKED_UP = 1 << 14, 32

#: Returns the lines of a stack. Results are cached, because ranks have many stacks in common.
path_of = lru_cache(maxsize=1 << 10)(call_path)


class IssueLines:
    """Finds the lines of code that issued the latest collectives."""

    def __init__(self) -> None:
        """Starts without collectives."""
        #: Latest collectives of each rank: group name, sequence number and stack id.
        self._latest: dict[int, deque[tuple[str, int, int]]] = {}
        self._feeds: dict[int, RankFeed] = {}

    def take(self, feed: RankFeed) -> None:
        """Adds the new records of a rank."""
        records = feed.records
        described = records[records["kind"] == Kind.STACK]
        if feed.state is None or len(described) == 0:
            return
        numbers = dict(zip(described["op_id"].tolist(), described["value"].tolist(), strict=True))
        sizes = feed.group_sizes
        latest = self._latest.setdefault(feed.state.rank, deque(maxlen=_MOST_KEPT))
        for row in issue_rows(records):
            if row["op_id"] in numbers and row["group"] in sizes:
                latest.append((sizes[row["group"]][0], row["seq"], numbers[row["op_id"]]))
        self._feeds[feed.state.rank] = feed

    def of(self, group: str, seq: int, ranks: Collection[int]) -> dict[int, dict[int, str]]:
        """Returns the lines that issued a group's collectives, by sequence number and rank.

        The result covers collective ``seq`` and some collectives before it. An earlier collective
        is included only if its line is known on all ``ranks``.
        """
        first = seq - max(_LEAST_LOOKED_UP, _MOST_LOOKED_UP // len(ranks))
        paths: dict[int, dict[int, str]] = {}
        for rank in ranks:
            stacks = self._feeds[rank].stacks if rank in self._feeds else {}
            of_stacks: dict[int, str] = {}
            for name, number, stack in self._latest.get(rank, ()):
                if name != group or not first <= number <= seq:
                    continue
                if stack not in of_stacks:
                    of_stacks[stack] = path_of(stacks.get(stack, ()))
                if path := of_stacks[stack]:
                    paths.setdefault(number, {})[rank] = path
        return {
            number: by_rank
            for number, by_rank in paths.items()
            if number == seq or len(by_rank) == len(ranks)
        }
