"""The values come from dumps that torch 2.13.0 and 2.15.0 wrote.

In torch 2.15, ``FlightRecorderHook`` retires an issued operation at once if its backend reports no
completions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.late.dumped_diagnosis import Diagnosis
from commprof.analysis.late.dumped_hang import diagnosis
from commprof.recordings.flight_recorder import read_dumps
from commprof.report.hang_diagnosis import render
from tests.support.builders.flight_dumps import dump, entry, write_dumps

PAIR = {"0": [0, 1]}
Value = dict[str, Any]


def hooked(*entries: Value, **changes: Any) -> Value:
    value = dump(PAIR, *entries) | {"version": "2.10", "comm_lib_version": ""}
    issued = {"last_enqueued_collective": len(entries) - 1, "last_started_collective": -1}
    value["pg_status"] = {"0": {**issued, "last_completed_collective": -1}}
    return value | changes


def issued(seq: int, op: str = "all_reduce", backend: str = "commprof") -> Value:
    return entry("0", seq, op, backend=backend) | {"retired": True}


def ended(seq: int, op: str = "all_reduce", backend: str = "nccl") -> Value:
    done = entry("0", seq, op, "completed", backend=backend)
    return done | {"time_discovered_started_ns": 5, "time_discovered_completed_ns": 6}


def diagnosed(folder: Path, *dumps: Value | None) -> Diagnosis:
    return diagnosis(write_dumps(folder, *dumps))


@pytest.mark.parametrize("backend", ["commprof", "ucc", "mpi", "nccl", "c10d"])
def test_operations_whose_end_nobody_reports_accuse_nobody(tmp_path: Path, backend: str) -> None:
    first = [issued(seq, backend=backend) for seq in range(3)]
    sent = hooked(*first, issued(1, "send 0->1", backend))
    received = hooked(*first, issued(1, "recv 1<-?", backend))
    found = diagnosed(tmp_path, sent, received)
    assert (found.kind, found.culprits, found.victims) == ("unknown", (), ())
    assert found.sentence == (
        f"No operation is known to be pending: backend {backend!r} does not tell Flight Recorder "
        "when an operation completes. The ranks with a dump issued the same number of collectives"
    )
    (group,) = found.groups
    assert (group.scheduled, group.completed) == ({0: 2, 1: 2}, {})


def test_a_rank_that_issued_fewer_operations_is_no_culprit_if_none_is_known_to_pend(
    tmp_path: Path,
) -> None:
    found = diagnosed(tmp_path, hooked(issued(0), issued(1)), hooked(issued(0)))
    assert (found.kind, found.culprits) == ("unknown", ())
    assert found.sentence.endswith("issued different numbers of collectives")
    assert " 1: 0; 0: 1 " in render(found, 100)


def test_an_operation_that_a_hook_has_not_retired_is_pending(tmp_path: Path) -> None:
    waits = entry("0", 1, backend="commprof")
    found = diagnosed(tmp_path, hooked(issued(0), waits), hooked(issued(0)))
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [1])
    assert found.culprits[0].why.startswith("rank 1 did not arrive at all_reduce number 1 of")
    assert "- operations of commprof may be pending, too" in render(found, 100)


def test_a_backend_that_reports_completions_is_believed(tmp_path: Path) -> None:
    waits = entry("0", 1)
    found = diagnosed(tmp_path, hooked(ended(0), waits), hooked(ended(0)))
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [1])
    healthy = diagnosed(tmp_path, hooked(ended(0)), hooked(ended(0)))
    assert (healthy.kind, healthy.lacks.untold) == ("none", ())


@pytest.mark.parametrize(
    ("version", "library"), [("2.10", "2.28.9"), ("2.9", ""), ("2.4", ""), ("2.2", "")]
)
def test_what_nccl_retired_without_completion_has_timed_out(
    tmp_path: Path, version: str, library: str
) -> None:
    about = {"version": version, "comm_lib_version": library, "pg_status": {}}
    late = entry("0", 0) | {"retired": True}
    found = diagnosed(tmp_path, hooked(late, **about), hooked(**about))
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [1])


def test_what_gloo_retired_has_ended(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, *[hooked(issued(0, backend="gloo"))] * 2)
    assert (found.kind, found.lacks.untold) == ("none", ())


def test_a_status_alone_without_any_completion_shows_no_hang(tmp_path: Path) -> None:
    alone = [{**hooked(issued(0)), "entries": []} for _ in range(2)]
    found = diagnosed(tmp_path, *alone)
    assert (found.kind, found.culprits) == ("none", ())


def test_nobody_is_known_to_miss_a_message_from_any_rank(tmp_path: Path) -> None:
    waits = hooked(ended(0), entry("0", 1, "recv 1<-?"))
    found = diagnosed(tmp_path, hooked(ended(0), entry("0", 1, "send 0->1")), waits)
    assert (found.kind, found.culprits) == ("unmatched", ())
    alone = diagnosed(tmp_path, hooked(ended(0)), waits)
    assert (alone.kind, alone.culprits, alone.victims) == ("unmatched", (), (1,))
    assert "network" not in alone.sentence


def test_a_rank_without_timing_is_not_said_to_have_begun_nothing(tmp_path: Path) -> None:
    """Without TORCH_NCCL_ENABLE_TIMING, torch does not record when NCCL's operations start."""
    begun = entry("0", 1, state="started") | {"time_discovered_started_ns": 9}
    timed = dump(PAIR, ended(0), begun)
    untimed = ended(0) | {"time_discovered_started_ns": None}
    found = diagnosed(tmp_path, timed, dump(PAIR, untimed, entry("0", 1)))
    assert (found.kind, found.culprits) == ("arrived", ())
    found = diagnosed(tmp_path, timed, dump(PAIR, ended(0), entry("0", 1)))
    assert (found.kind, [one.rank for one in found.culprits]) == ("behind", [1])


@pytest.mark.parametrize("first", [0, 1])
def test_collectives_are_numbered_from_0_as_in_traces(tmp_path: Path, first: int) -> None:
    """c10d counts collectives from 1. The numbers of a dump that counts from 0 stay as they are."""
    numbers = range(first, first + 3)
    entries = [ended(0) | {"collective_seq_id": number} for number in numbers]
    waits = entry("0", 0) | {"collective_seq_id": first + 3}
    found = diagnosed(tmp_path, dump(PAIR, *entries, waits), dump(PAIR, *entries))
    assert found.culprits[0].why.startswith("rank 1 did not arrive at all_reduce number 3 of")
    assert "SeqNum in c10d's messages is 1 more" in " ".join(render(found, 100).split())


def framed(value: Value, line: int) -> Value:
    """Flight Recorder stores the innermost frame first."""
    library = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
    frames = [("all_gather", library, 3853), ("exchange", "/home/me/train.py", line)]
    named = [{"name": name, "filename": file, "line": at} for name, file, at in frames]
    return value | {"frames": [*named, {"name": "<module>", "filename": "main.py", "line": 2}]}


@pytest.mark.parametrize(
    ("functions", "op"),
    [
        (["reduce_scatter_single", "wrapper", "reduce_scatter_tensor"], "reduce_scatter_tensor"),
        (["reduce_scatter"], "reduce_scatter"),
        (["all_reduce"], "all_reduce"),
        ([], "all_reduce"),  # dumps in JSON hold no stacks
    ],
)
def test_gloo_records_a_reduce_scatter_as_an_all_reduce_and_the_stack_tells(
    tmp_path: Path, functions: list[str], op: str
) -> None:
    library = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
    frames = [{"name": name, "filename": library, "line": 1} for name in functions]
    frames.append({"name": "reduce_scatter", "filename": "/home/me/train.py", "line": 7})
    waits = entry("0", 0, backend="gloo", count=1000) | {"frames": frames if functions else []}
    dumps, _ = read_dumps(write_dumps(tmp_path, dump(PAIR, waits), dump(PAIR)))
    (read,) = dumps[0].entries
    assert (read.op, read.bytes_in) == (op, 4000)
    assert read.bytes_out == (4000 if op == "all_reduce" else -1)


def test_a_mismatch_of_two_ranks_names_both_calls_and_their_lines(tmp_path: Path) -> None:
    gathers = framed(entry("0", 1, "allgather", backend="gloo", count=2000), 8)
    barrier = framed(entry("0", 1, "barrier", backend="gloo") | {"input_sizes": []}, 10)
    done = [entry("0", 0, state="completed", backend="gloo")]
    found = diagnosed(tmp_path, dump(PAIR, *done, gathers), dump(PAIR, *done, barrier))
    assert (found.kind, found.culprits, found.victims) == ("mismatch", (), (0, 1))
    assert found.sentence == (
        "The ranks issued different collectives as number 1 of group '0': rank 1 issued a barrier "
        "(train.py:10) where rank 0 issued an all_gather of 8000 bytes as Float (train.py:8); "
        "which rank is wrong cannot be told"
    )
    assert "network" not in render(found, 100)


def test_the_rank_that_differs_from_its_earlier_steps_is_the_culprit(tmp_path: Path) -> None:
    steps = [ended(seq) | {"input_sizes": [[8 + 8 * (seq % 2)]]} for seq in range(6)]
    for one in steps:
        one["output_sizes"] = one["input_sizes"]
    late = dump(PAIR, *steps, entry("0", 6, count=16))
    found = diagnosed(tmp_path, late, dump(PAIR, *steps, entry("0", 6, count=8)))
    assert (found.kind, [one.rank for one in found.culprits]) == ("mismatch", [0])
    assert "rank 0 differs from its own earlier steps" in found.sentence


@pytest.mark.parametrize("branches", [False, True])
def test_a_call_left_out_among_calls_that_look_alike_is_found_by_its_line(
    tmp_path: Path, branches: bool
) -> None:
    def issued_by(rank: int) -> list[Value]:
        places = [(step, line) for step in range(3) for line in range(1, 5)]
        places.remove((2, 2)) if rank == 1 else None
        made = []
        for seq, (_, line) in enumerate(places):
            one = ended(seq) | {"input_sizes": [[8 + 8 * (line == 4)]]}
            at = line + 10 * (branches and rank == 1 and line == 1)
            made.append(framed(one | {"output_sizes": one["input_sizes"]}, at))
        return made

    whole, short = issued_by(0), issued_by(1)
    waiting = [one | {"state": "scheduled"} for one in (whole[10], short[10])]
    dumps = (
        dump(PAIR, *steps[:10], last) for steps, last in zip((whole, short), waiting, strict=True)
    )
    found = diagnosed(tmp_path, *dumps)
    assert found.mismatch is not None
    assert found.mismatch.seq == 10
    assert found.mismatch.shifted == (9, ((0, "train.py:2"), (1, "train.py:3")))
    assert (
        "; before that, collective 9 agrees only in operation and size: rank 1 issued it at "
        "train.py:3, rank 0 issued it at train.py:2, so a call was left out or added there"
    ) in found.sentence


def test_a_size_that_one_dump_lacks_is_no_mismatch(tmp_path: Path) -> None:
    unsized = entry("0", 1) | {"input_sizes": None, "output_sizes": None}
    untyped = entry("0", 1) | {"input_dtypes": ["Unheard"], "output_dtypes": ["Unheard"]}
    for other in (unsized, untyped | {"input_dtypes": None, "output_dtypes": None}):
        found = diagnosed(tmp_path, dump(PAIR, entry("0", 1)), dump(PAIR, other))
        assert (found.kind, found.mismatches) == ("arrived", ())


def test_a_mismatch_before_what_all_ranks_wait_in_is_the_cause(tmp_path: Path) -> None:
    mixed = [ended(0, op) for op in ("all_reduce", "broadcast")]
    found = diagnosed(tmp_path, *[dump(PAIR, one, entry("0", 1)) for one in mixed])
    assert (found.kind, found.culprits) == ("mismatch", ())
    assert found.sentence.startswith("The ranks issued different collectives as number 0 of")
