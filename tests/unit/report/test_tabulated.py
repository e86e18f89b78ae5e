"""How a table of the report is drawn."""

from __future__ import annotations

import tabulate

from commprof.report.tabulated import tabulated


def test_columns_are_no_wider_than_their_cells() -> None:
    rows = [("all_reduce", "1.5", 12), ("two\nlines", "<0.001", None)]
    assert tabulated(rows, ("", "step ms\nmedian", "\np95"), left=[0]).splitlines() == [
        "            step ms",
        "             median  p95",
        "----------  -------  ---",
        "all_reduce      1.5   12",
        "two          <0.001",
        "lines",
    ]


def test_the_padding_of_other_tables_stays() -> None:
    before = tabulate.tabulate([("1",)], headers=("wide",))
    tabulated([("1",)], ("wide",))
    assert tabulate.tabulate([("1",)], headers=("wide",)) == before
