"""A run as flat rows, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path

import pytest

from commprof.analysis.cost import Price, cost
from commprof.analysis.run import analyse_in_detail
from commprof.errors import UsageError
from commprof.report.export.rows import CANDIDATES, TABLES, as_csv, as_parquet, rows
from commprof.report.full_report import FullReport
from tests.support.builders.run_directories import ranks_of, write_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> FullReport:
    run = write_run(
        tmp_path_factory.mktemp("run") / "r",
        ranks_of(1, 9),
        ranks_of(2, 9, late_ms=10, group="=HYPERLINK(1)"),
    )
    result, details = analyse_in_detail(run)
    return FullReport(result, details, None, cost(result.worlds, details, Price(3.6, "rank")))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("table", list(TABLES))
def test_every_table_has_one_set_of_columns(report: FullReport, table: str) -> None:
    found = rows(report, table)
    assert found
    assert all(row.keys() == found[0].keys() for row in found)


def test_a_row_per_world_size(report: FullReport) -> None:
    first, second = read(as_csv(report, "worlds"))
    assert (first["world_size"], second["world_size"]) == ("1", "2")
    # Measured are steps 1 to 8, of 101, 102, 103, 100, 101, 102, 103 and 100 ms.
    assert float(second["step_median_ms"]) == 101.5
    assert float(second["mean_step_ms"]) == pytest.approx(101.5)
    assert float(second["samples_per_s"]) == pytest.approx(2 * 10 / 0.1015)
    assert float(second["cost_per_1000_samples"]) == pytest.approx(0.001 * 2 / (20 / 0.1015) * 1000)


def test_a_row_per_rank_and_step_adds_up(report: FullReport) -> None:
    found = read(as_csv(report, "steps"))
    assert len(found) == 8 + 2 * 8
    for row in found:
        names = ("data", "forward", "backward", "exposed", "optimizer", "other")
        total = sum(float(row[f"{name}_ms"]) for name in names)
        assert total == pytest.approx(float(row["step_ms"]))


def test_a_name_is_no_formula_and_what_is_not_known_is_empty(report: FullReport) -> None:
    found = read(as_csv(report, "collectives"))
    assert {row["group"] for row in found if row["world_size"] == "2"} == {"'=HYPERLINK(1)"}
    assert {row["busbw_gb_per_s"] for row in found if row["world_size"] == "1"} == {""}


def test_candidates_are_a_trial_s(report: FullReport) -> None:
    with pytest.raises(UsageError, match=r"has none; take worlds, ranks, steps, collectives"):
        rows(report, CANDIDATES)


def test_parquet_without_pyarrow_names_the_extra(
    report: FullReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install pyarrow"):
        as_parquet(report, "worlds")


def test_parquet_holds_the_same(report: FullReport, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    (tmp_path / "steps.parquet").write_bytes(as_parquet(report, "steps"))
    found = parquet.read_table(tmp_path / "steps.parquet").to_pylist()
    expected = [
        {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in row.items()}
        for row in rows(report, "steps")
    ]
    assert found == expected
