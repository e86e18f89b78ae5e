from __future__ import annotations

import os
import pickle
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.late import standstill
from commprof.analysis.late.dumped_diagnosis import Diagnosis
from commprof.analysis.late.dumped_hang import diagnosis
from commprof.analysis.late.standstill import reasons
from commprof.errors import TraceError
from commprof.recordings.flight_recorder import read_dumps
from commprof.recordings.flight_recorder_files import is_flight_recorder
from commprof.recordings.flight_recorder_pickle import read_plain_pickle
from commprof.report.hang_diagnosis import render
from tests.support.builders.flight_dumps import dump, entry, write_dumps

ALL = {"0": [0, 1, 2]}
_PLACES = [place / "shared/data/flight_recorder" for place in Path(__file__).parents[4:6]]
#: ``shared`` lies beside the repository, or beside the folder that holds all worktrees.
DATA = next((place for place in _PLACES if place.exists()), _PLACES[0])


def culprits(found: Diagnosis) -> tuple[str, list[int]]:
    return found.kind, [one.rank for one in found.culprits]


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_did_not_arrive_is_the_culprit(tmp_path: Path, as_json: bool) -> None:
    done = entry("0", 1, state="completed")
    waits = entry("0", 2)
    write_dumps(
        tmp_path, dump(ALL, done, waits), dump(ALL, done), dump(ALL, done, waits), as_json=as_json
    )
    assert is_flight_recorder(tmp_path)
    found = diagnosis(tmp_path)
    assert culprits(found) == ("absent", [1])
    assert found.victims == (0, 2)
    missed = "all_reduce number 2 of group '0' (GROUP_0)"
    assert found.culprits[0].why == f"rank 1 did not arrive at {missed}; it has nothing pending"
    (group,) = found.groups
    assert (group.scheduled, group.completed) == ({0: 2, 1: 1, 2: 2}, {0: 1, 1: 1, 2: 1})


def test_many_ranks_are_named_by_ranges(tmp_path: Path) -> None:
    everyone = {"0": list(range(300))}
    done = entry("0", 1, state="completed")
    idle = [dump(everyone, done)] * 127
    write_dumps(tmp_path, dump(everyone, done, entry("0", 2)), *idle)
    found = diagnosis(tmp_path)
    assert found.sentence == "The job hangs because of ranks 1-127; 1 other rank waits for them"
    said = " ".join(render(found, 1000).split())
    missed = "all_reduce number 2 of group '0' (GROUP_0)"
    assert f"- ranks 1-127 did not arrive at {missed}; they have nothing pending " in said
    assert f"- rank 0 waits in {missed} for ranks 1-127 " in said
    assert "- ranks 128-299 left no readable dump: their state is not known" in said
    assert "0 GROUP_0 0-299 2: 0; 1: 1-127 " in said


@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1", "where"),
    [
        (
            ["send 0->1"],
            ["recv 1<-0"],
            "group '1', but the dumps do not show which ranks belong to this",
        ),
        (
            ["1", "2"],
            ["2", "1"],
            "group '1' and group '2', but the dumps do not show which ranks belong to these",
        ),
    ],
)
def test_ranks_that_wait_in_groups_without_a_list_of_ranks_are_told(
    tmp_path: Path, of_rank_0: list[str], of_rank_1: list[str], where: str
) -> None:
    done = entry("0", 0, state="completed")
    files = [
        dump({}, done, *(_pending(what, 1 + at) for at, what in enumerate(waiting)))
        for waiting in (of_rank_0, of_rank_1, [])
    ]
    found = diagnosis(write_dumps(tmp_path, *files))
    assert culprits(found) == ("members", [])
    groups = "groups" if where.endswith("these") else "group"
    told = (
        f"Ranks wait in {where} {groups}. So whether a rank did not arrive, and which rank, cannot "
        "be told."
    )
    assert " ".join(render(found, 100).split("\n")).count(told) == 1


def _pending(what: str, at: int) -> dict[str, Any]:
    return entry("1", 0, what, at=at) if " " in what else entry(what, 0, at=at)


def test_a_chain_over_two_groups_is_followed_to_its_origin(tmp_path: Path) -> None:
    groups = {"1": [0, 1], "2": [1, 2]}
    write_dumps(
        tmp_path,
        dump(groups, entry("1", 5)),
        dump(groups, entry("1", 4, state="completed"), entry("2", 9)),
        dump(groups, entry("2", 8, state="completed")),
    )
    found = diagnosis(tmp_path)
    assert culprits(found) == ("absent", [2])
    assert found.chains[0].sentence == (
        "rank 0 waits in all_reduce number 5 of group '1' (GROUP_1) for rank 1, which waits in "
        "all_reduce number 9 of group '2' (GROUP_2) for rank 2"
    )


@pytest.mark.parametrize("op", ["all_reduce", "all_reduce_barrier"])
def test_a_rank_that_has_not_completed_what_others_have_is_the_culprit(
    tmp_path: Path, op: str
) -> None:
    done, next_one = entry("0", 1, op, "completed"), entry("0", 2)
    behind = dump(ALL, entry("0", 1, op), next_one)
    write_dumps(tmp_path, dump(ALL, done, next_one), behind, dump(ALL, done, next_one))
    found = diagnosis(tmp_path)
    assert culprits(found) == ("behind", [1])
    # The root of a broadcast may complete before the other ranks arrive.
    done, begun = entry("0", 1, "broadcast", "completed"), entry("0", 1, "broadcast")
    write_dumps(tmp_path, dump(ALL, done), dump(ALL, begun), dump(ALL, begun))
    assert culprits(diagnosis(tmp_path)) == ("arrived", [])


def test_ranks_that_use_groups_in_different_order_are_a_circle(tmp_path: Path) -> None:
    groups = {"1": [0, 1], "2": [0, 1]}
    write_dumps(tmp_path, dump(groups, entry("1", 1)), dump(groups, entry("2", 1)))
    assert culprits(diagnosis(tmp_path)) == ("circle", [0, 1])
    groups |= {"3": [0, 2], "4": [2, 3]}
    others = dump(groups, entry("3", 1)), dump(groups, entry("4", 1))
    write_dumps(tmp_path, dump(groups, entry("1", 1)), dump(groups, entry("2", 1)), *others)
    found = diagnosis(tmp_path)
    assert (culprits(found), found.victims) == (("circle", [0, 1]), (2, 3))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (entry("0", 2, "broadcast"), "rank 1 issued broadcast of 32 bytes as Float"),
        (entry("0", 2, count=9), "rank 1 issued all_reduce of 36 bytes as Float"),
        (entry("0", 2, dtype="Int"), "rank 1 issued all_reduce of 32 bytes as Int"),
    ],
)
def test_ranks_with_mismatched_operations_are_named(
    tmp_path: Path, odd: dict[str, Any], words: str
) -> None:
    write_dumps(tmp_path, dump(ALL, entry("0", 2)), dump(ALL, odd), dump(ALL, entry("0", 2)))
    found = diagnosis(tmp_path)
    assert culprits(found) == ("mismatch", [1])
    assert found.culprits[0].why == f"{words} as number 2 of group '0' (GROUP_0)"


def gloo(*entries: dict[str, Any]) -> dict[str, Any]:
    """Dumps of gloo do not list the ranks of groups."""
    frames = [
        {"name": "step", "filename": "/home/me/train.py", "line": 10 + one["op_id"]}
        for one in entries
    ]
    return dump({}, *(one | {"frames": [at]} for one, at in zip(entries, frames, strict=True)))


def test_a_rank_between_others_that_left_no_dump_is_known_to_exist(tmp_path: Path) -> None:
    waits = gloo(entry("0", 2, backend="gloo"))
    found = diagnosis(write_dumps(tmp_path, waits, None, waits))
    assert (culprits(found), found.read.missing) == (("undumped", [1]), (1,))
    assert found.culprits[0].why == (
        "rank 1 did not arrive at all_reduce number 2 of group '0' (train.py:12); it left no "
        "readable dump"
    )


def test_where_a_rank_issued_its_last_call_is_said_of_one_that_did_not_arrive(
    tmp_path: Path,
) -> None:
    done = entry("0", 1, "barrier", "completed", backend="gloo")
    waits = gloo(done, entry("0", 2, backend="gloo"))
    found = diagnosis(write_dumps(tmp_path, waits, gloo(done), waits))
    assert culprits(found) == ("absent", [1])
    assert found.culprits[0].why == (
        "rank 1 did not arrive at all_reduce number 2 of group '0' (train.py:12); it has nothing "
        "pending; the last call was barrier at train.py:11"
    )
    assert found.sentence == (
        "2 other ranks wait for rank 1; it is not known whether rank 1 waits in a send or recv, "
        "because gloo's dumps hold no messages"
    )


def test_a_circle_says_what_each_rank_waits_in_and_at_which_line(tmp_path: Path) -> None:
    def waits(first: str) -> dict[str, Any]:
        before = [entry(g, 1, state="completed", backend="gloo", at=int(g)) for g in "01"]
        return gloo(*before, entry(first, 2, backend="gloo", at=9))

    found = diagnosis(write_dumps(tmp_path, waits("0"), waits("1"), waits("0")))
    assert culprits(found) == ("circle", [1])
    assert found.sentence == (
        "ranks 0-2 wait for each other: rank 1 waits in all_reduce number 2 of group '1' "
        "(train.py:12) where ranks 0, 2 wait in all_reduce number 2 of group '0' (train.py:12); "
        "rank 1 differs from the majority"
    )


def test_sends_and_receives_are_matched_in_order(tmp_path: Path) -> None:
    pair = {"1": [3, 0]}
    write_dumps(
        tmp_path,
        dump(pair, entry("1", 7, "recv 1<-0"), entry("1", 8, "recv 1<-0")),
        None,
        None,
        dump(pair, entry("1", 30, "send 0->1")),
    )
    found = diagnosis(tmp_path)
    assert culprits(found) == ("absent", [3])
    assert "recv from rank 3 in group '1'" in found.culprits[0].why


def test_a_rank_without_a_dump_is_the_culprit_if_no_other_rank_is(tmp_path: Path) -> None:
    groups = {"1": [0, 1], "2": [1, 2]}
    waits = dump(groups, entry("2", 1))
    write_dumps(tmp_path, dump(groups, entry("1", 2)), waits, None)
    found = diagnosis(tmp_path)
    assert (culprits(found), found.read.missing) == (("undumped", [2]), (2,))
    assert found.victims == (0, 1)
    write_dumps(tmp_path, dump(groups), waits, None)
    write_dumps(tmp_path, dump(groups), dump(groups, entry("1", 2)), None)
    assert culprits(diagnosis(tmp_path)) == ("absent", [0])


def test_a_rank_whose_device_has_not_begun_is_the_culprit(tmp_path: Path) -> None:
    begun, waits = dump(ALL, entry("0", 2, state="started")), dump(ALL, entry("0", 2))
    write_dumps(tmp_path, begun, begun, waits)
    found = diagnosis(tmp_path)
    assert culprits(found) == ("behind", [2])
    assert found.culprits[0].why.startswith("rank 2 has not begun all_reduce number 2")
    assert found.groups[0].started == {0: 2, 1: 2}
    write_dumps(tmp_path, waits, waits, waits)
    found = diagnosis(tmp_path)
    assert culprits(found) == ("arrived", [])
    assert found.oldest == ("all_reduce number 2 of group '0' (GROUP_0)",)


@pytest.mark.parametrize(
    ("done", "shown"),
    [
        ({"time_discovered_started_ns": 5}, "2: 0,1; 1: 2 2: 0,1; 1: 2 1 "),
        ({}, "2: 0,1; 1: 2 2: 0,1 1 "),
    ],
)
def test_a_start_is_that_of_the_ranks_that_recorded_it(
    tmp_path: Path, done: dict[str, Any], shown: str
) -> None:
    before = entry("0", 1, state="completed") | done
    begun = entry("0", 2, state="started") | {"time_discovered_started_ns": 9}
    write_dumps(tmp_path, *(dump(ALL, before, *late) for late in ((begun,), (begun,), ())))
    found = diagnosis(tmp_path)
    assert culprits(found) == ("absent", [2])
    assert found.groups[0].started == {0: 2, 1: 2, **({2: 1} if done else {})}
    assert shown in " ".join(render(found, 1000).split())


def test_a_torch_profiler_trace_is_not_taken_for_a_dump(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_text(
        '{"distributedInfo": {"pg_config": [], "pg_status": 1}, "traceEvents": []}'
    )
    assert not is_flight_recorder(tmp_path)
    assert not is_flight_recorder(tmp_path / "nothing")


def test_coalesced_operations_have_the_state_of_their_launch(
    tmp_path: Path,
) -> None:
    pair = {"1": [0, 1]}
    parts = [entry("1", 4, "send 0->1"), entry("1", 4, "recv 0<-1")]
    whole = entry("1", 4, "send 0->1") | {"profiling_name": "nccl:coalesced"}
    late = dump(pair)
    write_dumps(tmp_path, dump(pair, *parts, whole), late)
    assert culprits(diagnosis(tmp_path)) == ("absent", [1])
    # If a dump holds active entries only, a completed launch is not in it.
    write_dumps(tmp_path, dump(pair, *parts), late)
    assert culprits(diagnosis(tmp_path)) == ("none", [])


def test_many_pending_operations_are_diagnosed_within_the_time_limit(tmp_path: Path) -> None:
    ranks = {"0": [*range(16)]}
    pending = [entry("0", seq) for seq in range(1000)]
    write_dumps(tmp_path, *[dump(ranks, *pending)] * 16)
    begin = time.process_time()
    found = diagnosis(tmp_path)
    assert time.process_time() - begin < 3
    assert found.groups[0].completed == dict.fromkeys(range(16), -1)


def test_the_ranks_of_a_pending_collective_are_compared_once_for_all_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[Any, ...]] = []
    before = standstill._before

    def counted(*given: Any) -> bool:
        compared.append(given)
        return before(*given)

    monkeypatch.setattr(standstill, "_before", counted)
    ranks = {"0": [*range(32)]}
    waiting = dump(ranks, *(entry("0", seq) for seq in range(20)))
    write_dumps(tmp_path, *[waiting] * 31, dump(ranks))
    found = diagnosis(tmp_path)
    assert (culprits(found), found.victims) == (("absent", [31]), (*range(31),))
    # Comparing all pairs of ranks at each call would need 32 * 32 * 20 comparisons.
    assert len(compared) < 32 * (20 + 32)


def test_dumps_without_a_pending_operation_show_no_hang(tmp_path: Path) -> None:
    write_dumps(tmp_path, *[dump(ALL, entry("0", 2, state="completed"))] * 3)
    assert culprits(diagnosis(tmp_path)) == ("none", [])


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the recordings of real jobs")
@pytest.mark.parametrize("name", ["gpu_error_1st", "gpu_error_2nd", "lock_gil_1st", "lock_gil_2nd"])
def test_exactly_the_ranks_with_injected_faults_of_a_real_job_are_named(name: str) -> None:
    text = (DATA / name / "fault_injection.log").read_text()
    injected = sorted(int(rank) for rank in re.findall(r"Rank (\d+), fault_type", text))
    found = diagnosis(DATA / name)
    assert [one.rank for one in found.culprits] == injected
    assert sorted({*range(16)} - {*injected}) == [*found.victims]


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def refusal(folder: Path) -> str:
    try:
        read_dumps(folder)
    except TraceError as error:
        return str(error)
    diagnosis(folder)
    return ""


def test_damaged_dumps_are_refused_in_one_line_and_run_no_code(tmp_path: Path) -> None:
    done = entry("0", 1, state="completed")
    value = dump(ALL, done, entry("0", 2), entry("0", 3, "send 0->1"))
    trap = tmp_path / "trap"
    hostile = pickle.dumps(value | {"entries": [_Hostile(trap)]}, protocol=2)
    whole = [pickle.dumps(value, protocol=protocol) for protocol in (2, 4)]
    whole.append(repr(value).replace("'", '"').encode())
    chosen = random.Random(26)
    refused = 0
    for number in range(500):
        data = bytearray(chosen.choice(whole) if number % 5 else hostile)
        for _ in range(chosen.choice((0, 1, 4)) if number % 5 else 0):
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        if number % 3 == 0:
            del data[chosen.randrange(100, len(data)) :]
        if number % 7 == 0:
            # These pickle instructions import, call, or store at index 2**32 - 1.
            at = chosen.randrange(2, len(data))
            data[at:at] = chosen.choice((b"cos\nsystem\n", b"R", b"r\xff\xff\xff\xff", b"\x93"))
        (tmp_path / "dump_0").write_bytes(data)
        message = refusal(tmp_path)
        assert len(message.splitlines()) <= 1
        refused += bool(message)
    assert not trap.exists()
    assert 300 < refused < 500


def test_a_pickle_of_more_than_plain_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="builds more than plain values"):
        read_plain_pickle(pickle.dumps([_Hostile(tmp_path / "trap")]))
    value = {"a": [1, -(2**62), 2.5, None, True, ("x", "y" * 300), {}, [], ()], "b": [2**31] * 3}
    for protocol in (2, 3, 4, 5):
        assert read_plain_pickle(pickle.dumps(value, protocol=protocol)) == value


def pipelines(folder: Path, size: int, stages: int, late: int) -> Path:
    lines = size // stages
    dumps = []
    for rank in range(size):
        stage, line = divmod(rank, lines)
        own = [line + lines * number for number in range(stages)]
        groups = {str(1 + line): own, "900": list(range(size - lines, size))}
        waits = [entry(str(1 + line), 5, f"recv {stage}<-{stage + 1}")]
        last = [entry("900", 9)] if line != late else []
        dumps.append(dump(groups, *(waits if stage + 1 < stages else last)))
    return write_dumps(folder, *dumps)


def test_ranks_of_many_pipelines_are_told_by_their_distance_from_the_culprit(
    tmp_path: Path,
) -> None:
    found = diagnosis(pipelines(tmp_path / "pipes", 64, 4, late=3))
    assert culprits(found) == ("absent", [51])
    assert [one.sentence for one in found.chains] == [
        "rank 35 waits in recv from rank 51 in group '4' (GROUP_4) for rank 51",
        "ranks 48-50, 52-63 wait in all_reduce number 9 of group '900' (GROUP_900) for rank 51",
        "ranks 19, 32-34, 36-47 wait in recv of 16 groups for ranks 35, 48-50, 52-63",
        "ranks 3, 16-18, 20-31 wait in recv of 16 groups for ranks 19, 32-34, 36-47",
        "ranks 0-2, 4-15 wait in recv of 15 groups for ranks 16-18, 20-31",
    ]
    assert sorted(rank for one in found.chains for rank in one.ranks) == [*found.victims]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_hang_of_1024_ranks_is_told_on_a_screen(tmp_path: Path, width: int) -> None:
    text = render(diagnosis(pipelines(tmp_path / "pipes", 1024, 8, 77)), width, width)
    verdict = "The job hangs because of rank 973; 1023 other ranks wait for it."
    assert verdict in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) < 60


def test_many_culprits_in_groups_of_their_own_share_a_sentence(tmp_path: Path) -> None:
    dumps = []
    for rank in range(128):
        group, place = divmod(rank, 4)
        ranks = {str(group): list(range(4 * group, 4 * group + 4))}
        dumps.append(dump(ranks, *([entry(str(group), 3)] if place != 1 else [])))
    found = diagnosis(write_dumps(tmp_path, *dumps))
    assert culprits(found) == ("absent", [*range(1, 128, 4)])
    assert reasons(found.culprits) == [
        "ranks 1-125:4 did not arrive at all_reduce number 3 of their groups; they have nothing "
        "pending"
    ]
