"""The number of ranks that a result of nccl-tests states, checked against its own bandwidths.

nccl-tests computes busbw from algbw with a factor of the number of ranks (``doc/PERFORMANCE.md``):
2 (n - 1) / n for all_reduce, (n - 1) / n for operations whose buffers hold a part per rank, and 1
for the others, whose ratio does not show n. Before 2.9 the second factor was part of algbw, and
busbw was equal to algbw. The digits in the file limit the accuracy of busbw / algbw.
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
#: Share of the rows that must agree with a number of ranks: other rows may be damaged.
_MOST_ROWS = 0.9
#: A row is left out if its digits give busbw / algbw ten times less exactly than the digits of the
#: best rows do.
_DECADE = 10
#: Tolerance for the rounding of commprof's own arithmetic on busbw / algbw.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RanksOfBandwidths:
    """Information on the number of ranks from busbw / algbw of a log's rows."""

    op: str
    #: Smallest busbw / algbw that each row's digits allow; the next field is the largest.
    least: _Floats
    most: _Floats

    def tells(self) -> bool:
        """True if some number of ranks would contradict the rows."""
        return len(self.least) > 0

    def agrees(self, ranks: int) -> bool:
        """True if the rows may be from this number of ranks."""
        return bool(self._share(np.array([float(ranks)]))[0] >= _MOST_ROWS)

    def agrees_with(self, ratio: float) -> bool:
        """True if busbw / algbw may be this ratio."""
        return bool(self._agreeing(np.array([ratio]))[0] >= _MOST_ROWS)

    def candidates(self) -> list[int]:
        """Numbers of ranks with which most rows agree, ascending."""
        numbers = np.arange(1, _MOST_RANKS + 1, dtype=np.float64)
        shares = self._share(numbers)
        best = shares.max()
        return [] if best < _MOST_ROWS else numbers[shares == best].astype(int).tolist()

    def ratio(self) -> float:
        """The value of busbw / algbw, from the row whose digits are most exact."""
        exact = int(np.argmin(self.most - self.least))
        return float(self.least[exact] + self.most[exact]) / 2

    def _share(self, ranks: _Floats) -> _Floats:
        """Returns the share of the rows that agree with each number of ranks."""
        return self._agreeing((2 if self.op == "all_reduce" else 1) * (ranks - 1) / ranks)

    def _agreeing(self, ratios: _Floats) -> _Floats:
        """Returns the share of the rows whose digits allow each ratio."""
        agreeing = np.zeros(len(ratios))
        for least, most in zip(self.least, self.most, strict=True):
            agreeing += (ratios >= least - _ROUNDING) & (ratios <= most + _ROUNDING)
        return agreeing / len(self.least)


def ranks_of_bandwidths(op: str, rows: Sequence[NcclTestsRow]) -> RanksOfBandwidths:
    """Collects busbw / algbw of those rows from which the number of ranks can be derived."""
    least, most = [], []
    for row in rows if op == "all_reduce" or op in OF_PARTS else ():
        algbw, busbw = row.algbw, row.busbw
        if algbw is None or busbw is None or not algbw.value > algbw.half_digit:
            continue
        least.append((busbw.value - busbw.half_digit) / (algbw.value + algbw.half_digit))
        most.append((busbw.value + busbw.half_digit) / (algbw.value - algbw.half_digit))
    evidence = _exact(RanksOfBandwidths(op, np.array(least), np.array(most)))
    if op in OF_PARTS and least and evidence.agrees_with(1.0):
        # nccl-tests before 2.9: busbw is equal to algbw, whatever the number of ranks
        return RanksOfBandwidths(op, np.array([]), np.array([]))
    return evidence


def _exact(evidence: RanksOfBandwidths) -> RanksOfBandwidths:
    """Leaves out the rows of small bandwidths, whose few digits agree with any number of ranks."""
    width = evidence.most - evidence.least
    if not len(width):
        return evidence
    exact_rows = width <= _DECADE * np.percentile(width, 25)
    return RanksOfBandwidths(evidence.op, evidence.least[exact_rows], evidence.most[exact_rows])


def settled_ranks(
    op: str, stated: Sequence[int], source: str, rows: Sequence[NcclTestsRow]
) -> tuple[int, list[str]]:
    """Returns the number of ranks, and remarks if the file states another number, or none.

    Args:
        op: operation of the log.
        stated: numbers that the file's statements may mean, the likeliest first; empty if there
            are no statements.
        source: the statements in words, such as "lines `# Rank`".
        rows: rows of the log.

    Raises:
        ValueError: the number follows neither from the statements nor from the bandwidths; or the
            two contradict each other, and the bandwidths do not show a single number.
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
        return told[0], [f"it has no lines `# Rank`; {ratio} is that of {counted(told[0], 'rank')}"]
    if len(told) == 1:
        return told[0], [
            f"its {source} name {counted(stated[0], 'rank')}, but {ratio} is that of "
            f"{counted(told[0], 'rank')}; commprof uses the latter number"
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
