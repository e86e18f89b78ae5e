"""Several ranks that work longer than all others: a slow host, or a part of the job with more work.

The others wait for all of them, and each of them comes last now and then, so no single rank stands
out. If one of them is much slower, it alone is named as late, but mending it alone wins little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.late.stragglers import MOST_WAITING, OF_STEP, OF_STEPS, fell_behind
from commprof.analysis.step.exposure import ORIGINS
from commprof.stats.outliers import standing_out
from commprof.text import counted, in_ms, listed, named_ranks
from commprof.units import ns_to_ms

Floats = npt.NDArray[np.float64]

#: Largest number of hosts that are named.
_MOST_HOSTS = 3
#: Beside a late rank, ranks count as slower too if their excess is at least this part of its own.
_NEARLY = 0.5


@dataclass(frozen=True)
class SlowerRanks:
    """Ranks whose own work takes longer than that of all other ranks."""

    #: Global ranks, at most half of the job.
    ranks: tuple[int, ...]
    #: Hosts of which these are all ranks; empty if the ranks are not those of whole hosts, or if
    #: the job has one host.
    hosts: tuple[str, ...]
    #: One of ``exposure.ORIGINS``: where these ranks exceed the others most. None if unknown.
    phase: str | None
    #: Least of these ranks' excess over the median of the others, a median over the steps.
    longer_ms: float
    #: Mean waiting of each other rank for these ranks, per step.
    wait_ms: float
    #: Fraction of all waiting that these ranks caused.
    share: float

    def share_of(self, step_ms: float) -> float:
        """Fraction of the mean step for which each other rank waits for these ranks."""
        return self.wait_ms / step_ms

    @property
    def named(self) -> str:
        """The ranks, and their hosts if known: "ranks 8-15 (all of host node-1)"."""
        ranks = named_ranks(self.ranks)
        if not self.hosts:
            return ranks
        if len(self.hosts) > _MOST_HOSTS:
            return f"{ranks} (all of {counted(len(self.hosts), 'host')})"
        return f"{ranks} (all of host{'s' * (len(self.hosts) > 1)} {listed(self.hosts)})"

    @property
    def told(self) -> str:
        """A sentence without a full stop, that begins with "ranks"."""
        where = f" {where}" if (where := fell_behind(self.phase)) else ""
        return (
            f"{self.named} fall behind{where} by {in_ms(self.longer_ms)} or more per step: each "
            f"other rank waits {in_ms(self.wait_ms)} per step for them, {self.share:.0%} of all "
            "waiting"
        )


def slower_ranks(
    work_ns: Floats,
    caused_ns: Floats,
    ranks: Sequence[int],
    host_of: Mapping[int, str],
    step_ns: float,
    clock_error_ns: float,
    late: int | None,
) -> SlowerRanks | None:
    """Returns two or more ranks that work longer than all others; None if there are none.

    Args:
        work_ns: ``[rank, origin, step]`` as in ``stragglers.find_slow_rank``; or means over steps,
            as if of one step.
        caused_ns: waiting per step that each rank of the job caused, summed over the waiting ranks.
        ranks: global rank of each row of ``work_ns``.
        host_of: host name of each of these ranks.
        step_ns: median step time.
        clock_error_ns: bound on the error of a rank's clock; the waiting must exceed twice this.
        late: the rank that is named as late, which must be one of the slower ranks; or None.

    The ranks' median work is compared: the slower ranks stand out from the spread of the others.
    Each of them works longer than the others' median by 2 % of the step in three of four steps. The
    others wait for them for 2 % of the step or more, which is 60 % or more of all waiting.
    """
    count, _, steps = work_ns.shape
    if not steps or not caused_ns.sum() > 0:
        return None
    own_ns = work_ns.sum(axis=1)
    typical = np.median(own_ns, axis=1)
    rows = standing_out(typical - np.median(typical), count // 2)
    others = np.setdiff1d(np.arange(count), rows)
    if len(rows) < 2:
        return None
    beyond = own_ns[rows] - np.median(own_ns[others], axis=0)
    if np.quantile(beyond, 1 - OF_STEPS, axis=1).min() < OF_STEP * step_ns:
        return None
    excess = np.median(beyond, axis=1)
    slower = tuple(sorted(ranks[row] for row in rows))
    if late is not None and (
        late not in slower or excess.min() < _NEARLY * excess[rows.index(ranks.index(late))]
    ):
        return None
    share = float(caused_ns[list(slower)].sum() / caused_ns.sum())
    wait_ns = float(caused_ns[list(slower)].sum()) / (len(caused_ns) - len(slower))
    if share < MOST_WAITING or wait_ns < max(OF_STEP * step_ns, 2 * clock_error_ns):
        return None
    by_phase = np.median(work_ns[rows], axis=2).mean(axis=0)
    by_phase -= np.median(work_ns[others], axis=2).mean(axis=0)
    return SlowerRanks(
        slower,
        _whole_hosts(slower, host_of),
        ORIGINS[int(np.argmax(by_phase))],
        ns_to_ms(float(excess.min())),
        ns_to_ms(wait_ns),
        share,
    )


def _whole_hosts(slower: Sequence[int], host_of: Mapping[int, str]) -> tuple[str, ...]:
    """Returns the hosts whose ranks these are, all of them and no others; empty if they are not."""
    theirs = {host_of[rank] for rank in slower}
    of_these = [rank for rank, host in host_of.items() if host in theirs]
    is_whole = len(of_these) == len(slower) and len(theirs) < len(set(host_of.values()))
    return tuple(sorted(theirs)) if is_whole else ()
