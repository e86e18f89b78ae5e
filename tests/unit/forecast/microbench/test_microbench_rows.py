from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commprof.analysis.sweeps.sweep import OverlapRow
from commprof.analysis.sweeps.sweep_file import read_sweep, write_sweep
from commprof.forecast.microbench import measure
from commprof.forecast.microbench.buffers import Pattern
from commprof.forecast.microbench.collector import Collector, _overlap_row
from commprof.forecast.microbench.plan import BenchPlan
from commprof.forecast.microbench.rank import run_plan
from tests.support.builders.sweeps import key, sweep_result
from tests.support.machines.ranks import free_port

SIZES = (1024, 2048, 4096)


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**environment, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def plan(directory: Path, **changes: Any) -> BenchPlan:
    values = {"iterations": 2, "check": 1, **changes}
    return BenchPlan(("all_reduce",), (1,), SIZES, str(directory / "result.json"), **values)


def test_the_first_round_hands_over_rows_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[int] = []
    add = Collector.add

    def counted(self: Collector, sweep: Any, ranks: Any, one_clock: bool) -> None:
        handed.append(len(ranks[0]))
        add(self, sweep, ranks, one_clock)

    monkeypatch.setattr(Collector, "add", counted)
    run_plan(plan(tmp_path))
    assert handed == [1, 1, 1, 1, 1, 1, 6]
    rows = read_sweep(tmp_path / "result.json").rows
    assert [row.iterations for row in rows] == [2] * 6
    assert [row.wrong for row in rows] == [0] * 6


def test_a_failed_overlap_sweep_keeps_the_finished_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = measure.Compute
    made: list[measure.Compute] = []

    def third_fails() -> measure.Compute:
        if len(made) == 2:
            raise RuntimeError("no third size")
        made.append(compute())
        return made[-1]

    monkeypatch.setattr(measure, "Compute", third_fails)
    with pytest.raises(RuntimeError, match="no third size"):
        run_plan(plan(tmp_path, overlap=True))
    torch.distributed.destroy_process_group()
    rows = read_sweep(tmp_path / "result.json").overlap_rows
    assert [row.key.size_bytes for row in rows] == [1024, 2048]


def test_overlap_does_its_warm_up_calls_and_checks_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counting(make: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            call = make(*arguments, **options)

            def counted() -> Any:
                calls.append(make)
                return call()

            return counted

        return made

    make_call = measure.make_call
    monkeypatch.setattr(measure, "make_call", counting(make_call))
    counts = []
    for warmup, check in ((0, 0), (3, 0), (0, 2)):
        calls.clear()
        run_plan(plan(tmp_path, overlap=True, warmup=warmup, check=check))
        counts.append(len(calls))
    result = read_sweep(tmp_path / "result.json")
    assert [row.wrong for row in result.overlap_rows] == [0, 0, 0]
    assert (counts[1] - counts[0], counts[2] - counts[0]) == (3 * len(SIZES), 2 * len(SIZES))
    assert result.context["rounds"] == 1
    assert "t_ovrl" in result.context["time"]
    monkeypatch.setattr(Pattern, "wrong", lambda *_: 5)
    run_plan(plan(tmp_path, overlap=True))
    assert [row.wrong for row in read_sweep(tmp_path / "result.json").overlap_rows] == [5, 5, 5]


def test_overlap_time_is_that_of_the_slowest_rank_in_each_sample() -> None:
    ranks = 100
    cells = []
    for rank in range(ranks):
        # Rank 70 is the slowest in the first two samples, and rank 5 in the last one.
        overlapped = np.array([900.0, 900.0, 1.0]) if rank == 70 else np.full(3, float(rank == 5))
        overlapped[2] += 500.0 * (rank == 5)
        times = (np.full(3, start + rank) for start in (1000.0, 2000.0, 3000.0))
        cells.append(measure.OverlapCell(8, "in_place", *times, overlapped))
    row = _overlap_row(key(), cells)
    assert (row.pure_us, row.compute_alone_us, row.compute_us) == (1070.0, 2070.0, 3070.0)
    assert row.overlapped_us == 900.0


def test_overlap_rows_without_a_check_result_are_read(tmp_path: Path) -> None:
    path = tmp_path / "older.json"
    overlapped = OverlapRow(key(), 1.0, 1.0, 1.0, 1.0, 1.0, 5, 3)
    write_sweep(path, sweep_result(overlap_rows=(overlapped,)))
    assert read_sweep(path).overlap_rows == (overlapped,)
    path.write_text(path.read_text().replace(', "wrong": 3', ""))
    assert read_sweep(path).overlap_rows[0].wrong is None
