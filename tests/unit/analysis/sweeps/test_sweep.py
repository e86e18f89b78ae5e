"""A sweep's figures from times that one can follow on paper, and its file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.sweeps.sweep import OverlapRow, SweepResult, make_row, overlap_share
from commprof.analysis.sweeps.sweep_file import (
    KIND,
    SCHEMA_VERSION,
    read_sweep,
    render,
    write_sweep,
)
from commprof.analysis.sweeps.sweep_samples import Times, durations_us, skews_us
from commprof.errors import UsageError
from tests.support.builders.sweeps import key, row, sweep_result

US = 1000


def times(begin_us: list[int], end_us: list[int]) -> Times:
    return Times(np.array(begin_us) * US, np.array(end_us) * US)


def test_a_late_rank_is_in_no_time_of_ranks_that_share_a_clock() -> None:
    ranks = [times([0, 100], [50, 130]), times([40, 105], [52, 128])]
    # Last begin to last end: 40 to 52, and 105 to 130.
    assert durations_us(ranks, one_clock=True).tolist() == [12, 25]
    assert skews_us(ranks).tolist() == [40, 5]


def test_ranks_with_several_clocks_are_each_measured_by_their_own() -> None:
    ranks = [times([0, 100], [50, 130]), times([1040, 1105], [1052, 1128])]
    assert durations_us(ranks, one_clock=False).tolist() == [50, 30]


def test_a_row_by_hand() -> None:
    rounds = [np.array([100.0, 300.0]), np.array([200.0])]
    given = key(world_size=4, size_bytes=1_000_000, count=250_000)
    found = make_row(given, "all_reduce", rounds, [np.array([1.0, 3.0, 2.0])], wrong=0, root=-1)
    assert (found.time_us, found.min_us, found.max_us, found.p50_us) == (200, 100, 300, 200)
    assert found.p99_us == pytest.approx(298)
    assert found.cv == pytest.approx(math.sqrt(2 / 3) / 2)
    # 1 MB in 200 us is 5 GB/s; of 4 ranks an all-reduce moves 2 * 3 / 4 of it per link.
    assert found.algbw_gb_per_s == pytest.approx(5)
    assert found.busbw_gb_per_s == pytest.approx(7.5)
    assert (found.iterations, found.round_iterations) == (3, (2, 1))
    assert found.skew_us == 2


def test_what_moves_no_data_has_no_bandwidth() -> None:
    given = key(op="barrier", dtype="", redop="", size_bytes=0, count=0)
    found = make_row(given, "barrier", [np.array([5.0])], [], wrong=None, root=-1)
    assert math.isnan(found.algbw_gb_per_s)
    assert math.isnan(found.busbw_gb_per_s)
    assert math.isnan(found.skew_us)


@pytest.mark.parametrize(
    ("pure", "compute", "overlapped", "share"),
    [(100, 100, 200, 0), (100, 100, 100, 1), (100, 100, 150, 0.5), (100, 50, 125, 0.5)],
)
def test_overlap_is_imbs(pure: float, compute: float, overlapped: float, share: float) -> None:
    assert overlap_share(pure, compute, overlapped) == pytest.approx(share)


def test_overlap_stays_between_nothing_and_all() -> None:
    assert overlap_share(100, 100, 250) == 0
    assert overlap_share(100, 100, 90) == 1


def test_a_result_is_the_same_again_from_its_file(tmp_path: Path) -> None:
    overlap = OverlapRow(key(), 1.0, 2.0, 3.0, 4.0, 0.5, 20)
    barrier = row(
        key=key(op="barrier", dtype="", redop="", size_bytes=0, count=0),
        algbw_gb_per_s=math.nan,
        busbw_gb_per_s=math.nan,
        wrong=None,
    )
    result = sweep_result(row(), barrier, overlap_rows=(overlap,), problems=("rank 1 failed",))
    path = tmp_path / "result.json"
    write_sweep(path, result)
    assert render(read_sweep(path)) == render(result) == path.read_text()
    assert read_sweep(path).rows[0] == result.rows[0]
    assert math.isnan(read_sweep(path).rows[1].busbw_gb_per_s)
    assert read_sweep(path).overlap_rows == (overlap,)
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_says_what_it_is_and_names_units(tmp_path: Path) -> None:
    value = json.loads(render(sweep_result(row())))
    assert (value["schema_version"], value["kind"]) == (SCHEMA_VERSION, KIND) == (1, KIND)
    assert list(value) == [
        *("schema_version", "kind", "context", "problems", "rows", "overlap_rows")
    ]
    assert list(value["rows"][0]) == [
        *("op", "dtype", "redop", "world_size", "backend", "placement", "size_bytes", "count"),
        *("root", "time_us", "min_us", "p50_us", "p99_us", "max_us", "cv"),
        *("algbw_gb_per_s", "busbw_gb_per_s", "wrong", "iterations", "skew_us"),
        *("samples_us", "round_iterations"),
    ]


def test_an_empty_result_can_be_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_sweep(path, SweepResult({}))
    assert read_sweep(path) == SweepResult({})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON file"),
        ("[]", "is no result of a microbenchmark"),
        ('{"schema_version": 1, "runs": []}', "is no result of a microbenchmark"),
        ('{"kind": "commprof microbench", "schema_version": 9}', "schema_version 9 .allowed: 1"),
        ('{"kind": "commprof microbench", "schema_version": 1}', "is damaged: context is missing"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_sweep(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_sweep(tmp_path / "missing.json")


def test_fields_that_a_newer_version_added_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = json.loads(render(sweep_result(row())))
    value["rows"][0]["colour"] = "red"
    path.write_text(json.dumps(value))
    assert read_sweep(path).rows == (replace(row()),)
