"""Figures of one rank over the measured steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from commprof.analysis.align.interfaces import machine_of
from commprof.analysis.collectives.devices import DeviceTelemetry, KernelTimes, device_telemetry
from commprof.analysis.step.breakdown import Breakdown, mean_of_known, means_of_known
from commprof.analysis.step.rank_parts import RankParts
from commprof.trace.columns import Ints
from commprof.trace.run.run_directory import WorldRun
from commprof.units import NS_PER_MS, ns_to_ms, ns_to_s


@dataclass(frozen=True)
class StepParts:
    """Mean step in milliseconds; the fields before ``step_ms`` add up to ``step_ms``."""

    data_ms: float
    forward_ms: float
    backward_ms: float
    #: NaN if capture could not see communication, see :meth:`unseen`.
    exposed_ms: float
    optimizer_ms: float
    other_ms: float
    step_ms: float
    #: Part of ``exposed_ms`` before the last rank arrived; NaN if no last arrival is known.
    wait_ms: float
    #: Part of ``exposed_ms`` after the last rank arrived; NaN if no last arrival is known.
    transfer_ms: float
    #: Part of ``exposed_ms`` in operations whose last arrival is not known.
    unsplit_ms: float
    #: Part of ``exposed_ms`` in which the training thread was ready to run but had no core, at the
    #: end of DDP's backward passes. NaN if not measured.
    no_core_ms: float
    #: Communication during which the training thread worked; not a part of ``step_ms``.
    hidden_ms: float
    #: Parts of ``other_ms`` on a device: kernels of unknown phase, copies, and the time in which
    #: nothing ran. NaN if no kernels were recorded.
    unphased_compute_ms: float = math.nan
    copies_ms: float = math.nan
    idle_ms: float = math.nan

    @property
    def own_work_ms(self) -> float:
        """Mean step minus exposed communication, in milliseconds."""
        return self.step_ms - self.exposed_ms

    def unseen(self) -> StepParts:
        """Returns a copy whose communication times are NaN.

        This is used if capture could not see communication. The times of the phases then include
        all waiting for communication.
        """
        names = ("exposed_ms", "wait_ms", "transfer_ms", "unsplit_ms", "no_core_ms", "hidden_ms")
        of_device = () if math.isnan(self.unphased_compute_ms) else ("other_ms", "idle_ms")
        return replace(self, **dict.fromkeys((*names, *of_device), math.nan))

    def unknown(self) -> StepParts:
        """Returns a copy in which all fields except ``step_ms`` are NaN."""
        names = {field.name for field in fields(self)} - {"step_ms"}
        return replace(self, **dict.fromkeys(names, math.nan))


@dataclass(frozen=True)
class RankSummary:
    """Figures of one rank over the measured steps."""

    rank: int
    parts: StepParts
    #: Number of samples, from the training loop or from DataLoaders; NaN if not known.
    samples: float
    duration_s: float
    samples_per_s: float
    #: Both losses are NaN if the training loop recorded no loss.
    average_loss: float
    final_loss: float
    #: Hostname. Several machines may have the same hostname.
    host: str
    #: Identifier of the rank's machine.
    machine: str
    #: Resident memory before the model was made; NaN if not measured.
    before_rss_bytes: float = math.nan
    #: Peak of resident memory in training; NaN if not measured.
    peak_rss_bytes: float = math.nan
    #: Peak of torch's allocator on a GPU; NaN on a CPU, or if not measured.
    device_peak_bytes: float = math.nan
    #: Readings of the GPU's driver; None if the driver was not queried.
    device: DeviceTelemetry | None = None
    #: None if the trace holds no kernels.
    kernels: KernelTimes | None = None

    @property
    def training_bytes(self) -> float:
        """Memory used by training: the peak on the GPU, or the growth of resident memory."""
        if not math.isnan(self.device_peak_bytes):
            return self.device_peak_bytes
        return self.peak_rss_bytes - self.before_rss_bytes


def rank_summary(
    run: WorldRun,
    rank: int,
    steps: Ints,
    wall_ns: float,
    parts: StepParts,
    samples: float,
    kernels: KernelTimes | None,
) -> RankSummary:
    """Computes the figures of one rank over some steps.

    Args:
        run: the ranks' recordings.
        rank: global rank.
        steps: numbers of the steps.
        wall_ns: sum of the wall times of these steps.
        parts: the mean step.
        samples: number of samples from DataLoaders; used if the training loop recorded none.
        kernels: None if the trace holds no kernels.
    """
    duration_s = ns_to_s(wall_ns)
    result = run.results.get(rank)
    average_loss, final_loss = math.nan, math.nan
    if result is not None:
        samples = samples_trained(result, steps)
        average_loss, final_loss = float(result["average_loss"]), float(result["losses"][-1])
    host = str(run.traces[rank].metadata["machine"]["hostname"])
    return RankSummary(
        rank=rank,
        parts=parts,
        samples=samples,
        duration_s=duration_s,
        samples_per_s=samples / duration_s if duration_s > 0 else math.nan,
        average_loss=average_loss,
        final_loss=final_loss,
        host=host,
        # In another profiler's recording, ``machine_of`` only shows which ranks share a clock.
        machine=host if run.traces[rank].is_foreign else machine_of(run.traces[rank]),
        before_rss_bytes=_bytes(result, "before_bytes"),
        peak_rss_bytes=_bytes(result, "peak_bytes"),
        device_peak_bytes=_bytes(result, "device_peak_bytes"),
        device=device_telemetry(run.traces[rank]),
        kernels=kernels,
    )


def samples_trained(result: Mapping[str, Any], steps: Ints) -> float:
    """Returns the number of samples in ``steps``, from the training loop's result on one rank."""
    return float(sum(result["step_samples"][step] for step in steps.tolist()))


def _bytes(result: Mapping[str, Any] | None, key: str) -> float:
    value = ((result or {}).get("memory") or {}).get(key)
    return math.nan if value is None else float(value)


def step_parts(of_ranks: Sequence[Breakdown]) -> list[StepParts]:
    """Computes the mean step of each rank; all ranks have the same steps."""
    parts = RankParts.of(of_ranks)
    if not len(parts.step):
        return [StepParts(**{field.name: math.nan for field in fields(StepParts)})] * len(parts)
    stacked = parts.table

    def mean_ms(name: str) -> list[float]:
        means = (stacked(name).mean(axis=1) / NS_PER_MS).tolist()
        # All NaNs become one object, math.nan, so that equal summaries compare equal.
        return [math.nan if math.isnan(mean) else mean for mean in means]

    exposed = stacked("exposed")
    no_core = stacked("no_core")
    columns = {
        **{
            f"{name}_ms": mean_ms(name)
            for name in ("data", "forward", "backward", "exposed", "optimizer", "other")
        },
        "step_ms": mean_ms("wall"),
        **{
            f"{name}_ms": list(map(ns_to_ms, means_of_known(stacked(name), exposed).tolist()))
            for name in ("wait", "transfer")
        },
        "unsplit_ms": mean_ms("unsplit"),
        "no_core_ms": [
            ns_to_ms(float(part[was_read].mean())) if was_read.any() else math.nan
            for part, was_read in zip(no_core, ~np.isnan(no_core), strict=True)
        ],
        "hidden_ms": mean_ms("hidden"),
        # Each of these figures is known in all steps or in none.
        **{f"{name}_ms": mean_ms(name) for name in ("unphased_compute", "copies", "idle")},
    }
    return [
        StepParts(**dict(zip(columns, of_rank, strict=True)))
        for of_rank in zip(*columns.values(), strict=True)
    ]


def _mean(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else float(np.mean(values))


def mean_parts(parts: list[StepParts]) -> StepParts:
    """Returns the mean of each part over the ranks.

    Unknown values of ``wait_ms`` and ``transfer_ms`` count as 0, see :func:`mean_of_known`. Unknown
    values of ``no_core_ms`` are left out.
    """
    means = {f.name: _mean([getattr(p, f.name) for p in parts]) for f in fields(StepParts)}
    exposed = np.array([p.exposed_ms for p in parts])
    for name in ("wait_ms", "transfer_ms"):
        means[name] = mean_of_known(np.array([getattr(p, name) for p in parts]), exposed)
    read = [p.no_core_ms for p in parts if not math.isnan(p.no_core_ms)]
    return StepParts(**{**means, "no_core_ms": float(np.mean(read)) if read else math.nan})
