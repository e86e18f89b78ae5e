from __future__ import annotations

import cProfile
import dataclasses
import gc
import pstats
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.align import arrivals, matching
from commprof.analysis.step import exposure
from commprof.analysis.step import joined as blocks
from commprof.commands import main
from commprof.trace import columns, nccl, schema
from commprof.trace.columns import DURATION, MOMENT, Steps, shifted
from commprof.trace.ranks import firsts_of, joined, lengths_of
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import Kind
from tests.support.builders import trace_bytes as made
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.builders.traces import MS, Rank


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def trace_of(directory: Path, *rows: bytes) -> Trace:
    path = directory / "rank_1.trace"
    path.write_bytes(made.trace(made.block(made.RECORDS_BLOCK, b"".join(rows)), made.end()))
    return read_trace(path)


def issue(time_ns: int, op_id: int, **fields: int) -> bytes:
    return made.record(time_ns, made.ISSUE, op_id=op_id, **fields)


def ended(time_ns: int, op_id: int) -> bytes:
    return made.record(time_ns, made.END, op_id=op_id)


def waited(begin_ns: int, end_ns: int, op_id: int) -> bytes:
    return made.record(begin_ns, made.WAIT, op_id=op_id, value=end_ns)


def boundary(time_ns: int, step: int, *, ended: bool = True, thread: int = 1) -> bytes:
    return made.record(time_ns, made.STEP, op_id=step, aux=int(ended), thread=thread)


def test_an_empty_trace_gives_empty_tables(directory: Path) -> None:
    trace = trace_of(directory)
    for table in (columns.collectives(trace), columns.steps(trace), columns.phases(trace)):
        assert len(table) == 0
    assert len(columns.waits(trace)) == len(columns.buckets(trace)) == 0
    assert len(columns.finalizations(trace).span) == 0


def test_collectives_join_their_completion(directory: Path) -> None:
    all_reduce = schema.OPS.index("all_reduce")
    table = columns.collectives(
        trace_of(
            directory,
            issue(30, 2, op=all_reduce, group=1, seq=8, value=0),
            issue(10, 1, op=all_reduce, group=1, seq=7, bytes_in=64, bytes_out=32, value=5),
            ended(50, 1),
            ended(40, 2),
            ended(99, 3),
        )
    )

    assert table.op_id.tolist() == [1, 2]
    assert table.issue_ns.tolist() == [10, 30]
    assert table.end_ns.tolist() == [50, 40]
    assert table.op.tolist() == [all_reduce, all_reduce]
    assert table.seq.tolist() == [7, 8]
    assert table.bytes_in.tolist() == [64, 0]
    assert table.bytes_out.tolist() == [32, 0]
    assert table.graph_task.tolist() == [4, -1]


def test_the_first_wait_ends_a_collective_without_reported_completion(directory: Path) -> None:
    async_flag = schema.FLAG_DEVICE_ASYNC
    table = columns.collectives(
        trace_of(
            directory,
            issue(10, 1),
            waited(15, 20, 1),
            issue(11, 2),
            issue(12, 3, flags=async_flag),  # a wait for a device does not show the end
            waited(16, 21, 3),
            issue(13, 4),
            waited(17, 30, 4),
            ended(18, 4),
            issue(14, 5),
            waited(40, 41, 5),
            waited(50, 51, 5),
        )
    )

    assert table.end_ns.tolist() == [20, 0, 0, 18, 41]


def test_steps_are_the_times_between_boundaries(directory: Path) -> None:
    steps = columns.steps(
        trace_of(
            directory,
            boundary(100, 0, ended=False),
            boundary(110, 0, thread=7),
            boundary(125, 1, thread=7),
        )
    )

    assert steps.index.tolist() == [0, 1]
    assert steps.begin_ns.tolist() == [100, 110]
    assert steps.end_ns.tolist() == [110, 125]
    assert steps.thread.tolist() == [7, 7]


def test_a_pause_of_recording_belongs_to_no_step(directory: Path) -> None:
    rows = [boundary(0, 0, ended=False), boundary(10, 0), boundary(20, 1)]
    rows += [boundary(70, 4, ended=False), boundary(80, 4), boundary(95, 5)]
    steps = columns.steps(trace_of(directory, *rows))

    assert steps.index.tolist() == [0, 1, 4, 5]
    assert (steps.end_ns - steps.begin_ns).tolist() == [10, 10, 10, 15]


def test_a_lost_boundary_removes_both_adjacent_steps(directory: Path) -> None:
    rows = [boundary(0, 0, ended=False), boundary(10, 0), boundary(30, 2), boundary(40, 3)]
    steps = columns.steps(trace_of(directory, *rows))

    assert steps.index.tolist() == [0, 3]
    assert (steps.end_ns - steps.begin_ns).tolist() == [10, 10]


def test_without_the_first_boundary_the_first_step_is_left_out(directory: Path) -> None:
    steps = columns.steps(trace_of(directory, boundary(10, 0), boundary(20, 1)))

    assert steps.index.tolist() == [1]


def test_phase_and_wait_records_become_intervals(directory: Path) -> None:
    forward = schema.Phase.FORWARD
    trace = trace_of(
        directory,
        made.record(10, made.PHASE, aux=forward, value=25, thread=3),
        waited(30, 31, 9),
    )
    phases, waits = columns.phases(trace), columns.waits(trace)

    assert (phases.key[0], phases.thread[0]) == (forward, 3)
    assert (phases.begin_ns[0], phases.end_ns[0]) == (10, 25)
    assert (waits.key[0], waits.begin_ns[0], waits.end_ns[0]) == (9, 30, 31)


def window(
    kind: int,
    time_ns: int,
    task: int,
    cpu: int,
    delay: int,
    thread: int = 1,
    flags: int = made.RUN_DELAY_READ,
) -> bytes:
    return made.record(
        time_ns, kind, op_id=task, value=cpu, bytes_in=delay, thread=thread, flags=flags
    )


@pytest.mark.parametrize(
    ("cpu_ns", "run_delay_ns", "blocked_ns", "no_core_ns"),
    [
        (30, 20, 70, 20),
        (30, 90, 70, 70),  # the two clocks differ in resolution, so the delay is limited to 70 ns
        (120, 0, 0, 0),
        (0, 0, 100, 0),
    ],
)
def test_finalizations_have_blocked_time_and_time_without_a_core(
    directory: Path, cpu_ns: int, run_delay_ns: int, blocked_ns: int, no_core_ns: int
) -> None:
    begin = window(made.FINALIZE_BEGIN, 1000, 5, cpu=400, delay=70)
    end = window(made.FINALIZE_END, 1100, 5, cpu=400 + cpu_ns, delay=70 + run_delay_ns)
    found = columns.finalizations(trace_of(directory, begin, end))

    assert found.span.key.tolist() == [5]
    assert (found.span.begin_ns.tolist(), found.span.end_ns.tolist()) == ([1000], [1100])
    assert found.blocked_ns.tolist() == [blocked_ns]
    assert found.no_core_ns.tolist() == [no_core_ns]


def test_time_without_a_core_is_unknown_if_no_run_delay_was_read(directory: Path) -> None:
    rows = [window(made.FINALIZE_BEGIN, 1000, 5, 400, 0, flags=0)]
    rows += [window(made.FINALIZE_END, 1100, 5, 430, 0, flags=0)]
    found = columns.finalizations(trace_of(directory, *rows))

    assert found.blocked_ns.tolist() == [70]
    assert np.isnan(found.no_core_ns).all()


@pytest.mark.parametrize(("threads", "own"), [(1, [20, 30]), (4, [0, 0])])
def test_delay_by_helper_threads_is_at_most_their_cpu_time(
    directory: Path, threads: int, own: list[int]
) -> None:
    delay, helpers = (50, 30), (20, 90)
    rows = [
        made.record(at, Kind.RUN_DELAY, value=at + 99, bytes_in=delay[at], bytes_out=helpers[at])
        for at in (0, 1)
    ]
    trace = trace_of(directory, *rows)
    trace.metadata["threads"] = threads
    assert columns.run_delays(trace).key.tolist() == [50, 30]
    assert columns.own_run_delays(trace).key.tolist() == own


def test_finalizations_are_paired_by_thread_and_unpaired_ones_left_out(directory: Path) -> None:
    rows = [
        window(made.FINALIZE_END, 5, 1, 0, 0),
        window(made.FINALIZE_BEGIN, 10, 2, 0, 0, thread=1),
        window(made.FINALIZE_BEGIN, 11, 3, 0, 0, thread=2),
        window(made.FINALIZE_END, 20, 2, 0, 0, thread=1),
        window(made.FINALIZE_END, 31, 3, 0, 0, thread=2),
        window(made.FINALIZE_BEGIN, 40, 4, 0, 0),
    ]
    span = columns.finalizations(trace_of(directory, *rows)).span

    assert span.key.tolist() == [2, 3]
    assert span.thread.tolist() == [1, 2]
    assert (span.end_ns - span.begin_ns).tolist() == [10, 20]


def test_a_pass_that_the_script_finalises_has_that_finalisation_only(directory: Path) -> None:
    manual = schema.FLAG_MANUAL_FINALIZE
    rows = [
        window(made.FINALIZE_BEGIN, 10, 2, 0, 0),
        window(made.FINALIZE_END, 11, 2, 0, 0),
        window(made.FINALIZE_BEGIN, 20, 2, 0, 0, flags=manual),
        window(made.FINALIZE_END, 90, 2, 10, 0, flags=manual),
        window(made.FINALIZE_BEGIN, 100, 3, 0, 0),
        window(made.FINALIZE_END, 130, 3, 0, 0),
    ]
    found = columns.finalizations(trace_of(directory, *rows))

    assert found.span.key.tolist() == [2, 3]
    assert found.span.begin_ns.tolist() == [20, 100]
    assert found.blocked_ns.tolist() == [60, 30]


def test_a_wait_inside_the_issuing_call_is_a_wait_but_no_completion(directory: Path) -> None:
    rows = [
        made.record(10, made.ISSUE, op_id=1),
        made.record(10, made.WAIT, op_id=1, value=5010, flags=schema.FLAG_IN_ISSUE),
        made.record(6000, made.ISSUE, op_id=2),
        made.record(6000, made.WAIT, op_id=2, value=8000, flags=schema.FLAG_IN_ISSUE),
        made.record(9000, made.WAIT, op_id=2, value=12000),
    ]
    trace = trace_of(directory, *rows)
    table, waits = columns.collectives(trace), columns.waits(trace)

    assert table.end_ns.tolist() == [0, 12000]
    assert table.end_is_exact.tolist() == [False, True]
    assert (waits.end_ns - waits.begin_ns).tolist() == [5000, 2000, 3000]


def test_bucket_records_become_rows_with_ready_launch_and_end_times(directory: Path) -> None:
    signature = 2**64 - 1
    buckets = columns.buckets(
        trace_of(
            directory,
            made.record(
                10, made.BUCKET, op_id=1, aux=0, bytes_in=256, bytes_out=signature, value=12
            ),
            made.record(14, made.BUCKET, op_id=2, aux=1, value=15, dtype=6),
            made.record(20, made.BUCKET_END, op_id=1),
        )
    )

    assert buckets.index.tolist() == [0, 1]
    assert buckets.bytes.tolist() == [256, 0]
    assert int(buckets.signature[0]) == signature
    assert buckets.dtype.tolist() == [0, 6]
    assert buckets.ready_ns.tolist() == [10, 14]
    assert buckets.launch_ns.tolist() == [12, 15]
    assert buckets.end_ns.tolist() == [20, 0]


TABLES = ("phases", "waits", "pauses", "finalizations", "collectives", "buckets")


def calls_of(profile: cProfile.Profile, *files: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for (file, _, name), (_, calls, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if file in files:
            found[name] += calls
    return found


def test_a_report_builds_each_table_once_per_rank_and_matches_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks_of(4, 12, late_ms=5))
    profile = cProfile.Profile()
    assert profile.runcall(main, ["report", str(run), "--format", "html"]) == 0
    made = calls_of(profile, columns.__file__)
    assert {name: made[name] for name in TABLES} == dict.fromkeys(TABLES, 4)
    assert calls_of(profile, blocks.__file__)["_keep_steps"] == 1
    assert made["steps"] == 0
    assert made["compressions"] == 0
    # Tables are requested far more often than they are built.
    assert made["kept"] > 2 * len(TABLES) * 4
    assert calls_of(profile, exposure.__file__)["exposures"] == 4
    assert calls_of(profile, matching.__file__)["match"] == 1


def test_columns_of_ranks_are_joined_without_a_table_of_each_rank() -> None:
    traces = [_with_steps(number) for number in range(5)]
    of_ranks = [columns.steps(_with_steps(number)) for number in range(5)]
    whole = Steps(*(joined(of_ranks[1:4], name) for name in _STEPS), "update")
    columns.keep_rows(traces[1:4], columns.steps, whole, [1, 2, 3], Steps.between)
    tables = columns.tables_of(traces, columns.steps)
    assert lengths_of(tables) == [0, 1, 2, 3, 4]
    assert firsts_of(tables).tolist() == [0, 0, 1, 3, 6, 10]
    for rows in (slice(None), slice(2, 4), slice(2, 3), slice(0, 1), slice(0, 0)):
        for name in _STEPS:
            expected = [getattr(of_rank, name) for of_rank in of_ranks[rows]]
            if expected:
                assert joined(tables[rows], name).tolist() == np.concatenate(expected).tolist()
        assert lengths_of(tables[rows]) == list(map(len, of_ranks[rows]))
    assert columns.steps(traces[2]) is tables[2]
    assert [steps.source for steps in tables] == ["declared", *["update"] * 3, "declared"]
    assert [steps.end_ns.tolist() for steps in tables] == [s.end_ns.tolist() for s in of_ranks]
    chosen, first = columns.steps_of_ranks(traces, np.array([0, 2]))
    assert chosen.index.tolist() == [0, 0, 0, 2, 0, 2]
    assert chosen.end_ns.tolist() == [
        of.end_ns[at] for of in of_ranks for at in (0, 2)[: len(of)] if at < len(of)
    ]
    assert first.tolist() == [0, 0, 1, 2, 4, 6]


_STEPS = ("index", "begin_ns", "end_ns", "thread")


def _with_steps(number: int) -> Trace:
    rank = Rank()
    for step in range(number):
        rank.step(step * MS, (step + 1) * MS)
    return rank.trace()


def test_a_trace_with_more_records_has_separate_tables() -> None:
    rank = Rank()
    rank.step(0, MS)
    trace = rank.trace()
    assert len(columns.steps(trace)) == 1
    assert columns.steps(trace) is columns.steps(trace)
    rank.step(MS, 2 * MS)
    grown = dataclasses.replace(trace, records=rank.records())
    assert len(columns.steps(grown)) == 2
    assert len(columns.steps(trace)) == 1


def test_cached_tables_are_freed_with_their_trace() -> None:
    rank = Rank()
    rank.step(0, MS)
    trace = rank.trace()
    table = weakref.ref(columns.steps(trace))
    assert table() is not None
    del trace
    gc.collect()
    assert table() is None


def test_tables_and_the_records_of_a_trace_are_read_only() -> None:
    rank = Rank()
    rank.step(0, 10 * MS)
    rank.finalize(MS, 2 * MS, cpu=0)
    written = rank.records()
    trace = dataclasses.replace(rank.trace(), records=written)
    found = columns.finalizations(trace)
    for column in (columns.steps(trace).end_ns, found.blocked_ns, found.span.begin_ns):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        trace.records["timestamp_ns"][0] = 1
    assert written.flags.writeable
    assert np.count_nonzero(written["kind"] == Kind.STEP) == 2


def test_fields_are_read_by_the_names_of_the_table(directory: Path) -> None:
    half = int(np.float64(0.5).view(np.uint64))
    trace = trace_of(
        directory,
        made.record(10, Kind.HOST_COUNTS, op_id=3, seq=4, aux=5, bytes_in=6, bytes_out=7, value=90),
        made.record(20, Kind.STACK, op_id=8, value=2),
        made.record(30, Kind.STACK, op_id=9, value=1),
        made.record(40, Kind.QUALITY, op_id=8, bytes_out=half, seq=11),
    )
    counts = {
        name: columns.recorded(trace, Kind.HOST_COUNTS, name).tolist()
        for name in schema.FIELDS[Kind.HOST_COUNTS]
    }
    assert counts == {
        "end_ns": [90],
        "throttled_ns": [6],
        "involuntary_switches": [5],
        "minor_faults": [4],
        "major_faults": [3],
        "memory_stall_ns": [7],
    }
    assert columns.recorded(trace, Kind.QUALITY, "cosine").tolist() == [0.5]
    ids = np.array([9, 7, 8])
    assert columns.of_operations(trace, ids, Kind.STACK, "stack").tolist() == [1, 0, 2]
    assert columns.of_operations(trace, ids, Kind.QUALITY, "cosine").tolist() == [0, 0, 0.5]


def test_each_column_of_times_says_what_it_holds() -> None:
    tables = [
        table
        for module in (columns, nccl, arrivals)
        for table in vars(module).values()
        if dataclasses.is_dataclass(table) and table.__module__ == module.__name__
    ]
    times = [
        (table.__name__, column.name, column.metadata)
        for table in tables
        for column in dataclasses.fields(table)
        if column.name.endswith("_ns")
    ]
    assert len(tables) >= 10
    assert [(table, name) for table, name, role in times if role not in (MOMENT, DURATION)] == []


def test_durations_are_the_same_on_another_clock() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pauses:
        begin_ns: columns.Ints = dataclasses.field(metadata=MOMENT)
        length_ns: columns.Ints = dataclasses.field(metadata=DURATION)

    found = shifted(Pauses(np.array([0, 50]), np.array([7, 8])), np.array([100, 100]))
    assert (found.begin_ns.tolist(), found.length_ns.tolist()) == ([0, 150], [7, 8])
