from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.sweeps.sweep_comparison import compare_sweeps
from commprof.analysis.sweeps.sweep_file import read_sweep
from commprof.commands import main
from commprof.errors import UsageError
from commprof.forecast.fit.fit import fit_curves
from commprof.forecast.fit.points import Point, read_points
from commprof.recordings.nccl_tests import is_nccl_tests, read_nccl_tests

_PLACES = [place / "shared/data/nccl_tests" for place in Path(__file__).parents[4:6]]
#: ``shared`` lies beside the repository, or beside the folder that holds all worktrees.
DATA = next((place for place in _PLACES if place.exists()), _PLACES[0])
RANKS = "".join(
    f"#  Rank  {rank} Group  0 Pid   77 on host{rank // 2}    device  0 [0x0a] A GPU\n"
    for rank in range(4)
)
OLD = f"""\
# nThread 1 nGpus 4 minBytes 4 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 0
#
{RANKS.replace("host1", "host0")}#
# size count type redop time algbw busbw error time algbw busbw error
# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)
hostname:3442:3442 [0] NCCL INFO Launch mode Parallel
  0 0 float sum 35.20 0.00 0.00 N/A 34.05 0.00 0.00 N/A
  4096 1024 float sum 36.00 0.00 0.00 N/A 37.00 0.00 0.00 N/A
  1048576 262144 float sum 128.0 0.00 0.00 0e+00 129.0 0.00 0.00 0e+00
# Avg bus bandwidth    : 58.2651
"""
NEW = f"""\
# nccl-tests version 2.17.6 nccl-headers=22800 nccl-library=22800
# Collective test starting: alltoall_perf
{RANKS}#
# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
[1,0]<stdout>: 4096 256 float none -1 20.50 0.20 0.15 0 21.00 0.20 0.15 N/A
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def document() -> dict[str, Any]:
    body = {"time": 12.5, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0}
    row = {"size": 4096, "count": 1024, "type": "float", "redop": "sum", "root": "    -1"}
    return {
        "version": 2,
        "start_time": "2026-01-01 10:00:00",
        "args": ["./build/reduce_scatter_perf", "-b", "4K"],
        "env": ["A=b"],
        "config": {"nthreads": 1, "ngpus": 4, "devices": [{"rank": 0, "hostname": "a"}]},
        "results": [row | {"out_of_place": body, "in_place": None}],
    }


def test_text_output_of_an_old_nccl_tests_version_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "all-reduce.log", OLD)
    assert is_nccl_tests(path)
    (log,) = read_nccl_tests(path)
    assert (log.op, log.ranks, log.hosts, len(log.rows)) == ("all_reduce", 4, 1, 4)
    first, last = log.rows[0], log.rows[-1]
    assert (first.size_bytes, first.redop, first.placement) == (4096, "sum", "out_of_place")
    assert (first.time_us, first.wrong, last.time_us) == (36.0, None, 129.0)


def test_text_output_of_a_new_nccl_tests_version_names_its_operation(tmp_path: Path) -> None:
    (log,) = read_nccl_tests(written(tmp_path, "job.out", NEW))
    assert (log.op, log.ranks, log.hosts) == ("all_to_all", 4, 2)
    assert [(row.time_us, row.wrong, row.redop) for row in log.rows] == [
        (20.5, 0, ""),
        (21, None, ""),
    ]


def test_json_output_of_nccl_tests_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "result.json", json.dumps(document()))
    assert is_nccl_tests(path)
    (log,) = read_nccl_tests(path)
    assert (log.op, log.ranks, len(log.rows)) == ("reduce_scatter", 4, 1)
    assert (log.rows[0].time_us, log.rows[0].wrong, log.rows[0].root) == (12.5, 0, -1)


@pytest.mark.parametrize(("factor", "logs"), [(1.2, 2), (1.9, 0), (0.5, 0)])
def test_results_of_two_clusters_in_one_file_are_not_one_line(
    tmp_path: Path, factor: float, logs: int
) -> None:
    times = {"20.50 0.20 0.15": 20.5, "21.00 0.20 0.15": 21.0}
    other = NEW.replace(" on ", " on other-")
    for text, time in times.items():
        algbw = 4096 / (time / factor) / 1e3
        other = other.replace(text, f"{time / factor:.2f} {algbw:.2f} {algbw * 3 / 4:.2f}")
    path = written(tmp_path, "page.md", NEW + other)
    if logs:
        assert len(read_nccl_tests(path)) == logs
        return
    with pytest.raises(
        UsageError, match=r"from different sets of hosts: the times differ by a factor"
    ):
        read_nccl_tests(path)


def test_results_with_an_unknown_operation_or_unknown_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reduce_scatter; put the right one into the file's name"):
        read_nccl_tests(written(tmp_path, "job.out", OLD))
    with pytest.raises(UsageError, match="which ranks took part"):
        read_nccl_tests(written(tmp_path, "all_reduce.log", OLD.replace("#  Rank", "#  R")))


def test_two_nccl_tests_results_are_compared_and_busbw_is_computed(tmp_path: Path) -> None:
    first = read_sweep(written(tmp_path, "all_reduce_a.log", OLD))
    second = read_sweep(written(tmp_path, "all_reduce_b.log", OLD.replace("128.0", "256.0")))
    rows = compare_sweeps(first, second).rows
    assert [row.ratio for row in rows] == [1, 1, 2, 1]
    # 1,048,576 bytes in 128 µs are 8.192 GB/s, and busbw is 2 (n - 1) / n = 1.5 times this rate.
    assert first.rows[2].busbw_gb_per_s == pytest.approx(12.288)


def test_fail_above_is_refused_for_results_of_a_single_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        str(written(tmp_path, f"all_reduce_{name}.log", text))
        for name, text in (("a", OLD), ("b", OLD.replace("128.0", "1280.0")))
    ]
    assert main(["compare", *paths]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "holds a single round of each size; to tell a difference from noise, measure" in shown
    assert "-n limits" not in shown
    assert main(["compare", *paths, "--fail-above", "5%"]) == 2
    assert "measure both with commprof microbench --json" in capsys.readouterr().err


def test_points_use_out_of_place_times_and_the_link_between_hosts(tmp_path: Path) -> None:
    found = read_points(written(tmp_path, "job.out", NEW))
    (point,) = found.points
    assert (point.op, point.ranks, point.time_s) == ("all_to_all", 4, 20.5e-6)
    assert point.link == "other_host"


def test_damaged_results_are_refused_in_one_line(tmp_path: Path) -> None:
    chosen = random.Random(4)
    odd = document()["results"][0] | {"size": "Infinity", "root": "inf"}
    for part in ({"config": {"devices": 3}}, {"results": [odd]}, {"config": {"ngpus": []}}):
        path = written(tmp_path, "all_reduce.json", json.dumps(document() | part))
        assert len(refusal(path).splitlines()) == 1
    for number in range(200):
        whole = (OLD, NEW, json.dumps(document()))[number % 3].encode()
        data = bytearray(whole[: chosen.randrange(len(whole) // 2, len(whole))])
        for _ in range(6):
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        path = tmp_path / "all_reduce.log"
        path.write_bytes(data)
        assert len(refusal(path).splitlines()) <= 1


def refusal(path: Path) -> str:
    try:
        read_nccl_tests(path)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the recordings of real jobs")
@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter"])
def test_fitted_curves_predict_held_out_sizes(name: str) -> None:
    points: list[Point] = [
        point for point in read_points(DATA / f"{name}.log").points if point.size_bytes >= 1024
    ]
    assert len(points) == 24
    (curve,), left_out = fit_curves(points)
    assert left_out == []
    assert curve.held_out_size is not None
    assert curve.held_out_size.median < 0.05
    assert curve.held_out_size.mean < 0.05
    assert curve.held_out_size.worst < 0.15
    assert len(curve.pieces) == 3
