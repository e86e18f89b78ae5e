"""``rank_R.json``, the training loop's own account of one rank: checked before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from commprof.files import read_json
from commprof.shapes import Shape, checked


def read_result(path: Path) -> dict[str, Any]:
    """The account; further keys may stand beside those that are checked.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is none, and what is wrong with it.
    """
    try:
        value: dict[str, Any] = checked(read_json(path), _ACCOUNT)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not value["losses"]:
        raise ValueError(f"{path}: losses is empty")
    if len(value["step_samples"]) != len(value["step_ns"]):
        raise ValueError(f"{path}: step_samples and step_ns are of different length")
    return value


_ACCOUNT: Final[dict[str, Shape]] = {
    "step_ns": list[int],
    "step_samples": list[int],
    "losses": list[float],
    "average_loss": float,
    # Per step of the overhead block: state of the capture, and ns.
    "overhead": list[tuple[str, int]],
    "record_cost_ns": float | None,
    "steps_per_epoch": int | None,
    "weights_crc32": int | None,
    "expected": list[dict[str, Any]] | None,
    "memory": dict | None,
}
