from __future__ import annotations

import gzip
import io
import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.timeline.overview import overview
from commprof.analysis.timeline.rank import assign_lanes, rank_timeline
from commprof.commands import main
from commprof.errors import CommprofError
from commprof.report.export import chrome_trace
from commprof.trace import columns
from commprof.trace.schema import Kind, Phase
from tests.support.builders.random_run import RandomRun
from tests.support.builders.results import context
from tests.support.builders.run_directories import write_strategies
from tests.support.builders.traces import MS, THREAD, Rank
from tests.unit.analysis.align.test_device_timeline import two_steps

Event = dict[str, Any]


def save(ranks: list[Rank], directory: Path) -> Path:
    for rank in ranks:
        rank.write(directory / f"rank_{rank.rank}.trace")
    return directory


def trace_of(run: Path, *arguments: str) -> dict[str, Any]:
    output = run / "trace.json"
    assert main(["trace", str(run), "-o", str(output), "--force", *arguments]) == 0
    value: dict[str, Any] = json.loads(output.read_text())
    return value


def events_of(run: Path, *arguments: str) -> list[Event]:
    return list(trace_of(run, *arguments)["traceEvents"])


def slices(events: list[Event], kind: str, rank: int | None = None) -> list[Event]:
    return [e for e in events if e["ph"] == "X" and e["cat"] == kind and rank in (None, e["pid"])]


def two_ranks(**values: Any) -> list[Rank]:
    ranks = [Rank(0, 2, **values), Rank(1, 2, **values)]
    for rank, late in zip(ranks, (0, 4 * MS), strict=True):
        rank.phase(Phase.FORWARD, 1 * MS, 2 * MS)
        rank.collective(0, 2 * MS, 9 * MS, bytes=1_000_000)
        op_id = rank.collective(1, 3 * MS + late, 10 * MS, bytes=2_000_000)
        rank.wait(op_id, 8 * MS, 10 * MS)
        rank.step(0, 11 * MS)
    return ranks


def test_spans_are_assigned_to_the_fewest_lanes() -> None:
    begin = np.array([0, 0, 5, 10, 10, 12])
    end = np.array([10, 6, 7, 20, 10, 13])
    assert assign_lanes(begin, end).tolist() == [1, 0, 2, 1, 0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_spans_of_a_lane_do_not_overlap_in_random_schedules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 1000, 300)
    end = begin + rng.integers(0, 60, 300)
    lanes = assign_lanes(begin, end)
    for lane in range(lanes.max() + 1):
        rows = np.flatnonzero(lanes == lane)
        rows = rows[np.lexsort((end[rows], begin[rows]))]
        assert (np.maximum(end[rows], begin[rows] + 1)[:-1] <= begin[rows][1:]).all()
    moments = [int(((begin <= t) & (np.maximum(end, begin + 1) > t)).sum()) for t in begin]
    assert lanes.max() + 1 == max(moments)


def test_host_pauses_are_slices_of_the_trace(tmp_path: Path) -> None:
    ranks = two_ranks()
    ranks[1].pause(4 * MS, 6 * MS)
    events = events_of(save(ranks, tmp_path))
    (pause,) = slices(events, "host pauses")
    assert (pause["pid"], pause["name"]) == (1, "host pause")
    assert (pause["ts"], pause["dur"]) == (4000, 2000)


def test_steps_phases_exposed_time_and_collectives_are_slices(tmp_path: Path) -> None:
    events = events_of(save(two_ranks(), tmp_path))
    (step,) = slices(events, "steps (declared)", 1)
    assert (step["name"], step["ts"], step["dur"]) == ("step 0", 0, 11_000)
    (phase,) = slices(events, "phases", 0)
    assert (phase["name"], phase["ts"], phase["dur"]) == ("forward", 1000, 1000)
    (waited,) = slices(events, "exposed", 0)
    assert waited["name"] == "exposed: all_reduce"
    assert waited["args"] == {
        "waited_us": 2000,
        "for_last_rank_us": 0,
        "transfer_us": 2000,
        "last_rank": 1,
    }
    first, second = slices(events, "collectives in flight", 0)
    assert (first["name"], second["name"]) == ("all_reduce 1 MB", "all_reduce 2 MB")
    assert first["tid"] != second["tid"]
    assert second["args"]["seq"] == 1
    assert second["args"]["until_last_rank_us"] == 4000
    assert second["args"]["after_last_rank_us"] == 3000
    assert second["args"]["last_rank"] == 1


def test_arrows_lead_from_the_last_rank_to_waiting_ranks(tmp_path: Path) -> None:
    events = events_of(save(two_ranks(), tmp_path))
    sent = {e["id"]: e for e in events if e["ph"] == "s"}
    received = {e["id"]: e for e in events if e["ph"] == "f"}
    assert sent.keys() == received.keys()
    (number,) = [n for n, e in sent.items() if e["ts"] == 7000]
    assert (sent[number]["pid"], received[number]["pid"]) == (1, 0)
    # The arrow ends 1 ns later, inside the slice that follows on rank 0.
    assert received[number]["ts"] == 7000.001
    assert received[number]["bp"] == "e"
    wire = [(e["pid"], e["ts"], e["dur"]) for e in slices(events, "transfer")]
    assert (0, 7000, 3000) in wire


@pytest.mark.parametrize("seed", range(30))
def test_timelines_of_random_runs_have_no_overlaps_and_paired_arrows(
    seed: int, tmp_path: Path
) -> None:
    run = RandomRun(seed)
    events = events_of(save(run.ranks, tmp_path))
    by_lane: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] != "transfer":
            by_lane.setdefault((event["pid"], event["tid"]), []).append(event)
    for lane in by_lane.values():
        lane.sort(key=lambda e: (e["ts"], e["dur"]))
        for one, other in pairwise(lane):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-6
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(by_lane) <= named
    collectives = sum(
        len(rank.trace().records[rank.trace().records["kind"] == 3]) for rank in run.ranks
    )
    assert len(slices(events, "collectives in flight")) == collectives
    sent = {e["id"]: e for e in events if e["ph"] == "s"}
    received = {e["id"]: e for e in events if e["ph"] == "f"}
    assert sent.keys() == received.keys()
    assert all(sent[n]["ts"] < received[n]["ts"] for n in sent)
    for arrow in (*sent.values(), *received.values()):
        assert any(
            e["ts"] <= arrow["ts"] < e["ts"] + e["dur"] + 1e-9
            for e in by_lane[arrow["pid"], arrow["tid"]]
        )


def test_a_timeline_of_selected_steps_contains_only_these(tmp_path: Path) -> None:
    ranks = [Rank(0, 2), Rank(1, 2)]
    for rank in ranks:
        for step in range(5):
            begin = step * 10 * MS
            rank.collective(step, begin + (1 + rank.rank) * MS, begin + 5 * MS, bytes=4)
            rank.step(begin, begin + 10 * MS)
    events = events_of(save(ranks, tmp_path), "--steps", "2-3")
    assert [e["name"] for e in slices(events, "steps (declared)", 1)] == ["step 2", "step 3"]
    assert slices(events, "steps (declared)", 0)[0]["ts"] == 0
    assert len(slices(events, "collectives in flight")) == 4
    assert len([e for e in events if e["ph"] == "s"]) == 2
    assert len(slices(events_of(tmp_path, "--steps", "4"), "steps (declared)")) == 2


def test_a_collective_in_flight_when_selected_steps_begin_is_cut_at_their_begin(
    tmp_path: Path,
) -> None:
    ranks = [Rank(0, 2), Rank(1, 2)]
    for rank in ranks:
        for step in range(3):
            rank.step(100 * step * MS, 100 * (step + 1) * MS)
        rank.collective(0, 190 * MS, 200 * MS, bytes=4000)
        rank.collective(1, (195 + rank.rank) * MS, 260 * MS, bytes=4000)
        rank.collective(2, (270 + rank.rank) * MS, 300 * MS, bytes=4000)
    events = events_of(save(ranks, tmp_path), "--steps", "2")
    shown = [(e["ts"], e["dur"]) for e in slices(events, "collectives in flight", 0)]
    assert shown == [(0, 60_000), (70_000, 30_000)]
    assert [e["name"] for e in slices(events, "steps (declared)")] == ["step 2"] * 2
    arrows = [e["ts"] for e in events if e["ph"] in ("s", "f")]
    assert sorted(arrows) == [71_000, 71_000.001]


def test_ranks_with_compared_clocks_are_aligned(tmp_path: Path) -> None:
    ranks = two_ranks()
    shifted = Rank(1, 2, boot_id="elsewhere")
    offset = 5_000_000_000
    for at, error in ((0, 1000), (11 * MS, 1000)):
        shifted.clock(at + offset, -offset, error)
    shifted.collective(0, 2 * MS + offset, 9 * MS + offset, bytes=1_000_000)
    shifted.collective(1, 7 * MS + offset, 10 * MS + offset, bytes=2_000_000)
    shifted.step(offset, 11 * MS + offset)
    value = trace_of(save([ranks[0], shifted], tmp_path))
    assert value["otherData"]["clocks"] == "compared"
    # The error is 1 us, plus 500 ppm of the 7 ms from the comparison to the last issue.
    assert value["otherData"]["clock_error_us"] == pytest.approx(4.5)
    (step,) = slices(value["traceEvents"], "steps (declared)", 1)
    assert (step["ts"], step["dur"]) == (0, 11_000)
    assert [e["ts"] for e in value["traceEvents"] if e["ph"] == "s"][-1] == 7000


def test_a_trace_that_vanished_meanwhile_is_named_as_what_cannot_be_read(tmp_path: Path) -> None:
    save(two_ranks(), tmp_path)
    paths = {rank: tmp_path / f"rank_{rank}.trace" for rank in (0, 1)}
    view = overview(paths, None)
    paths[1].unlink()
    with pytest.raises(CommprofError, match="of rank 1 cannot be read any more: No such"):
        rank_timeline(view, 1)


def test_the_recorded_command_can_be_copied_from_the_timeline(tmp_path: Path) -> None:
    ranks = two_ranks()
    ranks[0].metadata["command"] = ["train.py", "--note", "it's new"]
    command = trace_of(save(ranks, tmp_path))["otherData"]["command"]
    assert shlex.split(command) == ranks[0].metadata["command"]


def test_a_warning_says_that_wall_clocks_are_used_if_clocks_were_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [two_ranks()[0], two_ranks(boot_id="elsewhere")[1]]
    ranks[1].metadata["clock"] = {"source": "x", "monotonic_ns": 1, "realtime_ns": 2 + 3 * MS}
    value = trace_of(save(ranks, tmp_path))
    assert "the timeline uses the hosts' wall clocks, which may be" in capsys.readouterr().err
    assert value["otherData"]["clocks"] == "wall"
    assert value["otherData"]["clock_error_us"] is None
    assert [e for e in value["traceEvents"] if e["ph"] in "sf"] == []
    # At the same monotonic time, rank 1's wall clock was 3 ms ahead.
    assert slices(value["traceEvents"], "steps (declared)", 1)[0]["ts"] == 3000


def test_a_collective_without_completion_has_length_zero(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    rank.collective(0, 1 * MS, 0, bytes=4)
    rank.step(0, 2 * MS)
    (collective,) = slices(events_of(save([rank], tmp_path)), "collectives in flight")
    assert collective["dur"] == 0
    assert collective["args"]["completion"] == "not seen"


def test_without_steps_the_waits_of_the_training_thread_are_drawn_once(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    rank.wait(rank.collective(0, 1 * MS, 4 * MS, bytes=4), 2 * MS, 4 * MS)
    rank.wait(99, 5 * MS, 6 * MS, thread=THREAD + 1)
    events = events_of(save([rank], tmp_path))
    kinds = {e["cat"] for e in events if e["ph"] == "X"}
    assert kinds == {"collectives in flight", "exposed", f"waits of thread {THREAD + 1}"}


def test_buckets_without_a_hook_end_with_their_all_reduce() -> None:
    ranks = two_ranks()
    for rank in ranks:
        rank._add(Kind.BUCKET, 2 * MS, op_id=1, group=1, value=2 * MS)
    view = overview({rank.rank: rank.trace() for rank in ranks}, None)
    assert [each.buckets.end_ns.tolist() for each in view.arrivals] == [[9 * MS]] * 2


def test_sizes_just_below_the_next_unit_are_written_without_an_exponent(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    rank.collective(0, 1 * MS, 2 * MS, bytes=999_900)
    rank.step(0, 3 * MS)
    (collective,) = slices(events_of(save([rank], tmp_path)), "collectives in flight")
    assert collective["name"] == "all_reduce 1000 kB"


def test_compressed_buckets_and_their_stages_are_slices(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    rank.compressed(3, 1000, (1 * MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS, 6 * MS))
    rank.step(0, 7 * MS)
    events = events_of(save([rank], tmp_path))
    (bucket,) = slices(events, "buckets")
    assert (bucket["name"], bucket["ts"], bucket["dur"]) == ("bucket 3, 1 kB", 1000, 5000)
    stages = slices(events, "compressor, thread 100")
    assert [stage["name"] for stage in stages] == ["encode", "exchange", "reduce", "decode"]
    assert stages[0]["args"] == {"scheme": "int8", "bucket": 3}


def test_missing_and_damaged_ranks_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [Rank(rank, 3) for rank in (0, 1)]
    for rank in ranks:
        rank.step(0, MS)
    save(ranks, tmp_path)
    (tmp_path / "rank_1.trace").write_bytes(b"COMMPROF")
    (tmp_path / "run.json").write_text(json.dumps(context(world_sizes=[3])))
    events = events_of(tmp_path)
    out, err = capsys.readouterr()
    assert "1 of 3 ranks" in out
    assert "no trace of rank 2" in err
    assert "rank 1 is left out" in err
    assert {event["pid"] for event in events} == {0}


def test_many_missing_and_damaged_ranks_are_named_by_ranges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [Rank(rank, 299) for rank in range(41)]
    ranks[0].step(0, MS)
    save(ranks, tmp_path)
    for rank in range(1, 41):
        (tmp_path / f"rank_{rank}.trace").write_bytes(b"COMMPROF")
    (tmp_path / "run.json").write_text(json.dumps(context(world_sizes=[299])))
    events_of(tmp_path)
    err = " ".join(capsys.readouterr().err.split())
    assert "ranks 1-40 are left out: " in err
    assert "rank_N.trace: " in err
    assert "no trace of ranks 41-298" in err


def test_the_file_suffix_selects_gzip_and_named_files_need_force_to_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(two_ranks(), tmp_path)
    assert main(["trace", str(tmp_path)]) == 0
    with gzip.open(tmp_path / "trace_2.json.gz", "rt") as file:
        assert json.load(file)["otherData"]["world_size"] == 2
    assert main(["trace", str(tmp_path)]) == 0
    named = ["trace", str(tmp_path), "-o", str(tmp_path / "trace_2.json.gz")]
    assert main(named) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*named, "--force"]) == 0
    assert list(tmp_path.glob("*.part")) == []


def test_tracing_a_run_of_several_strategies_requires_naming_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_strategies(tmp_path / "run")
    assert main(["trace", str(run)]) == 2
    assert f"name {run}/ddp or {run}/fsdp" in capsys.readouterr().err
    assert main(["trace", str(run / "ddp")]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "5-2"), "ends before it begins"),
        (("--steps", "a"), "is not a range such as"),
        (("--steps", "7"), "no rank recorded a step with a number from 7 to 7"),
        (("--world-size", "4"), "world sizes with traces: 2"),
        (("--merge", "none.json"), "none.json cannot be read"),
        (("-o", "/proc/none/trace.json"), "cannot write"),
    ],
)
def test_trace_reports_errors_in_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(two_ranks(), tmp_path)
    assert main(["trace", str(tmp_path), *arguments]) != 0
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_special_characters_in_names_are_escaped_as_json(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    rank.groups = {1: ('"},{"ph":"X\n\x1b[31m', 1)}
    rank.metadata["machine"]["hostname"] = "\"</script>'\\"
    rank.collective(0, 0, MS, bytes=4)
    rank.step(0, MS)
    events = events_of(save([rank], tmp_path))
    (collective,) = slices(events, "collectives in flight")
    assert collective["args"]["group"] == '"},{"ph":"X\n\x1b[31m'


def test_a_trace_that_grows_while_it_is_read_is_refused(tmp_path: Path) -> None:
    ranks = two_ranks()
    save(ranks, tmp_path)
    paths = {rank: tmp_path / f"rank_{rank}.trace" for rank in (0, 1)}
    view = overview(paths, None)
    ranks[1].collective(2, 10 * MS, 11 * MS)
    save(ranks, tmp_path)
    rank_timeline(view, 0)
    with pytest.raises(CommprofError, match="grown"):
        rank_timeline(view, 1)


def test_times_are_written_to_the_nanosecond() -> None:
    texts = [chrome_trace.microseconds(t) for t in (0, 1, 999, 1000, 123456789012345678, -1, -1500)]
    assert texts == ["0.000", "0.001", "0.999", "1.000", "123456789012345.678", "-0.001", "-1.500"]


def test_events_are_written_as_they_are_produced() -> None:
    out = io.StringIO()

    def endless() -> Any:
        for number in range(3):
            assert out.getvalue().count("\n") == max(1, number)
            yield json.dumps({"number": number})

    assert chrome_trace.write(out, {"a": 1}, endless()) == 3
    value = json.loads(out.getvalue())
    assert [event["number"] for event in value["traceEvents"]] == [0, 1, 2]
    assert value["otherData"] == {"a": 1}


def test_on_a_gpu_slices_have_device_times(tmp_path: Path) -> None:
    rank = two_steps()
    table = columns.steps(on_device_timeline(rank.trace()))
    rank.write(tmp_path / "rank_0.trace")
    events = events_of(tmp_path)
    begin_ns = json.loads((tmp_path / "trace.json").read_text())["otherData"]["begin_monotonic_ns"]
    found = [(e["ts"], e["dur"]) for e in slices(events, "steps (declared)")]
    assert found == [
        pytest.approx(((begin - begin_ns) / 1e3, (end - begin) / 1e3))
        for begin, end in zip(table.begin_ns.tolist(), table.end_ns.tolist(), strict=True)
    ]
    assert slices(events, "exposed")
