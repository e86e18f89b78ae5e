from __future__ import annotations

import functools
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import commprof
from commprof._native import native
from commprof.errors import CommprofError

QUIET_S = 0.05
"""Within this time, gloo's threads record the last completions."""

NEVER_MS = 3_600_000


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def recorded(prof: commprof.Profiler) -> int:
    stats = prof.stats()
    assert stats.records_dropped == 0
    return int(stats.records_written + stats.records_unwritten)


def leave_records_in_rings() -> None:
    if native is not None:
        # On a slow machine, the flushes at the start would also take the records of the first
        # steps.
        start = functools.partial(native.start, flush_interval_ms=NEVER_MS)
        mock.patch.object(native, "start", start).start()


def model() -> DistributedDataParallel:
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    return DistributedDataParallel(
        nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), bucket_cap_mb=0.06
    )


def train_step(ddp: nn.Module, prof: commprof.Profiler) -> None:
    ddp(torch.ones(4, 64)).sum().backward()
    prof.step()


def killed_by_itself(directory: Path) -> None:
    ddp = model()
    with commprof.profile(directory) as prof:
        for _ in range(5):
            train_step(ddp, prof)
        if dist.get_rank() == 1:
            time.sleep(QUIET_S)
            for _ in range(2000):
                prof.step()
            say(records=recorded(prof), steps=2005)
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1000):
            train_step(ddp, prof)


def killed_from_outside(directory: Path) -> None:
    ddp = model()
    with commprof.profile(directory) as prof:
        for step in range(1_000_000):
            train_step(ddp, prof)
            say(step=step)


def ends_with_exit(directory: Path) -> None:
    with commprof.profile(directory) as prof:
        prof.step()
        sys.exit(3)


def ends_with_error(directory: Path) -> None:
    with commprof.profile(directory) as prof:
        prof.step()
        raise LookupError("the user's own")


def ends_without_stop(directory: Path) -> None:
    prof = commprof.profile(directory).start()
    prof.step()


def ends_at_once(directory: Path) -> None:
    leave_records_in_rings()
    with commprof.profile(directory) as prof:
        for _ in range(100):
            prof.step()
        if os.environ.get("COMMPROF_NATIVE") == "0":
            time.sleep(0.5)  # Python capture keeps only what it has flushed
        os._exit(4)


def two_sessions(directory: Path) -> None:
    leave_records_in_rings()
    with commprof.profile(directory / "first") as prof:
        for _ in range(10):
            prof.step()
    prof = commprof.profile(directory / "second").start()
    for _ in range(20):
        prof.step()
    say(records=recorded(prof))
    os.kill(os.getpid(), signal.SIGKILL)


def forks(directory: Path) -> None:
    data = TensorDataset(torch.arange(12.0))
    with commprof.profile(directory / "parent") as prof:
        seen = 0
        for (batch,) in DataLoader(data, batch_size=2, num_workers=2):
            seen += len(batch)
            prof.step()
        pid = os.fork()
        if pid == 0:
            # The end of the parent's block must not close the parent's trace in the child.
            prof.step()
            prof.stop()
            with commprof.profile(directory / "child") as own:
                for _ in range(4):
                    own.step()
            sys.exit(0)
        status = os.waitpid(pid, 0)[1]
        for method in ("fork", "spawn"):
            child = multiprocessing.get_context(method).Process(
                target=in_a_child, args=(directory / method,)
            )
            child.start()
            child.join()
            status |= child.exitcode or 0
        prof.step()
    say(seen=seen, status=status, pid=os.getpid())


def in_a_child(directory: Path) -> None:
    """A process of ``multiprocessing`` runs no exit handlers."""
    with commprof.profile(directory) as prof:
        prof.step()


def disk_fills_up(directory: Path) -> None:
    total = torch.zeros(4)
    with commprof.profile(directory) as prof:
        for _ in range(10):
            prof.step()
        prof._recorder.flush()
        size_bytes = prof.stats().trace_bytes
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 100, limits[1]))
        for _ in range(10):
            total += torch.ones(4)
            prof.step()
        time.sleep(0.5)
        stats = prof.stats()
    say(total=total.tolist(), written=stats.records_written, errno=stats.write_errno)


def refusals(directory: Path) -> None:
    (directory / "file").write_text("")
    (directory / "taken").mkdir()
    (directory / "taken" / "rank_0.trace").write_text("keep me")
    # Another user may not enter tmp_path, so this folder is elsewhere.
    read_only = Path(tempfile.mkdtemp(prefix="commprof-read-only-"))
    read_only.chmod(0o555)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    refused("taken", directory / "taken")
    refused("file", directory / "file")
    refused("unknown", directory / "a", metadata={"x": object()})
    refused("own key", directory / "a", metadata={"rank": 7})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    refused("full", directory / "full")
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    os.environ["RANK"] = "5"
    refused("rank", directory / "a")
    del os.environ["RANK"]
    with commprof.profile(directory / "full", metadata={"world_size": 1, "mine": 2}):
        refused("second", directory / "second")
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    refused("read only", read_only)
    if root:
        os.seteuid(0)
    read_only.rmdir()


def refused(name: str, directory: Path, **options: Any) -> None:
    with suppress(CommprofError):
        try:
            with commprof.profile(directory, **options):
                say(name=name, message="")
        except CommprofError as error:
            say(name=name, message=str(error))
            raise


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](Path(sys.argv[2]))
