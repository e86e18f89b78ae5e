"""Which profiler plugin NCCL loads in a process that is recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commprof import _native, variables
from commprof.capture import nccl
from commprof.capture.boot import environment

CHOSEN = nccl.PLUGIN_VARIABLE


def test_the_copied_names_are_those_of_the_variables() -> None:
    assert (nccl.LEVEL_VARIABLE, nccl.NATIVE_VARIABLE) == (variables.NCCL, variables.NATIVE)


@pytest.fixture(autouse=True)
def _with_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with a GPU and a torch that uses CUDA, whose user has configured nothing."""
    monkeypatch.setattr(nccl, "_has_gpu", lambda: True)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (CHOSEN, "LD_LIBRARY_PATH", "NCCL_CONF_FILE", nccl.LEVEL_VARIABLE):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def test_a_process_with_torch_gets_captures_own_module() -> None:
    assert nccl.set_up() == ""
    assert os.environ[CHOSEN] == _native.native.__file__
    assert nccl.set_up() == ""  # as often as it is called


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
    monkeypatch.setenv(CHOSEN, nccl.PLUGIN)  # of the command that started this process
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
    return f"inspector of {path}"


def in_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    monkeypatch.setenv(CHOSEN, name)
    return f"{CHOSEN}={name}"


def in_a_library_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    (folder / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{folder}")
    return str(folder / name)


@pytest.mark.parametrize(
    ("choose", "name"),
    [
        (in_the_environment, "inspector"),
        (in_the_environment, "/opt/libnccl-profiler-inspector.so"),
        (in_the_environment, "none"),
        (in_a_file, ".nccl.conf"),
        (in_a_file, "cluster.conf"),
        (in_a_library_folder, "libnccl-profiler.so"),
    ],
)
def test_a_plugin_that_the_user_chose_is_left_alone(
    choose: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(choose)
    where = choose(tmp_path, monkeypatch, name)
    before = os.environ.get(CHOSEN)
    assert nccl.set_up() == (
        f"{where} is NCCL's profiler plugin and is left alone, so NCCL's own operations are not "
        "recorded"
    )
    assert os.environ.get(CHOSEN) == before
    assert CHOSEN not in environment(tmp_path)
