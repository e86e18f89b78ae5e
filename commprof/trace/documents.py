"""The JSON blocks of a trace, checked: what passes here is used without looking again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from commprof.shapes import Shape, checked

METADATA: Final[dict[str, Shape]] = {
    "rank": int,
    "world_size": int,
    "local_rank": int,
    "restart_count": int,
    "pid": int,
    "main_thread": int,
    "command": list[str],
    "python": str,
    "torch": str,
    "commprof": str,
    "backend": str,
    "threads": int,
    "capture": str,
    "machine": {
        "hostname": str,
        "boot_id": str,
        "time_namespace": str,
        "pid_namespace": str,
        "cpu_model": str,
        "cpu_count": int,
        "usable_cpu_count": int,
        "usable_cpus": list[str],
        "memory_bytes": int,
        "kernel": str,
        "cuda_devices": int,
    },
    "clock": {"source": str, "monotonic_ns": int, "realtime_ns": int},
    "ring_prefix": str,
    "record_bytes": int,
    "kinds": list[str],
    "ops": list[str],
    "phases": list[str],
    "dtypes": list[str],
    "hooks": list[str],
    # Traces of older versions do not have it.
    "elastic_run_id": str | None,
}
#: More than any job has; what is made per rank must not be of any size that a file names.
MOST_RANKS: Final = 1 << 20
#: Of a GPU, each with its mean, least and most.
_TELEMETRY: Final = ("utilisation_percent", "sm_clock_mhz", "power_w", "memory_used_bytes")
#: What a later metadata block may set anew; each block any of it.
MORE_METADATA: Final[dict[str, Shape]] = {
    "hooks": list[str],
    "witnesses": dict,
    "gloo_threads": dict,
    "device_telemetry": {
        "uuid": str,
        "samples": int,
        **dict.fromkeys(_TELEMETRY, Mapping[str, float] | None),
        "limits_read": int,
        "limited": Mapping[str, int],
        "begin_monotonic_ns": int,
    },
    "no_device_times": str,
    "trial": {"plan": str, "first_step": int, "begin_monotonic_ns": int, "left_out": dict},
    "trial_losses": dict,
    "no_trial": {"reason": str, "begin_monotonic_ns": int},
    "ending": {"error": str},
    "write_failed": {"errno": int, "reason": str, "monotonic_ns": int},
    "pauses": {"count": int, "total_ns": int, "longest_ns": int, "longest_begin_ns": int},
    "sync_checks": {"every": int, "checks": int, "first_step": int, "ranks": list[str]},
}
STACK: Final[dict[str, Shape]] = {"id": int, "frames": list[str]}
END: Final[dict[str, Shape]] = {"records": int, "dropped": int, "end_monotonic_ns": int}
SALVAGED: Final[dict[str, Shape]] = {"records": int, "dropped": int}


@dataclass(frozen=True)
class Group:
    """One process group, as the rank that wrote the trace saw it."""

    id: int
    name: str
    description: str
    backend: str
    rank: int
    size: int


def read_metadata(payload: memoryview) -> dict[str, Any]:
    """The first block of a trace; keys that ``profile(metadata=...)`` added are not checked.

    Raises:
        ValueError: names the key that is missing or unusable.
    """
    value = _read(payload, METADATA)
    if value["world_size"] > MOST_RANKS:
        raise ValueError(f"world_size {value['world_size']} is above {MOST_RANKS}")
    if value["rank"] >= value["world_size"]:
        raise ValueError(f"rank {value['rank']} of world_size {value['world_size']}")
    return value


def read_more_metadata(payload: memoryview) -> dict[str, Any]:
    """What a later metadata block sets anew; ValueError as above."""
    value = _read(payload, {})
    given = {key: shape for key, shape in MORE_METADATA.items() if key in value}
    return {key: checked(value[key], shape, key) for key, shape in given.items()}


def read_group(payload: memoryview) -> Group:
    """The description of one process group; ValueError as above."""
    group: Group = _read(payload, Group)
    return group


def read_stack(payload: memoryview) -> tuple[int, tuple[str, ...]]:
    """Number and frames of one stack, innermost first; ValueError as above."""
    value = _read(payload, STACK)
    return value["id"], tuple(value["frames"])


def read_dropped(payload: memoryview, shape: dict[str, Shape]) -> int:
    """Records dropped, from a block of shape END or SALVAGED; ValueError as above."""
    return int(_read(payload, shape)["dropped"])


def _read(payload: memoryview, shape: Shape) -> Any:
    try:
        return checked(json.loads(bytes(payload)), shape)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
