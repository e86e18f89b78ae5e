"""Checks the number of ranks in a result of nccl-tests against the bandwidths in the result.

nccl-tests multiplies algbw by a factor to get busbw (``doc/PERFORMANCE.md``). For n ranks, the
factor is 2 (n - 1) / n for all_reduce, and (n - 1) / n for operations whose buffers hold a part per
rank. For all other operations the factor is 1, which does not show n. Before nccl-tests 2.9, algbw
already contained the factor (n - 1) / n, and busbw was equal to algbw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.recordings.nccl_tests_rows import NcclTestsRow
from commprof.text import counted
from commprof.trace.operations import OF_PARTS

_Floats = npt.NDArray[np.float64]

_MOST_RANKS = 1 << 16
#: Fraction of the rows that must agree with a number of ranks. The other rows may be damaged.
_MOST_ROWS = 0.9
#: A row is left out if its busbw / algbw is this many times less exact than in the best rows.
_DECADE = 10
#: Tolerance for the rounding of commprof's own arithmetic on busbw / algbw.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RanksOfBandwidths:
    """Values of busbw / algbw in a log's rows, which show the number of ranks."""

    op: str
    #: Smallest busbw / algbw that each row's digits allow; ``most`` is the largest.
    least: _Floats
    most: _Floats

    def tells(self) -> bool:
        """True if the rows restrict the number of ranks."""
        return len(self.least) > 0

    def agrees(self, ranks: int) -> bool:
        """True if most rows agree with this number of ranks."""
        return bool(self._share(np.array([float(ranks)]))[0] >= _MOST_ROWS)

    def agrees_with(self, ratio: float) -> bool:
        """True if most rows agree with this value of busbw / algbw."""
        return bool(self._agreeing(np.array([ratio]))[0] >= _MOST_ROWS)

    def candidates(self) -> list[int]:
        """Returns the numbers of ranks with which the most rows agree, in ascending order.

        Empty if no number agrees with ``_MOST_ROWS`` of the rows.
        """
        numbers = np.arange(1, _MOST_RANKS + 1, dtype=np.float64)
        shares = self._share(numbers)
        best = shares.max()
        return [] if best < _MOST_ROWS else numbers[shares == best].astype(int).tolist()

    def ratio(self) -> float:
        """Returns busbw / algbw of the row with the most exact digits."""
        exact = int(np.argmin(self.most - self.least))
        return float(self.least[exact] + self.most[exact]) / 2

    def _share(self, ranks: _Floats) -> _Floats:
        return self._agreeing((2 if self.op == "all_reduce" else 1) * (ranks - 1) / ranks)

    def _agreeing(self, ratios: _Floats) -> _Floats:
        """Returns, for each ratio, the fraction of the rows that agree with it."""
        agreeing = np.zeros(len(ratios))
        for least, most in zip(self.least, self.most, strict=True):
            agreeing += (ratios >= least - _ROUNDING) & (ratios <= most + _ROUNDING)
        return agreeing / len(self.least)


def ranks_of_bandwidths(op: str, rows: Sequence[NcclTestsRow]) -> RanksOfBandwidths:
    """Collects busbw / algbw of the rows that show the number of ranks."""
    least, most = [], []
    for row in rows if op == "all_reduce" or op in OF_PARTS else ():
        algbw, busbw = row.algbw, row.busbw
        if algbw is None or busbw is None or not algbw.value > algbw.half_digit:
            continue
        least.append((busbw.value - busbw.half_digit) / (algbw.value + algbw.half_digit))
        most.append((busbw.value + busbw.half_digit) / (algbw.value - algbw.half_digit))
    evidence = _exact(RanksOfBandwidths(op, np.array(least), np.array(most)))
    if op in OF_PARTS and least and evidence.agrees_with(1.0):
        # nccl-tests before 2.9: busbw is equal to algbw for any number of ranks
        return RanksOfBandwidths(op, np.array([]), np.array([]))
    return evidence


def _exact(evidence: RanksOfBandwidths) -> RanksOfBandwidths:
    """Leaves out rows with few digits, which agree with nearly any number of ranks."""
    width = evidence.most - evidence.least
    if not len(width):
        return evidence
    exact_rows = width <= _DECADE * np.percentile(width, 25)
    return RanksOfBandwidths(evidence.op, evidence.least[exact_rows], evidence.most[exact_rows])


def settled_ranks(
    op: str, stated: Sequence[int], source: str, rows: Sequence[NcclTestsRow]
) -> tuple[int, list[str]]:
    """Returns the number of ranks, and remarks on this number.

    Args:
        op: operation of the log.
        stated: possible numbers of ranks according to the file, the likeliest first; empty if the
            file states no number.
        source: the place in the file that states the number, such as "lines `# Rank`".
        rows: rows of the log.

    Raises:
        ValueError: the bandwidths do not show the number of ranks, and the file does not state it
            or states a number that the bandwidths contradict.
    """
    evidence = ranks_of_bandwidths(op, rows)
    if not evidence.tells():
        if not stated:
            raise ValueError(
                "it does not say which ranks took part; keep the lines `# Rank ...` of the output"
            )
        return stated[0], []
    for ranks in stated:
        if evidence.agrees(ranks):
            return ranks, []
    ratio = f"busbw / algbw = {evidence.ratio():.4g}"
    told = evidence.candidates()
    if len(told) == 1 and not stated:
        return told[0], [f"it has no lines `# Rank`; {ratio} shows {counted(told[0], 'rank')}"]
    if len(told) == 1:
        return told[0], [
            f"its {source} name {counted(stated[0], 'rank')}, but {ratio} shows "
            f"{counted(told[0], 'rank')}; commprof uses {counted(told[0], 'rank')}"
        ]
    if not stated:
        raise ValueError(
            "it does not say which ranks took part, nor does busbw / algbw show it; keep the "
            "lines `# Rank ...` of the output"
        )
    fitting = f"{told[0]} to {told[-1]} ranks" if told else "no number of ranks"
    raise ValueError(
        f"its {source} name {counted(stated[0], 'rank')}, but {ratio} of {op} fits {fitting}; "
        "correct the file, or measure again"
    )
