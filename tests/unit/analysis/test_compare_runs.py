from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis import compare
from commprof.analysis.compare import RunComparison, compare_runs
from commprof.analysis.evidence import Figure
from commprof.analysis.run import analyse_in_detail
from commprof.commands import main
from commprof.report.comparison import table as comparison_table
from commprof.trace.schema import BlockType
from tests.support.builders import trace_bytes
from tests.support.builders.profiler_traces import all_reduce, annotation, document, write
from tests.support.builders.results import context, detail, run_result, world
from tests.support.builders.run_directories import HOSTILE, ranks_of, write_run, write_strategies
from tests.support.builders.traces import MS, summary


def of(a: np.ndarray, b: np.ndarray, sizes: tuple[int, ...] = (2,)) -> RunComparison:
    runs = [
        (run_result(*map(world, sizes)), [detail(n, steps=len(x), step=x) for n in sizes])
        for x in (a, b)
    ]
    return compare_runs(("a", "b"), *runs)


def test_a_step_that_is_10_percent_longer_is_significant() -> None:
    steps = 100 + np.arange(30) % 7
    step = of(steps, steps * 1.1).worlds[0].step
    assert step.significant
    assert step.ratio.value == pytest.approx(1.1)
    assert (step.a_ms, step.b_ms) == (103.0, pytest.approx(113.3))


def test_equal_runs_are_rarely_reported_as_different() -> None:
    random = np.random.default_rng(3)
    found = [
        of(random.normal(100, 5, 40), random.normal(100, 5, 40)).worlds[0].step.significant
        for _ in range(15)
    ]
    # By chance, 5 or more of 15 pairs differ with a probability below 0.1 %.
    assert sum(found) <= 4


def test_the_gate_needs_a_slowdown_that_is_large_and_significant() -> None:
    steps = 100 + np.arange(30) % 7
    result = of(steps, steps * 1.1, (2, 4))
    assert [w.world_size for w in result.slower_by_more_than(0.05)] == [2, 4]
    assert result.slower_by_more_than(0.15) == ()
    assert of(steps * 1.1, steps).slower_by_more_than(0.0) == ()
    noisy = np.random.default_rng(1).normal(100, 40, (2, 6))
    assert of(*noisy).slower_by_more_than(0.0) == ()


def test_runs_of_three_steps_are_too_short_to_compare() -> None:
    result = of(np.array([1.0, 2, 3]), np.array([10.0, 11, 12]))
    assert result.worlds[0].too_short
    assert "too few steps" in comparison_table.render(result, None, 100)


def test_runs_of_correlated_steps_are_too_short_to_compare() -> None:
    slow = 100 + np.sin(np.arange(30) / 10)
    result = of(slow, 10 + slow[::-1])
    (only,) = result.worlds
    assert only.too_short
    assert only.steps == (30, 30)
    assert max(only.effective_steps) < 1
    assert not only.step.significant
    assert math.isnan(only.step.ratio.low)
    text = comparison_table.render(result, None, 100)
    assert "count as only 0.15 and 0.15 independent ones" in " ".join(text.split())


@pytest.mark.parametrize("count", [1000, 1010, 2999])
def test_independent_steps_of_a_long_run_are_estimated_from_the_compared_steps(count: int) -> None:
    wave = 20 * np.sin(2 * np.pi * np.arange(count) / count)
    steps = 100 + wave + np.random.default_rng(0).normal(0, 0.1, count)
    result = of(steps, 2 * steps)
    (only,) = result.worlds
    assert only.steps == (count, count)
    assert only.effective_steps == pytest.approx((5.0, 5.0), rel=0.01)
    assert result.slower_by_more_than(0.05) == (only,)


def test_with_too_few_cores_parts_are_significant_only_if_the_step_is() -> None:
    wave = np.arange(30) % 7

    def compared(share: float, longer: float) -> RunComparison:
        step = 100.0 + wave
        runs = [
            (run_result(world(2)), [detail(steps=30, step=s, data=d, no_core_share=share)])
            for s, d in ((step, 5.0 + wave), (step * longer, 9.0 + wave))
        ]
        return compare_runs(("a", "b"), *runs)

    def data(result: RunComparison) -> bool:
        return next(p.significant for p in result.worlds[0].parts if p.name == "data")

    assert data(compared(0.0, 1.0))
    assert data(compared(0.3, 1.1))
    busy = compared(0.3, 1.0)
    assert not data(busy)
    text = " ".join(comparison_table.render(busy, None, 100).split())
    assert "could run but had no core for 30% of their time in A and for 30% in B" in text


def test_with_too_few_cores_a_step_is_significant_only_without_run_delay_too() -> None:
    wave = np.arange(30) % 7

    def compared(share: float, without_delay: float) -> RunComparison:
        runs = [
            (run_result(world(2)), [detail(steps=30, step=s, with_cores=w, no_core_share=share)])
            for s, w in (
                (100.0 + wave, 50.0 + wave),
                (130.0 + wave, 50.0 * without_delay + wave),
            )
        ]
        return compare_runs(("a", "b"), *runs)

    assert compared(0.0, 1.0).worlds[0].step.significant
    assert compared(0.3, 1.3).worlds[0].step.significant
    assert compared(0.3, 1.3).slower_by_more_than(0.2)
    busy = compared(0.3, 1.0)
    assert not busy.worlds[0].step.significant
    assert not busy.slower_by_more_than(0.2)
    text = " ".join(comparison_table.render(busy, 0.2, 100).split())
    assert "the step's change (+29.1 %) may come from a lack of cores. After subtracting" in text
    assert "step minus time without a core" in text


def test_settings_and_world_sizes_that_differ_are_listed() -> None:
    runs = [
        (run_result(*map(world, sizes), context=about), [detail(n) for n in sizes])
        for sizes, about in (
            ((1, 2), context(hook="fp16")),
            ((2, 4), context(threads_per_rank=2, timestamp="later")),
        )
    ]
    result = compare_runs(("a", "b"), *runs)
    assert (result.only_a, result.only_b) == ((1,), (4,))
    assert [(s.name, s.a, s.b) for s in result.settings] == [
        ("hook", "fp16", "-"),
        ("threads_per_rank", "1", "2"),
    ]


def test_long_settings_are_shortened_around_the_difference() -> None:
    runs = [
        (run_result(world(2), context=context(command=f"{'x' * 80} --output {name}")), [detail(2)])
        for name in ("one", "two" * 30)
    ]
    text = comparison_table.render(compare_runs(("a", "b"), *runs), None, 100)
    assert "command  ...xx --output one  ...xx --output twotwotwo" in text
    assert max(map(len, text.splitlines())) < 110


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    write_run(base / "a", ranks_of(1, 21), ranks_of(2, 21, group=HOSTILE))
    write_run(base / "b", ranks_of(2, 21, group=HOSTILE, slower_ms=10), hook=HOSTILE)
    return base


def test_changed_parts_and_the_changed_collective_are_named(recorded: Path) -> None:
    result = compare_runs(
        ("a", "b"), analyse_in_detail(recorded / "a"), analyse_in_detail(recorded / "b")
    )
    (only,) = result.worlds
    changed = {
        change.name: change.b_ms - change.a_ms for change in only.parts if change.significant
    }
    assert changed == pytest.approx({"step": 10, "exposed": 10, "transfer": 10})
    second, first = only.collectives
    assert [kind.name.split(" group ")[0] for kind in (first, second)] == [
        "all_reduce 4 MB bucket 0",
        "all_reduce 4 MB bucket 1",
    ]
    assert (first.a_ms, first.b_ms, first.significant) == (10.0, 10.0, False)
    assert (second.a_ms, second.b_ms, second.significant) == (20.0, 30.0, True)


def test_kinds_of_calls_beyond_eight_are_counted() -> None:
    steps = 100.0 + np.arange(30)
    result = of(steps, steps)
    kinds = tuple(replace(result.worlds[0].step, name=f"kind {n}") for n in range(10))
    many = replace(result, worlds=(replace(result.worlds[0], collectives=kinds),))
    text = comparison_table.render(many, None, 100)
    assert "\nNot shown: 2 more kinds of call (see the JSON result).\n" in text
    assert "Not shown" not in comparison_table.render(result, None, 100)


def test_buckets_have_own_rows_only_if_both_runs_know_their_numbers(tmp_path: Path) -> None:
    ours = ranks_of(2, 9)
    # A second finalisation may be that of another model, so bucket numbers are not known.
    for rank in ours:
        for task in range(9):
            rank.finalize(rank.steps[task][0] + 95 * MS, rank.steps[task][0] + 96 * MS, 0, 0, task)
    runs = [
        analyse_in_detail(write_run(tmp_path / name, ranks))
        for name, ranks in (("a", ours), ("b", ranks_of(2, 9)))
    ]
    (kind,) = compare_runs(("a", "b"), *runs).worlds[0].collectives
    assert (kind.name, kind.a_ms, kind.b_ms) == ("all_reduce 4 MB group 0", 15.0, 15.0)


SIZES = (14_158_848, 14_160_384)


def gathering(directory: Path, *lengths_ms: float) -> Path:
    ranks = ranks_of(2, 9)
    for rank in ranks:
        for step, (begin, _) in enumerate(rank.steps):
            for place, (size, length_ms) in enumerate(zip(SIZES, lengths_ms, strict=True)):
                issue, seq = begin + (91 + place) * MS, 1000 + 2 * step + place
                end = issue + int(length_ms * MS)
                rank.collective(seq, issue, end, bytes_out=size, op="all_gather")
    return write_run(directory, ranks)


def test_sizes_with_the_same_rounded_name_have_separate_rows(tmp_path: Path) -> None:
    run = analyse_in_detail(gathering(tmp_path / "a", 1, 2))
    (only,) = compare_runs(("a", "b"), run, run).worlds
    gathers = [(c.name, c.a_ms, c.b_ms) for c in only.collectives if "gather" in c.name]
    assert gathers == [
        ("all_gather 14,160,384 B group 0", 2.0, 2.0),
        ("all_gather 14,158,848 B group 0", 1.0, 1.0),
    ]


def test_empty_messages_of_several_types_are_one_kind_of_call(tmp_path: Path) -> None:
    events = []
    for step in range(6):
        at = 5e9 + 1000 * step
        calls = [
            all_reduce(at + begin, at + end, seq=3 * step + place, elements=elements)
            for place, (begin, end, elements) in enumerate(
                [(100, 200, 0), (300, 500, 0), (600, 900, 1000)]
            )
        ]
        calls[1]["args"]["dtype"] = "BFloat16"
        events += [annotation(f"ProfilerStep#{step}", at, at + 1000), *calls]
    write(tmp_path, [document(events, rank) for rank in range(2)])
    run = analyse_in_detail(tmp_path)
    (only,) = compare_runs(("a", "b"), run, run).worlds
    found = {each.name: (each.a_ms, each.b_ms) for each in only.collectives}
    named = "all_reduce Float 0.004 MB group 0"
    assert found.pop(named) == pytest.approx((0.3, 0.3))
    assert list(found.values()) == [pytest.approx((0.15, 0.15))]


def test_a_kind_of_call_that_is_long_in_one_run_has_figures_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "_MOST_KINDS", 3)
    runs = [gathering(tmp_path / "a", 1, 2), gathering(tmp_path / "b", 4, 3)]
    (only,) = compare_runs(("a", "b"), *map(analyse_in_detail, runs)).worlds
    gathers = {(c.a_ms, c.b_ms) for c in only.collectives if "gather" in c.name}
    assert gathers == {(1.0, 4.0), (2.0, 3.0)}


def test_compare_command_exits_with_1_if_steps_are_slower_than_allowed(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(recorded / name) for name in ("a", "b")]
    assert main(["compare", *runs]) == 0
    text = capsys.readouterr().out
    assert "2 ranks: B's step is longer: +9.9 %, p < 0.0001." in text
    assert "Only A has figures for 1 rank." in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert main(["compare", *runs, "--fail-above", "5%"]) == 1
    assert "Slower by more than 5.0%: 2 ranks." in capsys.readouterr().out
    assert main(["compare", *runs, "--fail-above", "0.2"]) == 0
    assert main(["compare", *reversed(runs), "--fail-above", "0%"]) == 0
    capsys.readouterr()
    assert main(["compare", *runs, "--format", "json", "--fail-above", "5%"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["slower"] == [2]
    assert document["worlds"][0]["parts"][0]["significant"] is True


def test_fail_above_is_refused_for_runs_with_too_few_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = str(write_run(tmp_path / "short", ranks_of(2, 4)))
    assert main(["compare", short, short, "--fail-above", "5%"]) == 2
    assert "(about 15 in each run are usually enough, more if" in capsys.readouterr().err


def test_a_run_in_always_on_mode_is_named_as_one_without_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = str(write_run(tmp_path / "full", ranks_of(1, 9)))
    (tmp_path / "on").mkdir()
    block = trace_bytes.block(BlockType.SUMMARY, json.dumps(summary()).encode())
    (tmp_path / "on" / "rank_0.trace").write_bytes(trace_bytes.trace(block, trace_bytes.end()))
    runs = [str(tmp_path / "on"), full]
    assert main(["compare", *runs]) == 0
    said = "A was recorded in always-on mode, which does not keep single steps; record it in full"
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["compare", *runs, "--fail-above", "5%"]) == 2
    assert said in capsys.readouterr().err


def test_comparing_trials_or_runs_of_several_strategies_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = str(write_run(tmp_path / "trial", ranks_of(2, 9), trial="none,int8"))
    assert main(["compare", tried, tried]) == 2
    assert "holds a trial, which compare cannot compare" in capsys.readouterr().err
    plain, inside = ranks_of(2, 9), ranks_of(2, 9)
    # The script itself began the trial, so run.json does not name it.
    for rank in inside:
        trial = {"plan": "", "first_step": 1, "left_out": {}}
        rank.metadata["trial"] = {**trial, "begin_monotonic_ns": rank.steps[1][0] + 1}
    paths = [str(write_run(tmp_path / name, r)) for name, r in (("p", plain), ("i", inside))]
    assert main(["compare", *paths]) == 2
    assert f"{paths[1]} holds a trial, which compare cannot" in capsys.readouterr().err
    several = str(write_strategies(tmp_path / "run"))
    assert main(["compare", several, several]) == 2
    assert f"compare one of them: {several}/ddp or {several}/fsdp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["here", "nowhere"], "does not exist"),
        (["here", "here", "--fail-above", "much"], "is not a share such as 5% or 0.05"),
        (["here", "here", "--fail-above=-1"], "is not a share"),
    ],
)
def test_compare_refuses_missing_directories_and_invalid_shares(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    words = [str(tmp_path / word) if word in ("here", "nowhere") else word for word in arguments]
    assert main(["compare", *words]) == 2
    assert complaint in capsys.readouterr().err


CHANGE = {"name", "a_ms", "b_ms", "ratio", "p_value", "significant"}


def test_figures_that_a_recording_does_not_support_are_named_with_the_reason() -> None:
    untimed = world(2, foreign=True, times=False)
    unmarked = world(2, foreign=True, steps_marked=False)
    details = [detail(2, backward=50, transfer=30)]
    found = compare_runs(
        ("a", "b"), (run_result(untimed), details), (run_result(unmarked), details)
    )
    text = " ".join(comparison_table.render(found, None, 100).split())
    why = untimed.evidence.lacking(Figure.PARTS)
    assert why
    assert f"At 2 ranks the parts of the step of A are not known: {why}." in text
    assert "times of collectives of A are not known" in text
    assert "begin and end of the steps of B are not known: no step is marked" in text
    assert "of B are not known: no kernel" not in text
    entries = json.loads(comparison_table.render_json(found, None))["not_compared"]
    assert [entry["run"] for entry in entries] == ["A", "A", "B"]
    known = compare_runs(("a", "b"), *[(run_result(world(2)), details)] * 2)
    assert known.not_compared == ()


def test_the_comparison_json_has_the_documented_keys() -> None:
    steps = 100.0 + np.arange(10)
    document = json.loads(comparison_table.render_json(of(steps, steps), None))
    assert document.keys() == {
        *("schema_version", "a", "b", "worlds", "only_a", "only_b", "settings"),
        *("fail_above", "slower", "not_compared"),
    }
    (only,) = document["worlds"]
    about_runs = {"num_processes", "steps", "effective_steps", "no_core_share"}
    assert only.keys() == {*about_runs, "with_cores", "parts", "collectives"}
    assert only["parts"][0].keys() == CHANGE
    assert only["parts"][0]["ratio"].keys() == {"value", "low", "high"}
    assert document["schema_version"] == comparison_table.SCHEMA_VERSION == 2
