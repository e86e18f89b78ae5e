"""Figures of each measured step at one world size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from commprof.analysis.collectives.in_flight import StepTimesInFlight, step_times_in_flight
from commprof.analysis.step.breakdown import Floats
from commprof.analysis.step.measured import MeasuredSteps, MeasuredWorld, slowest_ns
from commprof.analysis.step.rank_parts import PairWaits
from commprof.analysis.timeline.drawn_timeline import Timeline, timeline
from commprof.trace.columns import Ints, of_kind
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Kind
from commprof.units import NS_PER_MS

#: Names of the parts of "other" on a device. Their times are NaN if no kernels were recorded.
OF_OTHER = ("unphased_compute", "copies", "idle")
#: Keys of ``WorldDetail.parts_ms``. The times from "data" to "other" add up to "step". The times
#: "wait" and "transfer" are parts of "exposed".
PARTS = (
    *("step", "data", "forward", "backward", "exposed", "optimizer", "other"),
    *("wait", "transfer", "hidden", *OF_OTHER),
)


#: Names in ``Breakdown.part_ns`` that differ from the names in ``PARTS``.
_PARTS = {"step": "wall"}


class Later:
    """Computes the timeline and the times in flight on first use."""

    def __init__(
        self,
        seen: MeasuredWorld | None,
        timeline: Timeline | None = None,
        in_flight: StepTimesInFlight | None = None,
    ) -> None:
        self._seen = seen
        self._timeline = timeline
        self._in_flight = in_flight

    def seen(self) -> MeasuredWorld | None:
        """Returns the ranks' records, or None if they were dropped."""
        return self._seen

    def timeline(self) -> Timeline:
        """Returns the timeline, and drops the records to free memory."""
        if self._timeline is None:
            assert self._seen is not None
            self._timeline = timeline(self._seen)
            self.drop_records()
        return self._timeline

    def in_flight(self) -> StepTimesInFlight:
        """Returns the times in flight of all calls, by kind, bucket and step."""
        if self._in_flight is None:
            assert self._seen is not None
            self._in_flight = step_times_in_flight(self._seen)
        return self._in_flight

    def drop_records(self) -> None:
        """Frees the records. Figures that were not computed before can no longer be computed."""
        self._seen = None


@dataclass(frozen=True)
class WorldDetail:
    """Figures of each measured step of one world size."""

    world_size: int
    ranks: tuple[int, ...]
    steps: Ints
    #: Times as ``[rank, step]``, by the names in ``PARTS``; NaN if unknown.
    parts_ms: Mapping[str, Floats]
    slowest_ms: Floats
    #: Mean step time of the ranks in each step, without the time in which ranks lacked cores.
    with_cores_ms: Floats
    #: Waiting of each rank in ``ranks`` for each global rank, summed over the steps; None if
    #: unknown.
    waited_for: PairWaits | None
    #: Computes :attr:`timeline` and :attr:`in_flight`, which takes long.
    drawn: Later
    clocks_shared: bool
    #: Number of samples in one epoch, summed over the ranks; NaN if unknown.
    epoch_samples: float
    #: Fraction of the ranks' time outside of waiting in which ranks could run but had no core. It
    #: is 0 if the kernel does not count this time. It is NaN on GPUs and for recordings of other
    #: profilers.
    no_core_share: float = 0.0

    @property
    def waited_for_ms(self) -> Floats:
        """Mean waiting per step of each rank for each global rank, as ``[rank, global rank]``."""
        if self.waited_for is None:
            return np.full((len(self.ranks), self.world_size), math.nan)
        return self.waited_for.table_ns() / max(1, len(self.steps)) / NS_PER_MS

    @property
    def timeline(self) -> Timeline:
        """Steps, phases, waiting and collectives of all ranks."""
        return self.drawn.timeline()

    @property
    def in_flight(self) -> StepTimesInFlight:
        """Times in flight of the calls of all ranks."""
        return self.drawn.in_flight()

    def unseen(self) -> WorldDetail:
        """Returns a copy whose communication times are NaN, see ``StepParts.unseen``."""
        on_device = not np.isnan(self.parts_ms["unphased_compute"]).all()
        of_device = ("other", "idle") if on_device else ()
        return self._without("exposed", "wait", "transfer", "hidden", *of_device)

    def unknown(self) -> WorldDetail:
        """Returns a copy in which only the step times are known; other times are NaN."""
        return self._without(*(name for name in PARTS if name != "step"))

    def _without(self, *names: str) -> WorldDetail:
        unknown = np.full_like(self.parts_ms["step"], math.nan)
        return replace(
            self,
            parts_ms={**self.parts_ms, **dict.fromkeys(names, unknown)},
            waited_for=None,
        )


def world_detail(run: WorldRun, seen: MeasuredWorld) -> WorldDetail:
    """Returns the figures of each measured step of one world size."""
    measured = seen.all_steps.measured
    parts = {name: measured.table(_PARTS.get(name, name)) / NS_PER_MS for name in PARTS}
    return WorldDetail(
        world_size=run.world_size,
        ranks=tuple(seen.ranks),
        steps=measured.step,
        parts_ms=parts,
        slowest_ms=slowest_ns(measured) / NS_PER_MS,
        with_cores_ms=measured.column(lambda part: part.with_cores_ns).mean(axis=0) / NS_PER_MS,
        waited_for=measured.pair_waits(seen.ranks),
        drawn=Later(seen),
        clocks_shared=seen.clocks_shared,
        epoch_samples=_epoch_samples(run),
        no_core_share=_no_core_share(seen.all_steps),
    )


def _no_core_share(seen: MeasuredSteps) -> float:
    if any(of_kind(trace.records, Kind.DEVICE_CLOCK).size for trace in seen.traces) or any(
        trace.device_activity is not None for trace in seen.traces
    ):
        # Other profilers do not record run delay. A delay of a host need not delay its GPU.
        return math.nan
    work, delay = (
        sum(seen.measured.column(of_block).reshape(len(seen.ranks), -1).sum(axis=1).tolist())
        for of_block in (lambda part: part.work_ns, lambda part: part.host.run_delay_ns)
    )
    return delay / work if work > 0 else 0.0


def _epoch_samples(run: WorldRun) -> float:
    if len(run.results) < run.world_size:
        return math.nan
    total = 0
    for result in run.results.values():
        length, samples = result.get("steps_per_epoch"), result["step_samples"]
        if not isinstance(length, int) or not 0 < length <= len(samples):
            return math.nan
        total += sum(samples[:length])
    return float(total)
