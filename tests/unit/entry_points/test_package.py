"""What ``import commprof`` gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import commprof
from commprof import _version

ROOT = Path(__file__).parents[3]

CHECK = """
import sys
import commprof
assert commprof.compressors.topk(0.01).label.startswith("topk")
assert "torch" not in sys.modules
for name in commprof.__all__:
    getattr(commprof, name)
"""


def test_all_names_are_there_and_torch_is_loaded_only_when_needed() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True)


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
def test_commands_do_not_load_what_only_a_monitor_needs(words: list[str]) -> None:
    subprocess.run([sys.executable, "-c", COMMAND, *words], check=True, stdout=subprocess.DEVNULL)


def test_the_citation_is_of_this_version_under_this_licence() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert cited["version"] == _version.__version__ == commprof.__version__
    assert f'license = "{cited["license"]}"' in project
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()


def test_every_dependency_stands_in_the_list_with_its_licence() -> None:
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
    # Torch is the user's, with pybind11 in its headers; ninja may be of any version.
    assert {*listed} == names | {"torch", "pybind11", "ninja"}
