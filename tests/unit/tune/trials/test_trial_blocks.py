from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.step.measured import trial_of
from commprof.commands import main
from commprof.trace.schema import Kind, Phase
from commprof.tune.trials.analyse import _later_over_earlier, analyse_world_trial, figures
from commprof.tune.trials.found import analyse_trial
from commprof.tune.trials.plan import parse_trial
from tests.support.builders.results import context
from tests.support.builders.run_directories import write_run
from tests.support.builders.traces import MS, Rank, world_run

PLAN = parse_trial("int8,rounds=3,block=3,warmup=2")
FIRST = 4
#: Of each step, 40 ms are work and the rest is waiting for communication.
STEP_MS = {"none": 60, "none again": 60, "noop": 40, "int8": 50}
MB = 1_000_000


def rank(
    number: int, slower_ms: float | Sequence[float] = 0.0, rounds: int = 3, **trial: object
) -> Rank:
    made = Rank(number, 2)
    at, losses = 0, []
    for _ in range(FIRST):
        made.step(at, at + 100 * MS)
        at += 100 * MS
    begin_ns = at + 1
    for block in PLAN.schedule().blocks[: 4 * rounds]:
        label = PLAN.everyone[block.candidate].label
        slower = slower_ms if isinstance(slower_ms, float) else slower_ms[block.round]
        for step in range(block.begin, block.end):
            length = STEP_MS[label] + slower + (30 if step < block.measured else 0)
            _step(made, label, at, length, first=step == block.begin)
            losses.append(100.0 if label != "int8" else 98.0)
            at += int(length * MS)
    told = {"plan": PLAN.text, "first_step": FIRST, "begin_monotonic_ns": begin_ns, "left_out": {}}
    made.metadata["trial"] = {**told, **trial}
    made.metadata["trial_losses"] = {"values": losses}
    return made


def _step(made: Rank, label: str, at: int, length: float, first: bool) -> None:
    end = at + int(length * MS)
    work = int(40 * MS)
    made.phase(Phase.FORWARD, at, at + 10 * MS)
    made.phase(Phase.BACKWARD, at + 10 * MS, end - 1 * MS)
    if label != "noop":
        op = made.collective(made._op_id, at + 20 * MS, end - 1 * MS, bytes=4 * MB)
        if label != "int8":
            made._add(Kind.BUCKET, at + 20 * MS, op_id=op, bytes_in=4 * MB, value=at + 20 * MS)
        made.wait(op, at + work, end)
    if label == "int8":
        times = [at + int(ms * MS) for ms in (20, 20, 22, 26, 27, 30)]
        quality = (0.02, 0.999, 0.0, 0, 0) if first else None
        made.compressed(0, 4 * MB, tuple(times), wire=1 * MB, quality=quality)
    made.step(at, end)


def test_a_block_is_the_median_of_its_measured_steps_on_the_slowest_rank() -> None:
    traces = [rank(0).trace(), rank(1, slower_ms=5.0).trace()]
    found = figures(traces, PLAN.schedule(), FIRST)
    assert found.rounds == 3
    for place, one in enumerate(PLAN.everyone):
        assert found.step_ns[place] == pytest.approx((STEP_MS[one.label] + 5) * MS)
    assert found.columns["exposed"][0] == pytest.approx((20 + 25) / 2 * MS)


def test_uncompressed_bytes_are_those_of_a_ring_of_the_model_s_group() -> None:
    made = [rank(0), rank(1)]
    for each in made:
        each.metadata["world_size"] = 4
        each.groups[0] = ("replicas", 2)
    found = figures([each.trace() for each in made], PLAN.schedule(), FIRST)
    assert found.columns["plain_ring"][0] == pytest.approx(4 * MB)


def test_the_slowest_rank_is_chosen_over_all_rounds_together() -> None:
    traces = [rank(0, slower_ms=(0, 8, 3)).trace(), rank(1, slower_ms=(6, 1, 2)).trace()]
    found = figures(traces, PLAN.schedule(), FIRST)
    assert found.step_ns[0] == pytest.approx([60 * MS, 68 * MS, 63 * MS])


def test_rounds_that_a_rank_did_not_complete_do_not_count() -> None:
    traces = [rank(0).trace(), rank(1, rounds=2).trace()]
    assert figures(traces, PLAN.schedule(), FIRST).rounds == 2


def test_a_trial_s_figures_and_verdict_are_computed_from_its_traces() -> None:
    context = {"command": "python -m commprof.run --trial int8", "workload": "timed"}
    result = analyse_world_trial(world_run([rank(0), rank(1)]), context)
    assert (result.rounds, result.planned_rounds, result.world_size) == (3, 3, 2)
    int8 = result.candidates[3]
    assert int8.label == "int8"
    assert int8.step_ms == pytest.approx(50)
    assert int8.compresses
    assert int8.step_ms_interval is not None
    assert [int8.step_ms_interval.low, int8.step_ms_interval.high] == pytest.approx([50, 50])
    assert int8.ratio is not None
    assert int8.ratio.value == pytest.approx(5 / 6)
    assert int8.exposed_ms == pytest.approx(10)
    assert (int8.encode_ms, int8.reduce_ms, int8.decode_ms) == pytest.approx((2, 1, 3))
    assert int8.wire_bytes == pytest.approx(MB)
    assert (int8.relative_error, int8.cosine) == pytest.approx((0.02, 0.999))
    assert int8.loss_effect is not None
    assert int8.loss_effect.value == pytest.approx(-0.02)
    assert int8.overhead_reduction is not None
    assert int8.overhead_reduction.value == pytest.approx(0.5)
    headroom = result.of_role("headroom")
    assert headroom.wire_bytes == 0
    assert headroom.exposed_ms == 0
    assert result.verdict.answer == "use"
    assert result.verdict.apply == "commprof run --hook int8"
    assert int8.break_even is not None
    assert int8.no_break_even is None


@pytest.mark.parametrize("label", ["hierarchical", "bucket-cap=5", "no-overlap"])
def test_break_even_does_not_apply_to_candidates_that_save_no_bytes_on_a_link(label: str) -> None:
    plan = f"{label},rounds=3,block=3,warmup=2"
    context = {"command": "python -m commprof.run --trial x", "workload": "timed"}
    result = analyse_world_trial(world_run([rank(r, plan=plan) for r in (0, 1)]), context)
    one = result.candidates[3]
    assert one.break_even is None
    assert one.no_break_even is not None
    assert one.no_break_even.answer == "does not apply"
    assert all(role.no_break_even is None for role in result.candidates[:3])
    assert bool(one.barred) is (label == "no-overlap")
    assert (result.verdict.choice == label) is (label != "no-overlap")


@pytest.mark.parametrize("left", [0, 1])
def test_the_report_of_a_trial_without_a_rank_s_trace_says_so_without_figures(
    left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [rank(0), rank(1)], workload="timed")
    (run / "world_2" / f"rank_{1 - left}.trace").unlink()
    result = analyse_trial(run)
    assert result is not None
    assert (result.rounds, result.parts, result.verdict.answer) == (0, (), "unknown")
    assert f"rank {1 - left} left no trace of the trial" in result.verdict.sentences[0]
    for format in ("table", "json", "markdown", "html", "csv"):
        assert main(["report", str(run), "--format", format, "-o", "-"]) == 0
        text = capsys.readouterr().out
        assert "left no trace of the trial" in text or format == "csv"


def test_a_trial_s_report_has_remarks_on_the_run_but_none_on_mixed_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_core = {**context()["machine"], "usable_cpu_count": 1, "boot_id": "b"}
    ranks = [rank(0), rank(1, slower_ms=5.0)]
    run = write_run(tmp_path / "run", ranks, workload="timed", machine=one_core)
    assert main(["report", str(run), "--all"]) == 0
    text = capsys.readouterr().out
    assert "* More threads than cores at 2 ranks" in text
    assert "Noisy" not in text
    assert "compress" not in text.partition("* More threads")[2]


def test_csv_rows_of_a_trial_are_its_candidates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [rank(0), rank(1)], workload="timed")
    words = ["report", str(run), "--format", "csv"]
    assert main(words) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["candidate"] for row in found] == ["none", "none again", "noop", "int8"]
    int8 = found[3]
    assert float(int8["step_ms"]) == pytest.approx(50)
    assert float(int8["step_ms_high"]) == pytest.approx(50)
    assert float(int8["ratio_low"]) == pytest.approx(5 / 6)
    assert (int8["compresses"], int8["role"], int8["pays"]) == ("True", "candidate", "below")
    assert (int8["no_break_even"], int8["barred"]) == ("", "")
    assert found[0]["ratio"] == ""
    assert main([*words, "--rows", "steps"]) == 0
    capsys.readouterr()
    for table in ("worlds", "ranks"):
        assert main([*words, "--rows", table]) == 2
        assert "(allowed: candidates, steps, collectives)" in capsys.readouterr().err


def test_a_trial_that_began_in_an_earlier_trace_of_the_process_is_ignored() -> None:
    assert trial_of(rank(0).trace()) is not None
    assert trial_of(rank(0, begin_monotonic_ns=1).trace()) is None
    assert trial_of(Rank().trace()) is None


def test_the_effect_on_the_loss_is_none_if_a_rank_s_losses_are_unknown() -> None:
    ranks = [rank(0), rank(1)]
    del ranks[1].metadata["trial_losses"]
    result = analyse_world_trial(world_run(ranks), {"command": "x"})
    assert all(one.loss_effect is None for one in result.candidates)
    assert np.isfinite(result.candidates[3].step_ms)


def test_the_later_half_of_a_block_is_compared_with_the_earlier_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _later_over_earlier(np.array([30.0, 28, 20, 24, 22])) == 23 / 29
    assert np.isnan(_later_over_earlier(np.array([30.0, 28, 20])))
    monkeypatch.setattr(f"{__name__}.PLAN", parse_trial("int8,rounds=3,block=4,warmup=2"))
    result = analyse_world_trial(world_run([rank(0), rank(1)]), context())
    assert [
        one.later_over_earlier.value for one in result.candidates if one.later_over_earlier
    ] == [pytest.approx(1.0)] * 4
    assert not any(one.settles for one in result.candidates)
