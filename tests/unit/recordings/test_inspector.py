from __future__ import annotations

import gzip
import json
import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.inspector.communicators import split_job
from commprof.analysis.inspector.own_time import (
    is_too_short,
    operation_time,
    own_time,
)
from commprof.analysis.inspector.result import InspectorResult, inspector_result
from commprof.commands import main
from commprof.errors import CommprofError
from commprof.recordings.inspector import is_inspector, looks_like_log, read_logs
from commprof.report.inspector import render
from commprof.stats.outliers import standing_out
from tests.support.builders.inspector_logs import SimulatedJob, Written, simulate


def _header(rank: int, ranks: int, pid: int | None = None) -> dict[str, dict[str, object]]:
    return {
        "header": {"id": "0xabc", "comm_name": "dp", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": 1_780_000_000_000_000,
            "hostname": "node",
            "pid": 100 + rank if pid is None else pid,
        },
    }


def _line(rank: int, ranks: int, number: int, time_us: float, kind: str = "AllReduce") -> str:
    operation = {
        "coll": kind,
        "coll_sn": number,
        "coll_msg_size_bytes": 1 << 20,
        "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu",
    }
    return json.dumps({**_header(rank, ranks), "coll_perf": operation})


def _write(folder: Path, lines: dict[int, list[str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, text in lines.items():
        (folder / f"node-pid{100 + rank}.log").write_text("\n".join(text) + "\n")
    return folder


def test_the_shortest_time_is_the_transfer_and_its_rank_came_last(tmp_path: Path) -> None:
    """The plugin cuts times to whole microseconds, so commprof adds 0.5 µs to each time."""
    times = (400, 100, 200)
    logs = _write(
        tmp_path / "logs",
        {rank: [_line(rank, 3, n, us) for n in range(50)] for rank, us in enumerate(times)},
    )
    result = inspector_result(logs)
    (row,) = result.kinds
    assert (row.transfer_us, row.time_us) == (100.5, pytest.approx(701.5 / 3))
    assert row.wait_us == pytest.approx(400 / 3)
    # nccl-tests defines busbw of an all-reduce as 2 (n - 1) / n times size / time.
    assert row.busbw_gb_per_s == pytest.approx(4 / 3 * (1 << 20) / 100.5e-6 / 1e9)
    (late,) = result.late
    assert (late.process.pid, late.share, late.waiting_processes) == (101, 1.0, 2)
    assert late.wait_s == pytest.approx(50 * 400e-6)
    assert result.lowest.lowest_bandwidth is not None
    assert result.lowest.lowest_bandwidth.pid == 100
    assert result.lowest.lowest_waits == pytest.approx(300 / 400.5)


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_all_versions_of_the_format_give_the_same_figures(tmp_path: Path, version: str) -> None:
    job = simulate(2, 4, 1, steps=20, late_us={5: 900.0}, seed=3)
    job.write(tmp_path / version, version)
    result = inspector_result(tmp_path / version)
    assert result.logs.versions == (version,)
    waited_us = sum(group.waited_us for group in (*job.tensor, *job.data))
    assert result.mean.wait_s * 8 * 1e6 == pytest.approx(waited_us, rel=0.01)
    assert [late.process.pid for late in result.late] == [1005]


def test_fields_of_the_header_may_stand_at_the_top_level(tmp_path: Path) -> None:
    about = {"id": "0xabc", "rank": 0, "n_ranks": 2, "nnodes": 1, "pid": 7, "hostname": "worker"}
    operation = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 4096}
    operation |= {"coll_exec_time_us": 61974.5, "coll_timing_source": "kernel_gpu"}
    (tmp_path / "dump.jsonl").write_text(json.dumps({**about, "coll_perf": operation}))
    (member,) = read_logs(tmp_path).members
    assert (member.id, member.rank, member.ranks) == ("0xabc", 0, 2)
    assert (member.host, member.pid) == ("worker", 7)
    assert member.kinds == {"AllReduce": (1, 0)}


def test_folders_compressed_files_and_archives_are_read(tmp_path: Path) -> None:
    lines = "\n".join(_line(0, 2, n, 100) for n in range(3))
    with gzip.open(tmp_path / "node-pid100.log.gz", "wt") as file:
        file.write(lines)
    assert is_inspector(tmp_path)
    assert read_logs(tmp_path).logs[0].operations == 3


def test_a_run_directory_and_other_json_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"traceEvents": [], "note": "coll_perf"}')
    assert not is_inspector(tmp_path)
    assert not looks_like_log(b'{"coll_perf": 3}')


def test_damaged_lines_are_counted_and_named(tmp_path: Path) -> None:
    good = _line(0, 2, 0, 100)
    bad = ["{", "[]", good[:-5], '{"coll_perf": {"coll": "AllReduce"}}', "\x00\xff", '{"a": 1e999}']
    (tmp_path / "node-pid100.log").write_text("\n".join([good, *bad, _line(0, 2, 1, 90)]))
    logs = read_logs(tmp_path)
    assert logs.logs[0].operations == 2
    # An object without an operation does not count as damaged, though the plugin writes none.
    assert logs.problems == ("node-pid100.log: 5 lines could not be read, the first is line 2",)


def test_any_cut_or_change_of_bytes_leaves_what_is_readable(tmp_path: Path) -> None:
    draw = random.Random(1)
    whole = "\n".join(_line(0, 2, n, 100 + n) for n in range(20)).encode()
    file = tmp_path / "node-pid100.log"
    for _ in range(300):
        data = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randrange(6)):
            if data:
                data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(data)
        try:
            logs = read_logs(tmp_path)
        except CommprofError:
            assert data.count(b"\n") < 10 or b"coll_perf" not in data
            continue
        assert sum(log.operations for log in logs.logs) >= data.count(b"\n") - 8
        split_job(logs)


def test_lines_may_be_deep_or_long_without_harm(tmp_path: Path) -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    long = '{"a": "' + "x" * (5 << 20) + '"}'
    (tmp_path / "x.log").write_text("\n".join([_line(0, 2, 0, 10), deep, long, _line(0, 2, 1, 10)]))
    (log,) = read_logs(tmp_path).logs
    assert (log.operations, log.damaged_lines) == (2, 2)


def test_an_empty_log_says_which_setting_left_it_empty(tmp_path: Path) -> None:
    (tmp_path / "node-pid100.log").write_text("")
    with pytest.raises(CommprofError, match="DUMP_THREAD_INTERVAL_MICROSECONDS"):
        read_logs(tmp_path)


def test_a_missing_rank_makes_waiting_a_lower_bound(tmp_path: Path) -> None:
    logs = _write(
        tmp_path / "logs",
        {rank: [_line(rank, 3, n, us) for n in range(50)] for rank, us in ((0, 400), (2, 200))},
    )
    result = inspector_result(logs)
    assert result.is_lower_bound
    assert math.isnan(result.kinds[0].transfer_us)
    assert any("rank 1 of dp" in text for text in result.caveats)


@pytest.mark.parametrize("lost", [(1,), (1, 3)])
def test_all_waited_for_the_only_rank_whose_record_is_lost(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    lines = {rank: [_line(rank, 4, n, 100) for n in range(40)] for rank in range(4)}
    for rank in range(4):
        lines[rank][20] = _line(rank, 4, 20, 1000)
    for rank in lost:
        del lines[rank][20]
    job = split_job(read_logs(_write(tmp_path / "logs", lines)))
    (operations,) = job.communicators[0].operations
    waited_us = 900 * (4 - len(lost))
    is_known = len(lost) == 1  # if two records are lost, either rank may have come last
    assert operations.waits.lost_records == len(lost)
    assert operations.waits.caused_us.sum(axis=0).tolist() == [0, is_known * waited_us, 0, 0]
    assert operations.waits.unattributed_us == pytest.approx((not is_known) * waited_us)
    assert operations.waits.waited_us.sum() == pytest.approx(waited_us)


def test_transfers_that_are_long_at_times_do_not_accuse_the_rank_that_lost_records(
    tmp_path: Path,
) -> None:
    draw = np.random.default_rng(1)
    transfer_us = np.where(draw.random(600) < 0.2, 800, 400) * draw.normal(1, 0.03, 600)
    came_us = draw.exponential(3, (600, 8))
    times = transfer_us[:, None] + came_us.max(axis=1, keepdims=True) - came_us
    lines = {
        rank: [
            _line(rank, 8, number, float(times[number, rank]))
            for number in range(600)
            if rank != 3 or number % 3 != 1
        ]
        for rank in range(8)
    }
    assert inspector_result(_write(tmp_path / "logs", lines)).late == ()


def test_all_may_have_waited_for_a_rank_without_a_log(tmp_path: Path) -> None:
    lines = {
        rank: [_line(rank, 4, n, 1000 if n == 20 else 100) for n in range(40)] for rank in range(3)
    }
    del lines[1][20]
    job = split_job(read_logs(_write(tmp_path / "logs", lines)))
    (operations,) = job.communicators[0].operations
    assert operations.waits.caused_us.sum() == 0
    assert operations.waits.unattributed_us == pytest.approx(1800)


def test_lost_times_are_told_by_what_the_other_ranks_recorded(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    waits = draw.uniform(10, 1000, 200).tolist()
    lines = {
        rank: [_line(rank, 4, n, 100 + (rank != 1) * us) for n, us in enumerate(waits)]
        for rank in range(4)
    }
    for rank in (0, 1):
        lost = set(draw.choice(np.arange(1, 199), 60, replace=False).tolist())
        lines[rank] = [line for n, line in enumerate(lines[rank]) if n not in lost]
    job = split_job(read_logs(_write(tmp_path / "logs", lines)))
    time_us = operation_time(job)
    assert time_us[0] == pytest.approx(100 * 200 + sum(waits), rel=0.02)
    assert time_us[1] == pytest.approx(100 * 200, rel=0.05)


def test_replays_of_a_graph_repeat_numbers_and_are_matched_in_order(tmp_path: Path) -> None:
    lines = {
        rank: [_line(rank, 2, n, 100 + (50 if (n, rank) == (8, 0) else 0)) for n in (7, 8)] * 30
        for rank in range(2)
    }
    job = split_job(read_logs(_write(tmp_path / "logs", lines)))
    (operations,) = job.communicators[0].operations
    assert (operations.waits.calls, operations.waits.complete_calls) == (60, 60)
    assert operations.waits.caused_us.sum(axis=0).tolist() == [0, 30 * 50]
    lines[1].pop()
    (operations,) = (
        split_job(read_logs(_write(tmp_path / "logs", lines))).communicators[0].operations
    )
    assert (operations.waits.calls, operations.waits.unmatched_records) == (30, 59)


def test_a_send_and_its_recv_wait_for_each_other(tmp_path: Path) -> None:
    job = SimulatedJob(pp=2)
    (group,) = job.pipeline
    for call in range(20):
        for process, kind, number, time_us in (
            (0, "Send", 1, 50),
            (1, "Recv", 1, 350),
            (1, "Send", 2, 50),
            (0, "Recv", 2, 150),
        ):
            job.records.append(
                Written(process, group, kind, 2 * call + number, 1 << 20, time_us, 1 - process)
            )
    job.write(tmp_path)
    (communicator,) = split_job(read_logs(tmp_path)).communicators
    (operations,) = communicator.operations
    assert (operations.kind, operations.is_split) == ("SendRecv", True)
    assert operations.waits.caused_us.sum(axis=0).tolist() == [20 * 300, 20 * 100]
    assert operations.waits.unmatched_records == 0


def test_messages_that_repeat_a_sequence_are_matched_though_some_are_lost(tmp_path: Path) -> None:
    job = simulate(1, 1, 3, steps=60, seed=1)
    job.write(tmp_path / "whole")
    whole = inspector_result(tmp_path / "whole")
    messages = len(job.records)
    job.lose(0.2)
    job.write(tmp_path / "lost")
    split = split_job(read_logs(tmp_path / "lost"))
    (operations,) = split.communicators[0].operations
    assert operations.waits.unmatched_records == 0
    assert operations.waits.sizes[0].records == len(job.records)
    # Messages that are lost on both ranks are not counted here.
    assert 0.01 < operations.waits.lost_records / messages < 0.2
    transfers = {
        path: inspector_result(tmp_path / path).kinds[0].transfer_us for path in ("whole", "lost")
    }
    assert transfers["lost"] == pytest.approx(transfers["whole"], rel=0.02)
    assert inspector_result(tmp_path / "lost").mean.wait_s == pytest.approx(
        0.8 * whole.mean.wait_s, rel=0.2
    )


def test_messages_with_a_gap_that_repeat_no_sequence_are_not_matched(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    job = SimulatedJob(pp=2)
    for _ in range(40):
        stage = int(draw.integers(2))
        job.work(300.0)
        job.send(stage, 1 - stage, 1 << 20, 40.0)
    del job.records[9]
    job.write(tmp_path)
    result = inspector_result(tmp_path)
    assert (result.late, result.mean.wait_s) == ((), 0)
    assert any(text.startswith("left out: 79 records of messages") for text in result.caveats)


def test_logs_that_were_split_by_their_size_are_joined(tmp_path: Path) -> None:
    job = simulate(2, 4, 2, steps=40, late_us={5: 1500.0}, seed=1)
    job.write(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "split")
    for file in list((tmp_path / "split").iterdir()):
        lines = file.read_text().splitlines(keepends=True)
        file.with_name(f"{file.name}.2").write_text("".join(lines[:100]))
        file.with_name(f"{file.name}.1").write_text("".join(lines[100:230]))
        file.write_text("".join(lines[230:]))
    whole, split = (inspector_result(tmp_path / name) for name in ("whole", "split"))
    assert whole.logs.processes == 16
    shutil.copytree(tmp_path / "whole", tmp_path / "copied")
    for file in list((tmp_path / "copied").iterdir())[:5]:
        text = file.read_text()
        file.with_name(f"a{file.name}").write_text(text[: len(text) // 2])
    copied = inspector_result(tmp_path / "copied")
    for result in (split, copied):
        assert (result.late, result.step) == (whole.late, whole.step)
        assert (result.kinds, result.communicators) == (whole.kinds, whole.communicators)
    assert split.caveats == whole.caveats
    (caveat,) = (text for text in copied.caveats if "in another log of the same" in text)
    assert caveat.startswith(
        "left out: 15 logs with dumps that overlap the dumps in another log of"
    )


def test_two_runs_in_one_folder_are_told(tmp_path: Path) -> None:
    for seed in (1, 2):
        simulate(2, 4, 1, steps=20, seed=seed).write(tmp_path / str(seed))
    for file in (tmp_path / "2").iterdir():
        text = file.read_text().replace('"pid": 1', '"pid": 7')
        file.write_text(text)
    caveats = inspector_result(tmp_path).caveats
    assert sum("2 sets that share no communicator" in text for text in caveats) == 1


def test_a_process_with_several_gpus_is_told(tmp_path: Path) -> None:
    simulate(2, 4, 1, steps=20, seed=1).write(tmp_path)
    assert not any("several GPUs" in text for text in inspector_result(tmp_path).caveats)
    for file in tmp_path.iterdir():
        file.write_text(file.read_text().replace('"pid": 1001', '"pid": 1000'))
    caveats = inspector_result(tmp_path).caveats
    assert sum(text.startswith("1 of the processes have several") for text in caveats) == 1


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("node-pid7.log", b"", "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS is set"),
        ("node-pid7.log", b'{"header": {"id"', "a job that runs or was killed"),
        ("node-pid7.log.zst", b"\x28\xb5\x2f\xfd", "only gzip, zip and tar are unpacked"),
    ],
)
def test_logs_without_operations_are_known_by_their_names(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    told: str,
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["report", str(tmp_path)]) == 1
    assert told in capsys.readouterr().err
    assert is_inspector(tmp_path / name) == (not content)
    (tmp_path / "notes.txt").write_text("of another tool")
    assert not is_inspector(tmp_path)


def test_rooted_operations_are_not_split(tmp_path: Path) -> None:
    logs = _write(
        tmp_path / "logs",
        {
            rank: [_line(rank, 2, n, us, "Broadcast") for n in range(9)]
            for rank, us in ((0, 9), (1, 99))
        },
    )
    result = inspector_result(logs)
    assert (result.mean.time_s, result.mean.wait_s, result.late) == (0, 0, ())
    assert result.mean.unsplit_s == pytest.approx(9 * 109e-6 / 2)
    assert math.isnan(result.kinds[0].wait_us)
    assert any("not known for whom a rank waits in broadcast" in t for t in result.caveats)


@pytest.mark.parametrize("seed", range(6))
def test_a_root_that_waited_is_not_accused_of_coming_late(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    tp, dp = ((1, 8), (2, 8), (4, 8))[seed % 3]
    late = draw.choice(np.arange(tp, tp * dp), 2, replace=False).tolist()
    job = simulate(
        *(tp, dp, 1),
        steps=60,
        late_us=dict.fromkeys(late, 1500.0),
        rooted=True,
        experts=2,
        seed=seed,
    )
    job.write(tmp_path)
    result = inspector_result(tmp_path)
    assert sorted(one.process.pid - 1000 for one in result.late) == sorted(late)
    caused = {row.process.pid - 1000: row.caused_s for row in result.process_rows}
    assert max(caused[root] for root in range(tp)) < 0.2 * min(caused[process] for process in late)
    assert any(
        "of the waiting is for processes that had waited themselves" in t for t in result.caveats
    )


@pytest.mark.parametrize("seed", range(4))
def test_messages_without_a_partner_accuse_nobody_of_their_waiting(
    tmp_path: Path, seed: int
) -> None:
    job = simulate(2, 8, 4, steps=80, late_us={45: 1400.0, 53: 1200.0}, lost=0.05, seed=seed)
    job.write(tmp_path)
    result = inspector_result(tmp_path)
    assert sorted(one.process.pid - 1000 for one in result.late) == [45, 53]


def test_a_sequence_that_repeats_gives_steps(tmp_path: Path) -> None:
    job = simulate(2, 4, 1, steps=60, late_us={5: 1500.0}, seed=1)
    job.write(tmp_path)
    result = inspector_result(tmp_path)
    assert result.step is not None
    assert result.step.steps == 60
    assert result.step.communicator == "dp"
    assert "3 all_to_all of 1048576 B" in result.step.calls
    assert result.step.wait_ms * 60 == pytest.approx(result.mean.wait_s * 1e3)
    both_ms = (result.step.wait_ms + result.step.transfer_ms) * 60
    assert both_ms == pytest.approx(result.mean.time_s * 1e3)
    assert any(text.startswith("the logs hold no step times, phases") for text in result.caveats)


@pytest.mark.parametrize("change", ["lost", "one kind", "no turns"])
def test_without_a_sequence_no_steps_are_claimed(tmp_path: Path, change: str) -> None:
    job = SimulatedJob(dp=4, seed=2)
    for number in range(40):
        job.work(300.0)
        job.collective(job.data, "AllReduce", 1 << (20 + number * (change == "no turns") % 7), 90.0)
        if change != "one kind" and not (change == "no turns" and number % 3):
            job.collective(job.data, "AllGather", 1 << 20, 90.0)
    if change == "lost":
        job.lose(0.2)
    job.write(tmp_path)
    result = inspector_result(tmp_path)
    assert result.step is None
    assert any(text.startswith("the logs hold no steps, phases") for text in result.caveats)


def test_gaps_are_told_by_rank_and_calls_that_nobody_recorded_too(tmp_path: Path) -> None:
    lines = {rank: [_line(rank, 3, n, 100) for n in range(40) if n != 20] for rank in range(3)}
    del lines[2][5]
    del lines[1][3:10]
    result = inspector_result(_write(tmp_path / "logs", lines))
    (row,) = result.communicators
    assert (row.lost_records, row.missing_calls, row.complete_calls) == (8, 1, 32)
    (text,) = (text for text in result.caveats if "are missing" in text)
    assert "among them 7 of node pid 101, 1 of node pid 102" in text
    assert any(text.startswith("1 call is in no log") for text in result.caveats)


def test_algorithms_are_told_by_size_where_the_format_has_them(tmp_path: Path) -> None:
    def with_algorithm(rank: int, number: int) -> str:
        line = json.loads(_line(rank, 2, number, 100))
        line["coll_perf"] |= {"coll_algo": "RING", "coll_proto": "LL" if number < 9 else "SIMPLE"}
        return json.dumps(line)

    lines = {rank: [with_algorithm(rank, n) for n in range(12)] for rank in range(2)}
    result = inspector_result(_write(tmp_path / "logs", lines))
    assert result.kinds[0].algorithms == (("RING/LL", 18), ("RING/SIMPLE", 6))
    assert "RING/LL 75%, RING/SIMPLE 25%" in render(result, 100)


def test_times_without_the_gpus_clock_do_not_count(tmp_path: Path) -> None:
    lines = {rank: [_line(rank, 2, n, 100) for n in range(9)] for rank in range(2)}
    lines[1][3] = lines[1][3].replace("kernel_gpu", "collective_cpu").replace("100", "7")
    result = inspector_result(_write(tmp_path / "logs", lines))
    assert result.mean.wait_s == 0
    assert any("1 record without a time of the GPU's clock" in text for text in result.caveats)


@pytest.mark.parametrize("seed", range(10))
def test_late_processes_of_simulated_jobs_are_found(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    tp, dp, pp = [(1, 8, 1), (2, 4, 1), (4, 4, 1), (2, 4, 2), (8, 4, 1)][seed % 5]
    number = seed // 5 + 1
    chosen = draw.choice(tp * dp * pp, number, replace=False).tolist()
    late_us = {process: float(draw.uniform(800, 2500)) for process in chosen}
    job = simulate(tp, dp, pp, steps=60, late_us=late_us, lost=0.05 * (seed % 3), seed=seed)
    job.write(tmp_path, "v4.3")
    result = inspector_result(tmp_path)
    assert {late.process.pid - 1000 for late in result.late} == set(chosen)


@pytest.mark.parametrize("seed", [45, 46])
def test_a_process_that_is_late_in_one_series_is_named_by_its_own_time(
    tmp_path: Path, seed: int
) -> None:
    simulate(4, 8, 1, steps=20, late_us={5: 1500.0}, late_part=0.5, seed=seed).write(tmp_path)
    [late] = inspector_result(tmp_path).late
    assert (late.process.pid, late.waiting_processes) == (1005, 31)
    assert late.p_value < 0.01
    assert late.late_parts < late.parts


@pytest.mark.parametrize(("tp", "dp", "pp"), [(8, 4, 1), (1, 16, 1), (4, 4, 2)])
def test_the_processes_of_a_slow_host_are_named_together(
    tmp_path: Path, tp: int, dp: int, pp: int
) -> None:
    slow_us = dict.fromkeys(range(8, 16), 2000.0)
    simulate(tp, dp, pp, steps=60, slow_us=slow_us, seed=1).write(tmp_path, "v4.3")
    result = inspector_result(tmp_path)
    assert result.late == ()
    assert result.slower is not None
    assert result.slower.hosts == ("host001",)
    assert result.slower.longer_s == pytest.approx(0.12, abs=0.01)
    text = " ".join(render(result, 100).split())
    assert text.count("The 8 processes of host host001 make the others wait: ") == 1
    assert "This process is not slow" in text
    assert "No process stands out" not in text


@pytest.mark.parametrize(
    ("tp", "dp", "pp", "slow_in"),
    [
        (1, 16, 1, range(30, 31)),
        (1, 16, 1, range(20, 35)),
        (1, 8, 2, None),
    ],
)
def test_a_stall_of_a_host_and_a_stage_with_more_work_are_no_slow_host(
    tmp_path: Path, tp: int, dp: int, pp: int, slow_in: range | None
) -> None:
    slow_us = dict.fromkeys(range(8, 16), 3000.0 if slow_in is None else 100_000.0 / len(slow_in))
    job = simulate(tp, dp, pp, steps=60, slow_us=slow_us, slow_in=slow_in, seed=1)
    job.write(tmp_path, "v4.3")
    assert inspector_result(tmp_path).slower is None


@pytest.mark.parametrize("seed", range(10))
def test_nobody_is_accused_in_a_job_without_late_processes(tmp_path: Path, seed: int) -> None:
    tp, dp, pp = [(1, 8, 1), (2, 4, 1), (4, 4, 1), (2, 4, 2), (8, 4, 1)][seed % 5]
    simulate(tp, dp, pp, steps=60, lost=0.1 * (seed % 2), seed=seed).write(tmp_path)
    result = inspector_result(tmp_path)
    assert (result.late, result.slower) == ((), None)


@pytest.mark.parametrize(("seed", "late_us"), [(1142, {0: 1418.0}), (1094, {3: 2708.0, 14: 887.0})])
def test_calls_that_rings_lost_neither_accuse_nor_hide_a_process(
    tmp_path: Path, seed: int, late_us: dict[int, float]
) -> None:
    tp, dp, pp, experts = (1, 8, 1, 2) if len(late_us) == 1 else (2, 4, 2, 1)
    job = simulate(tp, dp, pp, steps=150, late_us=late_us, experts=experts, seed=seed)
    job.overflow(ring=24, per_dump=32)
    job.write(tmp_path, "v4.3")
    assert {late.process.pid - 1000 for late in inspector_result(tmp_path).late} == set(late_us)


def test_waiting_in_lost_calls_is_that_of_the_mean(tmp_path: Path) -> None:
    lines = {
        rank: [
            _line(rank, 2, n, 300 if rank == 0 else 100)
            for n in range(40)
            if not (20 <= n < 25 or (rank == 0 and 25 <= n < 30))
        ]
        for rank in range(2)
    }
    (communicator,) = split_job(read_logs(_write(tmp_path / "logs", lines))).communicators
    (operations,) = communicator.operations
    lost_us = operations.waits.lost_wait_us
    assert lost_us.sum(axis=0) == pytest.approx([10 * 200, 0])
    recorded = operations.waits.waited_us[:, 0]
    calls = np.bincount(np.arange(40) * len(lost_us) // 40)
    assert lost_us[:, 0] + recorded == pytest.approx(200.0 * calls)


def test_time_in_operations_is_whole_where_records_are_lost(tmp_path: Path) -> None:
    lines = {
        rank: [
            _line(rank, 2, n, 300 if rank == 0 else 100)
            for n in range(40)
            if not (20 <= n < 25 or (rank == 0 and 25 <= n < 30))
        ]
        for rank in range(2)
    }
    job = split_job(read_logs(_write(tmp_path / "logs", lines)))
    assert operation_time(job) == pytest.approx([40 * 300.5, 40 * 100.5])


@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_time_outside_of_operations_is_what_the_late_ones_work_longer(
    tmp_path: Path, lost: float
) -> None:
    late_us = {3: 2500.0, 12: 800.0}
    job = simulate(2, 4, 2, steps=200, late_us=late_us, lost=lost, rooted=True, seed=11)
    job.write(tmp_path)
    split = split_job(read_logs(tmp_path))
    own_us = own_time(operation_time(split), np.zeros(len(split.processes), dtype=np.int64))
    longer = standing_out(own_us, 2)
    assert [split.processes[place].pid - 1000 for place in longer] == [3, 12]
    # Each of the two processes is late in about half of the steps.
    assert own_us[longer] / 200 == pytest.approx([1250.0, 400.0], rel=0.25)
    # A process's own time is too short if it is below half of the waiting for the process.
    assert not is_too_short(own_us, longer[0], 200 * 2000.0)
    assert is_too_short(own_us, longer[0], 200 * 3000.0)
    assert is_too_short(own_us, 5, 200 * 400.0)


def test_nobody_works_longer_where_a_time_is_not_known_or_two_are_alike() -> None:
    own_us = np.array([900.0, 3.0, -2.0, 1.0, 0.0, -3.0, 2.0, -1.0])
    assert standing_out(own_us, 2) == [0]
    assert standing_out(np.where(np.arange(8) == 5, np.nan, own_us), 2) == []
    assert standing_out(np.array([900.0, 890.0, 910.0, 1.0, 0.0, -3.0, 2.0, -1.0]), 2) == []


def test_lateness_is_traced_through_a_tensor_parallel_group(tmp_path: Path) -> None:
    job = simulate(4, 4, 1, steps=60, late_us={2: 2000.0}, seed=5)
    job.write(tmp_path)
    result = inspector_result(tmp_path)
    assert [late.process.pid for late in result.late] == [1002]
    last = {row.most_waited_for.pid for row in result.communicators if row.most_waited_for}
    assert {1000, 1001, 1003} < last


@pytest.mark.parametrize("seed", [1, 4])
def test_the_least_lateness_that_can_be_told_is_stated_and_enough(
    tmp_path: Path, seed: int
) -> None:
    def result_with(late_us: dict[int, float], name: str) -> InspectorResult:
        simulate(2, 8, 1, steps=80, late_us=late_us, lost=0.3, seed=seed).write(tmp_path / name)
        return inspector_result(tmp_path / name)

    two_late = result_with({3: 2500.0, 12: 1200.0}, "two")
    least_us = 1e6 * two_late.least_late_s
    # A late process is late in half of the 80 steps.
    # Without lost records, a hundredth of this lateness could be found.
    assert 1_000 < least_us < 80 / 2 * 1200
    assert sorted(one.process.pid for one in two_late.late) == [1003, 1012]
    (text,) = (text for text in two_late.caveats if "are missing" in text)
    assert f"late by less than {two_late.least_late_s:.3g} s in all may be missed" in text
    for times in (2, 4):
        less_late = result_with({3: 2500.0, 12: times * least_us / (80 / 2)}, f"{times} times")
        late_s = times * least_us / 1e6
        is_named = 1012 in [one.process.pid for one in less_late.late]
        assert is_named or late_s < 1.5 * less_late.least_late_s
    assert is_named


@pytest.mark.parametrize(("written_us", "transfer_us"), [(100, 100.5), (100.25, 100.25)])
def test_half_of_what_is_cut_off_is_added_to_whole_microseconds(
    tmp_path: Path, written_us: float, transfer_us: float
) -> None:
    lines = {
        rank: [_line(rank, 2, number, written_us) for number in range(20)] for rank in range(2)
    }
    (row,) = inspector_result(_write(tmp_path / "logs", lines)).kinds
    assert (row.transfer_us, row.wait_us) == (transfer_us, 0)
