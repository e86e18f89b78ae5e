from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import commprof
from commprof import _version, satellites
from commprof.capture import boot
from tests.support.machines.programs.programs import PROMETHEUS_VARIABLE, how_to_run, missing, needs

ROOT = Path(__file__).parents[3]

CHECK = """
import sys
import commprof
assert commprof.compressors.topk(0.01).label.startswith("topk")
assert "torch" not in sys.modules
for name in commprof.__all__:
    getattr(commprof, name)
"""


def test_all_public_names_exist_and_torch_is_imported_only_when_needed() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True)


def test_type_checkers_see_all_public_names() -> None:
    stub = ast.parse((ROOT / "commprof/__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.asname or "" for node in imports for alias in node.names) == sorted(
        commprof.__all__
    )
    for node in imports:
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            assert getattr(commprof, alias.name) is getattr(module, alias.name)


def test_a_name_of_a_missing_satellite_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(satellites, "_seam", lambda name: None)
    with pytest.raises(AttributeError, match=r"commprof.trial: this needs the package commprof.tu"):
        commprof.trial  # noqa: B018
    assert not hasattr(commprof, "nothing")


COMMAND = """
import sys
from commprof.__main__ import main
try:
    main()
except SystemExit:
    pass
assert "prometheus_client" not in sys.modules
"""


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"], ["run", "--help"]])
def test_commands_do_not_load_modules_that_only_a_monitor_needs(words: list[str]) -> None:
    subprocess.run([sys.executable, "-c", COMMAND, *words], check=True, stdout=subprocess.DEVNULL)


def test_the_citation_file_has_the_version_and_licence_of_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert cited["version"] == _version.__version__ == commprof.__version__
    assert f'license = "{cited["license"]}"' in project
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()


def test_every_dependency_is_listed_with_its_licence() -> None:
    needed = re.search(r"install_requires=\[(.*?)\]", (ROOT / "setup.py").read_text(), re.DOTALL)
    assert needed is not None
    written = needed[1] + (ROOT / "pyproject.toml").read_text()
    names = set(re.findall(r'"([A-Za-z][\w-]*)(?:\[\w+\])?(?:==|>=)\d', written))
    assert {"numpy", "setuptools", "ruff", "ray"} <= names
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Dependencies")[2]
    tables = section.split("\n## ")[0]
    rows = re.findall(r"^\| ([\w, -]+) \| [A-Z].+? \| .+ \|$", tables, re.MULTILINE)
    listed = [name for row in rows for name in row.split(", ")]
    assert len(listed) == len({*listed})
    # Users install torch, which contains pybind11, and ninja may have any version.
    assert {*listed} == names | {"torch", "pybind11", "ninja"}


class OtherTool(importlib.abc.MetaPathFinder):
    def __init__(self, path: Path) -> None:
        self.path = path

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "watched":
            return None
        loader = importlib.machinery.SourceFileLoader(name, str(self.path))
        return importlib.machinery.ModuleSpec(name, loader, origin=str(self.path))


def test_the_import_hook_runs_after_those_of_other_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text("by = 'the other tool'\n")
    monkeypatch.setattr(boot, "_TARGET", "watched")
    seen: list[str] = []
    ours = boot._Finder(lambda module: seen.append(module.by))
    theirs = OtherTool(tmp_path / "theirs.py")
    monkeypatch.setattr(sys, "meta_path", [ours, theirs, *sys.meta_path])
    module = importlib.import_module("watched")
    monkeypatch.delitem(sys.modules, "watched")
    assert module.by == "the other tool"
    assert seen == ["the other tool"]
    assert ours not in sys.meta_path


SCRIPT = """
import signal, sys
from commprof.interrupts import enter
when = sys.argv[1]
def interrupted(now):
    if now == when:
        signal.raise_signal(signal.SIGINT)
class Late:
    def __del__(self):
        interrupted("at the end")
kept = Late()
def load():
    interrupted("loading")
    return main
def main():
    try:
        interrupted("running")
    except KeyboardInterrupt:
        print("seen")
        return 130
    return 7
enter(load)
"""


@pytest.mark.parametrize(
    ("when", "code", "said"),
    [
        ("never", 7, ""),
        ("loading", -signal.SIGINT, ""),
        ("running", 130, "seen\n"),
        ("at the end", -signal.SIGINT, ""),
    ],
)
def test_an_interrupt_leaves_no_traceback(when: str, code: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, when], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def test_an_ignored_sigint_stays_ignored() -> None:
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{SCRIPT}"
    for when in ("loading", "running", "at the end"):
        done = subprocess.run(
            [sys.executable, "-c", ignoring, when], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (7, "")


@pytest.fixture
def item(request: pytest.FixtureRequest) -> pytest.Item:
    found: pytest.Item = request.node
    return found


@pytest.mark.parametrize(
    ("promised", "left"), [(None, {"promtool"}), ("0", {"promtool"}), ("1", set())]
)
def test_missing_programs_and_libraries_of_a_test_are_found(
    promised: str | None, left: set[str], item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROMETHEUS_VARIABLE, raising=False)
    if promised is not None:
        monkeypatch.setenv(PROMETHEUS_VARIABLE, promised)
    monkeypatch.setenv("PATH", "")
    item.add_marker(needs("promtool", "torch", "no_such_library")[0])
    assert missing(item) == left | {"no_such_library"}


def test_an_installed_program_is_not_missing(item: pytest.Item) -> None:
    item.add_marker(needs("env")[0])
    assert missing(item) == set()


def test_tests_without_requirements_are_not_marked() -> None:
    assert needs("", "") == ()


def test_skipped_tests_come_with_the_command_that_runs_them() -> None:
    assert how_to_run({"peft"}) == "make integrations"
    assert how_to_run({"promtool"}) == "apt-get install prometheus && make test-all"
