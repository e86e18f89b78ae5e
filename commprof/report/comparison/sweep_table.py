"""Renders a sweep as a text table with the columns of nccl-tests, and the spread of the times."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from commprof.analysis.sweeps.sweep import OverlapRow, RowKey, SweepResult, SweepRow
from commprof.analysis.sweeps.sweep_comparison import (
    SIGNIFICANCE,
    RowComparison,
    SweepComparison,
)
from commprof.report.tabulated import tabulated, three_digits
from commprof.text import printable

_PLACEMENTS = ("out_of_place", "in_place")

_WIDE_COLUMNS = "     time  algbw  busbw #wrong"
_WIDE_UNITS = "     (us) (GB/s) (GB/s)       "
_SPREAD_COLUMNS = "      min      p50      p99      max   cv    n"

_HEAD = f"""\
#                                              {"out-of-place":^30}{"in-place":>19}
#      size       count      type  redop  root{_WIDE_COLUMNS * 2}
#       (B)  (elements)                       {(_WIDE_UNITS * 2).rstrip()}"""

_SPREAD_HEAD = f"""\
# spread   {"out-of-place (us)":^46}{"in-place (us)":>30}
#      size{_SPREAD_COLUMNS * 2}"""

_OVERLAP_HEAD = """\
#      size       count      type  redop   t_pure    alone    t_CPU   t_ovrl  overlap     n #wrong
#       (B)  (elements)                      (us)     (us)     (us)     (us)      (%)"""

_LEGEND = (
    "time: median; {time}. Start: {start}. Rounds over all sizes: {rounds}; warm-up: {warmup}; "
    "checked calls per row: {check}. GB is 1e9 bytes, busbw as nccl-tests defines it. Out-of-place "
    "times of all_reduce, reduce and broadcast include a copy of the input, because c10d works in "
    "place."
)

_OVERLAP_LEGEND = """\
# t_pure: collective without compute; alone: compute without collective; t_CPU: compute while the
# collective is in flight; t_ovrl: both together. All times of a sample are from the rank with the
# largest t_ovrl; the table shows medians over the samples. overlap is defined as in the benchmark
# IMB-NBC: overlap = 100 * max(0, min(1, (t_pure + t_CPU - t_ovrl) / min(t_pure, t_CPU)))."""


def render(result: SweepResult) -> str:
    """Renders the report of a sweep."""
    blocks = [_heading(result)]
    for rows in _sweeps(result.rows):
        blocks.append("\n".join([_title(rows[0].key), *_table(rows), "#", *_spread(rows)]))
    for overlaps in _sweeps(result.overlap_rows):
        blocks.append("\n".join([_title(overlaps[0].key), *_overlap(overlaps)]))
    blocks += [_wrapped(_LEGEND.format(**result.context))] if result.rows else []
    blocks += [_OVERLAP_LEGEND] if result.overlap_rows else []
    blocks += [_problems(result.problems)] if result.problems else []
    return "\n#\n".join(blocks) + "\n"


def _heading(result: SweepResult) -> str:
    context = result.context
    machine = context["machine"]
    links = ", ".join(
        f"{link['name']}"
        + (f" {link['speed_mbit_per_s']} Mbit/s" if link["speed_mbit_per_s"] else "")
        for link in machine["interfaces"]
    )
    cores = machine["usable_cpu_count"]
    return "\n".join(
        [
            f"# {printable(machine['cpu_model'])}, {cores} usable cores, {machine['numa_nodes']} "
            f"NUMA node(s), kernel {printable(machine['kernel'])}; interfaces: {printable(links)}",
            f"# torch {context['torch']}, backend {context['backend']}, "
            f"commprof {context['commprof']}, {context['world_size']} ranks on "
            f"{context['hosts']} host(s)",
        ]
    )


def _sweeps(rows: Iterable[SweepRow] | Iterable[OverlapRow]) -> list[list[Any]]:
    grouped = groupby(rows, key=lambda row: (row.key.op, row.key.world_size))
    return [list(group) for _, group in grouped]


def _title(key: RowKey) -> str:
    ranks = "1 rank" if key.world_size == 1 else f"{key.world_size} ranks"
    return f"# {printable(key.op)}, {ranks}"


def _by_size(rows: Sequence[SweepRow]) -> list[tuple[RowKey, list[SweepRow | None]]]:
    """Returns a key for each size, and the rows of the size: [out-of-place, in-place].

    A missing row is None.
    """
    sizes: dict[tuple[int, int], dict[str, SweepRow]] = {}
    for row in rows:
        sizes.setdefault((row.key.size_bytes, row.key.count), {})[row.key.placement] = row
    return [
        (next(iter(found.values())).key, [found.get(name) for name in _PLACEMENTS])
        for found in sizes.values()
    ]


def _table(rows: Sequence[SweepRow]) -> list[str]:
    lines = [_HEAD]
    for key, places in _by_size(rows):
        root = next(row.root for row in places if row is not None)
        what = f"{key.size_bytes:11d} {key.count:11d} {key.dtype or 'none':>9} "
        what += f"{key.redop or 'none':>6} {root:5d}"
        lines.append(what + "".join(f" {_figures(row)}" for row in places))
    checked = [row.wrong for row in rows if row.wrong is not None]
    wrong = sum(checked)
    verdict = (f"{wrong} FAILED" if wrong else "0 OK") if checked else "not checked"
    busbw = [row.busbw_gb_per_s for row in rows if not math.isnan(row.busbw_gb_per_s)]
    lines.append(f"# Out of bounds values : {verdict}")
    if busbw:
        lines.append(f"# Avg bus bandwidth    : {sum(busbw) / len(busbw):.6g}")
    return lines


def _figures(row: SweepRow | None) -> str:
    if row is None:
        return f"{'N/A':>8} {'N/A':>6} {'N/A':>6} {'N/A':>6}"
    return (
        f"{_number(row.time_us, 8)} {_number(row.algbw_gb_per_s, 6)} "
        f"{_number(row.busbw_gb_per_s, 6)} {_wrong(row.wrong):>6}"
    )


def _wrong(count: int | None) -> str:
    return "N/A" if count is None else str(count)


def _spread(rows: Sequence[SweepRow]) -> list[str]:
    lines = [_SPREAD_HEAD]
    for key, places in _by_size(rows):
        lines.append(f"#{key.size_bytes:10d}" + "".join(f" {_spread_of(row)}" for row in places))
    return lines


def _spread_of(row: SweepRow | None) -> str:
    if row is None:
        return " ".join(f"{'N/A':>{width}}" for width in (8, 8, 8, 8, 4, 4))
    times = (row.min_us, row.p50_us, row.p99_us, row.max_us)
    return " ".join(_number(time, 8) for time in times) + f" {row.cv:4.0%} {row.iterations:4d}"


def _overlap(rows: Sequence[OverlapRow]) -> list[str]:
    lines = [_OVERLAP_HEAD]
    for row in rows:
        key = row.key
        times = (row.pure_us, row.compute_alone_us, row.compute_us, row.overlapped_us)
        lines.append(
            f"{key.size_bytes:11d} {key.count:11d} {key.dtype:>9} {key.redop or 'none':>6} "
            + " ".join(_number(time, 8) for time in times)
            + f" {100 * row.overlap:8.1f} {row.iterations:5d} {_wrong(row.wrong):>6}"
        )
    return lines


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")
    return "\n".join(lines)


def _problems(problems: Sequence[str]) -> str:
    return "\n".join(f"# Cut short: {printable(problem)}" for problem in problems)


def _number(value: float, width: int) -> str:
    if math.isnan(value):
        return f"{'N/A':>{width}}"
    decimals = 2 if abs(value) < 1000 else 1 if abs(value) < 10000 else 0
    if 0 < abs(value) < 0.1:
        return f"{value:{width}.4f}"
    return f"{value:{width}.{decimals}f}"


_HEADERS = (
    "operation",
    "ranks",
    "placement",
    "type",
    "size\nB",
    "A\nus",
    "B\nus",
    "B/A",
    "p",
    "corrected\np",
    "verdict",
)
_LEFT = (0, 2, 3, 10)

_COMPARED = """\
A, B: median times. p: Mann-Whitney rank test between the rounds' medians, allowing for the
correlation of successive rounds ({correlation:.2f}); corrected by Holm's method for {rows}. If A
and B are equal, the chance that any row is called slower or faster is at most {alpha:.0%}."""


def render_compared(comparison: SweepComparison, tables: int | None = None) -> str:
    """Renders a comparison of two sweeps: rows, other differences, and a summary.

    A table wider than ``tables`` characters is split. None means that no table is split.
    """
    rows = comparison.rows
    blocks = [tabulated([_cells(row) for row in rows], _HEADERS, _LEFT, tables)]
    number = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    blocks.append(
        _COMPARED.format(rows=number, alpha=SIGNIFICANCE, correlation=comparison.correlation)
    )
    if comparison.differences:
        lines = [
            f"  {name}: {printable(a)} against {printable(b)}"
            for name, a, b in comparison.differences
        ]
        blocks.append("\n".join(["Other differences, A against B:", *lines]))
    for count, which in ((comparison.only_first, "A"), (comparison.only_second, "B")):
        if count:
            blocks.append(f"Only in {which}: {count} {'row' if count == 1 else 'rows'}.")
    blocks += [
        textwrap.fill(f"* {remark}.", 100, subsequent_indent="  ") for remark in comparison.remarks
    ]
    counts = {name: sum(row.verdict == name for row in rows) for name in _VERDICTS}
    blocks.append("B against A: " + ", ".join(f"{counts[name]} {name}" for name in _VERDICTS) + ".")
    return "\n\n".join(blocks) + "\n"


_VERDICTS = ("slower", "faster", "same")


def _cells(row: RowComparison) -> tuple[str, ...]:
    key = row.key
    return (
        printable(key.op),
        str(key.world_size),
        key.placement.replace("_", "-"),
        printable(" ".join(filter(None, (key.dtype, key.redop)))),
        str(key.size_bytes),
        three_digits(row.first_us),
        three_digits(row.second_us),
        f"{row.ratio:.3f}",
        _p(row.p_value),
        _p(row.corrected_p),
        row.verdict,
    )


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
