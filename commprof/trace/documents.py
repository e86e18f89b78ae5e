"""The JSON blocks of a trace, checked: what passes here is used without looking again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

#: ``int`` is a whole number from 0 to 2**63 - 1, ``list`` a list of strings, ``dict`` an object of
#: whatever its reader checks by itself. Further keys may stand beside those listed.
Shape: TypeAlias = "type | dict[str, Shape]"

METADATA: Final[dict[str, Shape]] = {
    "rank": int,
    "world_size": int,
    "local_rank": int,
    "restart_count": int,
    "pid": int,
    "main_thread": int,
    "command": list,
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
        "usable_cpus": list,
        "memory_bytes": int,
        "kernel": str,
        "cuda_devices": int,
    },
    "clock": {"source": str, "monotonic_ns": int, "realtime_ns": int},
    "ring_prefix": str,
    "record_bytes": int,
    "kinds": list,
    "ops": list,
    "phases": list,
    "dtypes": list,
    "hooks": list,
}
#: What traces of older versions do not have.
OPTIONAL_METADATA: Final[dict[str, Shape]] = {"elastic_run_id": str}
#: More than any job has; what is made per rank must not be of any size that a file names.
MOST_RANKS: Final = 1 << 20
#: What a later metadata block may set anew; each block any of it.
MORE_METADATA: Final[dict[str, Shape]] = {
    "hooks": list,
    "witnesses": dict,
    "gloo_threads": dict,
    "device_telemetry": dict,
    "no_device_times": str,
    "trial": {"plan": str, "first_step": int, "begin_monotonic_ns": int, "left_out": dict},
    "trial_losses": dict,
    "no_trial": {"reason": str, "begin_monotonic_ns": int},
    "ending": {"error": str},
    "write_failed": {"errno": int, "reason": str, "monotonic_ns": int},
    "pauses": {"count": int, "total_ns": int, "longest_ns": int, "longest_begin_ns": int},
    "sync_checks": {"every": int, "checks": int, "first_step": int, "ranks": list},
}
GROUP: Final[dict[str, Shape]] = {
    "id": int,
    "name": str,
    "description": str,
    "backend": str,
    "rank": int,
    "size": int,
}
STACK: Final[dict[str, Shape]] = {"id": int, "frames": list}
END: Final[dict[str, Shape]] = {"records": int, "dropped": int, "end_monotonic_ns": int}
SALVAGED: Final[dict[str, Shape]] = {"records": int, "dropped": int}

_TYPE_NAMES: Final = {
    int: "a whole number from 0 to 2**63 - 1",
    str: "a string",
    list: "a list of strings",
    dict: "an object",
}


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
    _check(value, {key: s for key, s in OPTIONAL_METADATA.items() if key in value}, "")
    if value["world_size"] > MOST_RANKS:
        raise ValueError(f"world_size {value['world_size']} is above {MOST_RANKS}")
    if value["rank"] >= value["world_size"]:
        raise ValueError(f"rank {value['rank']} of world_size {value['world_size']}")
    return value


def read_more_metadata(payload: memoryview) -> dict[str, Any]:
    """What a later metadata block sets anew; ValueError as above."""
    value = _read(payload, {})
    given = {key: shape for key, shape in MORE_METADATA.items() if key in value}
    _check(value, given, "")
    return {key: value[key] for key in given}


def read_group(payload: memoryview) -> Group:
    """The description of one process group; ValueError as above."""
    value = _read(payload, GROUP)
    return Group(**{key: value[key] for key in GROUP})


def read_stack(payload: memoryview) -> tuple[int, tuple[str, ...]]:
    """Number and frames of one stack, innermost first; ValueError as above."""
    value = _read(payload, STACK)
    return value["id"], tuple(value["frames"])


def read_dropped(payload: memoryview, shape: dict[str, Shape]) -> int:
    """Records dropped, from a block of shape END or SALVAGED; ValueError as above."""
    return int(_read(payload, shape)["dropped"])


def _read(payload: memoryview, shape: dict[str, Shape]) -> dict[str, Any]:
    try:
        value = json.loads(bytes(payload))
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    _check(value, shape, "")
    checked: dict[str, Any] = value
    return checked


def _check(value: object, shape: Shape, where: str) -> None:
    """Raises ValueError unless ``value`` has ``shape``; ``where`` is its dotted name."""
    wanted = dict if isinstance(shape, dict) else shape
    good = isinstance(value, wanted) and not isinstance(value, bool)
    if isinstance(value, int):
        good = good and 0 <= value < 2**63
    elif isinstance(value, list):
        good = good and all(isinstance(item, str) for item in value)
    if not good:
        raise ValueError(f"{where or 'it'} is not {_TYPE_NAMES[wanted]}")
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, inner in shape.items():
            name = f"{where}.{key}" if where else key
            if key not in value:
                raise ValueError(f"{name} is missing")
            _check(value[key], inner, name)
