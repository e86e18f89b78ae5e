from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from commprof.files import replace_file
from commprof.monitor.observer import Observer
from commprof.trace.host_summary import path_of
from commprof.trace.run.processes import Here
from commprof.trace.schema import BLOCK_HEADER, BlockType
from tests.support.builders import trace_bytes
from tests.support.builders.traces import MS, document, operation, summary

OPS: Final = ["other", "all_reduce", "all_gather", "reduce_scatter", "broadcast"]
_TIMES: Final = ("duration", "wait", "until_last", "transfer")


def machine_of(host: int) -> dict[str, Any]:
    """Returns the machine of a simulated host; host 0 is this machine."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = {f"{name}_namespace": os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "time")}
    named = {"hostname": f"node{host:04}", "boot_id": boot_id if host == 0 else f"{host:08}-boot"}
    return {**trace_bytes.metadata()["machine"], **spaces, **named}


@contextmanager
def here_on(host: int) -> Iterator[Here]:
    with tempfile.TemporaryDirectory() as place:
        proc = Path(place)
        (proc / "sys/kernel/random").mkdir(parents=True)
        (proc / "sys/kernel/random/boot_id").write_text(machine_of(host)["boot_id"])
        (proc / "self").mkdir()
        (proc / "self/ns").symlink_to("/proc/self/ns")
        (proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
        yield Here(proc)


class SimulatedHost:
    def __init__(
        self, run: Path, host: int, hosts: int, per_host: int, operations: int = 20, late: int = 3
    ) -> None:
        self.host = host
        self.ranks = range(per_host * host, per_host * (host + 1))
        self._run, self._world, self._hosts = run, per_host * hosts, hosts
        self._operations, self._late = operations, late
        random = np.random.default_rng(host)
        self._times = [(random.lognormal(1.5, 0.5, 400) * MS).astype(int).tolist() for _ in _TIMES]
        self._heads = {rank: self._head(rank) for rank in self.ranks}

    def _head(self, rank: int) -> bytes:
        now = {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}
        group = trace_bytes.group(size=self._world, rank=rank)
        return trace_bytes.trace(
            trace_bytes.document(trace_bytes.GROUP_BLOCK, group),
            rank=rank,
            world_size=self._world,
            pid=os.getpid(),
            machine=machine_of(self.host),
            clock={"source": "CLOCK_MONOTONIC", **now},
            ops=OPS,
        )

    def write(self, sequence: int, closed: bool = False) -> None:
        for rank in self.ranks:
            content = json.dumps(self.summary(rank, sequence)).encode()
            end = trace_bytes.end() if closed else b""
            data = self._heads[rank] + trace_bytes.block(BlockType.SUMMARY, content) + end
            path = self._run / f"rank_{rank}.trace"
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.write(data)  # a rank writes in place, too

    def rewrite(self, sequence: int) -> None:
        for rank in self.ranks:
            path = self._run / f"rank_{rank}.trace"
            head = len(self._heads[rank])
            old = path.read_bytes()[head + BLOCK_HEADER.size :]
            content = re.sub(rb'"sequence": \d+', b'"sequence": %d' % sequence, old, count=1)
            path.write_bytes(self._heads[rank] + trace_bytes.block(BlockType.SUMMARY, content))
        machine = machine_of(self.host)
        own = path_of(self._run, machine["hostname"], machine["boot_id"])
        if own.exists():
            replace_file(own, own.read_bytes())

    def summary(self, rank: int, sequence: int) -> dict[str, Any]:
        steps = 400 + sequence
        cells = [n for block in range(20) for n in (block, self._late, 160 * MS)]
        parts = [document([n * MS] * steps) for n in (1, 2, 3, 4, 0)]
        if rank == self._late:
            cells, parts[1] = [], document([10 * MS] * steps)
        operations = [
            operation(
                op=1 + kind % 4,
                size_class=kind,
                count=400,
                **dict(zip(_TIMES, map(document, self._times), strict=True)),
            )
            for kind in range(1, self._operations + 1)
        ]
        return summary(
            sequence=sequence,
            end_ns=8_000 * MS + sequence * 20 * MS,
            steps=document([20 * MS] * steps),
            exposed=document([9 * MS] * steps),
            phases=parts,
            exposed_wait=document([8 * MS] * steps),
            exposed_transfer=document([1 * MS] * steps),
            arrivals={"known": 8_000, "unknown": 3, "unsplit_steps": 0, "unsplit_ns": 0},
            hosts={"clock": 1, "peers": 1, "heard": self._hosts - 1, "unsent": 0},
            last=[{"rank": self._late, "count": 7_000 + rank, "wait_ns": 5 * MS}],
            waited_for={"block_ns": 1 << 30, "cells": cells},
            operations=operations,
        )

    def publish(self, next_s: float) -> None:
        with tempfile.TemporaryDirectory() as place, here_on(self.host) as here:
            own = Path(place)
            for rank in self.ranks:
                (own / f"rank_{rank}.trace").symlink_to(self._run / f"rank_{rank}.trace")
            observer = Observer(own, nested=False, is_monitor=True, here=here)
            observer.poll()
            observer.publish(next_s)
            observer.close()
            for written in own.glob("host_*.summary"):
                partial = self._run / f".{written.name}"
                partial.write_bytes(written.read_bytes())
                os.replace(partial, self._run / written.name)
