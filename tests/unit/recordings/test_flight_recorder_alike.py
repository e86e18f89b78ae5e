from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from commprof.recordings import flight_recorder
from commprof.recordings.flight_recorder_alike import INTEGERS, AlikeInPython, alike_entries
from tests.support.builders.flight_dumps import dump, entry, write_dumps

FRAME = {"name": "step", "filename": "/home/a/train.py", "line": 7}


def varied() -> list[Any]:
    plain = entry("0", 4, at=9)
    others: list[dict[str, Any]] = [
        {"frames": [FRAME, FRAME]},
        {"frames": [FRAME]},
        {"frames": [{**FRAME, "line": 8}]},
        {"input_sizes": [[8], []]},
        {"input_sizes": [[], [8]]},
        {"input_sizes": [["8"]]},
        {"input_sizes": ((8,),)},
        {"input_sizes": [[8.0]]},
        {"input_sizes": [[2**70]]},
        {"is_p2p": 0},
        {"is_p2p": None},
        {"process_group": ("0", "\ud800é")},
        {"time_discovered_started_ns": 0},
        {"time_discovered_started_ns": 7},
        {"time_discovered_started_ns": 8},
        {"record_id": "4"},
        {"record_id": -1},
        {"record_id": 2**63},
        {"record_id": True},
        {"seq_id": 2**63 - 1},
        {"timeout_ms": 1},
        {"new": "0"},
        {"newer": "0"},
    ]
    found = [plain, *({**plain, **other} for other in others)]
    return [*found, *reversed(found), {}, {1: 2}]


def test_numbers_and_integers_are_those_of_python() -> None:
    numbers, integers = alike_entries().read(varied())
    in_python, integers_in_python = AlikeInPython().read(varied())
    assert not isinstance(alike_entries(), AlikeInPython)
    assert numbers.tolist() == in_python.tolist()
    assert integers.tolist() == integers_in_python.tolist()
    # Eight entries count as equal to others, because their differences are not compared.
    assert numbers.max() + 1 == len(varied()) // 2 + 1 - 8
    row = dict(zip(INTEGERS, integers[0].tolist(), strict=True))
    assert row["collective_seq_id"] == 5
    assert row["time_created_ns"] == 9
    assert row["seq_id"] == -1


@pytest.mark.parametrize("numbering", [alike_entries, AlikeInPython])
def test_what_is_no_entry_is_refused(numbering: Any) -> None:
    with pytest.raises(ValueError, match="not a dictionary"):
        numbering().read([{}, 7])


def test_a_dump_that_cannot_be_described_leaves_others_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = [entry("0", 0, state="completed"), entry("0", 1, op="send 0->1"), entry("0", 1)]
    broken = [entry("0", 0), {**entry("0", 1), "profiling_name": 3}, entry("0", 1, dtype="Half")]
    dumps = [dump({"0": [0, 1, 2]}, *entries) for entries in (broken, sound, [*sound[:2]])]
    folder = write_dumps(tmp_path / "dumps", *dumps)
    found, problems = flight_recorder.read_dumps(folder)
    assert [one.rank for one in found] == [1, 2]
    assert "no profiling_name" in problems[0]
    assert [one.op for one in found[0].entries] == ["all_reduce", "send", "all_reduce"]
    assert [one.seq for one in found[0].entries] == [0, 1, 1]
    monkeypatch.setattr(flight_recorder, "alike_entries", AlikeInPython)
    in_python, _ = flight_recorder.read_dumps(folder)
    assert list(map(dataclasses.astuple, in_python)) == list(map(dataclasses.astuple, found))


def test_a_text_of_digits_and_a_record_stand_for_number_and_time(tmp_path: Path) -> None:
    older = {**entry("0", 1), "collective_seq_id": "2"}
    del older["time_created_ns"]
    found, _ = flight_recorder.read_dumps(
        write_dumps(tmp_path / "dumps", dump({"0": [0]}, {**older, "record_id": 12}))
    )
    assert found[0].entries[0].seq == 1
    assert found[0].entries[0].created_ns == 12


def test_ranks_of_a_group_are_kept_once_for_all_dumps(tmp_path: Path) -> None:
    """With a list for each dump, memory would grow with the square of the number of ranks."""
    dumps = [dump({"0": [0, 1, 2]}, entry("0", 0)) for _ in range(3)]
    found, _ = flight_recorder.read_dumps(write_dumps(tmp_path / "dumps", *dumps))
    assert found[0].members["0"] == (0, 1, 2)
    assert found[0].members["0"] is found[2].members["0"]
