"""``rank_R.json``, the training loop's own account of one rank: checked before it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from commprof.files import read_json


def read_result(path: Path) -> dict[str, Any]:
    """The account; further keys may stand beside those that are checked.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is none, and what is wrong with it.
    """
    try:
        value = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    for name, good in _REQUIRED.items():
        if name not in value or not good(value[name]):
            raise ValueError(f"{path}: {name} is missing or unusable")
    for name, good in _OPTIONAL.items():
        if value.get(name) is not None and not good(value[name]):
            raise ValueError(f"{path}: {name} is unusable")
    if len(value["step_samples"]) != len(value["step_ns"]):
        raise ValueError(f"{path}: step_samples and step_ns are of different length")
    return value


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool))


def _list_of(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(good(item) for item in value)


def _labelled(value: Any) -> bool:
    """A step of the overhead block: state of the capture, and ns."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and _whole(value[1])
    )


_REQUIRED: Final[dict[str, Callable[[Any], bool]]] = {
    "step_ns": _list_of(_whole),
    "step_samples": _list_of(_whole),
    "losses": lambda value: bool(value) and _list_of(_number)(value),
    "average_loss": _number,
    "overhead": _list_of(_labelled),
}
_OPTIONAL: Final[dict[str, Callable[[Any], bool]]] = {
    "record_cost_ns": _number,
    "steps_per_epoch": _whole,
    "weights_crc32": _whole,
    "expected": _list_of(lambda item: isinstance(item, dict)),
    "memory": lambda value: isinstance(value, dict),
}
