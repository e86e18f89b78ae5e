from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.late.dumped_hang import diagnosis
from commprof.commands import main
from commprof.errors import TraceError
from commprof.recordings.flight_recorder import Dump, Entry, members_of
from commprof.recordings.flight_recorder_files import is_flight_recorder
from commprof.report.hang_diagnosis import render
from tests.support.builders.flight_dumps import dump, entry
from tests.support.builders.profiler_traces import document, rank_events

Value = dict[str, Any]
GROUPS = {"0": [0, 1, 2]}


def hang(rank: int, number: int = 2) -> Value:
    done, waits = entry("0", number - 1, state="completed"), entry("0", number)
    return dump(GROUPS, done) if rank == 1 else dump(GROUPS, done, waits)


def status(rank: int, text: bool = False) -> Value:
    last = {"last_enqueued_collective": 2 if rank == 1 else 3, "last_started_collective": -1}
    numbers = {**last, "last_completed_collective": 2}
    return {"0": {key: str(value) if text else value for key, value in numbers.items()}}


def of_2_2(rank: int) -> Value:
    value = {**hang(rank), "version": "2.2"}
    del value["pg_status"]
    return value


def of_2_3(rank: int) -> Value:
    return {**hang(rank), "version": "2.3", "pg_status": status(rank), "nccl_comm_state": {}}


def of_2_4(rank: int) -> Value:
    value = {**of_2_3(rank), "version": "2.4"}
    for one in value["entries"]:
        one["frames"] = [{"name": "step", "filename": "train.py", "line": 7}]
    return value


def of_2_7(rank: int) -> Value:
    return {**of_2_3(rank), "version": "2.7", "nccl_version": "2.21.5"}


def of_2_10(rank: int) -> Value:
    value = {**of_2_3(rank), "version": "2.10", "comm_lib_version": "2.28.9"}
    for one in value["entries"]:
        one |= {"thread_name": "pt_main_thread", "thread_id": "23456244340032"}
    return value


def active_alone(rank: int) -> Value:
    value = of_2_10(rank)
    value["entries"] = [one for one in value["entries"] if one["state"] != "completed"]
    return value


@pytest.mark.parametrize("made", [of_2_2, of_2_3, of_2_4, of_2_7, of_2_10, active_alone])
def test_the_hanging_rank_is_found_in_dumps_of_every_version(
    tmp_path: Path, made: Callable[[int], Value]
) -> None:
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(made(rank), protocol=2))
    found = diagnosis(tmp_path)
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [1])


@pytest.mark.parametrize("active", [False, True])
def test_json_dumps_with_numbers_as_text_and_zeros_for_none_are_read(
    tmp_path: Path, active: bool
) -> None:
    """A JSON dump without entries has no list of entries."""
    for rank in range(3):
        value = {**(active_alone(rank) if active else of_2_10(rank))}
        value["pg_status"] = status(rank, text=True)
        for one in value["entries"]:
            one |= {"time_discovered_started_ns": 0, "time_discovered_completed_ns": 0}
        if not value["entries"]:
            del value["entries"]
        (tmp_path / f"trace_{rank}.json").write_text(json.dumps(value))
    found = diagnosis(tmp_path)
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [1])


def without(value: Value, *keys: str) -> Value:
    return {key: one for key, one in value.items() if key not in keys}


def of_2_0(rank: int) -> Value:
    """Version 2.0 numbers collectives and messages with one counter."""
    value = without({**hang(rank), "version": "2.0"}, "pg_status")
    later = ("p2p_seq_id", "collective_seq_id", "is_p2p", "time_created_ns", "state")
    value["entries"] = [
        {**without(one, *later), "seq_id": one["collective_seq_id"]} for one in value["entries"]
    ]
    return value


def of_status_alone(rank: int) -> Value:
    """torch's debug server writes such a dump if the request leaves out collectives."""
    return without({**of_2_10(rank), "pg_status": status(rank, text=True)}, "entries")


@pytest.mark.parametrize(
    "made", [of_2_0, of_status_alone, lambda rank: without(hang(rank), "version", "pg_status")]
)
def test_dumps_with_missing_keys_are_read(tmp_path: Path, made: Callable[[int], Value]) -> None:
    for rank in range(3):
        (tmp_path / f"rank_{rank}_attempt_7.pkl").write_bytes(pickle.dumps(made(rank), protocol=2))
    found = diagnosis(tmp_path)
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [1])
    version = made(0).get("version", "unknown")
    assert render(found, 100).startswith(f"Flight Recorder: dumps of 3 ranks, version {version}\n")


def test_a_status_that_does_not_identify_groups_is_refused(tmp_path: Path) -> None:
    value = of_status_alone(0)
    value["pg_config"]["7"] = {"name": "7", "desc": "tp", "ranks": "[0, 1]"}
    (tmp_path / "trace_0.json").write_text(json.dumps(value))
    with pytest.raises(TraceError, match="its pg_status does not identify the groups"):
        diagnosis(tmp_path)


def test_an_undefined_group_description_is_not_shown(tmp_path: Path) -> None:
    for rank in range(3):
        value = hang(rank)
        value["pg_config"] = {
            name: {**one, "desc": "undefined"} for name, one in value["pg_config"].items()
        }
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(value, protocol=2))
    found = diagnosis(tmp_path)
    assert [one.rank for one in found.culprits] == [1]
    assert "undefined" not in render(found, 100)


def test_groups_with_the_same_name_and_different_ranks_are_distinguished(tmp_path: Path) -> None:
    """After ``split_group`` every rank knows only its own group, and the groups share a name."""
    for rank in range(4):
        mine = [0, 1] if rank < 2 else [2, 3]
        value = dump({"0": [0, 1, 2, 3], "1": mine}, *([entry("1", 5)] if rank != 3 else []))
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(value, protocol=2))
    found = diagnosis(tmp_path)
    assert (found.kind, [one.rank for one in found.culprits]) == ("absent", [3])
    assert [chain.ranks for chain in found.chains] == [(2,)]
    assert {one.group for one in found.groups} == {"1 (ranks 0, 1)", "1 (ranks 2, 3)"}


def test_the_status_replaces_entries_lost_from_a_full_buffer(tmp_path: Path) -> None:
    for rank in range(3):
        entries = [] if rank == 1 else [entry("1", 3)]
        if rank == 2:
            entries = [entry("0", number, state="completed") for number in range(500, 600)]
        value = dump({"0": [0, 1, 2], "1": [0, 1, 2]}, *entries)
        last = {"last_enqueued_collective": 3 if rank == 1 else 4, "last_completed_collective": 3}
        value["pg_status"] = {"0": {"last_enqueued_collective": 600}, "1": last}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(value, protocol=2))
    assert [one.rank for one in diagnosis(tmp_path).culprits] == [1]


@pytest.mark.parametrize("name", ["node{0}/nccl_trace_rank_{0}", "nccl_trace_rank_{0}.gz"])
def test_dumps_in_a_folder_per_host_and_gzipped_dumps_are_read(tmp_path: Path, name: str) -> None:
    for rank in range(3):
        path = tmp_path / name.format(rank)
        path.parent.mkdir(exist_ok=True)
        data = pickle.dumps(of_2_10(rank), protocol=2)
        path.write_bytes(gzip.compress(data) if path.suffix else data)
    assert is_flight_recorder(tmp_path)
    assert [one.rank for one in diagnosis(tmp_path).culprits] == [1]


def test_an_unknown_major_version_is_refused(tmp_path: Path) -> None:
    for version in ("1.5", "3.0"):
        (tmp_path / "dump_0").write_bytes(pickle.dumps({**hang(0), "version": version}))
        with pytest.raises(TraceError, match=rf"version '{version}' is not supported"):
            diagnosis(tmp_path)


def packed_tar(path: Path, files: dict[str, bytes], mode: str) -> None:
    with tarfile.open(path, f"w:{mode}") as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))


def packed(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        packed_tar(path, files, "gz" if path.suffix == ".gz" else "")
    return path


DUMPS = {f"job/dumps/_dump_{rank}": pickle.dumps(of_2_10(rank), protocol=2) for rank in range(3)}


@pytest.mark.parametrize("name", ["hang.zip", "hang.tar", "hang.tar.gz"])
def test_an_archive_of_dumps_is_diagnosed(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = packed(tmp_path / name, {"job/notes.txt": b"it hangs", **DUMPS})
    assert is_flight_recorder(path)
    assert main(["report", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["culprits"][0]["rank"] == 1


def test_a_single_dump_without_ranks_of_its_group_accuses_no_rank(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(pickle.dumps({**of_2_10(0), "pg_config": {}}, protocol=2))
    found = diagnosis(tmp_path)
    assert (found.kind, found.culprits) == ("arrived", ())
    assert found.sentence.startswith("All ranks with a dump arrived")
    assert found.sentence.endswith("or a rank with no dump did not arrive")


def test_entries_without_sizes_are_read_and_an_unreadable_dump_is_accused(tmp_path: Path) -> None:
    for rank in range(3):
        value = of_2_10(rank)
        value["entries"][0]["input_sizes"] = None
        data = b"\x80\x02pg_config" if rank == 1 else pickle.dumps(value, protocol=2)
        (tmp_path / f"dump_{rank}").write_bytes(data)
    found = diagnosis(tmp_path)
    assert (found.kind, [one.rank for one in found.culprits]) == ("undumped", [1])
    assert "it left no readable dump" in found.culprits[0].why
    assert len(found.read.problems) == 1


def test_the_ranks_of_many_large_dumps_are_listed_quickly() -> None:
    one = Entry("0", "nccl", "all_reduce", False, 1, -1, "completed", 8, 8, "Float", 1)
    dumps = [Dump(rank, "2.9", {}, {}, (one,) * 500, {}, {}) for rank in range(400)]
    begin = time.process_time()
    assert members_of(dumps) == {"0": tuple(range(400))}
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("width", [60, 80])
def test_no_line_of_a_diagnosis_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    for rank in range(3):
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(of_2_10(rank), protocol=2))
    lines = render(diagnosis(tmp_path), width, width).splitlines()
    assert max(map(len, lines)) <= width


def test_an_archive_of_gzipped_and_damaged_dumps_is_diagnosed(tmp_path: Path) -> None:
    files = {f"{name}.gz": gzip.compress(data) for name, data in DUMPS.items()}
    files["job/dumps/_dump_7"] = DUMPS["job/dumps/_dump_0"][:200]
    found = diagnosis(packed(tmp_path / "hang.zip", files))
    assert [one.rank for one in found.culprits] == [1]
    assert any("_dump_7" in text for text in found.read.problems)


def test_an_archive_without_dumps_is_not_taken_for_one(tmp_path: Path) -> None:
    trace = document(rank_events(0), 0).encode()
    for files in ({"rank0.json": trace}, {"notes_1.txt": b"pg_status"}):
        assert not is_flight_recorder(packed(tmp_path / "other.zip", files))


def test_dumps_in_two_folders_of_an_archive_are_refused(tmp_path: Path) -> None:
    files = {**DUMPS, "other/_dump_0": DUMPS["job/dumps/_dump_0"]}
    with pytest.raises(TraceError, match="dumps in several folders"):
        diagnosis(packed(tmp_path / "hang.tar", files))
