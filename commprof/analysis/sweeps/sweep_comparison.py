"""Compares the times of two sweeps row by row, and tests whether they differ by more than noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from commprof.analysis.sweeps.sweep import NCCL_TESTS, RowKey, SweepResult, SweepRow
from commprof.errors import UsageError
from commprof.stats.rank_tests import holm, least_p, rank_test, with_correlation
from commprof.text import counted

#: Largest probability that a comparison of two equal results calls any row slower or faster.
SIGNIFICANCE = 0.01

_MOST_CORRELATION = 0.95


@dataclass(frozen=True)
class RowComparison:
    """Comparison of one row that both results have."""

    key: RowKey
    first_us: float
    """Median time in the first result."""
    second_us: float
    """Median time in the second result."""
    ratio: float
    """`second_us` divided by `first_us`."""
    p_value: float
    """p-value of a Mann-Whitney test on the medians of rounds, corrected for correlated rounds."""
    corrected_p: float
    """`p_value` corrected for the number of rows by Holm's method."""
    verdict: str
    """``slower`` or ``faster`` if the second result differs significantly, else ``same``."""


@dataclass(frozen=True)
class SweepComparison:
    """Comparison of all rows that both results have."""

    rows: tuple[RowComparison, ...]
    """Rows in the order of the first result."""
    only_first: int
    """Number of rows that the second result lacks."""
    only_second: int
    """Number of rows that the first result lacks."""
    differences: tuple[tuple[str, str, str], ...]
    """Properties of the two measurements that differ: name, first value and second value."""
    correlation: float
    """Correlation between the medians of successive rounds, see `drift`."""
    remarks: tuple[str, ...]
    """Sentences on the limits of the comparison, without full stops."""
    can_tell: bool
    """False if no row could be called slower or faster; `remarks` gives the reason."""

    def slower_than(self, limit: float) -> tuple[RowComparison, ...]:
        """Returns the rows with verdict ``slower`` and a ratio above 1 + ``limit``."""
        return tuple(row for row in self.rows if row.verdict == "slower" and row.ratio > 1 + limit)


def compare_sweeps(first: SweepResult, second: SweepResult) -> SweepComparison:
    """Compares the rows that both results have.

    Raises:
        UsageError: the results have no row in common, or one was measured with ``--overlap``.
    """
    firsts = {row.key: row for row in first.rows}
    seconds = {row.key: row for row in second.rows}
    both = [key for key in firsts if key in seconds]
    if any(result.overlap_rows and not result.rows for result in (first, second)):
        raise UsageError("results of --overlap cannot be compared; measure both without --overlap")
    if not both:
        raise UsageError(
            "the two results have no row in common (the same operation, type, reduce op, ranks, "
            "backend, placement and size); measure both with the same arguments"
        )
    pairs = [(firsts[key], seconds[key]) for key in both]
    correlation = drift([round_medians(row) for pair in pairs for row in pair])
    least = min(_least_p(*pair, correlation) for pair in pairs)
    can_tell = least * len(pairs) < SIGNIFICANCE
    by_nccl_tests = any(each.context.get("instrument") == NCCL_TESTS for each in (first, second))
    p_values = [
        with_correlation(rank_test(round_medians(a), round_medians(b)), correlation)
        for a, b in pairs
    ]
    of_files = [
        remark for result in (first, second) for remark in result.context.get("remarks") or ()
    ]
    cannot = [] if can_tell else [_cannot_tell(pairs, correlation, by_nccl_tests)]
    rows = tuple(
        _row(a, b, p_value, corrected)
        for (a, b), p_value, corrected in zip(pairs, p_values, holm(p_values), strict=True)
    )
    return SweepComparison(
        rows=rows,
        only_first=len(firsts) - len(both),
        only_second=len(seconds) - len(both),
        differences=_differences(first.context, second.context),
        correlation=correlation,
        remarks=(*cannot, *dict.fromkeys(of_files)),
        can_tell=can_tell,
    )


def round_medians(row: SweepRow) -> list[float]:
    """Returns the median time of each round in µs.

    The Mann-Whitney test compares these medians and not the samples, because successive samples are
    correlated.
    """
    ends = np.cumsum(row.round_iterations)
    samples = np.array(row.samples_us)
    return [float(np.median(part)) for part in np.split(samples, ends[:-1]) if len(part)]


def drift(series: list[list[float]]) -> float:
    """Returns the lag-one correlation of the logarithms of each series, averaged over the series.

    The estimate from n values is low by about 1 / n (Marriott and Pope, Biometrika 41 (1954)
    390-402), so 1 / n is added. Series with fewer than three values, and constant series, do not
    count. Returns 0 if no series counts.
    """
    along = square = missing = 0.0
    for values in series:
        if len(values) < 3 or min(values) <= 0:
            continue
        logs = np.log(values)
        if np.ptp(logs) == 0:  # all values are equal, so only rounding errors would remain
            continue
        centred = logs - logs.mean()
        spread = float((centred**2).sum())
        # The spread is divided out, so that a noisy series counts no more than the others.
        along += float((centred[1:] * centred[:-1]).sum()) / spread
        missing += 1 / len(values)
        square += 1
    return min((along + missing) / square, _MOST_CORRELATION) if square else 0.0


def _row(a: SweepRow, b: SweepRow, p_value: float, corrected: float) -> RowComparison:
    ratio = b.time_us / a.time_us if a.time_us > 0 else math.nan
    verdict = "same"
    if corrected < SIGNIFICANCE:
        verdict = (
            "slower" if np.median(round_medians(b)) > np.median(round_medians(a)) else "faster"
        )
    return RowComparison(a.key, a.time_us, b.time_us, ratio, p_value, corrected, verdict)


_COMPARED = (
    *("torch", "commprof", "backend_version", "git_commit", "threads_per_rank", "hosts"),
    *("world_size", "sync", "rounds", "loop"),
)
_COMPARED_MACHINE = ("hostname", "cpu_model", "usable_cpu_count", "memory_bytes", "kernel")


def _differences(first: dict[str, Any], second: dict[str, Any]) -> tuple[tuple[str, str, str], ...]:
    named = [(name, first.get(name), second.get(name)) for name in _COMPARED]
    machines = first.get("machine", {}), second.get("machine", {})
    named += [(name, *(machine.get(name) for machine in machines)) for name in _COMPARED_MACHINE]
    return tuple((name, str(a), str(b)) for name, a, b in named if a != b)


def _least_p(a: SweepRow, b: SweepRow, correlation: float) -> float:
    p_value = least_p(len(round_medians(a)), len(round_medians(b)))
    return with_correlation(p_value, correlation)


def _cannot_tell(
    pairs: list[tuple[SweepRow, SweepRow]], correlation: float, by_nccl_tests: bool
) -> str:
    rounds = max(min(len(round_medians(row)) for row in pair) for pair in pairs)
    drifting = f", whose successive values correlate by {correlation:.2f}," * (correlation > 0)
    reason = (
        f"With {counted(rounds, 'round')}{drifting} and {counted(len(pairs), 'row')}, no "
        f"difference can be significant at {SIGNIFICANCE:.0%}"
    )
    if by_nccl_tests and rounds == 1:
        return (
            f"{reason}, because an output of nccl-tests without -N holds a single round of each "
            "size; to tell a difference from noise, measure both with commprof microbench --json"
            f"{_enough_rounds(len(pairs))}"
        )
    if by_nccl_tests:
        return (
            f"{reason}; measure fewer sizes, or measure both results with commprof microbench "
            f"--json{_enough_rounds(len(pairs))}"
        )
    steadier = ", or measure again while the machine's speed drifts less" * (correlation > 0)
    return (
        f"{reason}; measure fewer sizes or more rounds (-n limits the number of rounds){steadier}"
    )


def _enough_rounds(rows: int) -> str:
    """Returns advice on the number of rounds, assuming that rounds are not correlated."""
    rounds = next((n for n in range(2, 100) if least_p(n, n) * rows < SIGNIFICANCE), None)
    return "" if rounds is None else f", or with nccl-tests -N {rounds} or more"
