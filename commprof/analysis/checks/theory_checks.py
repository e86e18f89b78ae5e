"""The bytes that were exchanged against those that the strategy must exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from commprof.analysis.checks.cross_checks import Observed
from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.collectives.bandwidth import sizes_bytes
from commprof.trace import columns
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import OPS

#: A clipping norm's few bytes are beside the theory.
_SAME = 0.001


def theory_checks(run: WorldRun, ranks: Sequence[Observed]) -> list[CrossCheck]:
    """One check per operation that the built-in loop's strategy must issue; of the worst rank.

    None of a user's script, nor where a compressor sends something else.
    """
    found = [(rank, run.results.get(rank.trace.rank, {}).get("expected")) for rank in ranks]
    known = [(rank, expected) for rank, expected in found if expected]
    operations = {row["op"] for _, expected in known for row in expected}
    return [_check(op, known) for op in sorted(operations)]


def _check(op: str, ranks: Sequence[tuple[Observed, Sequence[Mapping[str, Any]]]]) -> CrossCheck:
    name, what, unit = f"theory_{op}", f"{op} per step by theory", "MB"
    if any(rank.trace.metadata["capture"] == "python" for rank, _ in ranks):
        reason = "Python capture sees nothing but DDP's buckets"
        return CrossCheck(name, what, unit, math.nan, math.nan, None, reason)
    compared = []
    for rank, expected in ranks:
        for row in (row for row in expected if row["op"] == op):
            ours, other = _bytes_per_step(rank, op), float(row["size_bytes"])
            compared.append((abs(other - ours), ours, other, row["formula"]))
    _, ours, other, formula = max(compared)
    agrees = None if math.isnan(ours) else abs(other - ours) <= _SAME * other
    return CrossCheck(name, what, unit, ours / 1e6, other / 1e6, agrees, str(formula))


def _bytes_per_step(rank: Observed, op: str) -> float:
    """Median over the measured steps; sizes as in the table of collectives."""
    steps, table = columns.steps(rank.trace), rank.table
    if len(rank.measured.step) == 0:
        return math.nan
    size = sizes_bytes(table.op, table.bytes_in, table.bytes_out, np.ones(len(table), np.int64))
    row = np.searchsorted(steps.begin_ns, table.issue_ns, side="right") - 1
    inside = (row >= 0) & (table.op == OPS.index(op))
    inside[inside] = table.issue_ns[inside] < steps.end_ns[row[inside]]
    total = np.bincount(row[inside], weights=size[inside], minlength=len(steps))
    return float(np.median(total[np.isin(steps.index, rank.measured.step)]))
