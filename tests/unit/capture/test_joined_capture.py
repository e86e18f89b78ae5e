"""A script that opens a capture of its own while a launcher records the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import commprof
from commprof.capture.profiler import active
from commprof.trace.columns import steps
from commprof.trace.reader import read_trace


def test_it_joins_the_capture_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = commprof.profile(tmp_path / "job").start()
    whole.of_whole_job = True
    try:
        with commprof.profile(tmp_path / "own") as prof:
            assert prof is whole
            prof.step()
        second = commprof.profile(tmp_path / "own").start()
        second.step()
        second.stop()
        assert active() is whole
    finally:
        whole.of_whole_job = False
        whole.stop()
    said = capsys.readouterr().err
    assert f"{tmp_path}/job holds what this script records" in said
    assert f"nothing goes to {tmp_path}/own" in said
    assert not (tmp_path / "own").exists()
    assert whole.trace_path is not None
    assert len(steps(read_trace(whole.trace_path))) == 2
