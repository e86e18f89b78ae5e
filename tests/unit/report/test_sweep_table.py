from __future__ import annotations

import math
from pathlib import Path

from commprof.analysis.sweeps.sweep import OverlapRow
from commprof.report.comparison.sweep_table import render
from tests.support.builders.sweeps import key, row, sweep_result

GOLDEN = Path(__file__).parents[2] / "golden" / "sweep_table.txt"


def golden_text() -> str:
    both = [
        row(key=key(placement="out_of_place"), time_us=61.5, algbw_gb_per_s=0.016_65, cv=0.041),
        row(),
        row(
            key=key(size_bytes=134_217_728, count=33_554_432, placement="out_of_place"),
            time_us=123_456.7,
            min_us=9_876.5,
            max_us=234_567.8,
            algbw_gb_per_s=1.087,
            busbw_gb_per_s=1.087,
            iterations=400,
            wrong=3,
        ),
    ]
    barrier = row(
        key=key(
            op="barrier", dtype="", redop="", size_bytes=0, count=0, placement="out_of_place",
            world_size=1,
        ),
        algbw_gb_per_s=math.nan,
        busbw_gb_per_s=math.nan,
        wrong=None,
    )  # fmt: skip
    overlap = OverlapRow(key(), 100.0, 101.0, 120.0, 160.0, 0.6, 25)
    return render(
        sweep_result(*both, barrier, overlap_rows=(overlap,), problems=("rank 1\nfailed",))
    )


def test_the_sweep_table_equals_the_golden_file() -> None:
    assert golden_text() == GOLDEN.read_text()


def test_no_line_is_wider_than_those_of_nccl_tests() -> None:
    assert max(map(len, golden_text().splitlines())) <= 117
