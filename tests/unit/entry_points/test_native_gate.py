from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commprof import _native

ROOT = Path(__file__).parents[3]
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
COMMAND = "pip install something"

SHOW = "import commprof._native as n; print(n.native); print(n.native_error)"
SHOW_TUNE = """
import sys
import commprof._native as n
print([name for name in sys.modules if "_tune" in name])
print(n.tune)
print(n.tune_error)
"""


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.13.0+cpu", "_torch213"),
        ("2.9.1", "_torch29"),
        ("2.16.0a0+gitabc", "_torch216"),
        ("3.0.0", "_torch30"),
    ],
)
def test_the_native_module_name_contains_torchs_major_and_minor_version(
    version: str, name: str
) -> None:
    assert _native.module_name(version) == name


def test_built_for_counts_only_what_this_python_can_load() -> None:
    files = [f"_torch215{SUFFIX}", f"_torch29{SUFFIX}", f"_torch213{SUFFIX}"]
    others = ["_torch214.cpython-39-riscv-linux-gnu.so", f"._torch212{SUFFIX}", "_native.py"]
    assert _native.built_for(files + others) == ["2.9", "2.13", "2.15"]


def test_missing_module_message_names_both_torch_versions_and_the_command() -> None:
    assert _native.missing_message("2.15.0+cu132", ["2.13"], None, COMMAND) == (
        "no C++ module for torch 2.15.0+cu132: it was built for torch 2.13. Using the Python "
        "capture (fewer facts, more overhead). To build the C++ module: pip install something"
    )


def test_missing_module_message_gives_a_failed_build_as_the_only_cause() -> None:
    message = _native.missing_message("2.13.0", ["2.10"], "no compiler", COMMAND)
    assert "its build failed: no compiler." in message
    assert "2.10" not in message


def test_missing_module_message_names_python_if_nothing_was_built() -> None:
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    message = _native.missing_message("2.13.0", [], None, COMMAND)
    assert f"it was not built for {version}." in message


def test_install_command_uses_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").touch()
    command = _native.install_command(tmp_path / "commprof", None)
    assert command.startswith(f"{sys.executable} -m pip install ")
    assert command.endswith(f" -e {tmp_path}")


def test_install_command_quotes_the_paths_for_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "my projects"
    checkout.mkdir()
    (checkout / "CMakeLists.txt").touch()
    monkeypatch.setattr(sys, "executable", "/opt/my env/bin/python")
    words = shlex.split(_native.install_command(checkout / "commprof", None))
    assert (words[0], words[-1]) == ("/opt/my env/bin/python", str(checkout))


@pytest.mark.parametrize(
    ("record", "source"),
    [
        (None, "commprof"),
        ({"url": "file:///src/commprof", "dir_info": {}}, "file:///src/commprof"),
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            "git+https://host/x.git@ab12",
        ),
    ],
)
def test_install_command_uses_the_source_that_commprof_came_from(
    tmp_path: Path, record: dict[str, object] | None, source: str
) -> None:
    direct_url = None if record is None else json.dumps(record)
    assert _native.install_command(tmp_path / "commprof", direct_url).endswith(f" {source}")


@pytest.fixture
def fake_install(tmp_path: Path) -> Path:
    package = tmp_path / "commprof"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(_native.__file__, package)
    (tmp_path / "torch.py").write_text("__version__ = '2.99.0'\n")
    (package / f"_torch213{SUFFIX}").write_text("not a shared object")
    return package


def run_gate(package: Path, show: str = SHOW, **env: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", show],
        cwd=package.parent,
        env={"PYTHONPATH": str(package.parent), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_gate_does_not_load_a_module_for_another_torch(fake_install: Path) -> None:
    native, error = run_gate(fake_install)
    assert native == "None"
    assert "torch 2.99.0: it was built for torch 2.13." in error


def test_gate_gives_the_first_line_of_a_failed_build(fake_install: Path) -> None:
    (fake_install / "_build_error.txt").write_text("fatal error: no header\n\n200 lines more\n")
    native, error = run_gate(fake_install)
    assert native == "None"
    assert "its build failed: fatal error: no header (full output: " in error


def test_gate_reports_a_matching_module_that_does_not_load(fake_install: Path) -> None:
    (fake_install.parent / "torch.py").write_text("__version__ = '2.13.1'\n")
    native, error = run_gate(fake_install)
    assert native == "None"
    assert "the C++ module does not load under torch 2.13.1: " in error


def test_gate_loads_the_matching_module(fake_install: Path) -> None:
    (fake_install / "_torch299.py").touch()
    native, error = run_gate(fake_install)
    assert native.startswith("<module 'commprof._torch299'")
    assert error == "None"


def test_gate_loads_compressors_when_they_are_first_read(fake_install: Path) -> None:
    for name in ("_torch299", "_tune299"):
        (fake_install / f"{name}.py").touch()
    before, tune, error = run_gate(fake_install, SHOW_TUNE)
    assert before == "[]"
    assert tune.startswith("<module 'commprof._tune299'")
    assert error == "None"


def test_gate_says_that_compressors_were_not_built(fake_install: Path) -> None:
    (fake_install / "_torch299.py").touch()
    (fake_install / f"_tune213{SUFFIX}").write_text("not a shared object")
    _, tune, error = run_gate(fake_install, SHOW_TUNE)
    assert tune == "None"
    assert f"{fake_install} has no _tune299, which is built from csrc/tune. To build" in error
    assert "-m pip install " in error


def test_gate_reports_compressors_that_do_not_load(fake_install: Path) -> None:
    (fake_install / "_torch299.py").touch()
    (fake_install / "_tune299.py").write_text("raise ImportError('built with another version')\n")
    _, tune, error = run_gate(fake_install, SHOW_TUNE)
    assert tune == "None"
    assert "_tune299 does not load under torch 2.99.0: built with another version. " in error


def test_without_the_core_module_there_are_no_compressors_either(fake_install: Path) -> None:
    (fake_install / "_tune299.py").touch()
    _, tune, error = run_gate(fake_install, SHOW_TUNE)
    assert (tune, error) == tuple(run_gate(fake_install))
    assert tune == "None"


def test_gate_can_be_switched_off_without_importing_torch(fake_install: Path) -> None:
    (fake_install.parent / "torch.py").write_text("raise AssertionError\n")
    native, error = run_gate(fake_install, COMMPROF_NATIVE="0")
    assert native == "None"
    assert error.startswith("COMMPROF_NATIVE=0 is set.")


@pytest.mark.skipif(_native.native is None, reason="needs the C++ module")
@pytest.mark.parametrize("stem", ["_torch", "_tune"])
def test_the_native_modules_need_only_libraries_of_torch_for_the_cpu(stem: str) -> None:
    """The modules also work with torch for CUDA, because torch for CUDA has these libraries too."""
    core = Path(_native.native.__file__)
    module = core.with_name(core.name.replace("_torch", stem, 1))
    if stem == "_tune" and not (ROOT / "csrc/tune").is_dir():
        pytest.skip("the sources of compressors are left out")
    read = ["readelf", "--dynamic", "--wide", str(module)]
    needed = re.findall(r"NEEDED.*\[(.+)\]", subprocess.check_output(read, text=True))
    of_torch = {name for name in needed if name.startswith(("libtorch", "libc10"))}
    assert of_torch == {"libtorch_python.so", "libtorch_cpu.so", "libc10.so"}
    of_system = ("libc.", "libm.", "libgcc_s.", "libstdc++.", "libpthread.", "librt.", "ld-linux")
    assert all(name in of_torch or name.startswith(of_system) for name in needed)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++-11", "clang++"])
def test_other_compilers_build_the_sources(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    done = subprocess.run(
        ["make", "compilers", f"COMPILERS={compiler}", f"VENV={Path(sys.prefix)}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
