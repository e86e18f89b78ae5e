from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.beliefs.asking import beliefs
from benchmarks.beliefs.page import page
from commprof import _native
from commprof.trace import codes
from tools import make_causes

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "tools"


@pytest.mark.parametrize("name", ["_C.pyi", "_tune.pyi", "_reading.pyi"])
def test_stub_is_what_the_built_module_generates(tmp_path: Path, name: str) -> None:
    if _native.native_error is not None and os.environ.get("COMMPROF_REQUIRE_NATIVE") != "1":
        pytest.skip(_native.native_error)
    if name == "_tune.pyi" and not (ROOT / "csrc/tune").is_dir():
        pytest.skip("the sources of compressors are left out")
    generated = tmp_path / name
    subprocess.run([sys.executable, TOOLS / "make_stubs.py", generated], check=True)
    committed, made = (ROOT / "commprof" / name).read_text(), generated.read_text()
    if committed.splitlines()[1] != made.splitlines()[1]:
        pytest.skip("written with another pybind11")
    assert committed == made, "out of date: run `make stubs`"


def test_tables_are_what_the_headers_say(tmp_path: Path) -> None:
    subprocess.run([sys.executable, TOOLS / "make_tables.py", tmp_path], check=True)
    made = sorted(path for path in tmp_path.rglob("*.py"))
    assert len(made) == 1 + (ROOT / "csrc/tune").is_dir()
    for path in made:
        committed = (ROOT / path.relative_to(tmp_path)).read_text()
        assert committed == path.read_text(), "out of date: run `make tables`"


def test_the_page_of_causes_is_that_of_the_catalogue() -> None:
    committed = (ROOT / "docs/causes.md").read_text()
    assert committed == make_causes.page(), "out of date: run `python -m tools.make_causes`"


def test_the_walks_of_the_architecture_are_those_of_traced_runs(tmp_path: Path) -> None:
    made = tmp_path / "architecture.md"
    subprocess.run([sys.executable, "-m", "tools.make_walks", made], cwd=ROOT, check=True)
    committed = (ROOT / "docs/architecture.md").read_text()
    assert committed == made.read_text(), "out of date: run `python -m tools.make_walks`"


def test_the_measures_of_the_architecture_are_those_counted_now(tmp_path: Path) -> None:
    made = tmp_path / "architecture.md"
    subprocess.run([sys.executable, "-m", "tools.make_shape", made], cwd=ROOT, check=True)
    committed = (ROOT / "docs/architecture.md").read_text()
    assert committed == made.read_text(), "out of date: run `python -m tools.make_shape`"


def test_no_code_of_the_headers_is_lost() -> None:
    """The generator may fail to read a row, so the test counts rows by a rule of its own."""
    header = (ROOT / "csrc/core/record.h").read_text()
    tables = (codes.Kind, codes.Phase, codes.OPS, codes.NCCL_ALGORITHMS, codes.NCCL_PROTOCOLS)
    assert len(re.findall(r"\bX\([A-Z]\w*,", header)) == sum(map(len, tables))
    flags = [name for name in dir(codes) if name.startswith("FLAG_")]
    assert len(re.findall(r"\buint32_t k\w+ =\s+\d+;", header)) == len(flags)


def test_page_of_beliefs_is_what_the_answers_say() -> None:
    answers = json.loads((ROOT / "benchmarks/beliefs/answers.json").read_text())
    committed = (ROOT / "docs/pytorch_really.md").read_text()
    assert committed == page(answers), "out of date: run `benchmarks/torch_beliefs.py --write`"
    for version, told in answers.items():
        assert set(told) <= set(beliefs()), f"{version}: answers to questions that are gone"
