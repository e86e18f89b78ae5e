from __future__ import annotations

import errno
import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.commands import main
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.builders.traces import MS, Rank

TABLES = ("steps", "parts", "collectives", "waits")
DOCS = Path(__file__).parents[3] / "docs" / "reading.md"

dataset: Any = pytest.importorskip("pyarrow.dataset")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run") / "r"
    return write_run(directory, ranks_of(1, 9), ranks_of(4, 12, late_ms=5))


@pytest.fixture(scope="module")
def tables(run: Path) -> Path:
    folder = run.parent / "tables"
    assert main(["report", str(run), "--format", "parquet", "-o", str(folder)]) == 0
    return folder


def read(folder: Path, table: str, world_size: int) -> Any:
    found = dataset.dataset(folder / table, partitioning="hive")
    rows = found.to_table(filter=dataset.field("world_size") == world_size)
    return {name: rows[name].to_numpy() for name in rows.column_names}


def as_json(run: Path, world_size: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["report", str(run), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    return next(each for each in found if each["num_processes"] == world_size)


def test_the_tables_are_partitioned_by_world_size_and_ranges_of_ranks(tables: Path) -> None:
    files = {str(path.relative_to(tables)) for path in tables.rglob("*") if path.is_file()}
    places = ("world_size=1/ranks=0-0", "world_size=4/ranks=0-3")
    of_ranks = {f"{table}/{place}/part.parquet" for table in TABLES for place in places}
    assert files == of_ranks | {f"kinds/world_size={size}/part.parquet" for size in (1, 4)}


def test_each_number_names_its_unit_and_each_table_its_rank_host_and_step(tables: Path) -> None:
    units = ("_ns", "_ms", "_bytes", "_gb_per_s")
    without = {"rank", "host", "step", "world_size", "ranks", "origin_rank", "group_size"}
    for table in TABLES:
        schema = dataset.dataset(tables / table, partitioning="hive").schema
        assert schema.names[:3] == ["rank", "host", "step"]
        numbers = {
            field.name for field in schema if str(field.type) in ("int64", "int32", "double")
        }
        assert all(name.endswith(units) for name in numbers - without - {"collective"})


def test_parts_of_each_step_have_the_means_of_the_report(
    run: Path, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for world_size in (1, 4):
        document = as_json(run, world_size, capsys)
        found, steps = (read(tables, table, world_size) for table in ("parts", "steps"))
        count = document["aggregated_metrics"]["measured_steps"]
        assert len(found["rank"]) == len(steps["rank"]) == world_size * count
        assert np.allclose((steps["end_ns"] - steps["begin_ns"]) / MS, steps["step_ms"])
        assert (steps["slowest_ms"] >= steps["step_ms"]).all()
        for rank in document["rank_results"]:
            mine = found["rank"] == rank["rank"]
            assert set(found["host"][mine]) == {rank["host"]}
            for name in (
                "step",
                "data",
                "forward",
                "backward",
                "exposed",
                "other",
                "wait",
                "transfer",
            ):
                expected = rank["parts"][f"{name}_ms"]
                assert found[f"{name}_ms"][mine].mean() == pytest.approx(expected), name


def test_calls_add_up_to_the_kinds_of_the_report(
    run: Path, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = as_json(run, 4, capsys)
    (kind,) = document["aggregated_metrics"]["collectives"]
    calls = read(tables, "collectives", 4)
    assert len(calls["rank"]) == kind["calls"]
    for name in ("op", "group", "group_size", "dtype", "reduce_op"):
        assert set(calls[name]) == {kind[name] or None}, name
    assert calls["size_bytes"].sum() == kind["total_bytes"]
    assert not calls["failed"].any()
    rank_steps = 4 * document["aggregated_metrics"]["measured_steps"]
    assert calls["exposed_ms"].sum() / rank_steps == pytest.approx(kind["exposed_ms"])
    for name in ("duration", "queue", "wait", "transfer"):
        assert np.median(calls[f"{name}_ms"]) == pytest.approx(kind[name]["median_ms"]), name
    assert np.median(calls["busbw_gb_per_s"]) == pytest.approx(kind["busbw_gb_per_s"])
    numbers, times = np.unique(calls["collective"], return_counts=True)
    assert set(times) == {4}
    assert len(numbers) == kind["calls"] / 4


def test_waits_add_up_to_what_the_report_says_each_rank_costs(
    run: Path, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = as_json(run, 4, capsys)["aggregated_metrics"]
    waits = read(tables, "waits", 4)
    assert document["wait_costs"]
    expected = {(cost["rank"], cost["cause"]): cost["wait_ms"] for cost in document["wait_costs"]}
    cells = list(zip(waits["origin_rank"].tolist(), waits["cause"].tolist(), strict=True))
    assert set(cells) == set(expected)
    for cell, wait_ms in expected.items():
        mine = np.array([each == cell for each in cells])
        total = waits["wait_ms"][mine].sum() / (4 * document["measured_steps"])
        assert total == pytest.approx(wait_ms)
    assert (waits["origin_rank"] != waits["rank"]).all()


def test_ranks_over_128_are_in_files_of_their_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", ranks_of(130, 4))
    folder = tmp_path / "t"
    assert main(["report", str(run), "--format", "parquet", "-o", f"{folder}/"]) == 0
    for table in TABLES:
        ranges = {path.name for path in (folder / table / "world_size=130").iterdir()}
        assert ranges == {"ranks=0-127", "ranks=128-129"}
    found = dataset.dataset(folder / "collectives", partitioning="hive")
    rows = found.to_table(filter=dataset.field("ranks") == "128-129")
    assert set(rows["rank"].to_pylist()) == {128, 129}
    assert found.count_rows() == 65 * rows.num_rows


def test_what_is_not_known_is_null_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clocks of ranks with different boot ids cannot be compared."""
    ranks = ranks_of(2, 9, late_ms=5)
    for rank in ranks:
        rank.metadata["machine"]["boot_id"] = f"boot {rank.rank}"
    run = write_run(tmp_path / "r", ranks)
    folder = tmp_path / "t"
    assert main(["report", str(run), "--format", "parquet", "-o", str(folder)]) == 0
    assert "commprof: world size 2: waits has no rows: " in capsys.readouterr().err
    calls, steps = read(folder, "collectives", 2), read(folder, "steps", 2)
    assert not steps["clocks_shared"].any()
    assert np.isnan(calls["wait_ms"]).all()
    assert np.isnan(calls["busbw_gb_per_s"]).all()
    assert not np.isnan(calls["duration_ms"]).any()
    assert len(read(folder, "waits", 2)["rank"]) == 0


def test_a_folder_with_contents_is_kept_without_force_and_its_other_files_with_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    words = ["report", str(run), "--format", "parquet", "-o", str(folder)]
    assert main(words) == 0
    (folder / "notes.txt").write_text("mine")
    old = folder / "steps" / "world_size=99"
    old.mkdir()
    assert main(words) == 2
    assert "t has contents already (collectives); give --force" in capsys.readouterr().err
    assert old.exists()
    assert main([*words, "--force"]) == 0
    assert not old.exists()
    assert sorted(path.name for path in folder.iterdir()) == sorted([*TABLES, "kinds", "notes.txt"])


def test_a_directory_that_is_no_table_is_not_replaced_with_force(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t" / "steps").mkdir(parents=True)
    (tmp_path / "t" / "steps" / "thesis.tex").write_text("mine")
    words = ["report", str(run), "--format", "parquet", "-o", str(tmp_path / "t"), "--force"]
    assert main(words) == 2
    assert "t/steps is not a table that commprof wrote, and is not" in capsys.readouterr().err
    assert (tmp_path / "t" / "steps" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    ("target", "more", "complaint"),
    [
        ("t", ["--rows", "steps"], "--rows is for one table, and"),
        ("t", ["--price-per-hour", "3"], "--price-per-hour is for one table, and"),
        ("a.csv", [], "a.csv is not a directory (with --format parquet, -o names a directory unl"),
        ("none/t", [], "none is not a directory; create it, or name another -o DIR"),
    ],
)
def test_what_does_not_fit_a_folder_is_refused(
    run: Path,
    tmp_path: Path,
    target: str,
    more: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.csv").write_text("mine")
    assert (
        main(["report", str(run), "--format", "parquet", "-o", f"{tmp_path}/{target}", *more]) == 2
    )
    assert complaint in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_name_that_ends_in_parquet_is_a_file_of_one_table(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "steps.parquet"
    words = ["report", str(run), "--format", "parquet", "--rows", "steps", "-o", str(file)]
    assert main(words) == 0
    assert dataset.dataset(file).count_rows() == 8 + 4 * 11


@pytest.mark.parametrize("existed", [False, True])
def test_a_full_disk_leaves_no_part_of_a_table(
    run: Path, tmp_path: Path, existed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "t"
    words = ["report", str(run), "--format", "parquet", "-o", str(folder)]
    if existed:
        assert main(words) == 0
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        assert main([*words, "--force"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "t: File too large; the files written so far are removed" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert folder.exists() == existed


def test_a_table_that_cannot_be_replaced_leaves_all_older_tables(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "t"
    words = ["report", str(run), "--format", "parquet", "-o", str(folder)]
    assert main(words) == 0
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    replace = os.replace

    def fails_late(source: Path, target: Path) -> None:
        if target == folder / "collectives" and not source.name.startswith("old_"):
            raise OSError(errno.EBUSY, "busy")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails_late)
    assert main([*words, "--force"]) == 2
    assert "t: Device or resource busy; the files written so far" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == before


def test_an_older_table_that_cannot_be_moved_back_is_kept_and_named(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "t"
    words = ["report", str(run), "--format", "parquet", "-o", str(folder)]
    assert main(words) == 0
    before = sorted(path.read_bytes() for path in folder.rglob("*.parquet"))
    replace = os.replace

    def fails(source: Path, target: Path) -> None:
        if target == folder / "waits":
            raise OSError(errno.EBUSY, "busy")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    assert main([*words, "--force"]) == 2
    assert re.search(r"; older tables are in \S+/t/\.tables\.\S+: waits; ", capsys.readouterr().err)
    older = [path for path in folder.rglob("*.parquet") if "old_waits" in str(path)]
    kept = [path for path in folder.rglob("*.parquet") if ".tables" not in str(path)]
    assert sorted(path.read_bytes() for path in older + kept) == before


def test_of_ranks_without_steps_the_kinds_of_collectives_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for seq in range(3):
            rank.collective(seq, (1 + 10 * seq) * MS, (5 + 10 * seq) * MS, bytes=1000)
    run = write_run(tmp_path / "r", ranks)
    folder = tmp_path / "t"
    assert main(["report", str(run), "--format", "parquet", "-o", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out == f"Written: {folder}\n  kinds: 1 row\n"
    assert "commprof: world size 2 has no rows of steps, calls or waits: " in err
    assert [path.name for path in folder.iterdir()] == ["kinds"]
    (row,) = dataset.dataset(folder / "kinds", partitioning="hive").to_table().to_pylist()
    assert (row["world_size"], row["op"], row["calls"]) == (2, "all_reduce", 6)
    assert (row["has_steps"], row["total_bytes"]) == (False, 6000)


def test_kinds_are_the_rows_of_collectives(run: Path, tables: Path, tmp_path: Path) -> None:
    file = tmp_path / "kinds.parquet"
    words = ["report", str(run), "--format", "parquet", "--rows", "collectives", "-o", str(file)]
    assert main(words) == 0
    expected = [
        {name: value if value != "" else None for name, value in row.items()}
        for row in dataset.dataset(file).to_table().to_pylist()
    ]
    found = dataset.dataset(tables / "kinds", partitioning="hive").to_table().to_pylist()
    assert len(found) == 2
    assert sorted(found, key=lambda row: row["world_size"]) == expected


def test_a_run_that_recorded_nothing_has_no_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "r", ranks_of(2, 0))
    folder = tmp_path / "t"
    assert main(["report", str(run), "--format", "parquet", "-o", str(folder)]) == 1
    assert "no step and no collective was recorded, so the tables" in capsys.readouterr().err
    assert not folder.exists()


def test_a_folder_without_pyarrow_names_the_package(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = ["report", str(run), "--format", "parquet", "-o", str(tmp_path / "t")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "--format parquet needs pyarrow, which is not installed: " in said
    assert not (tmp_path / "t").exists()


def queries() -> list[str]:
    found = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(found) == 2
    return found


def test_the_queries_of_the_documentation_answer_in_duckdb(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb: Any = pytest.importorskip("duckdb", reason="needs duckdb: pip install duckdb")
    monkeypatch.chdir(tables.parent)
    waiting, sizes = (duckdb.sql(query) for query in queries())
    assert waiting.columns[:3] == ["world_size", "origin_host", "origin_rank"]
    late = waiting.fetchall()[0]
    # In each of 11 measured steps, 3 ranks wait 5 ms each for rank 3.
    assert late == (4, "host", 3, pytest.approx(3 * 11 * 0.005), 3)
    found = [dict(zip(sizes.columns, row, strict=True)) for row in sizes.fetchall()]
    assert [(row["world_size"], row["size_bytes"], row["calls"]) for row in found] == [
        (1, 4_000_000, 2 * 8),
        (4, 4_000_000, 4 * 2 * 11),
    ]
    assert found[0]["busbw_gb_per_s"] is None
    # The transfer of 4 MB takes 10 ms in bucket 0 and 20 ms in bucket 1.
    assert found[1]["busbw_gb_per_s"] == pytest.approx(1.5 * (0.4 + 0.2) / 2)


def test_a_sum_of_bytes_in_duckdb_is_exact_where_it_is_cast_as_documented(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb: Any = pytest.importorskip("duckdb", reason="needs duckdb: pip install duckdb")
    monkeypatch.chdir(tables.parent)
    assert "`sum(size_bytes)::BIGINT` is exact" in DOCS.read_text()
    files = "read_parquet('tables/collectives/**/*.parquet')"
    sums = f"SELECT sum(size_bytes) AS plain, sum(size_bytes)::BIGINT AS exact FROM {files}"
    found = duckdb.sql(sums).fetchnumpy()
    assert {name: str(column.dtype) for name, column in found.items()} == {
        "plain": "float64",
        "exact": "int64",
    }
    assert found["exact"].tolist() == [4_000_000 * (2 * 8 + 4 * 2 * 11)]
