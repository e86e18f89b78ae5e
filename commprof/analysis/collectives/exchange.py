"""What makes a job's exchange take long beside its bytes: small calls, its way, no overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.step.mean_step import WORTH_A_LOOK, MeanStep
from commprof.analysis.world import WorldResult
from commprof.text import listed

#: A call of less than this is called small: an eighth of DDP's first bucket.
_SMALL_BYTES: Final = 2**17
#: Small calls matter from so many a step on ...
_MANY: Final = 16
#: ... and if they hold at least this share of the exposed time.
_MOST: Final = 0.5
#: DDP's own cap, for buckets that were cut smaller than it; and two far below it, with which the
#: first gradients leave earlier and the last bucket, beside which no compute is left, is short.
_LARGER_MB, _SMALLER_MB, _SMALLEST_MB = 25, 5, 1


@dataclass(frozen=True)
class SmallCalls:
    """Collectives so small that their number may matter more than their size."""

    #: Of a rank.
    calls_per_step: float
    mean_bytes: float
    #: Of the exposed time.
    exposed_share: float


def small_calls(world: WorldResult, step: MeanStep) -> SmallCalls | None:
    """Finds many small calls that hold much of the exposed time; None where there are none."""
    known = [row for row in world.collectives if row.sizes_known]
    rows = [row for row in known if row.total_bytes < _SMALL_BYTES * row.calls]
    number = sum(row.calls_per_step for row in rows)
    exposed = world.parts.exposed_ms
    if number < _MANY or not exposed > 0:
        return None
    share = sum(row.exposed_ms for row in rows) / exposed
    if share < _MOST or (step.split_ms and step.split_ms["wire"] < step.split_ms["waiting"]):
        return None
    mean = sum(row.total_bytes for row in rows) / sum(row.calls for row in rows)
    return SmallCalls(number, mean, min(1.0, share))


def cap_to_try_mb(world: WorldResult, step: MeanStep, serial: bool = False) -> int | None:
    """The ``bucket_cap_mb`` to hold against the job's own: larger where its calls are small.

    None where no all-reduce is larger than the smaller cap, which would then change nothing.
    ``serial``: of an exchange that overlaps nothing a still smaller one is worth a try.
    """
    if small_calls(world, step) is not None:
        return _LARGER_MB
    buckets = [row.size_bytes[1] for row in world.collectives if row.op.startswith("all_reduce")]
    largest_bytes = max(buckets, default=0)
    caps = (_SMALLER_MB, _SMALLEST_MB) if serial else (_SMALLER_MB,)
    return next((cap for cap in caps if largest_bytes > cap * 2**20), None)


#: Of what the backward pass could hide: an exchange that hides less overlaps nothing.
_OVERLAPS: Final = 0.2


@dataclass(frozen=True)
class Exchange:
    """What stands out in the communication of one world size."""

    #: None unless calls are small and many.
    small_calls: SmallCalls | None = None
    #: The way between hosts, where the transfer is worth a look; None on one host.
    link: HostLinks | None = None
    #: Of the transfer, where nearly none of it runs beside work that could hide it; else NaN.
    overlapped: float = math.nan

    @property
    def idle(self) -> tuple[str, ...]:
        """Interfaces that the hosts could have used as well."""
        return () if self.link is None else self.link.idle

    @property
    def serial(self) -> bool:
        """True if hardly any of the communication runs beside work that could hide it."""
        return not math.isnan(self.overlapped)

    @property
    def sentence(self) -> str:
        """Says in a sentence about communication what stands out most; empty where nothing does."""
        if self.small_calls is not None:
            calls = self.small_calls.calls_per_step
            return f"Communication is cut into {calls:.0f} small calls per step."
        if self.link is not None and self.link.idle:
            idle = f"{listed(self.link.idle)} {'is' if len(self.link.idle) == 1 else 'are'} idle"
            return f"Communication between the hosts goes over {way(self.link)}, while {idle}."
        if self.serial:
            share = "None" if self.overlapped < 0.005 else f"Only {self.overlapped:.0%}"
            return f"{share} of the communication overlaps the ranks' work."
        if self.link is not None:
            return f"Communication between the hosts goes over {way(self.link)}."
        return ""


def exchange(world: WorldResult, step: MeanStep) -> Exchange:
    """What stands out in the exchange of one world size."""
    if step.share("communication") < WORTH_A_LOOK:
        return Exchange()
    small = small_calls(world, step)
    waiting_ms, wire_ms = (step.split_ms.get(name, math.nan) for name in ("waiting", "wire"))
    if not (wire_ms >= WORTH_A_LOOK * step.step_ms and wire_ms >= waiting_ms):
        return Exchange(small)
    links = world.host_links
    if links is not None and math.isnan(links.in_flight_gbit_per_s):
        links = None
    transfer_ms = wire_ms + step.hidden_ms
    could_ms = min(step.backward_ms, transfer_ms)
    serial = could_ms >= WORTH_A_LOOK * step.step_ms and step.hidden_ms < _OVERLAPS * could_ms
    return Exchange(small, links, step.hidden_ms / transfer_ms if serial else math.nan)


def way(link: HostLinks) -> str:
    """Names the interfaces between the hosts, and the rate that was reached there."""
    return f"{listed(link.interfaces)} at {link.in_flight_gbit_per_s:.3g} Gbit/s"
