"""A small HTTP/1.1 server from which Prometheus fetches the metrics (``GET /metrics``).

One thread serves all connections, at most 16 at a time. Each connection serves one request, and has
a deadline of a few seconds.

The server of ``prometheus_client`` is not used, because it starts a thread for every connection and
sets no deadline.
"""

from __future__ import annotations

import functools
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from commprof.errors import UsageError

PATH: Final = "/metrics"
#: Copied from ``prometheus_client``, because importing that package would slow all commands down.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_MOST_CONNECTIONS: Final = 16
_DEADLINE_S: Final = 5.0
_LARGEST_REQUEST: Final = 8192
_TURN_S: Final = 0.5
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def parse_address(text: str) -> tuple[str, int]:
    """Splits ``HOST:PORT``; an IPv6 host may be in brackets.

    Raises:
        UsageError: the text is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"--metrics-address {text!r} is not of the form HOST:PORT, such as 127.0.0.1:9470 "
            "(allowed ports: 0 to 65535, 0 for any free port)"
        )
    return host.strip("[]"), int(port)


def listen(address: tuple[str, int]) -> socket.socket:
    """Opens a socket that listens on an address.

    Raises:
        UsageError: the address cannot be listened on.
    """
    host, port = address
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        server = socket.socket(family, kind, protocol)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(where)
            server.listen(_MOST_CONNECTIONS)
        except OSError:
            server.close()
            raise
    except UnicodeError:
        raise UsageError(
            f"cannot listen on --metrics-address {host}:{port}: {host!r} cannot be the name of a "
            "host; give a name or an address of this machine, such as 127.0.0.1"
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot listen on --metrics-address {host}:{port}: {error.strerror}; choose another "
            "port (0 for any free port) or host"
        ) from None
    server.setblocking(False)
    return server


@dataclass(eq=False)
class _Client:
    connection: socket.socket
    deadline_s: float
    request: bytearray = field(default_factory=bytearray)
    answer: bytes = b""


class Endpoint:
    """Serves the metrics over HTTP, in its own thread, until :meth:`close`."""

    def __init__(self, server: socket.socket) -> None:
        """Starts to serve on a socket of :func:`listen`. The endpoint will close the socket."""
        self._server = server
        self._text: Callable[[], bytes] = bytes
        self._clients: set[_Client] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, _READ, None)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="commprof-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which the server listens."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def show(self, text: Callable[[], bytes]) -> None:
        """Sets the function that returns the text of the metrics; the text is cached."""
        self._text = functools.cache(text)

    def close(self) -> None:
        """Ends all connections and the thread."""
        self._closing.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(_TURN_S):
                if key.data is None:
                    self._accept()
                else:
                    self._go_on(key.data)
            now = time.monotonic()
            for client in [each for each in self._clients if each.deadline_s < now]:
                self._drop(client)
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._server.accept()
            if len(self._clients) >= _MOST_CONNECTIONS:
                connection.close()
                return
            connection.setblocking(False)
            client = _Client(connection, time.monotonic() + _DEADLINE_S)
            self._clients.add(client)
            self._selector.register(connection, _READ, client)

    def _go_on(self, client: _Client) -> None:
        try:
            if client.answer:
                sent = client.connection.send(client.answer)
                client.answer = client.answer[sent:]
                if not client.answer:
                    self._drop(client)
            elif self._read(client):
                client.answer = _answer(bytes(client.request), self._text)
                self._selector.modify(client.connection, _WRITE, client)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> bool:
        """Reads from a client; returns True if the request can be answered now."""
        received = client.connection.recv(_LARGEST_REQUEST)
        if not received:
            self._drop(client)
            return False
        client.request += received
        whole = b"\r\n\r\n" in client.request or b"\n\n" in client.request
        return whole or len(client.request) >= _LARGEST_REQUEST

    def _drop(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.discard(client)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        with suppress(OSError):
            client.connection.close()


def _answer(request: bytes, text: Callable[[], bytes]) -> bytes:
    if len(request) >= _LARGEST_REQUEST:
        return _response("431 Request Header Fields Too Large", b"", "")
    words = request.split(b"\n", 1)[0].split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return _response("400 Bad Request", b"", "")
    if words[0] not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", b"", "Allow: GET, HEAD\r\n")
    if words[1].split(b"?", 1)[0] != PATH.encode():
        return _response("404 Not Found", b"", "")
    kind = f"Content-Type: {CONTENT_TYPE}\r\n"
    body = text()
    whole = _response("200 OK", body, kind)
    return whole if words[0] == b"GET" else whole[: len(whole) - len(body)]


def _response(status: str, body: bytes, headers: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
