"""Hosts in network namespaces, joined by a switch; needs root, ``ip`` and ``tc``.

The network of the machine itself is not touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.machines.fork_server import Forked

#: With jumbo frames, headers are 0.7 % of the bytes on the wire instead of 4.4 %.
MTU = 9000
#: The rate limit also counts headers: Ethernet 14, IPv4 20, and TCP with timestamps 32 bytes.
PAYLOAD_SHARE = (MTU - 52) / (MTU + 14)

_CONGESTION = "net.ipv4.tcp_congestion_control"


def unavailable() -> str:
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    probe = subprocess.run(["ip", "netns", "add", f"cpprobe{os.getpid()}"], capture_output=True)
    if probe.returncode:
        return f"cannot make a namespace: {probe.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", f"cpprobe{os.getpid()}"], check=True)
    return ""


class Hosts:
    """Hosts with the addresses 10.96.0.1 and up, whose ``eth0`` sends with at most ``rate``."""

    def __init__(
        self,
        count: int,
        rate: str,
        burst: str = "128kb",
        queue: str = "100ms",
        congestion: str = "",
        second: str = "",
    ) -> None:
        """Takes rates and sizes in tc's notation, such as ``1gbit`` and ``128kb``.

        ``congestion`` is TCP's algorithm, such as ``reno``, and ``second`` is the rate of an
        additional interface ``eth1``.
        """
        self._second = second
        self._congestion = congestion
        self._switch = f"cp{os.getpid()}sw"
        self.names = [f"cp{os.getpid()}h{i}" for i in range(count)]
        self._rate, self._burst, self._queue = rate, burst, queue

    def address(self, host: int, interface: str = "eth0") -> str:
        return f"10.{96 if interface == 'eth0' else 97}.0.{host + 1}"

    def popen(
        self, host: int, command: Sequence[str], env: dict[str, str], stdin: int | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            env={**os.environ, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def bytes_sent(self, host: int) -> int:
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(_ip("netns", "exec", self.names[host], "cat", path))

    def dropped(self) -> int:
        described = [
            json.loads(_run(["tc", "-json", "-s", "-n", name, "qdisc", "show", "dev", "eth0"]))
            for name in self.names
        ]
        return sum(int(qdisc["drops"]) for found in described for qdisc in found)

    def __enter__(self) -> Hosts:
        try:
            _ip("netns", "add", self._switch)
            for bridge in ("br0", "br1")[: 2 if self._second else 1]:
                _ip("-n", self._switch, "link", "add", bridge, "mtu", str(MTU), "type", "bridge")
                _ip("-n", self._switch, "link", "set", bridge, "up")
            for i, name in enumerate(self.names):
                self._add_host(i, name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _add_host(self, index: int, name: str) -> None:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        if self._congestion:
            _ip("netns", "exec", name, "sysctl", "-qw", f"{_CONGESTION}={self._congestion}")
        self._add_link(index, name, "eth0", self._rate)
        if self._second:
            self._add_link(index, name, "eth1", self._second)

    def _add_link(self, index: int, name: str, interface: str, rate: str) -> None:
        bridge, port = f"br{interface[-1]}", f"port{interface[-1]}_{index}"
        peer = ["type", "veth", "peer", "name", interface, "netns", name]
        _ip("-n", self._switch, "link", "add", port, *peer)
        _ip("-n", self._switch, "link", "set", port, "mtu", str(MTU), "master", bridge)
        _ip("-n", self._switch, "link", "set", port, "up")
        _ip("-n", name, "addr", "add", f"{self.address(index, interface)}/24", "dev", interface)
        _ip("-n", name, "link", "set", interface, "mtu", str(MTU), "up")
        limit = ["rate", rate, "burst", self._burst, "latency", self._queue]
        _run(["tc", "-n", name, "qdisc", "add", "dev", interface, "root", "tbf", *limit])

    def __exit__(self, *_: object) -> None:
        for name in [*self.names, self._switch]:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in pids.stdout.split():
                subprocess.run(["kill", "-9", pid], capture_output=True)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


_TIMEOUT_S = 300
_PORT = 29500


def run_on_each(hosts: Hosts, output: Path, arguments: Sequence[str]) -> dict[str, Any]:
    count = len(hosts.names)
    command = ["-m", "commprof.run", *arguments, "--nnodes", str(count)]
    command += ["--rdzv-endpoint", f"{hosts.address(0)}:{_PORT}", "--output", str(output)]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "COLUMNS": "100"}
    started = [
        Forked([*command, "--node-rank", str(host)], env, spare_count=1, netns=hosts.names[host])
        for host in range(count)
    ]
    texts = [process.communicate(timeout=_TIMEOUT_S)[0] for process in started]
    for process, text in zip(started, texts, strict=True):
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    result["text"] = texts[0]
    return result
