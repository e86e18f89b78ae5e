"""The c10d backend ``commprof``: gloo, with shared memory between the ranks of one host.

::

    import commprof.backend
    torch.distributed.init_process_group("cpu:commprof")

All-reduce, broadcast, all-gather, reduce-scatter and barrier of dense CPU tensors go through
memory that the ranks share; everything else goes to gloo.
"""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from commprof import _native
from commprof.errors import CommprofError

#: Per rank, twice. A block that long is moved between two meetings of the ranks: long enough
#: that a meeting costs little, short enough that the second cache still holds it.
SLOT_BYTES = 1 << 20


def register() -> None:
    """Makes ``commprof`` known to ``init_process_group``; calling it again changes nothing."""
    if "COMMPROF" not in dist.Backend._plugins:
        dist.Backend.register_backend("commprof", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: Any) -> Any:
    """What ``init_process_group`` and ``new_group`` call: a backend for one group.

    Falls back to gloo alone, with a warning, where the ranks are on several hosts or share no
    memory; all ranks decide alike.
    """
    native = _native.native
    if native is None:
        raise CommprofError(
            f"the backend 'commprof' needs the native module: {_native.native_error}; use 'gloo'"
        )
    store, rank, size = options.store, options.group_rank, options.group_size
    gloo = ProcessGroupGloo(store, rank, size, timeout=options.timeout)
    gloo._set_sequence_number_for_group()
    if size == 1:
        return gloo
    places = _everybodys(store, "place", rank, size, _place())
    if len(set(places)) > 1:
        warnings.warn(
            f"commprof backend: {len(set(places))} hosts in this group, so it is gloo alone",
            stacklevel=2,
        )
        return gloo
    return _over_shared_memory(native, gloo, options)


def _over_shared_memory(native: Any, gloo: Any, options: Any) -> Any:
    store, rank, size = options.store, options.group_rank, options.group_size
    name = native.shm_name() if rank == 0 else ""
    segment, problem = None, ""
    if rank == 0:
        segment, problem = _reserve(native, name, rank, size)
        store.set("commprof/shm", name)
    else:
        name = store.get("commprof/shm").decode()
        segment, problem = _reserve(native, name, rank, size)
    problems = _everybodys(store, "shm-problem", rank, size, problem)
    if any(problems):
        first = next(i for i, text in enumerate(problems) if text)
        if rank == 0:
            warnings.warn(
                f"commprof backend: gloo alone, because of rank {first}: {problems[first]}",
                stacklevel=2,
            )
        return gloo
    return native.shm_backend(
        gloo,
        segment,
        name=name,
        global_ranks=list(options.global_ranks_in_group) or list(range(size)),
        slot_bytes=SLOT_BYTES,
        timeout_ms=int(_as_timedelta(options.timeout).total_seconds() * 1e3),
    )


def _reserve(native: Any, name: str, rank: int, size: int) -> tuple[Any, str]:
    """The segment, or why there is none."""
    try:
        return native.Segment(name, rank=rank, size=size, slot_bytes=SLOT_BYTES), ""
    except native.SegmentError as error:
        return None, str(error)


def _everybodys(store: Any, key: str, rank: int, size: int, own: str) -> list[str]:
    """What each rank says under this key."""
    store.set(f"commprof/{key}/{rank}", own)
    return [store.get(f"commprof/{key}/{other}").decode() for other in range(size)]


def _place() -> str:
    """Equal for ranks that can share memory: one kernel, one /dev/shm.

    ``COMMPROF_HOST`` overrides it, to treat ranks of one machine as several hosts.
    """
    named = os.environ.get("COMMPROF_HOST")
    if named:
        return f"named {named}"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot_id} {os.stat('/dev/shm').st_dev}"


def _as_timedelta(timeout: Any) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=float(timeout))


register()
