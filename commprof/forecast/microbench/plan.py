"""Plan of one command's sweeps; all ranks read it from a file."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commprof.errors import UsageError
from commprof.files import checked, read_json, replace_file
from commprof.forecast.microbench.operations import (
    DTYPES,
    HOOK_PREFIX,
    REDOPS,
    operation,
    pattern_modulus,
)
from commprof.text import counted

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_SIZES = 1000


def parse_size(text: str, option: str) -> int:
    """Parses a size in bytes such as ``8``, ``64K``, ``128M`` or ``1G``.

    Raises UsageError for other texts; the message names the ``option``.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(
            f"{option} {text!r} is not a size (allowed: a whole number of bytes, or a whole number "
            "with K, M or G, powers of 1024, such as 64K)"
        )
    return int(match[1]) * _UNITS[match[2]]


def ladder(
    smallest_bytes: int, largest_bytes: int, factor: int | None, step_bytes: int | None
) -> tuple[int, ...]:
    """Lists all sizes of a sweep, smallest first.

    Each size is the previous size times ``factor``, or plus ``step_bytes``.

    Raises UsageError if the arguments are out of range or make too many sizes.
    """
    if smallest_bytes < 1 or largest_bytes < smallest_bytes:
        raise UsageError(
            f"sizes from -b {smallest_bytes} to -e {largest_bytes} bytes are not possible "
            "(allowed: -b 1 or more, and -e not below -b)"
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
        f"{largest_bytes} bytes; give a larger -i, or -f instead"
    )


#: Memory per rank, as a multiple of the largest size. It holds two buffers, the expected result and
#: the comparison.
_BUFFERS = 5
#: Memory per rank for a hook, as a multiple of the sum of all sizes, because the models of all
#: sizes exist together. It holds model, gradient, bucket, three given gradients, and the data that
#: the compressor keeps.
_HOOK_BUFFERS = 8
#: Private memory of a rank's process that imported torch and joined a gloo group, from
#: /proc/self/smaps_rollup with torch 2.13 for CPUs (147 MB).
_PROCESS_BYTES = 150_000_000


def check_memory(
    plan: BenchPlan, meminfo: Path = Path("/proc/meminfo"), launched_here: int | None = None
) -> None:
    """Raises UsageError if the ranks of this host do not fit into the host's memory.

    ``launched_here`` is the number of ranks that run on this host already; None if this process
    will start all ranks on this host.
    """
    available = _available_bytes(meminfo)
    if available is None or plan.backend == "nccl":
        return
    ranks, size = max(plan.world_sizes), max(plan.sizes_bytes)
    ranks = ranks if launched_here is None else min(ranks, launched_here)
    held = _HOOK_BUFFERS * sum(plan.sizes_bytes) if plan.has_hooks() else _BUFFERS * size
    needed = ranks * held
    needed += ranks * _PROCESS_BYTES if launched_here is None else 0
    if needed > available:
        raise UsageError(
            f"{ranks} ranks with sizes up to {size} bytes need about {needed / 1e9:.1f} GB of "
            f"memory, but {available / 1e9:.1f} GB are free; lower -e or --nproc"
        )


def _available_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines)
    return next((int(words[1]) * 1024 for words in fields if words[0] == "MemAvailable:"), None)


SYNCS = ("barrier", "none")
"""Choices of `BenchPlan.sync`."""

MOST_ROUNDS = 10
"""Largest number of rounds, which are passes over the sizes. 10 rounds are enough to compare two
sweeps: an exact Mann-Whitney test of 10 rounds against 10 rounds can reach p = 1.1e-5."""


@dataclass(frozen=True)
class BenchPlan:
    """All sweeps of one command. Raises UsageError for an impossible plan."""

    ops: tuple[str, ...]
    """Names of operations, and of hooks with a prefix, such as ``hook:fp16``."""
    world_sizes: tuple[int, ...]
    """Numbers of ranks; a sweep uses the first ranks of the job."""
    sizes_bytes: tuple[int, ...]
    """Requested sizes; each operation rounds a size down to whole elements per rank."""
    result_path: str
    """File to which rank 0 writes the result."""
    backend: str = "gloo"
    dtype: str = "float"
    """One of DTYPES."""
    redop: str = "sum"
    """One of REDOPS."""
    iterations: int | None = None
    """Samples per row; None to choose the number from the time of a call."""
    warmup: int | None = None
    """Warm-up calls per row and round; None to choose the number from the time of a call."""
    check: int = 1
    """Calls per row whose data are verified; 0 for no check. A hook's row has at most one."""
    sync: str = "barrier"
    """One of SYNCS: whether a barrier of the measured group precedes each sample."""
    overlap: bool = False
    """True to measure the overlap of communication and compute; False to time calls alone."""

    def __post_init__(self) -> None:
        for text in self.ops:
            least = operation(text).least_ranks
            if min(self.world_sizes) < least:
                raise UsageError(
                    f"{text} needs {counted(least, 'rank')} or more, not {min(self.world_sizes)}; "
                    "raise --nproc"
                )
            if self.overlap and not operation(text).sized:
                raise UsageError(f"{text} moves no data to overlap; leave {text} or --overlap out")
            if self.overlap and self.backend == "nccl":
                raise UsageError(
                    "--overlap computes on the CPU; choose a backend for the CPU, such as gloo"
                )
            if text.startswith(HOOK_PREFIX) and self.overlap:
                raise UsageError(
                    "--overlap is for operations, not for --hook; leave one of the two out"
                )
            if text.startswith(HOOK_PREFIX) and self.dtype != "float":
                raise UsageError(
                    f"--hook compresses float gradients, not {self.dtype}; leave -d out"
                )
        if min(self.world_sizes) < 1:
            raise UsageError(f"{min(self.world_sizes)} ranks are out of range (allowed: 1 or more)")
        if self.redop not in REDOPS:
            raise UsageError(f"unknown reduce op {self.redop!r} (allowed: {', '.join(REDOPS)})")
        for name, value, least in (
            ("-n", self.iterations, 1),
            ("-w", self.warmup, 0),
            ("-c", self.check, 0),
        ):
            if value is not None and value < least:
                raise UsageError(f"{name} {value} is out of range (allowed: {least} or more)")
        self._check_sizes()
        if self.check:
            for sweep in self.sweeps():
                pattern_modulus(sweep.op, self.redop, self.dtype, sweep.world_size)

    def _check_sizes(self) -> None:
        for sweep in self.sweeps():
            if not sweep.counts:
                raise UsageError(
                    f"-e {max(self.sizes_bytes)} bytes are less than one {self.dtype} for each of "
                    f"the {sweep.world_size} ranks of {sweep.op}; raise -e"
                )

    @property
    def rounds(self) -> int:
        """Number of passes over all sizes."""
        return min(self.iterations or MOST_ROUNDS, MOST_ROUNDS)

    def has_hooks(self) -> bool:
        """True if a compressor is measured, as the communication hook of a DDP model."""
        return any(op.startswith(HOOK_PREFIX) for op in self.ops)

    def total_rounds(self) -> int:
        """Number of rounds of all sweeps."""
        return len(list(self.sweeps())) * (1 if self.overlap else self.rounds)

    def sweeps(self) -> Iterator[Sweep]:
        """Yields a sweep per operation and world size, in the order in which they run."""
        for op in self.ops:
            for world_size in self.world_sizes:
                yield Sweep(op, world_size, self._counts(op, world_size))

    def _counts(self, op: str, world_size: int) -> tuple[int, ...]:
        kind = operation(op)
        if not kind.sized:
            return (0,)
        found = (kind.count(size, DTYPES[self.dtype], world_size) for size in self.sizes_bytes)
        return tuple(dict.fromkeys(count for count in found if count))

    def save(self, path: Path) -> None:
        """Writes the plan as JSON."""
        replace_file(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> BenchPlan:
        """Reads a plan that `save` wrote."""
        plan: BenchPlan = checked(read_json(path), cls)
        return plan


@dataclass(frozen=True)
class Sweep:
    """One operation at one world size, over all message sizes."""

    op: str
    """Name of an operation, or of a hook with a prefix, such as ``hook:fp16``."""
    world_size: int
    counts: tuple[int, ...]
    """Results of `BenchOperation.count` for all sizes, smallest first."""

    @property
    def cells(self) -> int:
        """Number of result rows per round: sizes times placements (out of place, in place)."""
        return len(self.counts) * len(operation(self.op).placements)
