from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from commprof.analysis.inspector.live import LiveLogs
from commprof.analysis.inspector.result import inspector_result
from commprof.errors import CommprofError
from commprof.recordings.inspector import is_inspector, read_logs
from commprof.report.inspector import document, render
from tests.support.builders.inspector_logs import simulate

FILES = 500


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _flip(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 40)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    for _ in range(draw.randint(1, 12)):
        place = draw.randrange(len(lines))
        match draw.randrange(4):
            case 0 if len(lines) > 1:
                del lines[place]
            case 1:
                lines.insert(place, lines[place])
            case 2:
                other = draw.randrange(len(lines))
                lines[place], lines[other] = lines[other], lines[place]
            case _:
                lines[place : place + 2] = [b"".join(lines[place : place + 2])]
    return b"\n".join(lines)


def _values(draw: random.Random, data: bytes) -> bytes:
    odd = (
        None,
        -1,
        0,
        1e300,
        2**70,
        -(2**70),
        "7",
        "x" * 5000,
        [],
        {},
        True,
        math.nan,
        "\0\x1b[2J",
    )
    lines = []
    for line in data.decode().splitlines():
        value = json.loads(line)
        for part in value.values():
            if isinstance(part, dict) and draw.random() < 0.3:
                name = draw.choice(list(part))
                if draw.random() < 0.2:
                    del part[name]
                else:
                    part[name] = draw.choice(odd)
        lines.append(json.dumps(value))
    return "\n".join(lines).encode()


def _noise(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + draw.randbytes(draw.randrange(3000)) + data[at:]


DAMAGE: tuple[Callable[[random.Random, bytes], bytes], ...] = (_cut, _flip, _lines, _values, _noise)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[list[bytes]]:
    jobs = []
    for version in ("v4.0", "v4.3"):
        folder = tmp_path_factory.mktemp("sound") / version
        simulate(1, 2, 2, steps=3, seed=1).write(folder, version, records_a_dump=9)
        jobs.append([file.read_bytes() for file in sorted(folder.iterdir())])
    return jobs


def test_damaged_files_give_what_is_readable_or_one_line(
    tmp_path: Path, sound: list[list[bytes]]
) -> None:
    draw = random.Random(20261129)
    read = damaged = 0
    refusals: list[str] = []
    while damaged < FILES:
        files = list(draw.choice(sound))
        for place in range(draw.randint(1, len(files))):
            files[place] = draw.choice(DAMAGE)(draw, files[place])
            damaged += 1
        names = [f"host-pid{7 + number}.log" for number in range(len(files))]
        for name, data in zip(names, files, strict=True):
            (tmp_path / name).write_bytes(data)
        try:
            result = inspector_result(tmp_path)
        except CommprofError as error:
            refusals.append(str(error))
            continue
        read += 1
        assert result.mean.time_s >= 0
        assert result.mean.wait_s >= 0
        assert math.isfinite(result.mean.time_s + result.mean.wait_s)
        json.loads(document(result))
        assert "\x1b" not in render(result, 80)
    assert read > 10 * len(refusals)
    assert all(len(text.splitlines()) == 1 for text in refusals)


def test_damaged_logs_that_grow_do_not_end_the_view(
    tmp_path: Path, sound: list[list[bytes]]
) -> None:
    draw = random.Random(3)
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        logs = LiveLogs(folder)
        files = [draw.choice(DAMAGE)(draw, data) for data in draw.choice(sound)]
        for begin in range(0, max(map(len, files)), 2000):
            for place, data in enumerate(files):
                with (folder / f"host-pid{place}.log").open("ab") as file:
                    file.write(data[begin : begin + 2000])
            state = logs.look()
        assert state is None or all(one.time_s >= one.waited_s >= 0 for one in state.processes)


def test_a_damaged_packed_log_is_read_up_to_the_damage(tmp_path: Path) -> None:
    simulate(1, 2, 1, steps=200, seed=1).write(tmp_path)
    for file in list(tmp_path.iterdir()):
        packed = gzip.compress(file.read_bytes())
        (tmp_path / f"{file.name}.gz").write_bytes(packed[: len(packed) // 2])
        file.unlink()
    (first, second) = read_logs(tmp_path).logs
    assert 100 < first.operations < 1000
    assert 100 < second.operations < 1000


# ROCm/cvs tests its parser with lines of this form. The values here are new.
def _line(version: str, rank: int, number: int, **fields: object) -> str:
    perf: dict[str, object] = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": 1 << 21,
        "coll_exec_time_us": 400 + 30 * rank,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 5.2,
        "coll_busbw_gbs": 9.9,
    }
    return json.dumps(
        {
            "header": {"id": "0x5eed", "rank": rank, "n_ranks": 4, "nnodes": 2},
            "metadata": {
                "inspector_output_format_version": version,
                "git_rev": "0123abc",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": 1_711_800_000_000_000,
                "hostname": f"node-{rank // 2:02d}",
                "pid": 4000 + rank,
            },
            "coll_perf": perf | fields,
        }
    )


def test_the_form_of_rocms_samples_is_read(tmp_path: Path) -> None:
    trace = {
        "event_trace_sn": {
            "coll_start_sn": 8,
            "coll_stop_sn": 45,
            "kernel_events": [{"channel_id": 0, "kernel_start_sn": 9, "kernel_stop_sn": 40}],
        },
        "event_trace_ts": {"coll_start_ts": 1_711_800_000_000_100, "kernel_events": []},
    }
    lines = [_line("v4.0", rank, 4217) for rank in range(3)]
    lines.append("this is no JSON")
    lines.append(_line("v4.0", 3, 4217, **trace))
    cpu = {"coll": "AllGather", "coll_exec_time_us": 0, "coll_timing_source": "collective_cpu"}
    lines.append(_line("v4.0", 2, 102, **cpu))
    file = tmp_path / "sample.jsonl"
    file.write_text("\n".join(lines))
    assert is_inspector(file)
    result = inspector_result(file)
    assert (result.logs.processes, result.logs.hosts, result.logs.operations) == (4, 2, 5)
    (row,) = [row for row in result.kinds if row.op == "all_reduce"]
    assert (row.transfer_us, row.wait_us) == (400.5, 45)
    assert any("1 record without a time of the GPU's clock" in text for text in result.caveats)
    assert any("1 line could not be read, the first is line 4" in text for text in result.caveats)


def test_version_5_says_which_calls_a_graph_captured(tmp_path: Path) -> None:
    lines = [
        _line("v5.0", rank, number, graphCaptured=number < 6)
        for rank in range(4)
        for number in range(10)
    ]
    (tmp_path / "sample.jsonl").write_text("\n".join(lines))
    result = inspector_result(tmp_path)
    assert result.logs.versions == ("v5.0",)
    assert result.graph_captured == 24
    assert result.kinds[0].calls == 10
