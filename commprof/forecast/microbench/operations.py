"""Operations that a sweep can measure, with their properties as in nccl-tests.

``count`` is a number of elements, as in NCCL's calls. If each rank holds a part of the buffer,
``count`` is the number of elements in one part. Otherwise, ``count`` is the number of elements in
the whole buffer. ``size`` is the bytes of the larger of a rank's two buffers, as in nccl-tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from commprof.errors import UsageError

OUT_OF_PLACE = "out_of_place"
IN_PLACE = "in_place"

#: Bytes of one element, by nccl-tests' name of the type.
DTYPES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "half": 2,
    "bfloat16": 2,
    "float": 4,
    "double": 8,
}
_ALIASES = {
    "float16": "half",
    "fp16": "half",
    "bf16": "bfloat16",
    "float32": "float",
    "fp32": "float",
    "float64": "double",
    "fp64": "double",
}

#: The type represents every whole number from 0 to this one.
_EXACT_UP_TO = {"int8": 127, "uint8": 255, "bfloat16": 256, "half": 2048}
_PRIMES = (7, 5, 3, 2)
_LARGEST_PRIMES_TABLE = 1 << 16

REDOPS = ("sum", "prod", "min", "max", "avg")

_BOTH = (OUT_OF_PLACE, IN_PLACE)


@dataclass(frozen=True)
class BenchOperation:
    """One collective that a sweep can measure."""

    name: str
    """Name in c10d."""
    bus_op: str
    """Name of the operation in `traffic.bus_factor`."""
    input_parts: bool = False
    """True if the input holds a part of `count` elements for each rank."""
    output_parts: bool = False
    """True if the output holds a part of `count` elements from each rank."""
    placements: tuple[str, ...] = _BOTH
    """Supported placements: out-of-place, in-place or both."""
    reduces: bool = False
    """True if the operation has a reduce op, such as sum."""
    rooted: bool = False
    """True if the operation has a root, which is rank 0."""
    least_ranks: int = 1
    """Least number of ranks that can run the operation."""
    sized: bool = True
    """True if the operation moves data."""

    def count(self, size_bytes: int, itemsize: int, world_size: int) -> int:
        """Returns the largest `count` with which no buffer exceeds ``size_bytes``."""
        parts = world_size if self.input_parts or self.output_parts else 1
        return size_bytes // (itemsize * parts) if self.sized else 0

    def elements(self, count: int, world_size: int) -> tuple[int, int]:
        """Returns the numbers of elements of a rank's input and output."""
        parts = (self.input_parts, self.output_parts)
        given, result = (count * (world_size if many else 1) for many in parts)
        return given, result


_ALL = (
    BenchOperation("all_reduce", "all_reduce", reduces=True),
    BenchOperation("all_gather", "all_gather", output_parts=True),
    BenchOperation("reduce_scatter", "reduce_scatter", input_parts=True, reduces=True),
    BenchOperation("broadcast", "broadcast", rooted=True),
    BenchOperation("reduce", "reduce", reduces=True, rooted=True),
    BenchOperation(
        "all_to_all",
        "all_to_all",
        input_parts=True,
        output_parts=True,
        placements=(OUT_OF_PLACE,),
    ),
    BenchOperation("send_recv", "send", placements=(OUT_OF_PLACE,), least_ranks=2),
    BenchOperation("barrier", "barrier", placements=(OUT_OF_PLACE,), sized=False),
)
OPERATIONS = {operation.name: operation for operation in _ALL}

#: Prefix of a hook's name in the field `op` of result rows.
HOOK_PREFIX = "hook:"
HOOK = BenchOperation("hook", "all_reduce", placements=(IN_PLACE,))


def operation(name: str) -> BenchOperation:
    """Returns the operation with the given name, or HOOK for the name of a hook.

    A hook's name begins with HOOK_PREFIX. Raises UsageError if the name is unknown.
    """
    if name.startswith(HOOK_PREFIX):
        return HOOK
    if name not in OPERATIONS:
        raise UsageError(f"unknown operation {name!r} (allowed: {', '.join(OPERATIONS)})")
    return OPERATIONS[name]


def pattern_modulus(op: str, redop: str, dtype: str, world_size: int) -> int:
    """Returns the period, in elements, of the data for checks; the period is a prime.

    Raises UsageError if sums of such data over the ranks are not exact in the type.
    """
    redop = redop if operation(op).reduces else ""
    if redop == "prod":  # at most one rank has a 2 at any index: products are 1 or 2
        return next(n for n in range(max(world_size, 7), _LARGEST_PRIMES_TABLE) if _is_prime(n))
    added = world_size if redop in ("sum", "avg") else 1
    limit = _EXACT_UP_TO.get(dtype, 1 << 24)
    for prime in _PRIMES:
        if added * (prime - 1) <= limit:
            return prime
    raise UsageError(
        f"a sum over {world_size} ranks is not exact in {dtype} (exact up to {limit}), so the data "
        "cannot be verified; choose another type with -d, or -c 0 for no check"
    )


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def dtype_name(text: str) -> str:
    """Returns nccl-tests' name of a type, given this name, torch's or a short one such as fp16.

    Raises UsageError for other names.
    """
    name = _ALIASES.get(text, text)
    if name not in DTYPES:
        raise UsageError(f"unknown type {text!r} (allowed: {', '.join(DTYPES)})")
    return name
