"""Compares two sweeps row by row: the ratio of their times, and whether it exceeds noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from commprof.analysis.sweeps.sweep import NCCL_TESTS, RowKey, SweepResult, SweepRow
from commprof.errors import UsageError
from commprof.stats.rank_tests import holm, least_p, rank_test, with_correlation
from commprof.text import counted

#: Probability that a comparison of two equal results flags any row.
SIGNIFICANCE = 0.01

_MOST_CORRELATION = 0.95


@dataclass(frozen=True)
class RowComparison:
    """Comparison of one row that both results have."""

    key: RowKey
    """Key of the measured case."""
    first_us: float
    """Median time in the first result."""
    second_us: float
    """Median time in the second result."""
    ratio: float
    """Second time divided by the first: above 1 the second is slower."""
    p_value: float
    """p-value of a Mann-Whitney test of the rounds' medians, corrected for their correlation."""
    corrected_p: float
    """p-value corrected for the number of rows by Holm's rule."""
    verdict: str
    """Verdict on the second result compared with the first: ``slower`` or ``faster`` if
    ``corrected_p`` is below SIGNIFICANCE, else ``same``.
    """


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
    """Properties of machine, versions and policies that differ: name, first and second value."""
    correlation: float
    """Correlation of the medians of successive rounds, averaged over all rows; see `drift`."""
    remarks: tuple[str, ...]
    """Sentences on the limits of the conclusion, without their full stops."""
    can_tell: bool
    """False if every row's verdict would be ``same`` for any difference of times; `remarks` says
    why.
    """

    def slower_than(self, limit: float) -> tuple[RowComparison, ...]:
        """Rows with verdict ``slower`` and a ratio above 1 + ``limit``, where 0.05 is 5 %."""
        return tuple(row for row in self.rows if row.verdict == "slower" and row.ratio > 1 + limit)


def compare_sweeps(first: SweepResult, second: SweepResult) -> SweepComparison:
    """Compares the rows that both results have; raises UsageError if there are none."""
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
    """Median time of each round in µs; the Mann-Whitney test compares these medians.

    The test does not compare samples, because samples that follow each other are correlated. Rounds
    are separated in time, and each has its own process group and buffers, except that a
    compressor's rounds share one group and one model.
    """
    ends = np.cumsum(row.round_iterations)
    samples = np.array(row.samples_us)
    return [float(np.median(part)) for part in np.split(samples, ends[:-1]) if len(part)]


def drift(series: list[list[float]]) -> float:
    """Lag-one correlation of the logarithms of each series, averaged over the series.

    The estimate from n values is low by about 1 / n (Marriott and Pope, Biometrika 41 (1954)
    390-402), so 1 / n is added. A series counts only if it has at least three values that are not
    all equal; 0 if no series counts.
    """
    along = square = missing = 0.0
    for values in series:
        if len(values) < 3 or min(values) <= 0:
            continue
        logs = np.log(values)
        if np.ptp(logs) == 0:  # equal values: only rounding errors of the mean would remain
            continue
        centred = logs - logs.mean()
        spread = float((centred**2).sum())
        # Each series counts alike, however noisy.
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
    """Returns the smallest p-value that two rows with these numbers of rounds can have."""
    p_value = least_p(len(round_medians(a)), len(round_medians(b)))
    return with_correlation(p_value, correlation)


def _cannot_tell(
    pairs: list[tuple[SweepRow, SweepRow]], correlation: float, by_nccl_tests: bool
) -> str:
    """Sentence on why no row can be called slower or faster, and on what to do next.

    by_nccl_tests: True if at least one of the results was read from an output of nccl-tests.
    """
    rounds = max(min(len(round_medians(row)) for row in pair) for pair in pairs)
    drifting = f", whose successive values correlate by {correlation:.2f}," * (correlation > 0)
    reason = (
        f"With {counted(rounds, 'round')}{drifting} and {counted(len(pairs), 'row')} no "
        f"difference can be significant at {SIGNIFICANCE:.0%} over all rows"
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
    return f"{reason}; measure fewer sizes or more rounds (-n limits their number){steadier}"


def _enough_rounds(rows: int) -> str:
    """Clause on how many rounds of nccl-tests can make a difference significant.

    This assumes that rounds are not correlated.
    """
    rounds = next((n for n in range(2, 100) if least_p(n, n) * rows < SIGNIFICANCE), None)
    return "" if rounds is None else f", or with nccl-tests -N {rounds} or more"
