from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.card import Card, card
from commprof.analysis.evidence import Figure, MostWaitedFor
from commprof.analysis.late.incidents import find_incidents
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.step.measured import measured_world
from commprof.analysis.verdict import Verdict, verdict
from commprof.analysis.world import world_result
from commprof.recordings.profiler import read_recording
from commprof.report.card import render
from commprof.report.export.as_json import as_dict
from commprof.trace.run.run_directory import WorldRun
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    both,
    document,
    kernel,
    write,
)
from tests.support.builders.results import detail, parts, run_result, world

#: No sentence may contain these words if communication is not known.
_CLAIMS = (
    "bound by",
    "needs no change",
    "upper bound",
    "No single rank",
    "delays",
    "limited about",
)


def shown(folder: Path) -> tuple[RunResult, Verdict, Card]:
    result, details = analyse_in_detail(folder)
    found = verdict(result, details)
    assert found is not None
    made = card(result, details, found, folder)
    assert made is not None
    return result, found, made


def gloo_of_other_threads(steps: int = 6) -> list[Event]:
    events = []
    for step in range(steps):
        at = 5e9 + 210_000 * step
        events.append(annotation(f"ProfilerStep#{step}", at, at + 210_000))
        dims = {"Input Dims": [[321271]], "Input type": ["float"]}
        reduce = annotation("gloo:all_reduce", at + 18_000, at + 188_000, tid=3)
        events.append({**reduce, "args": dims})
    return events


def test_without_operators_of_the_training_thread_nothing_bounds_the_step(tmp_path: Path) -> None:
    ranks = [document(gloo_of_other_threads(), rank, backend="gloo") for rank in range(2)]
    result, found, made = shown(write(tmp_path / "job", ranks))
    (measured,) = result.worlds
    why = "no operator of the training thread was recorded"
    for figure in (Figure.PARTS, Figure.EXPOSED, Figure.SPLIT, Figure.NOBODY_LATE, Figure.GAINS):
        assert measured.evidence.lacking(figure) == why
    assert measured.evidence.supports(Figure.CALLS)
    assert measured.communication.collectives[0].times.duration.median_ms == pytest.approx(170)
    assert measured.parts.step_ms == pytest.approx(210)
    assert found.bindings[0].part is None
    assert found.bindings[0].largest == ()
    assert found.headline.startswith(
        "At 2 ranks the mean step takes 210 ms. It is not known which part"
    )
    text = " ".join((found.headline, *found.sentences, made.following.advice, render(made)))
    assert not [claim for claim in _CLAIMS if claim in text]
    assert made.parts == ()
    assert "with the operators of the training thread" in made.following.advice
    values = as_dict(result, verdict=found, card=made)["runs"][0]["aggregated_metrics"]
    unknown = {name for name, value in values["parts"].items() if value is None}
    assert unknown == values["parts"].keys() - {"step_ms"}
    assert values["not_known"]["exposed"] == why


def test_calls_whose_transfer_was_not_recorded_are_neither_fast_nor_slow(tmp_path: Path) -> None:
    """The host's range of a GPU's collective ends as soon as the collective is enqueued."""
    found = read_recording(both(tmp_path / "job"))
    assert found is not None
    traces = {}
    for rank, trace in found.traces.items():
        assert trace.recorded is not None
        times = np.zeros_like(trace.recorded.times)
        traces[rank] = replace(trace, recorded=replace(trace.recorded, times=times))
    run = WorldRun(2, tmp_path, {}, traces, ())
    seen = measured_world(run)
    assert seen is not None
    measured = world_result(run, seen)
    assert not measured.evidence.supports(Figure.CALLS)
    assert measured.communication.collectives
    for row in measured.communication.collectives:
        times = row.times
        figures = (
            times.duration.median_ms,
            times.exposed_ms,
            times.algbw_gb_per_s,
            times.busbw_gb_per_s,
        )
        assert all(map(math.isnan, figures))
        assert row.kind.size_bytes == (4000, 4000)
    assert measured.communication.times_in_flight == ()
    assert math.isnan(measured.parts.exposed_ms)
    assert math.isnan(measured.parts.other_ms)
    assert measured.lateness.late_rank is None
    assert measured.lateness.wait_costs == ()
    assert measured.gains is None
    assert not find_incidents(run, seen)


def test_a_rank_that_caused_most_of_the_waiting_is_never_denied() -> None:
    shares = {"most_waited_for": MostWaitedFor(0, 0.93)}
    few = world(2, steps=7, warmup_steps=1, parts=parts(wait_ms=25.0, transfer_ms=5.0), **shares)
    result, details = run_result(few), [detail(2, backward=40, wait=25, transfer=5)]
    found = verdict(result, details)
    assert found is not None
    made = card(result, details, found, Path("r"))
    assert made is not None
    text = " ".join((found.headline, *found.sentences, made.following.advice, render(made)))
    assert "No single rank" not in text
    assert "no single rank" not in text
    assert "rank 0 caused 93% of the waiting" in made.following.advice
    assert made.lateness.nobody_late_lacks.startswith("rank 0 caused 93% of the waiting")


def test_waiting_spread_over_the_ranks_is_for_no_single_rank() -> None:
    spread = world(2, most_waited_for=MostWaitedFor(0, 0.55))
    found = verdict(run_result(spread), [detail(2, backward=40, wait=25, transfer=5)])
    assert found is not None
    assert "and no single rank stands out" in found.next_step.advice
    assert "No single rank stands out" in " ".join(found.sentences)


def of_half_steps(rank: int, steps: int, mark: str, slow_from: int = 10**9) -> list[Event]:
    events, at = list[Event](), 5e9
    for step in range(steps):
        factor = 2 if step >= slow_from else 1
        own, half = factor * (300 if rank == 0 else 400), factor * 500
        if mark == "ProfilerStep":
            events.append(annotation(f"ProfilerStep#{step}", at, at + 2 * half))
        for place in range(2):
            events.append(kernel("gemm", at, at + own))
            events.append(all_reduce(at + own, at + factor * 450, seq=2 * step + place))
            at += half
        if mark == "Optimizer":
            events.append(annotation("Optimizer.step#SGD.step", at - 20, at - 10))
    return events


@pytest.mark.parametrize(("mark", "named"), [("ProfilerStep", 1), ("Optimizer", 1), ("", None)])
def test_repeating_calls_are_no_steps_in_which_a_rank_is_late(
    tmp_path: Path, mark: str, named: int | None
) -> None:
    ranks = [document(of_half_steps(rank, 12, mark), rank) for rank in range(2)]
    result, found, made = shown(write(tmp_path / "job", ranks))
    (measured,) = result.worlds
    assert (measured.lateness.late_rank and measured.lateness.late_rank.rank) == named
    text = " ".join(" ".join((found.headline, *found.sentences, render(made))).split())
    assert "No single rank" not in text
    if named is None:
        for figure in (Figure.LATE, Figure.CHANGE):
            assert measured.evidence.lacking(figure) == "no step is marked"
        why = "rank 1 caused 100% of the waiting, but this may be chance, because no step is marked"
        assert f"not known: {why}" in text
        (caveat,) = [caveat for caveat in made.caveats if "No step is marked" in caveat]
        assert f"! {caveat}" in render(made)


@pytest.mark.parametrize(("mark", "count"), [("ProfilerStep", 1), ("", 0)])
def test_a_change_within_repeating_calls_is_no_incident(
    tmp_path: Path, mark: str, count: int
) -> None:
    ranks = [document(of_half_steps(rank, 120, mark, slow_from=60), rank) for rank in range(2)]
    result, _, _ = shown(write(tmp_path / "job", ranks))
    assert len(result.incidents) == count


def test_of_unmarked_steps_more_are_no_help() -> None:
    waited = {"most_waited_for": MostWaitedFor(0, 0.93), "steps_marked": False}
    unmarked = world(2, parts=parts(wait_ms=25.0, transfer_ms=5.0), **waited)
    found = verdict(run_result(unmarked), [detail(2, backward=40, wait=25, transfer=5)])
    assert found is not None
    assert found.next_step.advice.startswith("First record again, with marked steps")


@pytest.mark.parametrize(
    ("late_by_us", "named"),
    [((300, 260, 280), 1), ((300, 200, 250), None), ((300, -100, 250), None)],
)
def test_in_few_steps_only_a_rank_that_is_late_in_each_by_about_the_same_is_named(
    tmp_path: Path, late_by_us: tuple[int, ...], named: int | None
) -> None:
    ranks = []
    for rank in range(2):
        events = list[Event]()
        for step, by_us in enumerate(late_by_us):
            at, own = 5e9 + 2000.0 * step, 500 + max(0, by_us if rank == 1 else -by_us)
            events.append(annotation(f"ProfilerStep#{step}", at, at + 2000))
            events += [kernel("gemm", at, at + own), all_reduce(at + own, at + 900, seq=step)]
        ranks.append(document(events, rank))
    result, found, made = shown(write(tmp_path / "job", ranks))
    (measured,) = result.worlds
    assert (measured.lateness.late_rank and measured.lateness.late_rank.rank) == named
    text = " ".join(" ".join((found.headline, *found.sentences, render(made))).split())
    few = "of the waiting, but 3 steps are too few to rule out chance; 8 steps are enough"
    assert (few in text) == (named is None)
    assert "No single rank" not in text
