from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import commprof
from commprof import compressors, variables
from commprof.trace import columns
from commprof.trace.reader import read_trace
from commprof.tune.compressors import groups
from tests.support.ranks.compressors.checks import (
    attached,
    batch,
    make,
    raises,
    same_on_all_ranks,
    train,
)

TIMEOUT_S = 4


def connected(attachment: commprof.Attachment) -> bool:
    return any(c._mesh is not None for c in attachment._shared._connections.values())


def trained(directory: Path) -> bool:
    """Trains two steps with int8; returns True if the ranks used connections of their own."""
    ddp = make()
    with commprof.profile(directory):
        attachment = commprof.attach(ddp, hook=compressors.int8())
        own = connected(attachment)
        train(ddp, range(2))
        attachment.set_hook(None)
    same_on_all_ranks(ddp)
    trace = read_trace(directory / f"rank_{dist.get_rank()}.trace")
    table = columns.collectives(trace)
    group = max(g.id for g in trace.groups.values() if g.description == "commprof_compressor")
    world = dist.get_world_size()
    # Ranks exchange headers, and then data: two ranks in one phase, more ranks in two phases.
    expected = len(columns.buckets(trace)) * (world - 1) * (2 if world == 2 else 3)
    for name, sizes in (("send", table.bytes_in), ("recv", table.bytes_out)):
        mine = (table.group == group) & (table.op == trace.metadata["ops"].index(name))
        assert mine.sum() == expected
        assert (table.graph_task[mine] >= 0).all()
        assert (table.end_ns[mine] >= table.issue_ns[mine]).all()
        assert (sizes[mine] >= 32).all()
        for peer in range(world):
            numbers = table.seq[mine & (table.peer == peer)].tolist()
            assert numbers == sorted(set(numbers))
    return own


def own_connections(directory: Path) -> None:
    assert trained(directory)


def off_on_one_rank(directory: Path) -> None:
    if dist.get_rank() == 1:
        os.environ[variables.SOCKETS] = "off"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not trained(directory)
    os.environ.pop(variables.SOCKETS, None)


def switched_to_nonsense(directory: Path) -> None:
    """A wrong value causes a warning, because an error would leave the other ranks waiting."""
    if dist.get_rank() == 1:
        os.environ[variables.SOCKETS] = "maybe"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not trained(directory)
    said = [str(w.message) for w in caught if "through gloo" in str(w.message)]
    assert len(said) == (dist.get_rank() == 0), said
    assert all(
        "rank 1: COMMPROF_SOCKETS='maybe' is not valid (allowed: on, off)" in s for s in said
    )


def no_way_to_one_rank(directory: Path) -> None:
    original, patience = groups.own_address, groups._PATIENCE_S
    groups._PATIENCE_S = 0.5
    for address in ("192.0.2.1", "127.0.0.77"):
        if dist.get_rank() == 1:
            # 192.0.2.1 is reserved for documentation, and nothing listens at 127.0.0.77.
            groups.own_address = lambda _, address=address: address
            if address == "127.0.0.77":
                groups._native.tune.Listener.endpoint = property(
                    lambda _: "127.0.0.77 9 " + "0" * 32
                )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not trained(directory / address)
        said = [str(w.message) for w in caught if "through gloo" in str(w.message)]
        assert len(said) == (dist.get_rank() == 0), said
        assert all("because of rank" in text for text in said)
    groups.own_address, groups._PATIENCE_S = original, patience


def garbage_while_connecting(directory: Path) -> None:
    original, over = groups.Connections._everybodys, threading.Event()
    strangers: list[threading.Thread] = []

    def told(self: Any, own: Any) -> list[Any]:
        words = own.split() if isinstance(own, str) else []
        if len(words) == 3:  # an endpoint has an address, a port and a token
            where = words[0], int(words[1])
            strangers.append(threading.Thread(target=_strangers, args=(where, over), daemon=True))
            strangers[-1].start()
            time.sleep(0.5)  # strangers connect before any peer knows the address
        return original(self, own)

    groups.Connections._everybodys = told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(directory)
    over.set()
    assert strangers
    for stranger in strangers:
        stranger.join()
    groups.Connections._everybodys = original


def _strangers(where: tuple[str, int], over: threading.Event) -> None:
    sayings = (b"", b"GET / HTTP/1.1\r\n\r\n", b"commprof" + b"\1\0\0\0" + b"f" * 36, b"\0" * 4096)
    held: list[socket.socket] = []
    for number in range(1 << 30):
        if over.is_set():
            break
        try:
            stranger = socket.create_connection(where, 0.2)
            stranger.sendall(sayings[number % len(sayings)])
        except OSError:
            time.sleep(0.01)
            continue
        held.append(stranger)
        if number % 3:
            held.pop().close()
        if len(held) > 100:  # a listener's backlog is shorter
            held.pop(0).close()
        time.sleep(0.001)
    for stranger in held:
        stranger.close()
    assert number > 10


def again_after_an_error(directory: Path) -> None:
    ddp, compressor = make(), compressors.int8()
    attachment = commprof.attach(ddp, hook=compressor)
    train(ddp, range(1))
    if dist.get_rank() == 0:
        compressor.load_state_dict({**compressor.state_dict(), "step": 40})
    raises(
        f"failed on rank {dist.get_rank()} in bucket 0 of step",
        lambda: ddp(batch(2)).square().mean().backward(),
        RuntimeError,
    )
    attachment.set_hook(compressors.fp16())
    assert connected(attachment)
    for parameter in ddp.parameters():
        dist.broadcast(parameter.data, 0)
    train(ddp, range(3, 6))
    same_on_all_ranks(ddp)
    attachment.remove()


def one_stands_still(directory: Path) -> None:
    ddp = make()
    with attached(ddp, compressors.int8()):
        train(ddp, range(2))
        dist.barrier()
        if dist.get_rank() == 1:
            if os.fork() == 0:
                time.sleep(TIMEOUT_S + 4)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGSTOP)
            raises("failed on rank 1", lambda: train(ddp, range(2, 3)), RuntimeError)
            return
        begin = time.monotonic()
        text = raises("failed on rank 0", lambda: train(ddp, range(2, 3)), RuntimeError)
        assert "exchange failed: nothing moved for 4000 ms" in text, text
        assert "bytes from rank 1" in text, text
        assert time.monotonic() - begin < TIMEOUT_S + 3


def stopped_while_it_waits(directory: Path) -> None:
    ddp, compressor = make(), compressors.int8()
    with attached(ddp, compressor):
        train(ddp, range(2))
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(2)
            raises("failed on rank 1", lambda: train(ddp, range(2, 3)), RuntimeError)
            return
        assert compressor._running is not None
        stop = threading.Timer(0.5, compressor._running.engine.stop, [0.2])
        begin = time.monotonic()
        stop.start()
        raises("exchange was stopped on this rank", lambda: train(ddp, range(2, 3)), RuntimeError)
        assert time.monotonic() - begin < 1.5
        stop.join()


def forked_child_ends(directory: Path) -> None:
    ddp = make()
    attachment = commprof.attach(ddp, hook=compressors.int8())
    train(ddp, range(2))
    for says_so in (False, True):
        child = os.fork()
        if child == 0:
            try:
                if says_so:
                    attachment.set_hook(None)
                atexit._run_exitfuncs()
                os._exit(0)  # torch cannot destroy its groups in a forked child
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        train(ddp, range(2, 4))
    same_on_all_ranks(ddp)
    attachment.remove()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    for name in sys.argv[2:]:
        directory = Path(sys.argv[1]) / name
        directory.mkdir(exist_ok=True)
        globals()[name](directory)
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends at once


if __name__ == "__main__":
    main()
