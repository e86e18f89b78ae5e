from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from commprof.analysis.late import anomalies
from commprof.analysis.late.anomalies import (
    BANDWIDTH,
    COMPUTE,
    CUT,
    LIMIT,
    REFERENCE,
    SLACK,
    STEP,
    Anomaly,
    ChangeDetector,
    SpeedChange,
    StepFigures,
    bandwidth_by_step,
    find_anomalies,
    may_change,
    merged_changes,
)
from commprof.analysis.step.measured import measured_world
from commprof.monitor.watchdog.feed import RankFeed
from commprof.monitor.watchdog.tasks import AnomalyTask, Log
from commprof.trace.schema import Phase, Records
from tests.support.builders.traces import MS, Rank, world_run
from tests.unit.analysis.align.test_device_timeline import DeviceRank

_SERIES, _LENGTH = 25, 2_000


def changes(values: list[float]) -> list[SpeedChange]:
    detector = ChangeDetector()
    return [change for value in values if (change := detector.add(value)) is not None]


def noise(kind: str, generator: np.random.Generator, length: int) -> np.ndarray:
    if kind == "normal":
        return 100 + 3 * generator.standard_normal(length)
    # Student's t distribution with 2 degrees of freedom has no finite variance.
    if kind == "student t, 2 degrees":
        return 100 + 3 * np.abs(generator.standard_t(2, length))
    if kind == "lognormal":
        return 100 * np.exp(0.1 * generator.standard_normal(length))
    return (100 + generator.standard_normal(length)) * np.where(np.arange(length) % 10, 1, 3)


@pytest.mark.parametrize("kind", ["normal", "student t, 2 degrees", "lognormal", "every tenth"])
def test_false_alarms_are_rare(kind: str) -> None:
    generator = np.random.default_rng(7)
    alarms = sum(len(changes(noise(kind, generator, _LENGTH).tolist())) for _ in range(_SERIES))
    # At most one false alarm may occur in 50,000 values.
    assert alarms <= 1


@pytest.mark.parametrize("kind", ["normal", "student t, 2 degrees", "lognormal"])
@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_a_lasting_change_is_found_at_its_place(kind: str, factor: float) -> None:
    generator = np.random.default_rng(11)
    for begin in (60, 150, 333):
        values = noise(kind, generator, 500)
        values[begin:] *= factor
        (found,) = changes(values.tolist())
        assert abs(found.begin - begin) <= 5
        # A value beyond the cut adds CUT - SLACK to the detector's sum.
        assert found.found - begin <= LIMIT / (CUT - SLACK) + 3
        assert found.ratio == pytest.approx(factor, rel=0.15)


def test_a_level_change_and_the_return_are_two_changes() -> None:
    values = [100.0 + i % 3 for i in range(100)]
    slow = [130.0 + i % 3 for i in range(100)]
    up, down = changes(values + slow + values)
    assert (up.begin, up.before, up.after) == (100, 101, 131)
    assert (down.begin, down.before, down.after) == (200, 131, 101)
    assert up.found == 100 + int(LIMIT / (CUT - SLACK))


def test_single_slow_steps_and_small_level_changes_are_not_reported() -> None:
    values = [100.0 + i % 3 for i in range(200)]
    values[80] = values[81] = values[120] = 60_000.0
    assert changes(values) == []
    assert changes([100.0 + i % 3 for i in range(100)] + [103.0 + i % 3 for i in range(900)]) == []


def test_no_change_is_reported_before_the_level_is_known() -> None:
    assert changes([1.0] * (REFERENCE // 2) + [9.0] * (REFERENCE // 2)) == []
    assert changes([5.0] * 500) == []
    assert changes([0.0] * 500) == []


STEPS, CHANGE = 200, 120


def ranks(slow_ms: int = 0, transfer_ms: int = 2, until: int = STEPS) -> list[Rank]:
    """From step ``CHANGE`` to ``until``, rank 1's backward takes ``slow_ms`` longer.

    Each all-reduce of these steps takes ``transfer_ms`` instead of 2 ms.
    """
    made = [Rank(rank, 2) for rank in range(2)]
    begin = 1000 * MS
    for step in range(STEPS):
        late = slow_ms if CHANGE <= step < until else 0
        wire = transfer_ms if CHANGE <= step < until else 2
        jitter = step % 3 * MS // 100
        arrival = begin + (15 + late) * MS + jitter
        end = begin + (18 + late + wire) * MS + jitter
        for rank in made:
            own = 15 + (late if rank.rank == 1 else 0)
            ready = begin + own * MS + jitter
            rank.phase(Phase.FORWARD, begin, begin + 5 * MS)
            rank.phase(Phase.BACKWARD, begin + 5 * MS, end)
            op = rank.collective(step, ready, arrival + wire * MS, bytes=1_000_000)
            rank.wait(op, ready, end)
            rank.step(begin, end)
        begin = end
    return made


def offline(made: list[Rank]) -> list[tuple[str, int, int, str]]:
    seen = measured_world(world_run(made))
    assert seen is not None
    return [
        (one.what, one.rank, one.step, one.phase)
        for one in find_anomalies(seen, bandwidth_by_step(seen))
    ]


class Watched:
    def __init__(self, made: Sequence[Rank]) -> None:
        self.traces = world_run([*made]).traces
        self.task = AnomalyTask(cast(Log, self))
        self.told: list[Anomaly] = []
        self.figures: list[StepFigures] = []
        add = self.task._finder.add

        def adding(figures: StepFigures) -> list[Anomaly]:
            self.figures.append(figures)
            return add(figures)

        self.task._finder.add = adding  # type: ignore[method-assign]

    def event(self, kind: str, sentence: str, what: Anomaly) -> None:
        assert (kind, sentence) == ("anomaly", what.sentence)
        self.told.append(what)

    def poll(self, records: dict[int, Records], ended: bool = False) -> None:
        feeds = []
        for rank, trace in self.traces.items():
            state = SimpleNamespace(rank=rank, world_size=len(self.traces))
            tail = SimpleNamespace(**{**vars(trace), "ended": ended})
            process = object()
            feeds.append(SimpleNamespace(state=state, process=process, tail=tail))
            feeds[-1].records = records[rank]
        self.task.poll(cast(list[RankFeed], feeds), 0)

    def in_pieces(self, count: int) -> Watched:
        of_rank = {rank: trace.records for rank, trace in self.traces.items()}
        last = max(int(records["timestamp_ns"][-1]) for records in of_rank.values())
        ends = np.linspace(-1, last, count + 1).astype(np.int64)
        for begin, end in pairwise(ends):
            time_ns = {rank: records["timestamp_ns"] for rank, records in of_rank.items()}
            self.poll(
                {
                    rank: records[(time_ns[rank] > begin) & (time_ns[rank] <= end)]
                    for rank, records in of_rank.items()
                },
                ended=bool(end == last),
            )
        return self


def live(made: Sequence[Rank], pieces: int = 40) -> list[tuple[str, int, int, str]]:
    told = Watched(made).in_pieces(pieces).told
    return [(anomaly.what, anomaly.rank, anomaly.step, anomaly.phase) for anomaly in told]


def test_the_watchdog_measures_steps_and_bandwidth_on_the_device_timeline() -> None:
    made = [DeviceRank(rank, 2) for rank in range(2)]
    for rank in made:
        for step in range(10):
            host, device = 1 + 100 * step, 50 + 150 * step
            rank.device_step(host, host + 100, (device, device + 150))
            rank.device_phase(Phase.FORWARD, host + 1, host + 90, (device, device + 120))
            at = (device + 10, device + 80)
            op = rank.device_collective(step, host + 12, at, bytes=1 << 20)
            rank.device_wait(op, host + 20, (device + 60, device + 80))
    found = Watched(made).in_pieces(12).figures
    assert [one.step for one in found] == list(range(10))
    assert [one.wall_ms for one in found] == pytest.approx([150e-6] * 10)
    for one in found:
        forward_ms = [work[Phase.FORWARD] for work in one.work_ms.values()]
        assert forward_ms == pytest.approx([100e-6] * 2)
    rates = [one.gbit_per_s for one in found if not np.isnan(one.gbit_per_s)]
    assert len(rates) > 3
    assert rates == pytest.approx([8 * 2**20 / 70] * len(rates))


def test_a_steady_run_has_no_anomalies() -> None:
    assert offline(ranks()) == live(ranks()) == []


def test_a_rank_that_becomes_slow_is_named_with_its_phase() -> None:
    made = ranks(slow_ms=6)
    expected = {(STEP, -1, CHANGE, ""), (COMPUTE, 1, CHANGE, "backward")}
    assert set(offline(made)) == expected
    # If a piece of records ends within a step, the step's phases may come with the next piece.
    found = live(made)
    assert {(what, rank) for what, rank, _, _ in found} == {(STEP, -1), (COMPUTE, 1)}
    assert all(abs(step - CHANGE) <= 2 for _, _, step, _ in found)


def test_a_link_that_becomes_slow_is_reported_as_a_fall_in_bandwidth() -> None:
    made = ranks(transfer_ms=8)
    assert set(offline(made)) == {(STEP, -1, CHANGE, ""), (BANDWIDTH, -1, CHANGE, "")}
    seen = measured_world(world_run(made))
    assert seen is not None
    slow = next(
        one for one in find_anomalies(seen, bandwidth_by_step(seen)) if one.what == BANDWIDTH
    )
    assert (slow.before, slow.after) == (pytest.approx(4.0), pytest.approx(1.0))
    assert slow.sentence == (f"Bandwidth fell from 4 to 1 Gbit/s (-75%) at step {CHANGE}")
    assert slow.found_step - slow.step <= 8


def of_work(rank: int, step: int, **values: Any) -> Anomaly:
    before = 10 + rank / 1000
    made = Anomaly(COMPUTE, rank, step, 0, step + 7, "forward", before, 2 * before)
    return replace(made, **values)


def test_ranks_whose_own_work_changes_alike_are_one_change() -> None:
    of_host = [of_work(rank, 100 + rank % 3) for rank in range(8, 16)]
    of_step = Anomaly(STEP, -1, 100, 0, 107, "", 12.0, 22.0)
    merged, kept = merged_changes([of_host[0], of_step, *of_host[1:]])
    assert kept == of_step
    assert (merged.rank, merged.ranks, merged.step) == (8, tuple(range(8, 16)), 102)
    assert merged.before == pytest.approx(10.0115)
    assert merged.sentence == (
        "Own work of ranks 8-15 rose from 10 to 20 ms (+100%) at step 102, most of it in forward"
    )


@pytest.mark.parametrize(
    "other",
    [
        of_work(1, 120),
        of_work(1, 100, phase="backward"),
        of_work(1, 100, after=5.0),
        of_work(1, 100, last_step=150),
        replace(of_work(1, 100), what=BANDWIDTH, rank=-1),
    ],
)
def test_changes_that_differ_stay_apart(other: Anomaly) -> None:
    first = of_work(0, 100)
    assert merged_changes([first, other]) == [first, other]


def test_step_times_of_seconds_are_told_without_an_exponent() -> None:
    change = Anomaly(STEP, -1, 120, 0, 127, "", 1234.4, 1500.2)
    assert change.sentence == "Step time rose from 1234 to 1500 ms (+22%) at step 120"


#: Each piece yields one value of the bandwidth, so each step needs a piece of its own.
_LOOKS = 2 * STEPS
_OTHERS = {"send": 1_000_000, "gather": 40_000, "broadcast": 60_000}


def pairs(slow: str) -> list[Rank]:
    """``slow`` is the pair whose all-reduce slows down, or an operation in ``_OTHERS``."""
    made = [Rank(number, 4, groups={1: (f"pair {number // 2}", 2)}) for number in range(4)]
    for rank in made:
        pair, rank.group_ranks = rank.groups[1][0], {1: rank.rank % 2}
        for step in range(STEPS):
            at = (1000 + 100 * step) * MS
            late = 20 * MS if step >= CHANGE else 0
            end = at + 20 * MS + late * (pair == slow)
            rank.collective(4 * step, at + 10 * MS, end, bytes=1_000_000)
            for place, (op, size) in enumerate(_OTHERS.items() if pair == "pair 1" else ()):
                begin, name = at + (40 + place) * MS, op
                if op == "send":
                    name = op if rank.rank == 2 else "recv"
                end = begin + 10 * MS + late * (op == slow)
                peer = rank.rank % 2 ^ 1 if op == "send" else 0
                rank.collective(4 * step + place + 1, begin, end, bytes=size, op=name, aux=peer)
            rank.step(at, at + 100 * MS)
    return made


@pytest.mark.parametrize("slow", ["pair 0", "pair 1", "gather"])
def test_a_slow_operation_in_any_group_is_a_bandwidth_anomaly(slow: str) -> None:
    assert offline(pairs(slow)) == [(BANDWIDTH, -1, CHANGE, "")]
    ((what, _, step, _),) = live(pairs(slow), _LOOKS)
    assert (what, abs(step - CHANGE) <= 2) == (BANDWIDTH, True)


@pytest.mark.parametrize("slow", ["send", "broadcast"])
def test_messages_and_small_collectives_do_not_count_in_the_bandwidth(slow: str) -> None:
    assert offline(pairs(slow)) == live(pairs(slow), _LOOKS) == []


def test_failed_collectives_and_groups_of_one_rank_do_not_count_in_the_bandwidth() -> None:
    made = ranks()
    for number, rank in enumerate(made):
        rank.groups[2] = (f"alone {number}", 1)
        rank.group_ranks[2] = 0
        for step, (begin, end) in enumerate(list(rank.steps)):
            if step >= CHANGE:
                rank.collective(STEPS + step, begin, end - 1, bytes=10**8, failed=True)
                rank.collective(step, begin, end - 1, bytes=10**8, group=2)
    assert offline(made) == live(made, _LOOKS) == []


@pytest.mark.parametrize("until", [CHANGE + 12, CHANGE + 30, CHANGE + 60])
def test_a_change_that_ended_is_one_anomaly_with_its_last_step(until: int) -> None:
    seen = measured_world(world_run(ranks(slow_ms=6, until=until)))
    assert seen is not None
    found = find_anomalies(seen, bandwidth_by_step(seen))
    assert {(one.what, one.rank, one.step, one.last_step) for one in found} == {
        (STEP, -1, CHANGE, until - 1),
        (COMPUTE, 1, CHANGE, until - 1),
    }
    assert found[0].sentence.endswith(f"from step {CHANGE} to {until - 1}")


def test_the_last_step_of_each_anomaly_is_that_of_its_own_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(3)
    figures = []
    for step in range(400):
        slow = (100 <= step < 160) * 6.0, (120 <= step < 300) * 8.0
        lengths = (np.array([10.0, 10.0]) + slow) * draw.uniform(0.98, 1.02, 2)
        work = {rank: [0.0, float(lengths[rank])] for rank in range(2) if draw.random() < 0.9}
        wall = float(lengths.max()) if draw.random() < 0.9 else float("nan")
        figures.append(StepFigures(3 * step, step, wall, work))
    rows: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for of_step in figures:
        for key, value in anomalies._values(of_step).items():
            rows.setdefault(key, []).append((of_step.step, value))
    series = {key: tuple(map(np.array, zip(*row, strict=True))) for key, row in rows.items()}
    monkeypatch.setattr(anomalies, "step_figures", lambda *_: iter(figures))
    monkeypatch.setattr(anomalies, "_series", lambda *_: series)
    seen = measured_world(world_run(ranks()))
    assert seen is not None
    found = {(one.what, one.rank): one for one in find_anomalies(seen, bandwidth_by_step(seen))}
    for rank, until in ((0, 160), (1, 300)):
        last = max(each.step for each in figures[:until] if rank in each.work_ms)
        assert found[COMPUTE, rank].last_step == last
    last = max(each.step for each in figures[:300] if np.isfinite(each.wall_ms))
    assert found[STEP, -1].last_step == last


def test_a_change_that_persists_has_no_last_step() -> None:
    made = measured_world(world_run(ranks(slow_ms=6)))
    assert made is not None
    assert {one.last_step for one in find_anomalies(made, bandwidth_by_step(made))} == {None}


def test_own_work_of_the_watchdog_equals_the_report_s() -> None:
    # The 13 ms of backward in each step include 3 ms of waiting, of which 1 ms is in Work.wait.
    rank, begin = Rank(), 1000 * MS
    for step in range(4):
        at = begin + 20 * step * MS
        rank.phase(Phase.FORWARD, at, at + 5 * MS)
        rank.phase(Phase.BACKWARD, at + 5 * MS, at + 18 * MS)
        op = rank.collective(step, at + 9 * MS, at + 17 * MS, graph_task=step)
        rank.wait(op, at + 11 * MS, at + 12 * MS)
        rank.finalize(at + 10 * MS, at + 18 * MS, cpu=5 * MS, graph_task=step)
        rank.step(at, at + 20 * MS)
    found = Watched([rank]).in_pieces(7).figures
    seen = measured_world(world_run([rank]))
    assert seen is not None
    assert [figures.step for figures in found] == [0, 1, 2, 3]
    for figures, of_report in zip(found, seen.parts[0].work_ns.T.tolist(), strict=True):
        assert figures.work_ms == {0: [2, 0, 5, 10, 0]}
        assert of_report == [2 * MS, 0, 5 * MS, 10 * MS, 0]


def test_own_work_of_the_watchdog_equals_the_report_s_if_a_wait_outlasts_its_phase() -> None:
    rank = Rank()
    rank.phase(Phase.FORWARD, 10 * MS, 30 * MS)
    rank.wait(rank.collective(0, 20 * MS, 60 * MS), 25 * MS, 60 * MS)
    rank.step(0, 100 * MS)
    (found,) = Watched([rank]).in_pieces(1).figures
    seen = measured_world(world_run([rank]))
    assert seen is not None
    assert seen.parts[0].work_ns[:, 0].tolist() == [50 * MS, 0, 15 * MS, 0, 0]
    assert found.work_ms == {0: [50, 0, 15, 0, 0]}


def test_series_without_a_detector_of_their_own_have_no_change() -> None:
    random = np.random.default_rng(5)
    series = {}
    for rank in range(200):
        values = 10 * (1 + 0.03 * random.standard_normal(random.integers(20, 400)))
        if rank % 4 == 0:
            values[len(values) // 2 :] *= random.uniform(0.7, 1.4)
        series[COMPUTE, rank] = np.arange(len(values)), values
    watched = may_change(series)
    for key, (_, values) in series.items():
        detector = ChangeDetector()
        changes = [change for value in values.tolist() if (change := detector.add(value))]
        assert not changes or key in watched
    assert 10 < len(watched) < 150


def test_series_hold_the_figures_of_all_steps() -> None:
    seen = measured_world(world_run(ranks(slow_ms=6)))
    assert seen is not None
    rates = {step: 1.5 + step for step in seen.measured[0].step.tolist()[::2]}
    series = anomalies._series(seen, rates)
    figures = [
        anomalies._values(each)
        for each in anomalies.step_figures(seen.ranks, seen.measured, seen.steps, rates)
    ]
    for key in {key for values in figures for key in values}:
        expected = [values[key] for values in figures if key in values]
        assert series[key][1].tolist() == pytest.approx(expected)
        assert len(series[key][0]) == len(expected)
