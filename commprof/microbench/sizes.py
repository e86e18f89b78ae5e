"""Sizes as nccl-tests takes them: K, M and G are powers of 1024, and -e is included."""

from __future__ import annotations

import re

from commprof.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_SIZES = 1000


def parse_size(text: str, option: str) -> int:
    """Bytes from ``8``, ``64K``, ``128M`` or ``1G``.

    Raises UsageError for anything else, naming the option.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(
            f"{option} {text!r} is not a size (allowed: a whole number of bytes, or one followed "
            "by K, M or G, powers of 1024), e.g. 64K"
        )
    return int(match[1]) * _UNITS[match[2]]


def ladder(
    smallest_bytes: int, largest_bytes: int, factor: int | None, step_bytes: int | None
) -> tuple[int, ...]:
    """All sizes of a sweep, smallest first.

    factor: each size is so many times the one before. step_bytes: so many bytes more instead.

    Raises UsageError where they lead nowhere.
    """
    if smallest_bytes < 1 or largest_bytes < smallest_bytes:
        raise UsageError(
            f"sizes from -b {smallest_bytes} to -e {largest_bytes} bytes are out of order "
            "(allowed: 1 or more, and -e not below -b); swap them?"
        )
    if factor is not None and step_bytes is not None:
        raise UsageError(f"-f {factor} and -i {step_bytes} exclude each other; give one of them")
    if factor is not None and factor < 2:
        raise UsageError(f"-f {factor} is out of range (allowed: 2 or more)")
    if step_bytes is not None and step_bytes < 1:
        raise UsageError(f"-i {step_bytes} is out of range (allowed: 1 byte or more)")
    sizes = [smallest_bytes]
    while len(sizes) <= _MOST_SIZES:
        size = sizes[-1] * (factor or 2) if step_bytes is None else sizes[-1] + step_bytes
        if size > largest_bytes:
            return tuple(sizes)
        sizes.append(size)
    raise UsageError(
        f"-i {step_bytes} makes more than {_MOST_SIZES} sizes from {smallest_bytes} to "
        f"{largest_bytes} bytes; take a larger -i, or -f"
    )
