"""The values of ``run.json`` that reports use, checked: the file may be anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from commprof.trace.documents import MOST_RANKS

_NEEDED: Final[dict[str, type]] = {
    **dict.fromkeys(("timestamp", "description", "backend", "torch", "capture"), str),
    "threads_per_rank": int,
    "world_sizes": list,
    "machine": dict,
    "errors": dict,
}
#: Not in every run; null stands for none.
_OPTIONAL: Final[dict[str, type]] = {
    **dict.fromkeys(("command", "scaling", "strategy"), str),
    **dict.fromkeys(("nodes", "hosts"), int),
    **dict.fromkeys(("pinning", "training", "reproduction"), dict),
}
_MACHINE: Final[dict[str, type]] = {"usable_cpu_count": int, "cpu_model": str}
_NAMES: Final = {int: "a number from 0", str: "a string", list: "a list", dict: "an object"}


def run_file_problem(value: object) -> str:
    """What is wrong with the content of a ``run.json``; empty if a report can use it."""
    if not isinstance(value, dict) or _NEEDED.keys() - value.keys():
        return "it lacks keys of a run file"
    given = {key: kind for key, kind in _OPTIONAL.items() if value.get(key) is not None}
    problem = _wrong(value, {**_NEEDED, **given}) or _wrong(value["machine"], _MACHINE)
    if problem:
        return problem
    sizes = value["world_sizes"]
    if not all(type(size) is int and 1 <= size <= MOST_RANKS for size in sizes):
        return f"world_sizes are not all whole numbers from 1 to {MOST_RANKS}"
    return ""


def _wrong(value: Mapping[str, Any], kinds: Mapping[str, type]) -> str:
    """The first of these keys that is missing or holds something else."""
    for key, kind in kinds.items():
        found = value.get(key)
        if type(found) is not kind or (isinstance(found, int) and not 0 <= found < 2**31):
            return f"{key} is not {_NAMES[kind]}"
    return ""
