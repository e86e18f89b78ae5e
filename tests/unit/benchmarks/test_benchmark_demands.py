from __future__ import annotations

import ast
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import microbench_aa, microbench_floor, multi_node, shared_memory, strategies
from benchmarks.attribution import hangs, known_schedules, two_instruments
from benchmarks.judging import compression_demands, trial_truth_demands
from benchmarks.judging.demands import Demand, at_least, at_most, judged, of_all
from benchmarks.judging.medians import median_interval, ratio_interval, ratio_of
from benchmarks.own_cost import calibration, calls, live_overhead, overhead


def missed(demands: list[Demand]) -> list[str]:
    return [one.what for one in demands if not one.met]


def test_known_schedules_are_judged_by_count_mean_and_worst_error() -> None:
    rows = [{"seed": seed, "error %": (-1) ** seed * 0.9} for seed in range(20)]
    assert missed(known_schedules.demands(rows)) == []
    rows[3]["error %"] = -3.1
    assert [one.split(": ")[-1] for one in missed(known_schedules.demands(rows))] == ["worst"]
    assert missed(known_schedules.demands(rows[4:])) == ["schedules measured"]
    assert known_schedules.demands([]) == []


def turned(
    recorded: float,
    profiler: float = 1.2,
    noise: tuple[float, ...] = (1.0,) * 8,
    clock: str = "thread",
) -> dict[str, Any]:
    """``noise`` has one factor per generation; each generation has two rounds."""
    ratios = dict.fromkeys(overhead.MODES, recorded)
    ratios |= {overhead.PLAIN: 1.0, overhead.CONTROL: 1.0, overhead.PROFILER: profiler}
    cell = {
        mode: {clock: [[3.0 * ratio * (one if ratio != 1 else 1.0)] * 2 for one in noise]}
        for mode, ratio in ratios.items()
    }
    return {overhead.cell_name("small", 1): overhead.ratios_of(cell)}


@pytest.mark.parametrize(
    ("clock", "recorded", "wrong"),
    [
        ("thread", 1.001, []),
        ("thread", 1.004, ["always-on"]),
        ("process", 1.006, ["always-on", "full", "full, attached"]),
        ("wall", 1.004, []),
        ("wall", 1.006, ["always-on"]),
        ("wall", 1.011, ["always-on", "full", "full, attached"]),
    ],
)
def test_each_mode_is_judged_by_its_own_cost(clock: str, recorded: float, wrong: list[str]) -> None:
    found = overhead.demands(turned(recorded, clock=clock))
    assert [what.split(": ")[0].split(", ", 1)[1] for what in missed(found)] == wrong
    assert len(found) == len(overhead.RECORDED) + 1


def test_step_overhead_with_too_wide_an_interval_is_not_met() -> None:
    wide = (0.97, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.03)
    found = overhead.demands(turned(1.001, noise=wide))
    assert len(missed(found)) == len(overhead.RECORDED)
    assert "not measurable with this precision" in found[0].figure
    wall = overhead.demands(turned(0.997, noise=wide, clock="wall"))
    assert len(missed(wall)) == len(overhead.RECORDED)


def test_recording_must_cost_less_than_torch_profiler() -> None:
    (one,) = missed(overhead.demands(turned(1.001, profiler=1.0005)))
    assert one.endswith("below torch.profiler's")


def test_overhead_is_relative_to_both_plain_processes_of_the_same_round() -> None:
    cell = {
        overhead.PLAIN: {"wall": [[1.0, 2.0, 9.0]] * 6},
        overhead.CONTROL: {"wall": [[3.0, 2.0, 1.0]] * 6},
        "full": {"wall": [[3.0, 3.0, 5.0]] * 6},
    }
    full, control = (overhead.ratio(cell, mode, "wall") for mode in ("full", overhead.CONTROL))
    assert full is not None
    assert control is not None
    # Relative to the mean of both plain processes, the three rounds have 1.5, 1.5 and 1.
    assert (full.value, full.low, full.high) == pytest.approx((1.5, 1.5, 1.5))
    assert control.value == pytest.approx(1.0)
    alone = overhead.ratio(cell, "full", "wall", (overhead.PLAIN,))
    assert alone is not None
    assert alone.value == pytest.approx(1.5)
    assert overhead.ratio(cell, "full", "instructions") is None
    ratios = {overhead.cell_name("small", 2): overhead.ratios_of(cell)}
    assert overhead.table(ratios, "instructions") == ""
    assert "1.5000 [1.5000, 1.5000]" in overhead.table(ratios, "wall")


@pytest.mark.parametrize(
    ("blocks", "held", "met"),
    [(200, 186, True), (200, 194, True), (200, 185, False), (200, 195, False), (199, 190, False)],
)
def test_intervals_must_hold_as_often_as_stated(blocks: int, held: int, met: bool) -> None:
    measured = {"calibration": {"blocks": blocks, "tried": blocks, "held": {"wall time": held}}}
    (one,) = calibration.demands(measured)
    assert one.met is met
    assert calibration.demands({}) == []


def test_time_added_to_collective_calls_is_judged() -> None:
    plain = [1.0, 1.1, 1.2]
    times = {"plain": plain, "observed": [x + 0.9 for x in plain], "always-on": [9.0] * 3}
    found = calls.demands({"collectives": {"dist.all_reduce()": times}})
    assert missed(found) == ["time added to dist.all_reduce() on the fake backend, always-on"]


def monitored(on: float) -> list[dict[str, float]]:
    return [
        {"on": 10 * on, "off_a": 10.0 + noise, "off_b": 10.0 - noise, "of_core": 0.01}
        for noise in (0.1, -0.1) * 6
    ]


def test_overhead_of_live_metrics_is_judged() -> None:
    found = live_overhead.demands({"mlp 2": monitored(1.001), "mlp 4": monitored(1.05)})
    assert missed(found) == ["step of mlp 4 ranks, with live metrics / without"]
    assert missed(live_overhead.demands({"mlp 2": monitored(1.0)})) == ["world sizes measured"]


def test_hangs_are_judged_by_named_rank_time_and_stacks() -> None:
    row = {"right": True, "beyond_threshold_s": 4.9, "has_stacks": True}
    rows = [dict(row) for _ in range(20)]
    assert missed(hangs.demands(rows)) == []
    rows[0]["beyond_threshold_s"] = 5.1
    assert len(missed(hangs.demands(rows))) == 1
    rows[0] = {"right": False, "beyond_threshold_s": None, "has_stacks": False}
    assert len(missed(hangs.demands(rows))) == 3


def test_recorded_bytes_on_several_hosts_must_match_interface_counters() -> None:
    row = {"ranks": 2, "hosts": 2, "difference": 0.019}
    both = {"2": [row], "4": [{**row, "hosts": 4, "difference": -0.021}]}
    what = "2 ranks on 4 hosts: interface counters against records"
    assert missed(multi_node.demands(both)) == [what]
    assert missed(multi_node.demands({"2": [row]})) == ["numbers of hosts measured"]


def test_microbenchmark_times_are_judged_against_the_floor() -> None:
    def row(size: int, ours: float) -> dict[str, Any]:
        floor = [100.0] * 9
        turns = {"size_bytes": size, "ours": [ours] * 9, "floor": floor, "floor_again": floor}
        return microbench_floor.compared(turns)

    rows = [row(size, 109 if size < 1e6 else 102.9) for size in microbench_floor.SIZES]
    assert missed(microbench_floor.demands({"ranks": 2, "rows": rows})) == []
    rows[0], rows[-1] = row(1_000, 89), row(100_000_000, 103.2)
    wrong = missed(microbench_floor.demands({"ranks": 2, "rows": rows}))
    assert [what.split(",")[0] for what in wrong] == [
        "all-reduce of 1",
        "all-reduce of 100",
    ]


@pytest.mark.parametrize(
    ("flagged", "pairs", "met"), [(1, 20, True), (2, 20, False), (0, 19, False)]
)
def test_few_equal_sweeps_may_be_flagged(flagged: int, pairs: int, met: bool) -> None:
    found = [{"flagged": int(number < flagged)} for number in range(pairs)]
    (one,) = microbench_aa.demands({"significance": 0.01, "pairs": found})
    assert one.met is met


def test_shared_memory_all_reduce_is_judged_against_gloo_and_a_data_pass() -> None:
    def times(size: int, gain: float) -> dict[str, list[float]]:
        return {"commprof": [1.0] * 5, "gloo": [gain] * 5, "read and write": [0.3] * 5}

    figures = {
        f"{ranks} {size}": times(size, shared_memory.LEAST[size])
        for ranks in shared_memory.RANKS
        for size in shared_memory.SIZES
    }
    assert missed(shared_memory.all_reduce_demands(figures)) == []
    figures["8 4096"] = times(4096, 5.9)
    figures["2 100000000"]["read and write"] = [0.28] * 5
    assert missed(shared_memory.all_reduce_demands(figures)) == [
        "all-reduce of 100,000,000 bytes, 2 ranks: our time / a pass over the data",
        "all-reduce of 4,096 bytes, 8 ranks: gloo's time / ours",
    ]
    del figures["4 4096"]
    assert "points measured" in missed(shared_memory.all_reduce_demands(figures))


def test_ddp_over_shared_memory_is_judged_against_gloo() -> None:
    def times(ours: float) -> dict[str, list[float]]:
        return {"no communication": [10.0] * 5, "gloo": [16.0] * 5, "commprof": [ours] * 5}

    figures = {
        f"{model} {ranks}": times(12.0) for model in ("transformer", "25M") for ranks in (2, 4)
    }
    found = shared_memory.ddp_demands(figures)
    assert missed(found) == []
    assert found[0].figure == "3.00x [3.00, 3.00]"
    assert "step time, gloo / ours (25.0% shorter)" in found[1].what
    figures["25M 4"] = times(12.1)
    figures["25M 2"] = times(16.1)
    figures["transformer 4"] = times(9.9)
    assert missed(shared_memory.ddp_demands(figures)) == [
        "DDP, model 25M, 2 ranks: communication time, gloo / ours",
        "DDP, model 25M, 2 ranks: step time, gloo / ours (-0.6% shorter)",
        "DDP, model 25M, 4 ranks: communication time, gloo / ours",
    ]


def test_all_reduce_between_hosts_is_judged_by_time_and_bytes() -> None:
    def point(gain: float, sent: float) -> dict[str, Any]:
        bytes_ = [sent * shared_memory.HOSTS_BYTES]
        ours = {"ms": [1.0] * 3, "sent": bytes_, "received": bytes_}
        return {"commprof": ours, "gloo": {**ours, "ms": [gain] * 3}}

    figures = {
        f"{rate} {ranks}": point(1.1, 1.01) for rate in ("1gbit", "10gbit") for ranks in (2, 4)
    }
    figures["1gbit 4"] = point(1.8, 1.01)
    assert missed(shared_memory.hosts_demands(figures)) == []
    figures["1gbit 4"] = point(1.79, 1.01)
    figures["10gbit 2"] = point(1.0, 1.021)
    where = "all-reduce of 25 MB, 2 hosts of"
    assert missed(shared_memory.hosts_demands(figures)) == [
        f"{where} 4 ranks, 1gbit: gloo's time / ours",
        f"{where} 2 ranks, 10gbit: gloo's time / ours",
        f"{where} 2 ranks, 10gbit: bytes sent / the least that an all-reduce needs",
        f"{where} 2 ranks, 10gbit: bytes received / the least that an all-reduce needs",
    ]


def test_shared_memory_needs_enough_fault_tries_and_no_failure() -> None:
    assert missed(shared_memory.faults_demands({"tries": 100, "failed": 0})) == []
    assert len(missed(shared_memory.faults_demands({"tries": 100, "failed": 1}))) == 1
    assert len(missed(shared_memory.faults_demands({"tries": 10, "failed": 0}))) == 1


def test_kernels_are_judged_against_a_minimum_or_maximum_ratio() -> None:
    row = {"ratio": 50.0, "low": 49.0, "high": 51.0}
    figures = {
        "top-K 1 % : torch.topk, 1 MB": {**row, "demand": "50 at least"},
        "top-K 1 % : one read, 25 MB": {**row, "demand": "2.0 at most"},
        "fp16 with scale : memcpy, 25 MB": {**row, "demand": ""},
    }
    found = compression_demands.kernels(figures)
    assert [one.what for one in found[:2]] == [
        "kernel: torch.topk, 1 MB / top-K 1 % (quartiles)",
        "kernel: top-K 1 % / one read, 25 MB (quartiles)",
    ]
    assert [one.met for one in found] == [True, False, False]


def exchanged(fp16_ms: float, counted: float) -> dict[str, Any]:
    wire = {"fp16": 12_500_000, "topk:ratio=0.01": 255_000}
    ms = {"nothing": 1.0, "plain": 20.0, "torch fp16": 15.0, "fp16": fp16_ms}
    ms |= {"bf16": 8.0, "int8": 4.0, "topk:ratio=0.01": 1.9}
    return {
        name: {
            "ms": [value] * 3,
            "wire_bytes": wire.get(name, 0),
            "bytes": wire.get(name, 0) * counted,
        }
        for name, value in ms.items()
    }


def test_compressed_exchanges_are_judged_without_the_surrounding_step() -> None:
    figures = {"1gbit 25 MB": exchanged(11.0, 1.01)}
    found = compression_demands.exchange(figures)
    assert missed(found) == ["links measured"]
    # The exchanges alone take 20 - 1 ms and 11 - 1 ms.
    assert found[0].figure == "1.90x [1.90, 1.90]"
    figures = {"1gbit 25 MB": exchanged(11.1, 1.03)}
    assert missed(compression_demands.exchange(figures)) == [
        "bucket, 1gbit 25 MB, 2 ranks: time of plain / fp16",
        "bucket, 1gbit 25 MB: fp16, bytes counted on the interface / reported - 1",
        "bucket, 1gbit 25 MB: topk:ratio=0.01, bytes counted on the interface / reported - 1",
        "links measured",
    ]


def test_sums_powersgd_and_accuracy_of_compression_are_judged() -> None:
    ours = {"fp16_ms": [10.0] * 5, "uint8_ms": [2.0] * 5, "ours_ms": [1.9] * 5}
    figures = {**ours, "elements_summed": 1000, "ours_elements": 2000}
    (one,) = compression_demands.sums(figures)
    # Per element, 10 - 2 ms for 1000 elements are 8.42 times 1.9 ms for 2000 elements.
    assert one.met
    assert one.figure.startswith("8.42x")
    figures = {"4.0 2": {"torch": [3.1] * 3, "ours": [1.0] * 3}}
    assert missed(compression_demands.powersgd(figures)) == ["points measured"]
    errors = {"torch fp16": 1e-3, "fp16": 6.1e-4, "int8": 9e-3}
    found = compression_demands.accuracy({"errors": errors, "identical": True})
    assert [what.split(": ")[1] for what in missed(found)] == ["fp16 / torch's fp16 hook"]


def test_compressed_training_may_differ_by_the_noise_between_seeds() -> None:
    names = ("plain", "fp16", "bf16", "int8", "topk:ratio=0.01", "powersgd")
    losses = {name: [1.0, 1.1, 1.2] for name in names}
    losses["int8"] = [1.0, 1.1, 1.31]
    found = compression_demands.training(losses)
    # The loss with int8 is 0.11 off, but the noise is 0.1.
    assert [one.met for one in found] == [True, True, False, True]
    assert "topk:ratio=0.01 1.1000, powersgd 1.1000" in found[-1].figure


def test_trials_are_judged_against_long_fixed_runs() -> None:
    truth = [
        {"part": "truth", "label": label, "step_ms": ms, "seconds": 1.0}
        for label, ms in (("none", 100.0), ("fp16", 60.0))
    ]
    ratios = {"fp16": [0.6, 0.55, 0.65], "none again": [1.0, 0.9, 1.1]}
    link = {"part": "link", "choice": "fp16", "equals": [], "ratios": ratios, "seconds": 1.0}
    loopback = {**link, "part": "loopback", "answer": "none"}
    rows = [*truth, *[link] * 20, *[loopback] * 20]
    assert missed(trial_truth_demands.demands(rows)) == []
    lines = [*trial_truth_demands.summary(rows)]
    assert "on the link: fp16 is the fastest in runs without a trial" in lines
    assert "  20 of 20 trials named fp16, alone or with equally fast candidates" in lines
    wide = {**link, "choice": "", "ratios": {**ratios, "fp16": [0.7, 0.65, 0.75]}}
    wrong = [*truth, *[link] * 17, *[wide] * 3, *[loopback] * 19, {**loopback, "answer": "use"}]
    assert missed(trial_truth_demands.demands(wrong)) == [
        "trials on the link that name fp16, the fastest in runs without a trial",
        "95 % intervals on the link that contain the ratio of long runs without a trial",
        "trials on loopback that recommend no candidate",
    ]


def test_runs_disturbed_by_the_hypervisor_are_left_out_of_the_summary() -> None:
    truth = [
        {"part": "truth", "label": label, "step_ms": ms, "seconds": 1.0, "stolen": stolen}
        for label, ms, stolen in (("none", 100.0, 0.0), ("fp16", 60.0, 0.02), ("fp16", 200.0, 0.03))
    ]
    assert list(map(trial_truth_demands.is_disturbed, truth)) == [False, False, True]
    lines = [*trial_truth_demands.summary(truth)]
    assert lines[0].startswith("fp16")
    assert "60.00 ms in 1 runs without a trial" in lines[0]
    assert "truth: 2 runs, 0 failed, 1 that the hypervisor disturbed, 0.1 minutes" in lines


def of_strategies() -> dict[str, Any]:
    rows = [
        {"strategy": name, "world_size": size}
        for name in strategies.STRATEGIES
        for size in strategies.WORLD_SIZES
    ]
    theory = [{**row, "agrees": True} for row in rows if row["world_size"] != 1]
    return {name: {"rows": rows, "theory": theory} for name in strategies.COMMANDS}


def test_strategies_must_exchange_the_theoretical_bytes() -> None:
    results = of_strategies()
    assert missed(strategies.demands(results)) == []
    *theory, last = results["lora"]["theory"]
    what = "settings whose operations all have the theoretical bytes per step"
    for agrees in (False, None):
        worse = [*theory, last, {**last, "agrees": agrees}]
        changed = {**results, "lora": {"rows": results["lora"]["rows"][1:], "theory": worse}}
        assert missed(strategies.demands(changed)) == ["settings measured", what]


def test_strategy_bytes_not_compared_with_the_theory_are_missed() -> None:
    results = of_strategies()
    what = "settings whose operations all have the theoretical bytes per step"
    without = {name: {"rows": result["rows"]} for name, result in results.items()}
    found = strategies.demands(without)
    assert missed(found) == [what]
    # Three workloads, two strategies, and 2 and 4 ranks make 12 cases.
    assert found[1].figure == "0 of 12"
    results["lora"]["theory"] = results["lora"]["theory"][1:]
    assert [one.figure for one in strategies.demands(results) if not one.met] == ["11 of 12"]


def test_a_figure_at_the_limit_meets_the_demand_and_nan_does_not() -> None:
    assert at_least("x", 3.0, 3).met
    assert not at_least("x", 2.999, 3).met
    assert at_most("x", 3.0, 3).met
    assert not at_most("x", 3.001, 3).met
    assert not at_least("x", math.nan, 3).met
    assert not at_most("x", math.nan, 3).met


def test_demand_figures_are_shown_with_unit_and_interval() -> None:
    one = at_least("gain", 3.14159, 3, "x", (2.9, 3.3))
    assert (one.figure, one.asked) == ("3.14x [2.90, 3.30]", "at least 3x")
    assert at_most("error", 0.00123, 0.01, form=".1e").figure == "1.2e-03"


@pytest.mark.parametrize(
    ("found", "tried", "met"),
    [(20, 20, True), (19, 20, False), (19, 19, False), (40, 40, True), (39, 40, False)],
)
def test_all_of_enough_tries_must_succeed(found: int, tried: int, met: bool) -> None:
    assert of_all("x", found, tried, 20).met is met


@pytest.mark.parametrize(
    ("found", "tried", "met"),
    [(48, 50, True), (47, 50, False), (96, 100, True), (95, 100, False), (49, 49, False)],
)
def test_a_demanded_share_scales_with_the_tries(found: int, tried: int, met: bool) -> None:
    one = of_all("x", found, tried, 50, 48)
    assert one.met is met
    assert one.asked == "48 of 50"


def test_a_single_unmet_demand_makes_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Demand("a", "1", "at most 2", True), Demand("b", "3", "at most 2", False)
    assert judged([good]) == 0
    assert judged([good, bad]) == 1
    assert "met: a: 1 (demand: at most 2)\nNOT met: b: 3 (demand: at most 2)" in (
        capsys.readouterr().out
    )


def test_no_measured_figure_makes_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged([]) == 1
    assert "NOT met: no figure with a demand was measured" in capsys.readouterr().out


def test_a_ratio_over_zero_or_less_is_infinite() -> None:
    assert ratio_of(2, 4) == 0.5
    assert ratio_of(2, 0) == ratio_of(2, -1) == math.inf
    assert ratio_interval([2.0] * 9, [4.0] * 9) == (0.5, 0.5)
    low, high = ratio_interval([2.0] * 9, [-1.0] * 5 + [1.0] * 4)
    assert (low, high) == (2.0, math.inf)


def test_the_interval_of_a_median_contains_the_median() -> None:
    low, high = median_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert 1 <= low <= 3 <= high <= 100


RANKS = Path(__file__).parents[3] / "benchmarks/ranks"


@pytest.mark.parametrize("script", sorted(RANKS.glob("*.py")), ids=lambda path: path.stem)
def test_imports_of_rank_scripts_exist(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(RANKS), *sys.path])
    names = []
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.append(node.module)
    assert names
    assert [name for name in names if importlib.util.find_spec(name.split(".")[0]) is None] == []


def test_of_several_pairs_of_recordings_the_one_with_most_cores_is_judged() -> None:
    row = {
        **{"workload": "fsdp2", "ranks": 2, "backend": "gloo", "torch": "2.13.0+cpu"},
        **{"exposed_percent": [-0.2, -1.5], "lacked_percent": 40.0},
        **{"lacking": 0, "differing": 0},
    }
    name = "fsdp2, 2 ranks of gloo, torch 2.13"
    assert missed(two_instruments.demands([row])) == [f"{name}: difference in exposed time"]
    quiet = {**row, "exposed_percent": [-0.2, 0.3], "lacked_percent": 4.0}
    busy = {**row, "lacking": 3, "lacked_percent": 60.0}
    assert missed(two_instruments.demands([row, quiet, busy])) == []
    assert missed(two_instruments.demands([{**quiet, "differing": 1}])) == [
        f"{name}: collectives with another group or size"
    ]
    assert two_instruments.demands([]) == []
