"""Several ranks that work longer than all others, for example all ranks of a slow host.

The other ranks wait for all of them. Each slower rank comes last in some steps, so no single rank
stands out. Even if one slower rank is named as late, making only this rank faster gains little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import (
    MOST_WAITING,
    OF_STEP,
    OF_STEPS,
    are_waiting,
    fell_behind,
)
from commprof.analysis.step.exposure import ORIGINS
from commprof.analysis.step.rank_parts import PairWaits
from commprof.stats.outliers import standing_out
from commprof.text import counted, in_ms, listed, named_ranks, plural, printable
from commprof.units import ns_to_ms

Floats = npt.NDArray[np.float64]

_MOST_HOSTS = 3
#: If one rank is late, another rank counts as slower too if its excess is at least this fraction of
#: the late rank's excess.
_NEARLY = 0.5


@dataclass(frozen=True)
class SlowerRanks:
    """Ranks whose own work takes longer than that of all other ranks."""

    #: Global ranks, at most half of the job.
    ranks: tuple[int, ...]
    #: Hosts on which these ranks run. Empty if these hosts also run other ranks of the job, or if
    #: the job has no other hosts.
    hosts: tuple[str, ...]
    #: Part of the step in which these ranks have the most extra time, one of ``exposure.ORIGINS``;
    #: None if unknown.
    phase: str | None
    #: Smallest excess of any of these ranks. A rank's excess is its own work minus the median of
    #: the others. The excess is the ``average`` over the steps.
    longer_ms: float
    #: "median", or "mean" in always-on mode, which does not keep single steps.
    average: str
    #: Mean time per step for which a waiting rank waits for these ranks.
    wait_ms: float
    waiting_ranks: int
    #: Fraction of all waiting that is waiting for these ranks.
    share: float

    def share_of(self, step_ms: float) -> float:
        """Returns the mean wait for these ranks, as a fraction of the mean step."""
        return self.wait_ms / step_ms

    @property
    def named(self) -> str:
        """The ranks, and their hosts if known: "ranks 8-15 (all of host node-1)"."""
        ranks = named_ranks(self.ranks)
        if not self.hosts:
            return ranks
        if len(self.hosts) > _MOST_HOSTS:
            return f"{ranks} (all of {counted(len(self.hosts), 'host')})"
        hosts = plural(len(self.hosts), "host")
        return f"{ranks} (all of {hosts} {listed([*map(printable, self.hosts)])})"

    @property
    def told(self) -> str:
        """A sentence that begins with "ranks" and lacks its full stop."""
        where = f" {where}" if (where := fell_behind(self.phase)) else ""
        return (
            f"{self.named} fall behind{where} by {in_ms(self.longer_ms)} or more per step "
            f"({self.average} over the steps): each of the "
            f"{counted(self.waiting_ranks, 'rank')} that "
            f"{'wait' if self.waiting_ranks > 1 else 'waits'} for them waits "
            f"{in_ms(self.wait_ms)} per step, {self.share:.0%} of all waiting"
        )


def slower_ranks(
    work_ns: Floats,
    by_waiting_ns: Floats | PairWaits,
    total_ns: float,
    steps: int,
    ranks: Sequence[int],
    host_of: Mapping[int, str],
    step_ns: float,
    clock_error_ns: float,
    late: int | None,
) -> SlowerRanks | None:
    """Returns two or more ranks that work longer than all others; None if there are none.

    Args:
        work_ns: ``[rank, origin, step]`` as in ``stragglers.find_slow_rank``; or a single step with
            the means over all steps.
        by_waiting_ns: as in ``stragglers.find_late_rank``.
        total_ns: all waiting in these steps, of all causes.
        steps: number of steps in ``by_waiting_ns``.
        ranks: global rank of each row of ``work_ns``.
        host_of: host name of each of these ranks.
        step_ns: median step time.
        clock_error_ns: bound on the error of a rank's clock. The mean wait must be at least twice
            this bound.
        late: the rank that is named as late; None if no rank is.

    At most half of the ranks are slower ranks. They meet these conditions:

    - Their median work stands out from that of the others. If one rank is late, each slower rank
      has at least half of this rank's excess.
    - In at least three of four steps, each of them works longer than the others' median, by at
      least 2 % of the step.
    - The others wait for them for at least 2 % of the step, and this is at least 60 % of all
      waiting.
    """
    count = len(work_ns)
    if not work_ns.shape[2] or not steps:
        return None
    own_ns = work_ns.sum(axis=1)
    typical = np.median(own_ns, axis=1)
    if late is None:
        rows = standing_out(typical - np.median(typical), count // 2)
    else:
        rows = _nearly_as_slow(typical, list(ranks).index(late)) if late in ranks else []
    if not 2 <= len(rows) <= count // 2:
        return None
    others = np.setdiff1d(np.arange(count), rows)
    beyond = own_ns[rows] - np.median(own_ns[others], axis=0)
    if np.quantile(beyond, 1 - OF_STEPS, axis=1).min() < OF_STEP * step_ns:
        return None
    slower = tuple(sorted(ranks[row] for row in rows))
    # By global rank: how long the rank waits for the slower ranks.
    waited_ns = np.array(sum(by_waiting_ns[:, rank] for rank in slower), dtype=np.float64)
    waited_ns[list(slower)] = 0.0
    waiting = are_waiting(waited_ns)
    if not waiting.any() or waited_ns.sum() < MOST_WAITING * total_ns:
        return None
    wait_ns = float(waited_ns[waiting].mean()) / steps
    if wait_ns < max(OF_STEP * step_ns, 2 * clock_error_ns):
        return None
    by_phase = np.median(work_ns[rows], axis=2).mean(axis=0)
    by_phase -= np.median(work_ns[others], axis=2).mean(axis=0)
    return SlowerRanks(
        ranks=slower,
        hosts=whole_hosts(slower, host_of),
        phase=ORIGINS[int(np.argmax(by_phase))],
        longer_ms=ns_to_ms(float(np.median(beyond, axis=1).min())),
        average="median" if work_ns.shape[2] > 1 else "mean",
        wait_ms=ns_to_ms(wait_ns),
        waiting_ranks=int(waiting.sum()),
        share=float(waited_ns.sum()) / total_ns,
    )


def _nearly_as_slow(typical_ns: Floats, late: int) -> list[int]:
    """Returns the rows whose excess over the others is at least half the excess of ``late``."""
    others = np.delete(typical_ns, late)
    for _ in range(2):  # the first median may include slower ranks
        least = np.median(others) + _NEARLY * (typical_ns[late] - np.median(others))
        slower = typical_ns >= least
        if slower.all() or not typical_ns[late] > np.median(others):
            return []
        others = typical_ns[~slower]
    return np.flatnonzero(slower).tolist()


def whole_hosts(members: Collection[int], host_of: Mapping[int, str]) -> tuple[str, ...]:
    """Returns the hosts of the members, if these hosts run no other ranks or processes.

    Empty if the hosts run others too, if the host of a member is not known, or if there are no
    other hosts.

    Args:
        members: numbers of ranks or processes.
        host_of: host of every rank or process of the job; "" if it is not known.
    """
    theirs = {host_of[member] for member in members}
    of_these = sum(host in theirs for host in host_of.values())
    is_whole = of_these == len(members) and len(theirs) < len(set(host_of.values()))
    return tuple(sorted(theirs)) if is_whole and "" not in theirs else ()
