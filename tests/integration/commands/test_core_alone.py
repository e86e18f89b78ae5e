from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from commprof import satellites

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
OWN_TESTS = ("tests/unit/trace", "tests/unit/analysis/late")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("core")
    left_out = shutil.ignore_patterns("__pycache__", *satellites.NAMES)
    shutil.copytree(ROOT / "commprof", place / "commprof", ignore=left_out)
    shutil.copytree(ROOT / "tests", place / "tests", ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", place)
    (place / "csrc").symlink_to(ROOT / "csrc")
    # The checkout's import finder would find the satellites, and a .pth file starts that finder.
    # Python reads no .pth files in a directory that another .pth file names.
    venv.create(place / "venv")
    (packages,) = (place / "venv").glob("lib/*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return place


def run(core: Path, *words: str, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": str(core), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(core / "venv/bin/python"), *words],
        cwd=core,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recorded(core: Path) -> Path:
    directory = core / "run"
    words = ("-m", "commprof.run", "--world-sizes", "2", "--steps", "12", "--workload", "mlp")
    run(core, *words, "--output", str(directory))
    return directory


def test_the_profiler_records_and_reports_without_its_satellites(
    core: Path, recorded: Path
) -> None:
    assert "all_reduce" in run(core, "-m", "commprof", "report", str(recorded), "--all")
    shown = json.loads(run(core, "-m", "commprof", "report", str(recorded), "--format", "json"))
    assert shown["runs"][0]["num_processes"] == 2
    for made in ("html", "markdown", "csv"):
        run(core, "-m", "commprof", "report", str(recorded), "--format", made, "-o", f"out.{made}")
    run(core, "-m", "commprof", "top", str(recorded), "--once")
    run(core, "-m", "commprof", "compare", str(recorded), str(recorded))


def test_what_is_missing_is_said_in_one_line(core: Path) -> None:
    helped = run(core, "-m", "commprof", "--help")
    assert "report" in helped
    assert "predict" not in helped
    words = ("-m", "commprof.run", "--nproc", "2", "--hook", "fp16")
    assert "commprof.tune" in run(core, *words, code=2)
    assert "no command microbench" in run(core, "-m", "commprof.microbench", "all_reduce", code=2)


def test_the_profiler_s_own_tests_pass_without_its_satellites(core: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not measures")
    assert " passed" in run(core, *words, *OWN_TESTS)
