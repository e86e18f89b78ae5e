from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from commprof.trace.columns import of_kinds
from commprof.trace.schema import Kind
from tests.support.machines.core_tests import build
from tests.support.nccl_runs import differences, logged, play, played, recorded

pytestmark = pytest.mark.timeout(1800)  # the first test builds the programs

VERSIONS = (3, 4, 5, 6, 7)
PLACE = {"RANK": "0", "WORLD_SIZE": "2"}
#: NCCL Inspector asks for these kinds of events: Coll (0x2) and KernelCh (0x40).
INSPECTOR = "0x42"


@pytest.fixture(scope="module")
def tree() -> Path:
    logging = [f"logging-v{version}" for version in VERSIONS]
    return build("", "test_nccl_plugin", "nccl-profiler-commprof", *logging)


def loaded(
    tree: Path, plugin: str, version: int, *mode: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    player = tree / "test_nccl_plugin"
    return play(player, "loaded", tree / plugin, version, *mode, **PLACE, **environment)


def both_logs(
    tree: Path, folder: Path, asked: int, version: int, **environment: str
) -> tuple[list[str], list[str], subprocess.CompletedProcess[str]]:
    """Returns the user's plugin's log alone, its log behind commprof's, and the last process.

    NCCL asks for version ``asked`` of the interface, and the user's plugin has ``version``.
    """
    name = f"liblogging-v{version}.so"
    alone, behind = folder / "alone", folder / "behind"
    loaded(tree, name, version, "all", LOGGED=str(alone), **environment)
    done = loaded(
        tree,
        "libnccl-profiler-commprof.so",
        asked,
        "all",
        LOGGED=str(behind),
        COMMPROF_NCCL_PLUGIN=str(tree / name),
        COMMPROF_OUT=str(folder / "run"),
        **environment,
    )
    return logged(alone), logged(behind), done


@pytest.mark.parametrize("mask", ["-1", INSPECTOR, "0x80", "0x4100", "0"])
@pytest.mark.parametrize("version", VERSIONS)
def test_it_hears_what_it_hears_alone(tree: Path, tmp_path: Path, version: int, mask: str) -> None:
    alone, behind, done = both_logs(tree, tmp_path, version, version, LOGGED_MASK=mask)
    assert behind == alone
    # Each of three communicators has a part of the log, and events of another process have one
    # part.
    assert len(alone) == 3 + (mask == "-1" or mask == "0x80")
    lines = sum(block.count("\n") for block in alone)
    assert (lines == 6) == (mask == "0" or (mask == "0x4100" and version < 5))
    where = tree / f"liblogging-v{version}.so"
    said = f"NCCL's calls are passed on to {where} (version {version} of the interface)"
    assert done.stderr.count(said) == 1


@pytest.mark.parametrize(("asked", "version"), [(7, 6), (7, 5), (7, 4), (6, 5), (6, 4), (5, 4)])
def test_an_older_one_hears_what_its_version_has(
    tree: Path, tmp_path: Path, asked: int, version: int
) -> None:
    alone, behind, _ = both_logs(tree, tmp_path, asked, version)
    assert behind == alone
    assert sum(block.count("\n") for block in alone) > 600


@pytest.mark.parametrize("fault", ["errors", "null", "odd"])
@pytest.mark.parametrize("version", VERSIONS)
def test_its_faults_change_nothing(tree: Path, tmp_path: Path, version: int, fault: str) -> None:
    alone, behind, _ = both_logs(tree, tmp_path, version, version, LOGGED_FAULT=fault)
    if fault == "null":  # all communicators share one log, which each finalize() writes
        alone, behind = (sorted("\n".join(blocks).splitlines()) for blocks in (alone, behind))
    assert behind == alone


@pytest.mark.parametrize("fault", ["", "init", "errors", "null", "odd"])
@pytest.mark.parametrize("version", VERSIONS)
def test_commprof_records_as_if_alone(tree: Path, tmp_path: Path, version: int, fault: str) -> None:
    done = loaded(
        tree,
        "libnccl-profiler-commprof.so",
        version,
        COMMPROF_NCCL_PLUGIN=str(tree / f"liblogging-v{version}.so"),
        COMMPROF_OUT=str(tmp_path),
        LOGGED=str(tmp_path / "log"),
        LOGGED_FAULT=fault,
    )
    trace, found = recorded(tmp_path / "rank_0.trace")
    expected = played(done.stdout)
    if version > 3:
        assert differences(expected, found, on_gpu=True) == []
    assert (len(found), len(expected)) == (44, 44)
    assert (trace.complete, trace.dropped, trace.problems) == (True, 0, ())
    assert len(of_kinds(trace.records, Kind.NCCL_SEND, Kind.NCCL_RECV)) == 0
    if fault == "init":
        assert done.stderr.count("its init() returned 2") == 1
        assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("mask", "later"), [("-1", "0x42"), ("0x42", "-1"), ("0x1", "0")])
@pytest.mark.parametrize("version", [4, 5, 6])
def test_it_may_ask_for_other_events_at_any_time(
    tree: Path, tmp_path: Path, version: int, mask: str, later: str
) -> None:
    changed, unchanged = tmp_path / "changed", tmp_path / "unchanged"
    changed.mkdir()
    unchanged.mkdir()
    alone, behind, _ = both_logs(
        tree, changed, version, version, LOGGED_MASK=mask, LOGGED_MASK_LATER=later
    )
    assert behind == alone
    assert behind != both_logs(tree, unchanged, version, version, LOGGED_MASK=mask)[1]


def test_it_hears_all_while_commprof_is_off(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank_0.trace").touch()  # a trace of an earlier run switches commprof off
    alone, behind, done = both_logs(tree, tmp_path, 6, 6)
    assert behind == alone
    assert "NCCL is not recorded" in done.stderr


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("of-mine", 6, "NCCL's calls are passed on to of-mine (version 4 of the interface)"),
        ("libnccl-profiler-of-mine.so", 6, "(version 4 of the interface)"),
        ("no/such.so", 6, "not passed on to no/such.so: no/such.so: cannot open shared object"),
        ("absent", 6, "libnccl-profiler-absent.so: cannot open shared object file"),
        ("static_plugin", 6, "asks for version 6 of its interface, and the plugin has no table "),
        ("of-mine", 3, "the plugin has no table of versions 3 to 3"),
        ("{tree}/libnccl-profiler-commprof.so", 6, "it is commprof's own plugin"),
    ],
)
def test_it_is_found_as_nccl_finds_a_plugin(
    tree: Path, tmp_path: Path, name: str, asked: int, said: str
) -> None:
    (tmp_path / "libnccl-profiler-of-mine.so").symlink_to(tree / "liblogging-v4.so")
    done = loaded(
        tree,
        "libnccl-profiler-commprof.so",
        asked,
        COMMPROF_NCCL_PLUGIN=name.format(tree=tree),
        COMMPROF_OUT=str(tmp_path / "run"),
        LD_LIBRARY_PATH=str(tmp_path),
    )
    assert said in done.stderr
    assert done.stderr.count("passed on to") == 1
    _, found = recorded(tmp_path / "run" / "rank_0.trace")
    assert len(found) == 44
