"""The endpoint answers scrapes, and nobody else for long."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest

from commprof.errors import UsageError
from commprof.monitor.metrics import endpoint as endpoints
from commprof.monitor.metrics.endpoint import Endpoint, listen, parse_address

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
    """All that comes back."""
    with socket.create_connection(endpoint.address, timeout=5) as client:
        client.sendall(request)
        found = b""
        while received := client.recv(65536):
            found += received
    return found


def test_a_scrape(endpoint: Endpoint) -> None:
    host, port = endpoint.address
    with urllib.request.urlopen(f"http://{host}:{port}/metrics?x=1", timeout=5) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read() == TEXT


def test_the_first_scrape_of_a_state_makes_its_text(endpoint: Endpoint) -> None:
    made = []
    endpoint.show(lambda: made.append("text") or TEXT)  # type: ignore[func-returns-value]
    assert made == []
    for _ in range(3):
        assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)
    assert made == ["text"]


def test_an_answer_larger_than_a_socket_buffer(endpoint: Endpoint) -> None:
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
def test_what_is_no_scrape_gets_no_metrics(
    endpoint: Endpoint, request_bytes: bytes, status: bytes
) -> None:
    try:
        answer = ask(endpoint, request_bytes)
    except ConnectionError:  # it was closed on what we still had to say
        return
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"commprof_" not in answer


def test_a_head_has_no_body(endpoint: Endpoint) -> None:
    answer = ask(endpoint, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


def test_slow_clients_hold_nobody_up(endpoint: Endpoint) -> None:
    silent = [socket.create_connection(endpoint.address, timeout=5) for _ in range(8)]
    slow = socket.create_connection(endpoint.address, timeout=5)
    slow.sendall(b"GET /met")
    begin = time.monotonic()
    assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)
    assert time.monotonic() - begin < 0.4
    for client in (*silent, slow):  # each is let go at its deadline
        assert client.recv(100) == b""
        client.close()


def test_more_clients_than_places(endpoint: Endpoint) -> None:
    many = [socket.create_connection(endpoint.address, timeout=5) for _ in range(40)]
    time.sleep(1.0)
    assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)
    for client in many:
        client.close()


def test_a_client_that_never_reads(endpoint: Endpoint) -> None:
    endpoint.show(lambda: b"x" * (32 << 20))
    with socket.create_connection(endpoint.address, timeout=5) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        time.sleep(0.1)
        endpoint.show(lambda: TEXT)
        assert ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n").endswith(TEXT)


@pytest.mark.parametrize(
    "text", ["9470", "localhost:", ":1", "host:x", "host:70000", "host:-1", ""]
)
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:9470") == ("::1", 9470)


def test_a_port_that_is_taken(endpoint: Endpoint) -> None:
    with pytest.raises(UsageError, match="take another port"):
        listen(endpoint.address)
