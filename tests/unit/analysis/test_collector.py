from __future__ import annotations

import gc
from pathlib import Path

import pytest

from benchmarks.scale.runs import write_run
from commprof.analysis.run import analyse_in_detail
from commprof.errors import CommprofError
from commprof.trace.run.run_directory import WorldRun, read_world


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_paused_while_ranks_are_analysed(tmp_path: Path, was_on: bool) -> None:
    write_run(tmp_path / "run", 2, 6)
    seen: list[bool] = []

    def read(directory: Path, world_size: int) -> WorldRun:
        seen.append(gc.isenabled())
        return read_world(directory, world_size)

    try:
        if not was_on:
            gc.disable()
        result, _ = analyse_in_detail(tmp_path / "run", read)
        assert gc.isenabled() == was_on
        with pytest.raises(CommprofError):
            analyse_in_detail(tmp_path / "nothing")
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
    assert seen == [False]
    assert len(result.worlds) == 1
