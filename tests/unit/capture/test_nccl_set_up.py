from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commprof import _native, variables
from commprof.capture import nccl
from commprof.capture.boot import environment

CHOSEN = nccl.PLUGIN_VARIABLE
PASSED_ON = nccl.PASSED_ON_VARIABLE
Choose = Callable[[Path, pytest.MonkeyPatch, str], str]


def test_the_copied_names_are_those_of_the_variables() -> None:
    assert (nccl.LEVEL_VARIABLE, nccl.NATIVE_VARIABLE) == (variables.NCCL, variables.NATIVE)
    assert variables.NCCL_PLUGIN == PASSED_ON


@pytest.fixture(autouse=True)
def _with_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nccl, "_has_gpu", lambda: True)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (CHOSEN, PASSED_ON, "LD_LIBRARY_PATH", "NCCL_CONF_FILE", nccl.LEVEL_VARIABLE):
        monkeypatch.setenv(name, "")  # Monkeypatch then restores the variable after the test.
        monkeypatch.delenv(name)


def test_a_process_with_torch_gets_captures_own_module() -> None:
    assert nccl.set_up() == ""
    assert os.environ[CHOSEN] == _native.native.__file__
    assert nccl.set_up() == ""


def test_other_programs_get_the_plugin_and_a_child_with_torch_the_module(tmp_path: Path) -> None:
    given = environment(tmp_path)
    assert given[CHOSEN] == nccl.PLUGIN
    assert Path(given[CHOSEN]).exists()
    os.environ[CHOSEN] = given[CHOSEN]
    assert nccl.set_up() == ""
    assert os.environ[CHOSEN] == _native.native.__file__


@pytest.mark.parametrize("name", [nccl.LEVEL_VARIABLE, nccl.NATIVE_VARIABLE])
def test_nothing_is_set_where_it_could_not_record(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "off" if name == nccl.LEVEL_VARIABLE else "0")
    monkeypatch.setenv(CHOSEN, nccl.PLUGIN)
    assert nccl.set_up() == ""
    assert CHOSEN not in os.environ


def test_nothing_is_set_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nccl, "_has_gpu", lambda: False)
    assert nccl.set_up() == ""
    assert CHOSEN not in os.environ
    assert CHOSEN not in environment(tmp_path)


def in_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    path = folder / name
    path.write_text(f"# of the cluster\nNCCL_DEBUG=WARN\n{CHOSEN}=inspector\n")
    if name != ".nccl.conf":
        monkeypatch.setenv("NCCL_CONF_FILE", str(path))
    return "inspector"


def in_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    monkeypatch.setenv(CHOSEN, name)
    return name


def in_a_library_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    (folder / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{folder}")
    return str(folder / name)


WAYS = pytest.mark.parametrize(
    ("choose", "name"),
    [
        (in_the_environment, "inspector"),
        (in_the_environment, "/opt/libnccl-profiler-inspector.so"),
        (in_a_file, ".nccl.conf"),
        (in_a_file, "cluster.conf"),
        (in_a_library_folder, "libnccl-profiler.so"),
    ],
)


@WAYS
def test_calls_are_passed_on_to_a_plugin_that_the_user_chose(
    choose: Choose, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = choose(tmp_path, monkeypatch, name)
    given = environment(tmp_path)
    assert (given[CHOSEN], given[PASSED_ON]) == (nccl.PLUGIN, users)
    assert nccl.set_up() == ""
    assert os.environ[CHOSEN] == _native.native.__file__
    assert os.environ[PASSED_ON] == users
    assert environment(tmp_path)[PASSED_ON] == users
    assert nccl.set_up() == ""
    assert os.environ[PASSED_ON] == users


@WAYS
@pytest.mark.parametrize("started", [False, True])
def test_without_commprofs_the_users_plugin_is_loaded_again(
    choose: Choose, name: str, started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = choose(tmp_path, monkeypatch, name)
    if started:
        for variable, value in environment(tmp_path).items():
            monkeypatch.setenv(variable, value)
    monkeypatch.setenv(nccl.NATIVE_VARIABLE, "0")
    assert nccl.set_up() == ""
    assert nccl.plugin_of_user(os.environ)[0] == users
    assert os.environ.get(CHOSEN) != nccl.PLUGIN


def test_a_user_who_wants_no_plugin_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOSEN, "None")
    assert nccl.set_up() == (
        "NCCL_PROFILER_PLUGIN=None in the environment forbids profiler plugins, so NCCL's own "
        "operations are not recorded; unset it to record them"
    )
    assert os.environ[CHOSEN] == "None"
    assert CHOSEN not in environment(tmp_path)


def test_a_newer_choice_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSED_ON, "of an outer command")
    monkeypatch.setenv(CHOSEN, "inspector")
    assert environment(tmp_path)[PASSED_ON] == "inspector"
