"""One rank that tries how compressors' messages travel; an assertion that fails ends it.

Run as a module with the launcher's environment set; the arguments are a directory and the names
of the checks.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import commprof
from commprof import compressors
from commprof.compressors import connections
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.compressors_checks import (
    attached,
    batch,
    make,
    raises,
    same_on_all_ranks,
    train,
)

TIMEOUT_S = 4


def messages(directory: Path) -> int:
    """Of the process group, in one recorded step with int8; they belong to their backward pass."""
    ddp = make()
    with commprof.profile(directory), attached(ddp, compressors.int8()):
        train(ddp, range(2))
    same_on_all_ranks(ddp)
    trace = read_trace(directory / f"rank_{dist.get_rank()}.trace")
    table = columns.collectives(trace)
    groups = [g.id for g in trace.groups.values() if g.description == "commprof_compressor"]
    sent = (table.group == max(groups)) & (table.op == trace.metadata["ops"].index("send"))
    assert (table.graph_task[sent] >= 0).all()
    return int(sent.sum())


def own_connections(directory: Path) -> None:
    """The process group carries none of the messages."""
    assert messages(directory) == 0


def off_on_one_rank(directory: Path) -> None:
    """All use the group then, without a word."""
    if dist.get_rank() == 1:
        os.environ[connections.SWITCH] = "off"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert messages(directory) > 0
    os.environ.pop(connections.SWITCH, None)


def no_way_to_one_rank(directory: Path) -> None:
    """All use the group then, and rank 0 says why."""
    original, patience = connections.own_address, connections._PATIENCE_S
    connections._PATIENCE_S = 0.5
    for address in ("192.0.2.1", "127.0.0.77"):
        if dist.get_rank() == 1:
            # Not of this host; of this host, where nobody listens.
            connections.own_address = lambda _, address=address: address
            if address == "127.0.0.77":
                connections._native.native.Listener.endpoint = property(
                    lambda _: "127.0.0.77 9 " + "0" * 32
                )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert messages(directory / address) > 0
        said = [str(w.message) for w in caught if "through gloo" in str(w.message)]
        assert len(said) == (dist.get_rank() == 0), said
        assert all("because of rank" in text for text in said)
    connections.own_address, connections._PATIENCE_S = original, patience


def again_after_an_error(directory: Path) -> None:
    """What failed is not used again: the next compressor gets connections of its own."""
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
    ddp.load_state_dict(ddp.state_dict())
    for parameter in ddp.parameters():
        dist.broadcast(parameter.data, 0)
    train(ddp, range(3, 6))
    same_on_all_ranks(ddp)
    attachment.remove()


def one_stands_still(directory: Path) -> None:
    """Who waits for it raises after the group's timeout, and names it."""
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
        assert "exchange with rank 1 failed: nothing moved for 4000 ms" in text, text
        assert time.monotonic() - begin < TIMEOUT_S + 3


def main() -> None:
    """Those that are named."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    for name in sys.argv[2:]:
        directory = Path(sys.argv[1]) / name
        directory.mkdir(exist_ok=True)
        globals()[name](directory)


if __name__ == "__main__":
    main()
