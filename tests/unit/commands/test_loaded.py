from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import commprof
from commprof.errors import CommprofError, UsageError
from tests.support.builders.run_directories import ranks_of, write_run, write_strategies


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    return write_run(directory, ranks_of(1, 9), ranks_of(2, 9, late_ms=10))


def test_a_loaded_run_shows_the_first_screen_of_the_report(run: Path) -> None:
    loaded = commprof.load(run)
    assert "Exposed communication: 25 ms" in repr(loaded)
    page = loaded._repr_html_()
    assert re.search(r"<th[^>]*>Exposed communication</th><td[^>]*>25 ms, ", page)
    assert re.search(r"flex: 0\.\d+ 0 0; background: #d53e1f\" title=\"wait 5 ms", page)
    assert "Throughput (efficiency): " in page
    assert page.rstrip().endswith(" --all</pre>")
    assert [world.world_size for world in loaded.result.worlds] == [1, 2]


def test_tables_of_a_loaded_run_are_numpy_arrays(run: Path) -> None:
    loaded = commprof.load(str(run))
    assert loaded.tables == ["worlds", "ranks", "steps", "collectives"]
    steps = loaded.table("steps")
    chosen = (steps["world_size"] == 2) & (steps["rank"] == 0)
    assert steps["exposed_ms"].dtype == np.float64
    assert steps["exposed_ms"][chosen].mean() == pytest.approx(30, abs=0.1)
    with pytest.raises(UsageError, match=r"unknown table 'candidates' \(allowed: worlds, ranks, "):
        loaded.table("candidates")


def test_frames_of_a_loaded_run_need_pandas(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = commprof.load(run)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert [row["world_size"] for row in loaded.frame("worlds")] == [1, 2]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        loaded.frame("worlds")


def test_loading_a_directory_that_is_no_single_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommprofError):
        commprof.load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="several strategies; load one of "):
        commprof.load(write_strategies(tmp_path / "run"))


def test_loading_a_run_does_not_import_torch(run: Path) -> None:
    code = "import sys, commprof; commprof.load(sys.argv[1]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(run)]).returncode == 0
