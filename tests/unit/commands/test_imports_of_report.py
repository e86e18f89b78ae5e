from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders.run_directories import ranks_of, write_run

PROGRAM = """
import sys
from commprof.commands import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(*sorted(sys.modules), file=sys.stderr)
raise SystemExit(code)
"""
OTHERS = (
    *("torch", "rich", "jinja2", "http", "asyncio", "multiprocessing", "prometheus_client"),
    *("commprof._C", "commprof.capture", "commprof.launch"),
    *("commprof.monitor", "commprof.forecast", "commprof.report.html"),
    *("commprof.report.markdown", "commprof.forecast.report", "commprof.tune"),
    "commprof.report.export.as_json",
    "commprof.recordings.profiler",
)


def loaded(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def others(modules: set[str]) -> set[str]:
    """Leaves out modules named ``seam`` and the packages that contain them."""
    inside = {name for name in modules if name.startswith(tuple(f"{one}." for one in OTHERS))}
    seams = {name for name in inside if name.endswith(".seam")}
    return (inside | modules & set(OTHERS)) - seams - {name[: -len(".seam")] for name in seams}


def test_the_report_tables_load_no_unneeded_module(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ranks_of(2, 5))
    modules = loaded("report", str(tmp_path / "run"), "--all")
    assert {"numpy", "tabulate", "commprof.report.table"} <= modules
    assert "commprof.analysis.late.dumped_hang" not in modules
    assert others(modules) == set()


def test_the_html_report_loads_only_what_it_needs(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ranks_of(2, 5))
    modules = loaded("report", str(tmp_path / "run"), "--format", "html")
    assert "commprof.report.html.page" in others(modules)
    assert not modules & {"torch", "rich", "http.server", "multiprocessing"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_needs_no_numpy(option: str) -> None:
    modules = loaded(option)
    assert "commprof.commands" in modules
    assert not modules & {"numpy", "torch", "tabulate", "yaml", "commprof.analysis"}
