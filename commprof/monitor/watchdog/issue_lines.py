"""Lines of code that issued the ranks' latest collectives, as far as their traces describe stacks.

A trace in full mode describes the stacks of its first operations, or of all operations if this was
requested. Always-on mode describes no stacks: there only py-spy shows where a rank is.
"""

from __future__ import annotations

from collections import deque

from commprof.analysis.collectives.kinds import call_path
from commprof.analysis.collectives.mismatches import issue_rows
from commprof.monitor.watchdog.feed import RankFeed
from commprof.trace.schema import Kind

#: Largest number of collectives of a rank that are kept: a mismatch is searched for as soon as it
#: is recorded.
_MOST_KEPT = 128


class IssueLines:
    """Finds the lines of code that issued the latest collectives, by the ids of their stacks."""

    def __init__(self) -> None:
        """Starts without collectives."""
        #: By rank: group, sequence number in the group, and id of the stack.
        self._latest: dict[int, deque[tuple[str, int, int]]] = {}
        self._feeds: dict[int, RankFeed] = {}

    def take(self, feed: RankFeed) -> None:
        """Adds the records that the last look found."""
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

    def path_of(self, rank: int, group: str, seq: int) -> str:
        """Returns the line that issued a collective, and those that called it, see ``call_path``.

        Empty if they are not known.
        """
        for name, number, stack in reversed(self._latest.get(rank, ())):
            if (name, number) == (group, seq):
                return call_path(self._feeds[rank].stacks.get(stack, ()))
        return ""
