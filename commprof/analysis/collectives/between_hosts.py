"""What gloo's collectives send from one host to another.

`wire_bytes` counts what must be sent at least, wherever to. Which of it crosses from host to host
depends on who sends to whom, and that is gloo's own choice, followed here as its sources have it
(gloo/allreduce.cc, allgather.cc, broadcast.cc, reduce.cc): rings in the order of the ranks, and a
binomial tree for broadcasts. torch makes an all-reduce of each reduce-scatter on gloo
(ProcessGroupGloo.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Collectives
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS

Floats = npt.NDArray[np.float64]

_RING_REDUCE = ("all_reduce", "all_reduce_coalesced")
_REDUCE_SCATTER = (
    *("reduce_scatter", "reduce_scatter_tensor"),
    "reduce_scatter_tensor_coalesced",
)
_GATHER_ALL = (
    *("all_gather", "all_gather_into_tensor", "all_gather_coalesced"),
    "all_gather_into_tensor_coalesced",
)
_TO_ALL = ("all_to_all", "all_to_all_single")
_NOTHING = ("barrier", "monitored_barrier", "recv", "recv_any_source")


def sent_to_other_hosts(trace: Trace, table: Collectives, hosts: Sequence[object]) -> Floats:
    """Per collective the payload in bytes that this rank sends to ranks of other hosts.

    NaN for an operation that is not known, and for a group that is not all ranks in their order.

    Args:
        trace: of one rank.
        table: its collectives.
        hosts: of each rank of the job; equal values are one host.
    """
    me, count = trace.rank, len(hosts)
    away = np.array([host != hosts[me] for host in hosts])
    factor = _Factors(me, away)
    whole = [g.id for g in trace.groups.values() if g.size == count and g.rank == me]
    result = np.full(len(table), np.nan)
    for names, size, of in (
        ((*_RING_REDUCE, *_REDUCE_SCATTER), table.bytes_in, factor.ring_reduce),
        (_GATHER_ALL, table.bytes_in, factor.ring_gather),
        (("broadcast",), table.bytes_in, factor.tree),
        (("reduce",), table.bytes_in, factor.reduce),
        (("gather", "send"), table.bytes_in, factor.to_peer),
        (("scatter",), table.bytes_out, factor.from_root),
        (_TO_ALL, table.bytes_in, factor.to_all),
        (_NOTHING, table.bytes_in, lambda peer: 0.0),
    ):
        codes = [OPS.index(name) for name in names]
        rows = np.isin(table.op, codes) & np.isin(table.group, whole)
        result[rows] = _each(of, table.peer[rows]) * size[rows]
    return result


def _each(of: Callable[[int], float], peers: npt.NDArray[np.int64]) -> Floats:
    """The factor of every row; computed once for each peer."""
    known = {peer: of(peer) for peer in np.unique(peers).tolist()}
    return np.array([known[peer] for peer in peers.tolist()], dtype=np.float64)


class _Factors:
    """Bytes sent to other hosts over the operation's size; ``peer`` is its root or destination."""

    def __init__(self, me: int, away: npt.NDArray[np.bool_]) -> None:
        self._me, self._away, self._n = me, away, len(away)

    def ring_reduce(self, peer: int) -> float:
        """To the rank before: all parts but one, once to add up and once to gather."""
        return 2 * (self._n - 1) / self._n * self._to(self._me - 1)

    def ring_gather(self, peer: int) -> float:
        """To the rank behind: its own part and those that came in, but for the last."""
        return (self._n - 1) * self._to(self._me + 1)

    def tree(self, root: int) -> float:
        """In turn i, who is below 2^i as counted from the root sends to the one 2^i above."""
        mine = (self._me - root) % self._n
        bits = range((self._n - 1).bit_length())
        children = [mine + (1 << bit) for bit in bits if mine < 1 << bit]
        return sum(self._to(root + child) for child in children if child < self._n)

    def reduce(self, root: int) -> float:
        """A ring to add up; then each sends its part to the root."""
        n = self._n
        return (n - 1) / n * self._to(self._me - 1) + self.to_peer(root) / n

    def to_peer(self, peer: int) -> float:
        """All of it to one rank, if that is another."""
        return self._to(peer)

    def from_root(self, root: int) -> float:
        """One part to each of the others."""
        return float(self._away.sum()) if self._me == root else 0.0

    def to_all(self, peer: int) -> float:
        """An equal part to each."""
        return float(self._away.sum()) / self._n

    def _to(self, rank: int) -> float:
        return float(self._away[rank % self._n])
