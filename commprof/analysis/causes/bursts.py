"""Finds series of calls in which the training thread waits for each call before the next one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commprof.analysis.causes.facts import Floats, Mask, RankCalls
from commprof.analysis.causes.gain import Removed
from commprof.analysis.causes.joined_calls import CallCost
from commprof.trace.columns import Ints
from commprof.trace.lookup import among
from commprof.trace.operations import codes_of
from commprof.trace.schema import ROOTED


@dataclass(frozen=True)
class Bursts:
    """Sequences of calls of one rank that one call could replace.

    The calls of a burst have the same operation and group, and lie between the same phases of one
    step. No other calls stand between them, except barriers: libraries of metrics make a barrier
    before each exchange. The thread waits for each call. In the median, the thread's work between
    two calls takes no longer than its wait for a call.
    """

    calls: RankCalls
    #: Row of each call in the rank's table.
    row: Ints
    #: Number of each call's burst.
    burst: Ints
    #: Mask over the table: barriers that stand before calls of bursts, in the same phase.
    barriers: Mask
    #: True if the calls exchange single numbers. Calls of different data types can then be joined,
    #: because one floating-point type can hold all these numbers.
    of_numbers: bool = False

    @cached_property
    def remains(self) -> Mask:
        """Mask over the calls: the calls that remain if calls are joined.

        Of calls that can be joined (see ``_kinds``), the first remains.
        """
        remains = np.zeros(len(self.row), dtype=bool)
        if len(self.row):
            _, first = np.unique(self._kinds, axis=0, return_index=True)
            remains[first] = True
        return remains

    @property
    def joined(self) -> Mask:
        """Mask over the table: calls and barriers that are not needed if bursts are joined."""
        mask = np.zeros(len(self.calls.table), dtype=bool)
        mask[self.row[~self.remains]] = True
        return mask | self.barriers

    @property
    def all_calls(self) -> Mask:
        """Mask over the table: all calls of bursts."""
        mask = np.zeros(len(self.calls.table), dtype=bool)
        mask[self.row] = True
        return mask

    def joined_ns(self, cost: CallCost) -> Floats:
        """Per row: duration of the joined call, at the first call that it replaces; else NaN.

        The rows are those of the table.
        """
        table, kinds = self.calls.table, self._kinds
        _, first, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        number = np.bincount(kind.reshape(-1))
        total = np.zeros(len(number), dtype=np.int64)
        np.add.at(total, kind.reshape(-1), self.calls.size_bytes[self.row])
        taken = np.full(len(table), np.nan)
        taken[self.row[first[number > 1]]] = cost.of_ns(total[number > 1])
        return taken

    @property
    def _kinds(self) -> Ints:
        """Burst, type, reduction and root of each call; calls with equal values can be joined."""
        table = self.calls.table
        dtype = np.where(self.of_numbers, 0, table.dtype[self.row])
        parts = (self.burst, dtype, table.reduce_op[self.row], _root(self.calls)[self.row])
        return np.stack(parts, axis=1).astype(np.int64)

    def removed(self) -> Removed:
        """Returns what joining removes: calls, and the thread's work between two calls.

        Work between two calls, such as reading a result with ``.item()``, is then done once for the
        whole burst. Work that takes longer than the wait for the next call is unrelated, such as a
        log, and stays.
        """
        rest = np.flatnonzero(~self.remains)
        earlier, later = self.row[rest - 1], self.row[rest]
        work_ns, waited_ns = _work_and_waiting_ns(self.calls, earlier, later)
        issue_ns = self.calls.table.issue_ns[later]
        begin = np.where(work_ns > waited_ns, issue_ns, self.calls.wait_end_ns[earlier])
        return Removed(self.joined, begin, self.calls.wait_end_ns[later], bytes_remain=True)


def _work_and_waiting_ns(calls: RankCalls, earlier: Ints, later: Ints) -> tuple[Ints, Ints]:
    """Returns how long the thread worked between two calls, and waited for the later call.

    Only barriers lie between the calls. Waits in barriers count as waits for the later call.

    ``earlier`` and ``later``: the rows of the calls.
    """
    blocked_ns = np.where(_barriers(calls), calls.wait_end_ns - calls.table.issue_ns, 0)
    until = np.concatenate(([0], np.cumsum(blocked_ns)))
    in_barriers_ns = until[later] - until[earlier]
    issue_ns = calls.table.issue_ns[later]
    work_ns = issue_ns - calls.wait_end_ns[earlier] - in_barriers_ns
    return work_ns, calls.wait_end_ns[later] - issue_ns + in_barriers_ns


def _barriers(calls: RankCalls) -> Mask:
    mask: Mask = among(calls.table.op, *codes_of("barrier")) & calls.is_blocking
    return mask


def _root(calls: RankCalls) -> Ints:
    table = calls.table
    root: Ints = np.where(among(table.op, *ROOTED), table.peer, 0)
    return root


def bursts(calls: RankCalls, mask: Mask, least: int) -> Bursts:
    """Finds the bursts of at least ``least`` calls among the calls in ``mask``."""
    table = calls.table
    barrier = _barriers(calls)
    other = np.flatnonzero(~barrier)
    chosen = (mask & calls.is_blocking & (calls.step >= 0))[other]
    columns = (calls.step, calls.segment, table.op, table.group)
    keys = np.stack([*(column[other] for column in columns), chosen], axis=1)
    begins = np.append(True, (keys[1:] != keys[:-1]).any(axis=1))[: len(keys)]
    number = np.cumsum(begins) - 1
    long = np.bincount(number, minlength=1)[number] >= least if len(number) else chosen
    is_row = chosen & long
    is_row[is_row] = _in_a_row(calls, other[is_row], number[is_row])
    rows = np.flatnonzero(barrier)
    after = np.searchsorted(other, rows)
    rows, after = rows[after < len(other)], after[after < len(other)]
    same = calls.segment[rows] == calls.segment[other[after]]
    same &= calls.step[rows] == calls.step[other[after]]
    before = np.zeros(len(table), dtype=bool)
    before[rows] = is_row[after] & same
    return Bursts(calls, other[is_row], number[is_row], before)


def _in_a_row(calls: RankCalls, row: Ints, burst: Ints) -> Mask:
    """True for each call of a burst whose calls can be joined.

    The thread must work no longer between two calls than it waits for a call. If the thread works
    longer, a call may depend on the work before it. Examples are a flag after each generated token,
    and a gather before each piece of an optimizer's work. The host delays single calls by chance.
    So medians are compared, over all bursts of one operation and group at the same place of a step.

    Args:
        calls: calls of the rank.
        row: row of each call of a burst, in order.
        burst: number of the burst of each of these calls.
    """
    if not len(row):
        return np.zeros(0, dtype=bool)
    table, step = calls.table, calls.step[row]
    first = np.full(int(step.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, step, calls.segment[row])
    keys = np.stack([table.op[row], table.group[row], calls.segment[row] - first[step]], axis=1)
    _, kind = np.unique(keys, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    later = np.flatnonzero(burst[1:] == burst[:-1]) + 1
    work_ns, waited_ns = _work_and_waiting_ns(calls, row[later - 1], row[later])
    holds = np.zeros(int(kind.max()) + 1, dtype=bool)
    for number in range(len(holds)):
        of_kind = kind[later] == number
        if of_kind.any():
            holds[number] = np.median(work_ns[of_kind]) <= np.median(waited_ns[of_kind])
    mask: Mask = holds[kind]
    return mask
