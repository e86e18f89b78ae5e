"""Finds causes of slow communication: small calls, slow or idle interfaces, missing overlap."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from commprof.analysis.collectives.communication import NO_DDP_MODEL
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.collectives.kinds import CollectiveRow
from commprof.analysis.mean_step import MeanStep
from commprof.analysis.step.breakdown import WORTH_A_LOOK
from commprof.analysis.world import WorldResult
from commprof.text import counted, in_bytes, listed
from commprof.trace.operations import family

#: A call of fewer bytes than this is small: an eighth of DDP's first bucket.
_SMALL_BYTES: Final = 2**17
#: A call of fewer bytes than this takes as long as a call of one byte.
_LATENCY_BYTES: Final = 2**12
#: Small buckets of gradients matter only if a step has at least this number of small calls.
_MANY: Final = 16
#: Small calls matter only if they hold at least this share of the exposed time.
_MOST: Final = 0.5
#: A line of code that issued at least this share of the calls is named without its share.
_NEARLY_ALL: Final = 0.95
#: Values of ``bucket_cap_mb`` to try. The first value, DDP's default, is for jobs with small calls.
#: With the two smaller values, DDP sends the first gradients earlier. The last bucket, which no
#: compute can hide, is then short.
_LARGER_MB, _SMALLER_MB, _SMALLEST_MB = 25, 5, 1


@dataclass(frozen=True)
class SmallCalls:
    """Collectives so small that their number may matter more than their size."""

    #: Mean number of small calls per rank and step.
    calls_per_step: float
    mean_bytes: float
    #: Fraction of the exposed time that is in these calls.
    exposed_share: float
    #: True if buckets of DDP's gradients are among these calls. False if the other small calls hold
    #: much of the exposed time alone.
    of_buckets: bool = True
    #: Operation of the kind of call (operation, size, group) with the most exposed time.
    op: str = "all_reduce"
    #: Line of code that issued most calls of ``op``; empty if stacks were not recorded.
    caller: str = ""
    #: Fraction of the calls of ``op`` that this line issued.
    caller_share: float = 1.0
    #: True if ``op`` reduces tensors in backward passes of a job without a DDP model.
    of_script_gradients: bool = False
    #: Number of calls per step by operation; ``op`` comes first.
    ops: Mapping[str, float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """Sentence that describes the small calls."""
        if self.of_buckets:
            return f"Communication is cut into {self.calls_per_step:.0f} small calls per step."
        return f"{self.exposed_share:.0%} of the exposed time is in {self.name}."

    @property
    def remedy(self) -> str:
        """Advice on how to make fewer or larger calls, as a clause."""
        if self.op.startswith(("send", "recv")):
            return "send fewer and larger messages, for example with larger micro batches"
        if self.of_script_gradients:
            return (
                "if these calls reduce gradients of parameters, let DistributedDataParallel join "
                "the gradients into buckets"
            )
        if self.calls_per_step < 1.5:
            return "make such a call less often than once per step"
        return (
            "join calls whose results are not used before the next call, or make the calls in "
            "fewer steps"
        )

    @property
    def name(self) -> str:
        """Describes the calls: number per step, operations, mean size and line of code."""
        calls = counted(round(self.calls_per_step), f"{self.op} call")
        where = f" at {self.caller}" if self.caller else ""
        if where and self.caller_share < _NEARLY_ALL:
            where = f", {self.caller_share:.0%} of them{where}"
        if len(self.ops) > 1:
            numbers = (f"{n:.0f}" if n >= 0.5 else "less than 1" for n in self.ops.values())
            each = [f"{number} {op}" for number, op in zip(numbers, self.ops, strict=True)]
            calls, where = f"{listed(each)} calls", f", {self.op}{where}" if where else ""
        return f"{calls} per step ({in_bytes(self.mean_bytes)} on average){where}"


def small_calls(world: WorldResult, step: MeanStep) -> SmallCalls | None:
    """Returns the small calls if they hold much of the exposed time; else None.

    None also if ranks wait longer for the last rank than they transfer data. A few small gradient
    buckets are usual, so small buckets count only if they are many.
    """
    known = [row for row in world.communication.collectives if row.kind.sizes_known]
    rows = [row for row in known if row.total_bytes < _SMALL_BYTES * row.calls]
    if step.split_ms and step.split_ms["transfer"] < step.split_ms["waiting"]:
        return None
    others = [row for row in rows if world.communication.no_ddp or not _of_backward(row)]
    return _held_by(others, 1, world, False) or _held_by(rows, _MANY, world, True)


def _held_by(
    rows: Sequence[CollectiveRow], least: int, world: WorldResult, of_buckets: bool
) -> SmallCalls | None:
    calls, exposed = sum(row.calls for row in rows), world.parts.exposed_ms
    if calls == 0 or not exposed > 0:
        return None
    # The ``calls_per_step`` of a row leaves out ranks without such calls, so it is not used here.
    steps = len(world.ranks) * world.communication.call_steps
    number = calls / steps
    share = sum(row.times.exposed_ms for row in rows) / exposed
    if number < least or share < _MOST:
        return None
    mean, most = sum(row.total_bytes for row in rows) / calls, rows[0]
    lines = Counter[str]()
    for row in rows:
        if row.kind.op == most.kind.op:
            lines.update(dict(row.callers))
    caller, caller_calls = lines.most_common(1)[0] if lines else ("", 0)
    caller_share = caller_calls / max(1, lines.total())
    ops: dict[str, float] = {}
    for row in rows:
        ops[row.kind.op] = ops.get(row.kind.op, 0.0) + row.calls / steps
    op = most.kind.op
    of_script = not of_buckets and op.startswith(_GRADIENTS) and _of_backward(most)
    is_one = of_script and world.communication.sharding is None
    # A DDP model with a communication hook has another text in ``no_ddp``.
    is_one = is_one and world.communication.no_ddp == NO_DDP_MODEL
    return SmallCalls(
        *(number, mean, min(1.0, share), of_buckets, op, caller, caller_share, is_one, ops)
    )


def _of_backward(row: CollectiveRow) -> bool:
    return bool(row.phases) and row.phases[0][0] == "backward"


_GRADIENTS: Final = ("all_reduce", "reduce_scatter", "reduce")


def compressible_share(world: WorldResult) -> float:
    """Returns the fraction of exposed time that compression or other bucket sizes could shorten.

    Only reductions of ``_LATENCY_BYTES`` or more in backward passes count. NaN if no call has
    exposed time.
    """
    exposed = sum(row.times.exposed_ms for row in world.communication.collectives)
    large = (
        row.times.exposed_ms
        for row in world.communication.collectives
        if _of_backward(row)
        and row.kind.op.startswith(_GRADIENTS)
        and row.kind.sizes_known
        and row.total_bytes >= _LATENCY_BYTES * row.calls
    )
    return sum(large) / exposed if exposed > 0 else math.nan


def cap_to_try_mb(world: WorldResult, step: MeanStep, serial: bool = False) -> int | None:
    """Returns a ``bucket_cap_mb`` to try in place of the job's own; None if there is none.

    A job with many small buckets needs a larger cap. For jobs without small calls a smaller cap is
    returned, if it is below the largest all-reduce; None for jobs with other small calls.
    ``serial``: True if communication overlaps hardly any work.
    """
    small = small_calls(world, step)
    if small is not None:
        return _LARGER_MB if small.of_buckets else None
    buckets = [
        row.kind.size_bytes[1]
        for row in world.communication.collectives
        if family(row.kind.op) == "all_reduce"
    ]
    largest_bytes = max(buckets, default=0)
    caps = (_SMALLER_MB, _SMALLEST_MB) if serial else (_SMALLER_MB,)
    return next((cap for cap in caps if largest_bytes > cap * 2**20), None)


#: An exchange is serial if work hides less than this fraction of the communication that backward
#: could hide.
_OVERLAPS: Final = 0.2


@dataclass(frozen=True)
class Exchange:
    """Possible causes of slow communication at one world size, other than data volume."""

    #: Small calls that hold much of the exposed time; None if there are none.
    small_calls: SmallCalls | None = None
    #: Links between hosts; None if there are none, if links are unknown, or if transfers are short
    #: or take less time than waiting.
    link: HostLinks | None = None
    #: Fraction of the transfer that overlaps work; NaN unless work could hide far more transfer.
    overlapped: float = math.nan

    @property
    def idle(self) -> tuple[str, ...]:
        """Interfaces that the hosts hardly used, see ``HostLinks.idle``."""
        return () if self.link is None else self.link.idle

    @property
    def serial(self) -> bool:
        """True if hardly any of the communication overlaps work that could hide it."""
        return not math.isnan(self.overlapped)

    @property
    def sentence(self) -> str:
        """Sentence on the most important finding; empty if there is none."""
        if self.small_calls is not None:
            return self.small_calls.sentence
        if self.link is not None and self.link.idle:
            idle = f"{listed(self.link.idle)} {'is' if len(self.link.idle) == 1 else 'are'} idle"
            return f"Communication between the hosts goes over {way(self.link)}, while {idle}."
        if self.serial:
            share = "None" if self.overlapped < 0.005 else f"Only {self.overlapped:.0%}"
            return f"{share} of the transfer time overlaps the ranks' work."
        if self.link is not None:
            return f"Communication between the hosts goes over {way(self.link)}."
        return ""


def exchange(world: WorldResult, step: MeanStep) -> Exchange:
    """Finds possible causes of slow communication at one world size, other than data volume.

    Finds nothing if communication takes only a small fraction of the step.
    """
    if step.share("communication") < WORTH_A_LOOK:
        return Exchange()
    small = small_calls(world, step)
    waiting_ms, transfer_ms = (
        step.split_ms.get(name, math.nan) for name in ("waiting", "transfer")
    )
    if not (transfer_ms >= WORTH_A_LOOK * step.step_ms and transfer_ms >= waiting_ms):
        return Exchange(small)
    links = world.communication.host_links
    if links is not None and (not links.interfaces or math.isnan(links.in_flight_gbit_per_s)):
        links = None
    in_flight_ms = transfer_ms + step.hidden_ms
    could_ms = min(step.backward_ms, in_flight_ms)
    serial = could_ms >= WORTH_A_LOOK * step.step_ms and step.hidden_ms < _OVERLAPS * could_ms
    return Exchange(small, links, step.hidden_ms / in_flight_ms if serial else math.nan)


def way(link: HostLinks) -> str:
    """Names the interfaces between the hosts, and the rate reached on them."""
    return f"{listed(link.interfaces)} at {link.in_flight_gbit_per_s:.3g} Gbit/s"
