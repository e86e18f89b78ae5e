from __future__ import annotations

from pathlib import Path

import pytest

from commprof.errors import CommprofError
from commprof.recordings.containers import few
from commprof.recordings.profiler import read_recording
from tests.support.builders.profiler_traces import both

CUT_OFF = '{"schemaVersion": 1, "traceEvents": ['


def test_up_to_three_files_have_a_line_each_and_more_one_line_together() -> None:
    lines = [f"{number}.json: cut off" for number in range(20)]
    assert few(lines[:3]) == lines[:3]
    assert few(lines) == [
        "20 files are left out; the first 3: 0.json: cut off; 1.json: cut off; 2.json: cut off"
    ]


def test_a_folder_of_unreadable_files_says_so_in_one_line(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"bad_{number:02}.json").write_text(CUT_OFF)
    with pytest.raises(CommprofError, match="20 files are left out; the first 3: bad_00"):
        read_recording(tmp_path)


def test_unreadable_files_beside_traces_are_one_caveat(tmp_path: Path) -> None:
    folder = both(tmp_path)
    for number in range(20):
        (folder / f"bad_{number:02}.json").write_text(CUT_OFF)
    found = read_recording(folder)
    assert found is not None
    assert len(found.traces) == 2
    assert sum("are left out" in problem for problem in found.problems) == 1
    assert not any("bad_10" in problem for problem in found.problems)
