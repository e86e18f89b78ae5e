from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.errors import CommprofError
from commprof.forecast.costs.algorithms import OPERATIONS, work
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.fit.build import build_profile
from commprof.forecast.fit.fit import fit_curves
from commprof.forecast.fit.held_out import checks, model_error
from commprof.forecast.fit.points import Point, read_points
from commprof.forecast.replay.recorded import RecordedJob, compute_by_batch
from commprof.forecast.replay.replay import Replay
from commprof.forecast.report import as_json as prediction_json
from commprof.forecast.report import table as prediction_table
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.scenario.schedule import Schedule, StepBatch
from commprof.forecast.what_if.answers import answer
from tests.support.builders.schedules import hook, profile, schedule

ALPHA, BETA, GAMMA = 20e-6, 1e-9, 0.4e-9
SIZES = [float(1 << n) for n in range(10, 27, 2)]


@pytest.mark.parametrize(
    ("op", "ranks", "steps", "sent", "reduced"),
    [
        ("all_reduce", 4, 6, 1.5, 0.75),
        ("all_reduce", 1, 0, 0.0, 0.0),
        ("all_gather", 4, 3, 0.75, 0.0),
        ("broadcast", 5, 3, 3.0, 0.0),
        ("send_recv", 2, 1, 1.0, 0.0),
        ("barrier", 8, 3, 0.0, 0.0),
        ("reduce_scatter", 4, 6, 1.5, 0.75),  # Gloo runs an all-reduce.
    ],
)
def test_steps_and_bytes_per_operation(
    op: str, ranks: int, steps: int, sent: float, reduced: float
) -> None:
    done = work(op, ranks)
    assert (done.steps, done.sent, done.reduced) == (steps, sent, reduced)


def test_work_of_an_unknown_operation_or_without_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="all_reduce"):
        work("all_sum", 2)
    with pytest.raises(ValueError, match="0 ranks"):
        work("all_reduce", 0)
    assert work("reduce_scatter", 4, "nccl").steps == 3


def time_of(op: str, ranks: int, size: float) -> float:
    done = work(op, ranks)
    return done.steps * ALPHA + size * (done.sent * BETA + done.reduced * GAMMA)


def points(op: str, ranks: tuple[int, ...], noise: float = 0.0, seed: int = 0) -> list[Point]:
    draw = random.Random(seed)
    made = []
    for n in ranks:
        for size in SIZES:
            samples = tuple(time_of(op, n, size) * draw.gauss(1, noise) for _ in range(9))
            made.append(Point(op, "gloo", n, size, sorted(samples)[4], samples, n / 2))
    return made


def test_known_alpha_beta_and_gamma_are_recovered_by_the_fit() -> None:
    (gathered, reduced), _ = fit_curves(points("all_gather", (2, 4)) + points("all_reduce", (2, 4)))
    assert gathered.op == "all_gather"
    assert len(gathered.pieces) == 1
    assert gathered.pieces[0].alpha_s == pytest.approx(ALPHA)
    assert gathered.pieces[0].beta_s_per_byte == pytest.approx(BETA)
    assert gathered.gamma_s_per_byte is None
    # A ring all-reduce reduces half of the bytes that the ring sends.
    assert reduced.pieces[0].beta_s_per_byte == pytest.approx(BETA + GAMMA / 2)
    assert reduced.gamma_s_per_byte == pytest.approx(GAMMA)
    low, high = reduced.gamma_interval_s_per_byte
    assert low <= GAMMA * (1 + 1e-9)
    assert high >= GAMMA * (1 - 1e-9)
    assert high - low < 1e-6 * GAMMA
    assert math.isnan(gathered.gamma_interval_s_per_byte[0])
    assert reduced.residual < 1e-6
    assert (reduced.world_sizes, reduced.ranks_per_core) == ((2, 4), 2.0)


def test_a_world_size_that_was_not_measured_is_predicted() -> None:
    (fitted,), _ = fit_curves(points("all_reduce", (2, 4)))
    assert fitted.time_s(1e7, 16) == pytest.approx(time_of("all_reduce", 16, 1e7))
    assert fitted.held_out_world_size is not None
    assert fitted.held_out_world_size.worst < 1e-6
    assert fitted.held_out_world_size.points == 2 * len(SIZES)


def test_fitted_intervals_cover_the_true_cost_and_errors_show_the_noise() -> None:
    inside = 0
    for seed in range(6):
        (fitted,), _ = fit_curves(points("all_reduce", (2, 4), noise=0.05, seed=seed))
        low, high = fitted.pieces[-1].beta_interval_s_per_byte
        inside += low <= BETA + GAMMA / 2 <= high
    assert inside >= 5
    assert fitted.held_out_size is not None
    assert 0.001 < fitted.held_out_size.mean < 0.1


@pytest.mark.slow
def test_gamma_s_interval_covers_the_true_gamma() -> None:
    inside = 0
    for seed in range(6):
        made = points("all_gather", (2, 4), 0.05, seed) + points("all_reduce", (2, 4), 0.05, ~seed)
        (_, fitted), _ = fit_curves(made)
        low, high = fitted.gamma_interval_s_per_byte
        assert fitted.gamma_s_per_byte is not None
        assert 0 <= low <= fitted.gamma_s_per_byte <= high < 2 * GAMMA
        inside += low <= GAMMA <= high
    assert inside >= 5


def test_one_outlier_hardly_changes_the_fit() -> None:
    wild = points("all_reduce", (2, 4), noise=0.01)
    wild[3] = Point("all_reduce", "gloo", 2, wild[3].size_bytes, 20 * wild[3].time_s)
    (fitted,), _ = fit_curves(wild)
    assert fitted.pieces[-1].beta_s_per_byte == pytest.approx(BETA + GAMMA / 2, rel=0.05)
    assert fitted.worst_residual > 0.9


def test_a_change_of_protocol_is_fitted_as_another_piece() -> None:
    # An all-reduce of 2 ranks has two steps, and each step sends x bytes, half of the size.
    def seconds(x: float) -> float:
        return 2 * (10e-6 + 2e-9 * x) if x < 5e5 else 2 * (900e-6 + 0.5e-9 * x)

    sizes = [float(1 << n) for n in range(10, 27)]
    made = [Point("all_reduce", "gloo", 2, size, seconds(size / 2)) for size in sizes]
    (fitted,), _ = fit_curves(made)
    assert [p.alpha_s for p in fitted.pieces] == pytest.approx([10e-6, 900e-6], rel=1e-3)
    assert [p.beta_s_per_byte for p in fitted.pieces] == pytest.approx([2e-9, 0.5e-9], rel=1e-3)
    assert 2**18 < fitted.pieces[1].low_bytes < 2**19.5
    assert fitted.time_s(2**24, 2) == pytest.approx(seconds(2**23))


def test_a_change_of_protocol_is_also_found_among_many_sizes() -> None:
    def seconds(x: float) -> float:
        return 2 * (10e-6 + 2e-9 * x) if x < 5e5 else 2 * (900e-6 + 0.5e-9 * x)

    draw = random.Random(1)
    sizes = [1e4 * number for number in range(1, 201)]
    made = [
        Point("all_reduce", "gloo", 2, size, seconds(size / 2) * draw.gauss(1, 0.01))
        for size in sizes
    ]
    (fitted,), _ = fit_curves(made)
    assert [p.alpha_s for p in fitted.pieces] == pytest.approx([10e-6, 900e-6], rel=0.1)
    assert [p.beta_s_per_byte for p in fitted.pieces] == pytest.approx([2e-9, 0.5e-9], rel=0.05)
    # One in three sizes may begin a piece.
    assert fitted.pieces[1].low_bytes == pytest.approx(5e5, abs=2e4)
    assert fitted.held_out_size is not None
    assert fitted.held_out_size.points == 200
    assert fitted.held_out_size.mean < 0.015


def test_operations_with_too_few_sizes_are_left_out_of_the_fit() -> None:
    few = [point for point in points("broadcast", (2,)) if point.size_bytes < 5000]
    curves, left_out = fit_curves(points("all_reduce", (2,)) + few)
    assert [curve.op for curve in curves] == ["all_reduce"]
    assert len(left_out) == 1
    assert "3 sizes or more: commprof microbench broadcast" in left_out[0]


def test_ranks_and_sizes_outside_the_measured_range_are_named() -> None:
    (fitted,), _ = fit_curves(points("all_reduce", (2, 4)))
    assert fitted.outside([2.0**12, 2.0**20], 4) == []
    assert fitted.outside([2.0**22], 16) == ["16 ranks (measured: 2, 4)"]
    (reason,) = fitted.outside([2.0**20, 2.0**28], 2)
    assert reason == "messages of 5.24e+05 to 1.34e+08 bytes (measured: 256 to 3.36e+07)"


ROW = {
    "op": "all_reduce",
    "world_size": 2,
    "backend": "gloo",
    "placement": "out_of_place",
    "size_bytes": 1024,
    "time_us": 50.0,
    "samples_us": [49.0, 50.0, 51.0],
    "wrong": 0,
}


HEAD = {
    "kind": "commprof microbench",
    "schema_version": 1,
    "context": {"machine": {"usable_cpu_count": 2}},
}


def test_points_are_read_from_a_microbenchmark_file(tmp_path: Path) -> None:
    rows = [
        ROW,
        {**ROW, "placement": "in_place"},
        {**ROW, "wrong": 3},
        {**ROW, "world_size": 1},
        {**ROW, "op": "all_gather_into_tensor"},
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**HEAD, "rows": [*rows, {**ROW, "op": "hook:fp16"}]}))
    found = read_points(path)
    assert len(found.left_out) == 2
    assert "rows of hook:fp16 are not used, because the cost of a hook is" in found.left_out[0]
    assert found.left_out[1].endswith("1 row with wrong data")
    assert [point.op for point in found.points] == ["all_reduce", "all_gather"]
    assert found.points[0].time_s == pytest.approx(50e-6)
    assert found.points[0].samples_s == pytest.approx((49e-6, 50e-6, 51e-6))
    assert (found.points[0].link, found.points[0].ranks_per_core) == ("same_host", 1.0)


@pytest.mark.parametrize(
    ("hosts", "ranks", "groups", "crowded"),
    [
        (4, 8, (8,), 0.5),
        (1, 8, (8,), 2.0),
        (4, 8, (2, 8), 0.5),
        (4, 8, (4,), 0.5),
        (3, 8, (8,), 0.75),
        (4, None, (8,), 0.5),
    ],
)
def test_ranks_per_core_are_counted_per_host(
    hosts: int, ranks: int | None, groups: tuple[int, ...], crowded: float, tmp_path: Path
) -> None:
    context = {"hosts": hosts, "world_size": ranks, "machine": {"usable_cpu_count": 4}}
    rows = [
        {**ROW, "op": op, "world_size": n, "size_bytes": size}
        for op in ("all_reduce", "barrier")
        for n in groups
        for size in (1024, 4096, 16384)
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**HEAD, "context": context, "rows": rows}))
    curves, _ = fit_curves(read_points(path).points)
    assert [curve.ranks_per_core for curve in curves] == [crowded, crowded]


def test_ranks_per_core_are_nan_without_machine_details(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**HEAD, "context": {"hosts": 2}, "rows": [ROW]}))
    assert math.isnan(read_points(path).points[0].ranks_per_core)


@pytest.mark.parametrize(
    ("context", "within"),
    [
        ({"hosts": 1, "world_size": 8}, {2, 3, 4, 8}),
        ({"hosts": 2, "world_size": 8}, {2, 3, 4}),
        ({"hosts": 4, "world_size": 8}, {2}),
        ({"hosts": 8, "world_size": 8}, set()),
        ({"hosts": 2}, {2, 3, 4}),
        ({"hosts": 2, "world_size": 8, "rank_hosts": [0, 0, 0, 0, 0, 1, 1, 1]}, {2, 3, 4}),
        ({"hosts": 2, "world_size": 8, "rank_hosts": [0, 0, 0, 1, 1, 1, 1, 1]}, {2, 3}),
        ({"hosts": 2, "world_size": 8, "rank_hosts": [0, 1, 0, 1, 0, 1, 0, 1]}, set()),
    ],
)
def test_groups_within_a_host_measure_the_same_host_link(
    context: dict[str, Any], within: set[int], tmp_path: Path
) -> None:
    rows = [{**ROW, "world_size": n} for n in (2, 3, 4, 8)]
    path = tmp_path / "bench.json"
    machine = {"machine": {"usable_cpu_count": 4}}
    path.write_text(json.dumps({**HEAD, "context": {**machine, **context}, "rows": rows}))
    points = read_points(path).points
    assert {point.ranks for point in points if point.link == SAME_HOST} == within
    assert {point.ranks for point in points if point.link == OTHER_HOST} == {2, 3, 4, 8} - within


def test_ranks_per_core_count_the_ranks_that_share_a_host(tmp_path: Path) -> None:
    context = {"hosts": 2, "rank_hosts": [0, 1, 1, 1], "machine": {"usable_cpu_count": 4}}
    rows = [{**ROW, "world_size": n} for n in (2, 3, 4)]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**HEAD, "context": context, "rows": rows}))
    assert [point.ranks_per_core for point in read_points(path).points] == [0.25, 0.5, 0.75]


def test_a_file_of_several_hosts_gives_a_curve_per_link(tmp_path: Path) -> None:
    rows = [
        {
            **ROW,
            "world_size": n,
            "size_bytes": int(size),
            "time_us": time_of("all_reduce", n, size) * (100 if n == 8 else 1) * 1e6,
            "samples_us": None,
        }
        for n in (2, 4, 8)
        for size in SIZES
    ]
    path = tmp_path / "bench.json"
    context = {"hosts": 2, "world_size": 8, "machine": {"usable_cpu_count": 4}}
    path.write_text(json.dumps({**HEAD, "context": context, "rows": rows}))
    made, left_out = build_profile([read_points(path)], [], ["bench"])
    assert left_out == []
    inside, outside = (made.links[name].curves["all_reduce"] for name in (SAME_HOST, OTHER_HOST))
    assert (inside.world_sizes, outside.world_sizes) == ((2, 4), (8,))
    assert inside.time_s(1e7, 4) == pytest.approx(time_of("all_reduce", 4, 1e7), rel=1e-3)
    assert outside.time_s(1e7, 8) == pytest.approx(100 * time_of("all_reduce", 8, 1e7), rel=1e-3)


def test_costs_of_any_operation_are_fitted_and_none_stands_for_an_all_reduce(
    tmp_path: Path,
) -> None:
    times = {size: 1e6 * time_of("all_gather", 4, size) for size in SIZES}
    same = {**ROW, "op": "all_gather", "world_size": 4, "samples_us": None}
    rows = [{**same, "size_bytes": int(size), "time_us": us} for size, us in times.items()]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**HEAD, "rows": rows}))
    made, left_out = build_profile([read_points(path)], [], ["bench"])
    assert left_out == []
    assert list(made.links[SAME_HOST].curves) == ["all_gather"]
    with pytest.raises(
        CommprofError,
        match=r"costs of all_gather, but not of all_reduce; .*microbench all_reduce --json FILE",
    ):
        Replay(schedule(), made).predict(Scenario(2))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not a JSON file: "),
        (json.dumps({"rows": [ROW]}), "not a microbenchmark result"),
        (json.dumps({**HEAD, "schema_version": 2, "rows": [ROW]}), "schema_version 2"),
        (json.dumps(HEAD), "no rows"),
        (json.dumps({**HEAD, "rows": [{"op": 1}]}), r"rows\[0\].op is not a string: 1"),
    ],
)
def test_files_that_are_no_microbenchmark_results_are_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(CommprofError, match=complaint):
        read_points(path)


def test_every_operation_has_at_least_one_step() -> None:
    assert all(work(op, 3).steps > 0 for op in OPERATIONS)


#: The costs are in s per byte. Between 2 ranks, 1 MB takes 10 ms and 30 ms.
FAST, SLOW = 1e-8, 3e-8


def at_rate(ranks: int, beta_s_per_byte: float, **values: object) -> Schedule:
    made = schedule(ready_ms=(10, 20), ranks=ranks, **values)  # type: ignore[arg-type]
    sent = 2 * (ranks - 1) / ranks * made.bucket_bytes * beta_s_per_byte
    first = 0.010 + sent[0]
    made.end_s[:] = np.array([first, max(first, 0.020) + sent[1]])
    return dataclasses.replace(made, period_s=made.end_s[:, 1].copy())


def runs(source: str = "RUN") -> list[RecordedJob]:
    return [
        RecordedJob(f"{source}, 2 ranks", at_rate(2, FAST), (), source),
        RecordedJob(f"{source}, 4 ranks", at_rate(4, SLOW), (), source),
    ]


def test_a_checked_run_is_left_out_of_the_profile_s_cost() -> None:
    base, other = runs()
    made, _ = build_profile([], [base, other], ["RUN"])
    found, refused = checks(Replay(base.schedule, made), [other], [base, other])
    assert refused == []
    # 1.5 times the bytes at the rate of 2 ranks take 10 + 15 + 30 ms.
    assert found[1].predicted_s == pytest.approx(0.055, rel=0.02)
    assert [each.held_out for each in found] == [False, True]
    elsewhere = dataclasses.replace(made, sources=("OTHER",))
    given, _ = checks(Replay(base.schedule, elsewhere), [other], [base, other])
    assert abs(given[1].predicted_s / 0.055 - 1) > 0.1


def test_checks_that_cannot_be_held_out_are_marked_and_not_counted() -> None:
    base, other = runs()
    hooked = RecordedJob("RUN, hooked", at_rate(2, FAST, hook="fp16"), (), "RUN")
    inside = RecordedJob("RUN, one host", at_rate(2, FAST, link=SAME_HOST), (), "RUN")
    both = profile(hooks=(hook(),), source="run").links | profile(SAME_HOST, source="run").links
    made = dataclasses.replace(profile(hooks=(hook(),)), links=both, sources=("RUN",))
    found, refused = checks(Replay(base.schedule, made), [hooked, inside], [base])
    assert refused == []
    assert [each.held_out for each in found] == [False, False, False]
    assert model_error(found) is None
    measured = dataclasses.replace(made, links=profile().links)
    (_, one), _ = checks(Replay(base.schedule, measured), [other], [base])
    assert one.held_out


def test_a_run_with_other_buckets_cannot_check_the_prediction() -> None:
    base, other = runs()
    cut = schedule(ready_ms=(10, 15, 20), bytes_=(10**6,) * 3, period_s=np.full(5, 0.045))
    made = Replay(base.schedule, profile())
    found, (reason,) = checks(made, [RecordedJob("CUT", cut, ()), other])
    assert [each.name for each in found] == ["the run itself", "RUN, 4 ranks"]
    assert reason.startswith("CUT: a step of this run reduces gradients in 3 buckets, a step of")


def test_steps_that_are_given_again_are_not_checked_again() -> None:
    base, other = runs()
    again = [
        RecordedJob(f"again {each.name}", dataclasses.replace(each.schedule), (), "AGAIN")
        for each in (base, other)
    ]
    found, refused = checks(Replay(base.schedule, profile()), [other, *again], [base, other])
    assert refused == []
    assert [(each.name, each.held_out) for each in found] == [
        ("the run itself", False),
        ("RUN, 4 ranks", True),
    ]


def test_the_checked_run_s_batch_is_left_out_of_the_compute_fit() -> None:
    def strong(ranks: int, batch: float, own_ms: float) -> RecordedJob:
        made = schedule(
            ranks=ranks,
            bytes_=(1, 1),
            ready_ms=(1, 2),
            backward_end_ms=own_ms,
            batch=StepBatch(batch, 10, "strong"),
        )
        return RecordedJob(f"{ranks}", made, (), "RUN")

    # Compute takes 4 ms plus 2 ms per sample, but the last run takes 30 ms instead of 8 ms.
    recorded = [strong(1, 16, 36), strong(2, 8, 20), strong(8, 2, 30)]
    base, other = recorded[1].schedule, recorded[2]
    made = Replay(base, profile(), compute_by_batch(recorded, base))
    found, _ = checks(made, [other], recorded)
    assert found[1].predicted_s == pytest.approx(0.008, rel=1e-3)


def test_reports_say_which_checks_are_held_out() -> None:
    base, _ = runs()
    hooked = RecordedJob("RUN, hooked", at_rate(2, FAST, hook="fp16"), (), "RUN")
    made = dataclasses.replace(profile(hooks=(hook(),)), sources=(str(Path("RUN").resolve()),))
    found = answer(Replay(base.schedule, made), [Scenario(2)], [base], [hooked], None, math.nan)
    text = prediction_table.render(found, "RUN", "by hand", [], 100)
    assert "RUN, hooked (not held out)" in text
    assert "Held-out error: not known, because no recorded steps were held out of the model" in text
    document = json.loads(prediction_json.render(found, "RUN", "by hand", []))
    assert [check["held_out"] for check in document["checks"]] == [False, False]
