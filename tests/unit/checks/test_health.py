from __future__ import annotations

import importlib
import json
import pkgutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from commprof import checks
from commprof.analysis.checks.outcome import FAIL, PASS, SKIP, WARN, Outcome, far_off
from commprof.checks import (
    all_reduce,
    clocks,
    file_limits,
    gradients,
    interfaces,
    kernels,
    loss,
    pairs,
    pinning,
    pressure,
    ring,
    shared_memory,
)
from commprof.checks.pairs import Link, pairs_of
from commprof.checks.pressure import Load
from commprof.checks.ranks import Ranks
from commprof.checks.run import CHECKS, read_outcomes, run_checks
from commprof.commands import main
from commprof.commands.check import render
from commprof.errors import RankFailedError, UsageError
from commprof.launch import elastic

CALM = Load(cpu_percent=0.5, memory_percent=0.0, available=0.6)


def test_each_module_with_a_check_is_run() -> None:
    names = [module.name for module in pkgutil.iter_modules(checks.__path__, "commprof.checks.")]
    modules = [importlib.import_module(name) for name in names]
    assert {module for module in modules if hasattr(module, "NAME")} == set(CHECKS)


def says(outcome: Outcome, status: str, *words: str) -> None:
    assert outcome.status == status
    assert bool(outcome.advice) == (status in (WARN, FAIL))
    for word in words:
        assert word in f"{outcome.figure} {outcome.advice}"


def links(world_size: int, bad: dict[tuple[int, int], tuple[float, float]]) -> list[list[Link]]:
    """Returns similar links. ``bad`` maps a pair to its latency in us and its bandwidth in GB/s."""
    found: list[list[Link]] = [[] for _ in range(world_size)]
    for first, second in pairs_of(world_size):
        noise = 1 + 0.05 * ((first + 3 * second) % 5)
        latency, speed = bad.get((first, second), (100 * noise, 1.0 / noise))
        found[first].append(Link(first, second, latency, speed))
    return found


def test_kernels_check_warns_if_ranks_use_different_simd_kernels() -> None:
    says(kernels.judge([("a", "avx2 on x86_64")] * 2), PASS, "a: avx2 on x86_64")
    says(kernels.judge([("a", ""), ("b", "")]), SKIP, "no C++ module")
    mixed = kernels.judge([("b", "scalar on aarch64"), ("a", "avx2 on x86_64")])
    says(mixed, WARN, "a: avx2 on x86_64; b: scalar on aarch64", "COMMPROF_SIMD")
    says(kernels.judge([("a", "avx2 on x86_64"), ("b", "")]), WARN, "b: no C++ module")


def test_ring_check_names_ranks_that_received_wrong_values() -> None:
    says(ring.judge([(True, 120.0), (True, 1.0)]), PASS, "120 us")
    says(ring.judge([(True, 1.0), (False, 1.0), (False, 1.0)]), FAIL, "ranks 1, 2")
    says(ring.judge([(True, 0.0)]), SKIP)


def test_pairs_of_similar_speed_pass() -> None:
    says(pairs.judge(links(6, {})), PASS, "15 pairs")
    says(pairs.judge([[]]), SKIP)


def test_the_pairs_check_shows_latency_and_bandwidth_of_each_pair() -> None:
    bad = {(0, 2): (1234.4, 0.0125)}
    found = pairs.judge(links(3, bad))
    assert found.details == (
        "latency in us above the diagonal, bandwidth in GB/s below it:",
        "rank       0      1      2",
        "   0       -    115   1234",
        "   1    0.87      -    110",
        "   2  0.0125  0.909      -",
    )
    assert "              1    0.87      -    110\n" in render([found], 3, 80)
    assert pairs.judge(links(6, {(1, 4): (900.0, 1.0)})).details
    assert pairs.judge(links(17, {})).details == ()


def test_a_pair_with_high_latency_or_low_bandwidth_is_named() -> None:
    says(pairs.judge(links(6, {(1, 4): (900.0, 1.0)})), WARN, "1-4 900 us")
    outcome = pairs.judge(links(6, {(0, 5): (100.0, 0.1)}))
    says(outcome, WARN, "0-5 100 us, 0.1 GB/s")
    assert "1-4" not in outcome.figure


def test_all_pairs_of_a_rank_with_a_bad_port_are_named() -> None:
    bad = {pair: (800.0, 0.2) for pair in pairs_of(8) if 3 in pair}
    figure = pairs.judge(links(8, bad)).figure
    assert all(f"{min(3, r)}-{max(3, r)} 800 us" in figure for r in range(8) if r != 3)


def test_no_pair_is_an_outlier_among_few_pairs() -> None:
    says(pairs.judge(links(3, {(0, 1): (9000.0, 0.01)})), PASS)


def test_only_some_pairs_of_many_ranks_are_measured() -> None:
    assert len(pairs_of(16)) == 120
    chosen = pairs_of(64)
    assert len(chosen) < 64 * 7
    assert {rank for pair in chosen for rank in pair} == set(range(64))
    assert all(first < second for first, second in chosen)


def test_far_off_finds_values_far_above_the_others() -> None:
    assert far_off([1, 1, 1, 1, 10], 3) == [4]
    assert far_off([1, 1, 1, 10], 3) == []
    assert far_off([1, 2, 3, 4, 10], 3) == []  # 10 is below the median + 5 x 1.4826 x the MAD.
    assert far_off([1.0] * 6, 3) == []


def test_all_reduce_check_fails_for_wrong_sums_and_different_bits() -> None:
    says(all_reduce.judge([([], "a"), ([], "a")]), PASS)
    says(all_reduce.judge([([], "a"), (["3 of 1000 int64"], "a")]), FAIL, "rank 1: 3 of 1000")
    says(all_reduce.judge([([], "a"), ([], "b")]), FAIL, "different bits")


def test_all_reduce_check_uses_sums_that_fp32_represents_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = 4096
    weights = [all_reduce._weight(rank) for rank in range(ranks)]

    def summed(values: torch.Tensor) -> None:
        pattern = values / weights[7]
        values.zero_()
        for weight in weights:
            values += pattern.to(values.dtype) * weight

    monkeypatch.setattr(all_reduce.dist, "all_reduce", summed)
    monkeypatch.setattr(all_reduce, "_COUNTS", (1, 1000))
    assert all_reduce.measure(Ranks(7, ranks, "host"))[0] == []


def test_gradients_check_names_the_rank_whose_model_differs() -> None:
    says(gradients.judge(["a", "a"]), PASS)
    says(
        gradients.judge(["a", "b", "a", "a"]),
        FAIL,
        "the model of rank 1 differs from that of rank 0 (other ranks equal to rank 0: 2)",
    )
    says(gradients.judge(["a"]), SKIP)


def test_the_hash_of_a_model_changes_with_one_bit() -> None:
    import torch

    one, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    other.load_state_dict(one.state_dict())
    assert gradients.parameters_hash(one) == gradients.parameters_hash(other)
    with torch.no_grad():
        other.bias[2] = torch.nextafter(other.bias[2], torch.tensor(9.0))
    assert gradients.parameters_hash(one) != gradients.parameters_hash(other)
    assert gradients.parameters_hash(one.to(torch.bfloat16))


def test_clocks_check_warns_of_hosts_whose_clocks_differ() -> None:
    says(clocks.judge([("a", 0.0, 0.0), ("a", 0.0, 0.1)]), SKIP)
    says(clocks.judge([("a", 0.0, 0.0), ("b", 2.0, 0.5)]), PASS, "within 2.5 ms")
    says(
        clocks.judge([("a", 0.0, 0.0), ("b", -80.0, 0.5)]), WARN, "rank 1 (b) is 80 +- 0.5 ms ahead"
    )
    many = [("a", 0.0, 0.0), *[("b", 80.0, 0.5)] * 8, *[(f"c{n}", 90.0, 0.5) for n in range(20)]]
    behind = "ranks 1-8 (b) are 80 +- 0.5 ms behind", "; also on 13 more hosts"
    says(clocks.judge(many), WARN, *behind)
    says(clocks.judge([("a", 0.0, 0.0), ("b", 80.0, 75.0)]), PASS)


def test_pinning_check_warns_of_too_many_threads_and_shared_cores() -> None:
    says(pinning.judge([("a", frozenset({0, 1}), 1), ("a", frozenset({2, 3}), 1)]), PASS, "4 cores")
    too_many = [("a", frozenset({0, 1}), 4), ("b", frozenset({0, 1}), 2)]
    says(pinning.judge(too_many), WARN, "a has more threads than cores", "OMP_NUM_THREADS to 2")
    part = [("a", frozenset({0, 1, 2}), 1), ("a", frozenset({2, 3}), 1)]
    says(pinning.judge(part), WARN, "share some of their cores")


def test_file_limits_check_warns_and_fails_for_low_limits() -> None:
    says(file_limits.judge([("a", -1), ("b", -1)]), PASS)
    says(file_limits.judge([("a", 65536), ("b", 4096)]), PASS, "4096 on b")
    says(file_limits.judge([("a", 1024)]), WARN, "ulimit -n 4096")
    says(file_limits.judge([("a", 1024)] * 128), FAIL, "with 128 ranks, each needs 1280 files")


def test_shared_memory_check_warns_and_fails_if_space_is_short() -> None:
    gb = 1_000_000_000
    says(shared_memory.judge([("a", (8 * gb, 16 * gb))]), PASS, "8 of 16 GB free on a")
    says(shared_memory.judge([("a", (60_000_000, 64_000_000))]), WARN, "--shm-size")
    says(shared_memory.judge([("a", (60_000_000, 64_000_000))] * 4), FAIL)
    says(shared_memory.judge([("a", (-1, -1))]), SKIP)


def test_interfaces_check_warns_of_a_host_with_slow_interfaces(tmp_path: Path) -> None:
    found = (
        ("eth0", "up", "100000"),
        ("eth1", "down", "1"),
        ("lo", "up", "0"),
        ("veth0", "up", "-1"),
    )
    for name, state, speed in found:
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(state + "\n")
        (tmp_path / name / "speed").write_text(speed + "\n")
    assert interfaces.speeds(tmp_path) == {"eth0": 100000, "veth0": 0}
    says(interfaces.judge([("a", {"eth0": 100000}), ("b", {"eth0": 100000})]), PASS, "100 Gbit/s")
    slow = [("a", {"eth0": 100000}), ("b", {"eth0": 1000})]
    says(interfaces.judge(slow), WARN, "why the fastest interface of b has only 1 Gbit/s")
    says(interfaces.judge([("a", {"eth0": 0})]), SKIP, "unknown speed")
    says(interfaces.judge([("a", {})]), SKIP)


def test_pressure_check_warns_of_busy_cores_and_short_memory(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n")
    (tmp_path / "pressure" / "cpu").write_text("some avg10=12.50 avg60=1.00 avg300=0.00 total=9\n")
    (tmp_path / "pressure" / "memory").write_text(
        "some avg10=9.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.75 avg60=0.00 total=1\n"
    )
    assert pressure.read_load(tmp_path) == Load(12.5, 0.75, 0.25)
    assert pressure.read_load(tmp_path / "none") == Load(None, None, None)
    says(pressure.judge([("a", CALM)]), PASS, "60 %")
    says(pressure.judge([("a", Load(None, None, None))]), PASS, "unknown")
    says(
        pressure.judge([("a", CALM), ("b", Load(50.0, 0.0, 0.5))]),
        WARN,
        "other processes use the cores of b",
    )
    says(pressure.judge([("a", Load(0.0, 5.0, 0.5))]), WARN, "memory is short on a")
    for left in (0.01, 0.0):
        says(pressure.judge([("a", Load(50.0, 0.0, left))]), FAIL, "memory is short on a")


def test_the_table_of_outcomes_is_rendered_exactly() -> None:
    outcomes = [
        Outcome("ring", PASS, "20 rounds, 100 us from rank to rank"),
        Outcome("open files", FAIL, "limit 200 on a", "2 ranks need 272 files: run ulimit -n 4096"),
        Outcome("clocks", SKIP, "all ranks are on\x1b[31m one host"),
    ]
    assert render(outcomes, 2, 80) == (
        "pass  ring        20 rounds, 100 us from rank to rank\n"
        "fail  open files  limit 200 on a\n"
        "                  -> 2 ranks need 272 files: run ulimit -n 4096\n"
        "skip  clocks      all ranks are on\\x1b[31m one host\n"
        "2 ranks: 1 pass, 1 fail, 1 skip\n"
    )


@pytest.mark.parametrize("rank", [None, "0"])
def test_check_with_no_ranks_is_refused_at_once(
    rank: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["check", "--nproc", "0"]) == 2
    assert "--nproc" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [("4,2", "4 threads"), ("", "1 threads"), ("x", "OMP_NUM_THREADS=x is out of range")],
)
def test_check_takes_threads_per_rank_from_omp_num_threads(
    given: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(*_: object, threads_per_rank: int, **__: object) -> None:
        raise UsageError(f"{threads_per_rank} threads")

    monkeypatch.setattr(elastic, "launch_function", launch)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert main(["check", "--nproc", "1"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("is_named", [True, False])
def test_check_keeps_its_logs_only_if_the_error_names_one(
    is_named: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def launch(_: object, __: str, ___: int, logs: Path, **____: object) -> None:
        logs.mkdir()
        (logs / "rank_1.err").touch()
        if is_named:
            raise RankFailedError(1, -9, "", logs / "rank_1.err")
        raise UsageError("refused")

    monkeypatch.setattr(elastic, "launch_function", launch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["check", "--nproc", "2"]) == (1 if is_named else 2)
    logs = list(tmp_path.glob("*/logs/rank_1.err"))
    assert len(logs) == len(list(tmp_path.iterdir())) == is_named
    said = capsys.readouterr().err
    assert all(f"see {log}" in said for log in logs)


@pytest.mark.parametrize("text", ["abc", "0", "nan", "inf", "-3"])
def test_an_unusable_check_timeout_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMPROF_CHECK_TIMEOUT_S", text)
    with pytest.raises(UsageError, match=r"COMMPROF_CHECK_TIMEOUT_S='.*' .*allowed: 1 to 86400"):
        run_checks(())


def test_outcomes_are_read_back_from_their_file(tmp_path: Path) -> None:
    outcomes = (pairs.judge(links(3, {})), Outcome("ring", PASS, "x"))
    path = tmp_path / "outcomes.json"
    path.write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
    assert read_outcomes(path) == outcomes


def test_loss_check_fails_if_the_loss_does_not_fall() -> None:
    says(loss.judge([[2.0 / (step + 1) for step in range(30)]] * 2), PASS)
    says(loss.judge([[2.0] * 30]), FAIL, "does not fall")
    says(loss.judge([[2.0] * 3 + [float("nan")] * 27]), FAIL, "from step 3 on")
