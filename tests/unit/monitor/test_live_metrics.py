from __future__ import annotations

import json
import math
import re
import resource
import signal
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commprof.errors import UsageError
from commprof.monitor.metrics import endpoint as endpoints
from commprof.monitor.metrics.endpoint import Endpoint, listen, parse_address
from commprof.monitor.metrics.metrics import METRICS, flat, samples
from commprof.monitor.metrics.outputs import JsonLines, TensorBoard, TextFile, exposition, write_to
from commprof.monitor.metrics.tensorboard import EventFile, crc32c
from commprof.monitor.state import ArrivalState, JobState
from tests.support.builders.live_states import job_state, rank_state
from tests.support.builders.run_directories import HOSTILE

LINE = re.compile(r'([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def shown(state: JobState) -> dict[str, float]:
    found = {}
    for line in exposition(samples(state)).decode().splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            found[line.rpartition(" ")[0]] = float(match[3])
    return found


def test_every_metric_is_exposed_under_a_unique_name() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    text = exposition(samples(job_state())).decode()
    for metric in METRICS:
        assert f"\n{metric.name}" in text, metric.name
        assert text.count(f"# TYPE {metric.name} {metric.kind}\n") == 1
        assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert "step=" not in text  # A label for each step would add a time series for each step.


def test_metrics_have_the_expected_values_and_labels() -> None:
    found = shown(job_state())
    assert found['commprof_steps_total{rank="0"}'] == 250
    assert found['commprof_step_part_seconds_total{part="data",rank="1"}'] == 2.5
    assert found['commprof_exposed_seconds_total{part="wait",rank="0"}'] == 3
    assert found['commprof_late_rank{rank="0"}'] == 0
    assert found['commprof_late_rank{rank="1"}'] == 1
    assert found['commprof_late_rank_wait_seconds{rank="1"}'] == 0.012
    assert found['commprof_collective_p99_seconds{op="all_reduce",rank="0"}'] == 0.02
    assert found['commprof_bandwidth_use_ratio{op="all_reduce"}'] == 0.5
    assert found['commprof_compression_ratio{rank="0"}'] == 4
    assert found['commprof_network_bytes_total{direction="sent",interface="lo"}'] == 20
    assert found['commprof_job_info{backend="gloo",mode="full",world_size="2"}'] == 1


def test_unknown_metrics_are_left_out() -> None:
    bare = rank_state(
        0,
        total=None,
        recent=None,
        operations={},
        waited_for_s=math.nan,
        plain_bytes=0.0,
        sent_bytes=0.0,
        process=None,
        gradients=None,
        arrivals=None,
        since_step_s=math.nan,
        status="",
    )
    found = shown(job_state(1, ranks=(bare,), late=None, bandwidth={}, host=None, hosts=()))
    assert {name.partition("{")[0] for name in found} == {
        "commprof_job_info",
        "commprof_dropped_events_total",
        "commprof_trace_bytes",
        "commprof_monitor_cpu_seconds_total",
        "commprof_monitor_resident_bytes",
        "commprof_monitor_look_seconds",
        "commprof_monitor_left_out_events_total",
        "commprof_monitor_problems",
    }


def test_arrivals_are_counted_by_what_is_known_of_them() -> None:
    found = shown(job_state(ranks=(rank_state(0, arrivals=ArrivalState(90, 4, 6)),)))
    counts = [
        found[f'commprof_arrivals_total{{rank="0",state="{state}"}}']
        for state in ("known", "partial", "unknown")
    ]
    assert counts == [90, 4, 6]


def test_metrics_distinguish_failed_ranks_from_ended_ones() -> None:
    ends = rank_state(0, status="ended"), rank_state(1, status="gone", failed=True)
    found = shown(job_state(ranks=ends))
    assert [found[f'commprof_rank_running{{rank="{rank}"}}'] for rank in (0, 1)] == [0, 0]
    assert [found[f'commprof_rank_failed{{rank="{rank}"}}'] for rank in (0, 1)] == [0, 1]


def test_each_monitor_exposes_only_ranks_of_its_host() -> None:
    ranks = (rank_state(0, is_local=False), rank_state(1))
    found = shown(job_state(ranks=ranks))
    assert 'commprof_steps_total{rank="1"}' in found
    assert not any('rank="0"' in name for name in found)
    assert not any("late_rank" in name or "bandwidth" in name for name in found)


def test_hostile_label_values_are_escaped() -> None:
    state = job_state(backend=HOSTILE + "\\")
    text = exposition(samples(state)).decode()
    (line,) = (line for line in text.splitlines() if line.startswith("commprof_job_info"))
    match = LINE.fullmatch(line)
    assert match is not None
    assert match[3] == "1.0"


def test_label_characters_that_cannot_be_encoded_are_replaced() -> None:
    text = exposition(samples(job_state(backend="gl\udc80oo"))).decode()
    assert 'backend="gl?oo"' in text


def test_flat_metrics_have_path_names_and_omit_unknown_figures() -> None:
    figures = flat(job_state())
    assert figures["commprof/step_seconds/rank_1"] == 0.1
    assert figures["commprof/step_part_seconds/rank_0/forward"] == 0.02
    assert figures["commprof/collective_p50_seconds/rank_0/all_reduce"] == 0.009
    assert flat(job_state(1), ranks=False)["commprof/gradient_norm"] == 1.5
    usage = {
        *("process_cpu_seconds_total", "process_resident_bytes", "helper_cpu_seconds_total"),
        *("gradient_norm_cost_seconds_total", "dropped_events_total"),
    }
    assert {f"commprof/{name}/rank_0" for name in usage} <= figures.keys()
    of_host = {"host_memory_available_bytes", "network_bytes_total/lo/sent"}
    assert {f"commprof/{name}" for name in of_host} <= figures.keys()
    assert "commprof/monitor_cpu_seconds_total" in figures
    alone = flat(job_state(1), ranks=False)
    assert {f"commprof/{name}" for name in usage | of_host} <= alone.keys()
    assert not [name for name in alone if "monitor" in name]
    state = job_state(1)
    unknown = replace(state, host=None, ranks=(replace(state.ranks[0], process=None),))
    left = flat(unknown, ranks=False)
    assert not [name for name in left if "process" in name or "host" in name or "network" in name]


def test_the_metrics_text_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "commprof.prom"
    output = TextFile(path)
    output.write(job_state())
    assert path.read_bytes() == exposition(samples(job_state()))
    assert list(tmp_path.iterdir()) == [path]
    said: list[str] = []
    gone = TextFile(tmp_path / "gone" / "commprof.prom")
    write_to(gone, job_state(), said.append)
    assert "TextFile" in said[0]


def test_json_lines_are_written_only_for_new_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    output = JsonLines(path)
    state = job_state()
    later = replace(state, ranks=tuple(replace(rank, step=300) for rank in state.ranks))
    for each in (state, state, later):
        output.write(each)
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["step"], second["step"]) == (249, 300)
    assert first["time_s"] == 1_700_000_000
    assert first["commprof/step_seconds/rank_0"] == 0.1


def test_no_figures_are_written_before_the_first_step_of_a_restarted_job(tmp_path: Path) -> None:
    state = job_state()
    restarted = replace(state, ranks=tuple(replace(rank, step=-1) for rank in state.ranks))
    lines, board = JsonLines(tmp_path / "m.jsonl"), TensorBoard(tmp_path / "events")
    for output in (lines, board):
        for each in (restarted, state, restarted):
            output.write(each)
        output.close()
    (line,) = (tmp_path / "m.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 249
    (events,) = (tmp_path / "events").iterdir()
    assert len(frames(events.read_bytes())) == 2


def frames(data: bytes) -> list[bytes]:
    def masked(part: bytes) -> int:
        crc = crc32c(part)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked(data[:8]),)
        content, data = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", data[:4]) == (masked(content),)
        found.append(content)
        data = data[4:]
    return found


def test_the_tensorboard_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # This is the check value of CRC-32C.
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4 gives this value.


def test_tensorboard_gets_an_event_per_new_step(tmp_path: Path) -> None:
    output = TensorBoard(tmp_path / "events")
    output.write(job_state())
    output.write(job_state())
    output.close()
    (path,) = (tmp_path / "events").iterdir()
    assert path.name.startswith("events.out.tfevents.1700000000.")
    version, event = frames(path.read_bytes())
    assert version == b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:2"
    assert event.startswith(b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\xf9\x01\x2a")  # step 249
    tag = b"commprof/step_seconds/rank_0"
    value = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", 0.1)
    assert b"\x0a" + bytes([len(value)]) + value in event


def test_tensorboard_values_are_clamped_to_fp32_and_nan_is_left_out(tmp_path: Path) -> None:
    output = EventFile(tmp_path, 0.0)
    output.add(0.0, 1, {"variance": 1e39, "least": -1e39, "nan": math.nan})
    output.close()
    (path,) = tmp_path.iterdir()
    largest = float(np.finfo(np.float32).max)
    event = frames(path.read_bytes())[1]
    assert struct.pack("<f", largest) in event
    assert struct.pack("<f", -largest) in event
    assert b"nan" not in event


def test_the_documentation_lists_every_metric() -> None:
    page = Path(__file__).parents[3] / "docs" / "monitoring.md"
    rows = dict(re.findall(r"^\| `(commprof_\w+)` \| [^|]* \| (.*) \|$", page.read_text(), re.M))
    assert rows == {metric.name: metric.help for metric in METRICS}


def room_for(bytes_left: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, resource.RLIM_INFINITY))


@pytest.mark.parametrize("times", [1, 2])
def test_a_full_disk_loses_only_the_metrics_that_did_not_fit(tmp_path: Path, times: int) -> None:
    lines, board = JsonLines(tmp_path / "m.jsonl"), TensorBoard(tmp_path / "events")
    states = [
        replace(job_state(), ranks=tuple(rank_state(rank, step=step) for rank in range(2)))
        for step in range(3)
    ]
    said: list[str] = []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for output in (lines, board):
            output.write(states[0])
        (events,) = (tmp_path / "events").iterdir()
        room_for(min(events.stat().st_size, (tmp_path / "m.jsonl").stat().st_size) + 100)
        for output in (lines, board) * times:
            write_to(output, states[1], said.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(said) == 2 * times
    for output in (lines, board):
        output.write(states[2])
        output.close()
    assert len(frames(events.read_bytes())) == 3
    texts = (tmp_path / "m.jsonl").read_text().splitlines()
    whole = [json.loads(text)["step"] for text in texts if text.endswith("}")]
    assert whole == [0, 2]


TEXT = b"commprof_job_info 1\n"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(endpoints, "_DEADLINE_S", 0.5)
    monkeypatch.setattr(endpoints, "_TURN_S", 0.05)
    made = Endpoint(listen(("127.0.0.1", 0)))
    made.show(lambda: TEXT)
    yield made
    made.close()


def ask(endpoint: Endpoint, request: bytes) -> bytes:
    with socket.create_connection(endpoint.address, timeout=5) as client:
        client.sendall(request)
        found = b""
        while received := client.recv(65536):
            found += received
    return found


def test_a_scrape_gets_the_metrics_text(endpoint: Endpoint) -> None:
    host, port = endpoint.address
    with urllib.request.urlopen(f"http://{host}:{port}/metrics?x=1", timeout=5) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read() == TEXT


def test_the_metrics_text_is_made_once_at_the_first_scrape(endpoint: Endpoint) -> None:
    made = []
    endpoint.show(lambda: made.append("text") or TEXT)  # type: ignore[func-returns-value]
    assert made == []
    for _ in range(3):
        assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)
    assert made == ["text"]


def test_a_scrape_larger_than_a_socket_buffer_is_complete(endpoint: Endpoint) -> None:
    text = b"x" * (8 << 20)
    endpoint.show(lambda: text)
    answer = ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert answer.partition(b"\r\n\r\n")[2] == text


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\xfc\n\n", b"400"),
        (b"\n\n", b"400"),
        (b"GET /metrics\n\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 5000, b"431"),
    ],
)
def test_requests_other_than_a_scrape_get_an_error_status(
    endpoint: Endpoint, request_bytes: bytes, status: bytes
) -> None:
    try:
        answer = ask(endpoint, request_bytes)
    except ConnectionError:  # The endpoint closed the connection before the whole request.
        return
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"commprof_" not in answer


def test_a_head_request_gets_no_body(endpoint: Endpoint) -> None:
    answer = ask(endpoint, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


def silent_clients(endpoint: Endpoint) -> list[socket.socket]:
    clients = [socket.create_connection(endpoint.address, timeout=5) for _ in range(9)]
    clients[-1].sendall(b"GET /met")
    return clients


def test_silent_clients_do_not_delay_other_scrapes(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_DEADLINE_S", 60)
    clients = silent_clients(endpoint)
    assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)
    for client in clients:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(100)
        client.close()


def test_silent_clients_are_disconnected_at_their_deadline(endpoint: Endpoint) -> None:
    for client in silent_clients(endpoint):
        assert client.recv(100) == b""
        client.close()


def test_more_clients_than_the_limit_do_not_block_scrapes(endpoint: Endpoint) -> None:
    many = [socket.create_connection(endpoint.address, timeout=5) for _ in range(40)]
    time.sleep(1.0)
    assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)
    for client in many:
        client.close()


def test_a_client_that_never_reads_does_not_block_scrapes(endpoint: Endpoint) -> None:
    endpoint.show(lambda: b"x" * (32 << 20))
    with socket.create_connection(endpoint.address, timeout=5) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        time.sleep(0.1)
        endpoint.show(lambda: TEXT)
        assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)


@pytest.mark.parametrize(
    "text", ["9470", "localhost:", ":1", "host:x", "host:70000", "host:-1", ""]
)
def test_a_malformed_metrics_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)


def test_metrics_addresses_are_parsed_for_ipv4_and_ipv6() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:9470") == ("::1", 9470)


@pytest.mark.parametrize("host", ["node..cluster", "x" * 64, "\udcff"])
def test_an_invalid_host_name_to_listen_on_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        listen((host, 9470))
    assert str(caught.value) == (
        f"cannot listen on --metrics-address {host}:9470: {host!r} cannot be the name of a host; "
        "give a name or an address of this machine, such as 127.0.0.1"
    )


def test_listening_on_a_port_in_use_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(UsageError, match="choose another port"):
        listen(endpoint.address)
