"""Computes everything that a scenario changes in the recorded run.

DDP fills buckets in the order in which gradients became ready in its first step. A bucket is closed
when its size reaches the cap (``compute_bucket_assignment_by_size`` in torch's ``reducer.cpp``). If
the script sets ``bucket_cap_mb``, this is the cap of all buckets. Otherwise, the cap is 1 MiB for
the first bucket, and 25 MiB for each further bucket.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof import invocation
from commprof.errors import CommprofError
from commprof.forecast.costs.algorithms import OPERATIONS, canonical
from commprof.forecast.costs.cost_model import OTHER_HOST
from commprof.forecast.costs.hook_costs import HookCost, recording
from commprof.forecast.costs.machine_profile import MachineProfile
from commprof.forecast.costs.regression import Line
from commprof.forecast.replay.measured_range import outside_of
from commprof.forecast.scenario.links import ScenarioLink, scenario_link
from commprof.forecast.scenario.scenario import STRONG, Scenario
from commprof.forecast.scenario.schedule import Placement, Schedule

#: Number of equal parts into which a bucket is divided if its parameters are unknown.
_PARTS = 16


@dataclass(frozen=True)
class Parameters:
    """Parameters in the order in which gradients become ready.

    If the parameters are unknown, equal parts of the recorded buckets take their place.
    """

    size_bytes: tuple[float, ...]
    #: Index of the recorded bucket of each parameter.
    bucket: tuple[int, ...]
    #: False if the sizes are those of equal parts of recorded buckets.
    sizes_known: bool

    @property
    def times_known(self) -> bool:
        """True if each gradient had a bucket of its own, so that its ready time was recorded."""
        return self.sizes_known and len(set(self.bucket)) == len(self.bucket)


def parameters_of(schedule: Schedule) -> Parameters:
    """Returns the parameters from DDP's log, or else equal parts of each bucket."""
    log = schedule.ddp_log
    sizes, groups = log.get("parameter_bytes"), log.get("rebuilt_per_bucket_param_indices")
    if isinstance(sizes, list) and isinstance(groups, str):
        try:
            indices = [[int(word) for word in group.split()] for group in groups.split(",")]
            sizes_of_buckets = [[float(sizes[i]) for i in group] for group in indices if group]
        except (ValueError, IndexError):
            sizes_of_buckets = []
        if [round(sum(group)) for group in sizes_of_buckets] == schedule.bucket_bytes.tolist():
            bucket = tuple(b for b, group in enumerate(sizes_of_buckets) for _ in group)
            return Parameters(tuple(x for group in sizes_of_buckets for x in group), bucket, True)
    count = len(schedule.bucket_bytes)
    if log.get("num_parameter_tensors") == count:
        sizes_ = tuple(float(size) for size in schedule.bucket_bytes)
        return Parameters(sizes_, tuple(range(count)), True)
    parts = [float(size) / _PARTS for size in schedule.bucket_bytes for _ in range(_PARTS)]
    return Parameters(tuple(parts), tuple(b for b in range(count) for _ in range(_PARTS)), False)


def assign(size_bytes: Sequence[float], cap_bytes: float) -> list[list[int]]:
    """Assigns parameters to buckets as DDP does with one cap for all buckets.

    A cap of 0 gives each parameter a bucket of its own, as in DDP.
    """
    buckets: list[list[int]] = [[]]
    held = 0.0
    for number, size in enumerate(size_bytes):
        if buckets[-1] and held >= cap_bytes:
            buckets.append([])
            held = 0.0
        buckets[-1].append(number)
        held += size
    return buckets


def rebucketed(
    schedule: Schedule, parameters: Parameters, cap_bytes: float
) -> tuple[Floats, Floats]:
    """Returns bucket sizes (in bytes) and ready times (in s) with the given cap.

    The ready times are [steps, ranks, buckets]. They are interpolated by bytes between the ready
    times of the recorded buckets. In the first bucket, the interpolation starts at the begin of
    backward.
    """
    groups = assign(parameters.size_bytes, cap_bytes)
    sizes = np.array([sum(parameters.size_bytes[i] for i in group) for group in groups])
    bucket = np.array(parameters.bucket)
    size = np.array(parameters.size_bytes)
    total = np.bincount(bucket, weights=size)
    share = np.concatenate([np.cumsum(size[bucket == b]) / total[b] for b in range(len(total))])
    first = np.where(
        np.isnan(schedule.backward_begin_s), schedule.ready_s[:, :, 0], schedule.backward_begin_s
    )
    before = np.concatenate([first[:, :, None], schedule.ready_s[:, :, :-1]], axis=2)
    last = [group[-1] for group in groups]
    at = bucket[last]
    begin, end = before[:, :, at], schedule.ready_s[:, :, at]
    return sizes, begin + (end - begin) * share[last]


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PredictedSetting:
    """The recorded run's figures, converted to a scenario."""

    scenario: Scenario
    link: ScenarioLink
    hook: HookCost | None
    hook_crowding: float
    #: Latency of a compressor's message in the scenario, minus the latency of such a message in the
    #: run to which the compressor's cost was fitted.
    hook_later_s: float
    bucket_bytes: Floats
    ready_s: Floats
    backward_end_s: Floats
    copy_s: Floats
    #: Collectives that exchange no gradients: (operation, size in bytes, number per step); empty if
    #: their times are not predicted.
    others: tuple[tuple[str, float, float], ...]
    #: [steps, ranks]: recorded waits for collectives that exchange no gradients. ``ready_s`` and
    #: ``backward_end_s`` include these waits. 0 if the collectives' times are predicted.
    kept_wait_s: Floats
    outside: tuple[str, ...]
    remarks: tuple[str, ...]

    def replicate(self, number: int) -> PredictedSetting:
        """Returns the setting with the costs of bootstrap replicate ``number``."""
        return dataclasses.replace(
            self,
            link=self.link.replicate(number),
            hook=None if self.hook is None else self.hook.replicate(number),
        )

    def bucket_times(self) -> tuple[Floats, Floats]:
        """Returns the time of each bucket's exchange alone, and its time on the link, in s.

        With a compressor, the two times are equal.
        """
        ranks, sizes = self.scenario.world_size, self.bucket_bytes.tolist()
        if ranks == 1:
            return np.zeros(len(sizes)), np.zeros(len(sizes))
        if self.hook is not None and ranks > 1:
            alone = np.array([self._hook_s(self.hook, size) for size in sizes])
            return alone, alone
        alone = np.array([self.link.time_s(size, ranks, "all_reduce") for size in sizes])
        return alone, np.array([self.link.transfer_s(size, ranks, "all_reduce") for size in sizes])

    def _hook_s(self, hook: HookCost, size_bytes: float) -> float:
        ranks, per_host = self.scenario.world_size, self.link.ranks_per_host
        return hook.time_s(
            size_bytes,
            hook.peers(ranks, per_host),
            self.link.slowest,
            self.hook_crowding,
            1.0 if self.link.outer is None else hook.link_sharing(ranks, per_host),
            self.hook_later_s,
        )

    def other_s(self) -> float:
        """Returns the time per step of all collectives in ``others``, in s."""
        if not self.others:
            return 0.0
        ranks, link = self.scenario.world_size, self.link.slowest
        return sum(count * link.time_s(size, ranks, op) for op, size, count in self.others)


def make_setting(
    schedule: Schedule,
    profile: MachineProfile,
    compute_by_batch: Line | None,
    scenario: Scenario,
    batches: tuple[float, float] = (0.0, math.inf),
) -> PredictedSetting:
    """Computes everything that a scenario changes in the recorded run.

    Args:
        schedule: the recorded steps.
        profile: fitted costs.
        compute_by_batch: seconds of a rank's own work per step, as a straight line over the samples
            per rank; None if unknown.
        scenario: the setting to predict.
        batches: smallest and largest number of samples per rank in the fit of ``compute_by_batch``.

    Raises:
        CommprofError: the scenario cannot be predicted; the message says what to do.
    """
    if scenario.world_size < 1:
        raise CommprofError(
            f"world size {scenario.world_size} is out of range (allowed: 1 or more)"
        )
    placement = schedule.placement.changed(scenario)
    link = (
        scenario_link(profile, scenario, placement)
        if scenario.world_size > 1
        else ScenarioLink(None, None, 1, False, (), ())
    )
    outside, remarks = list(link.outside), list(link.remarks)
    sizes, ready = _buckets(schedule, scenario, remarks)
    label = schedule.hook if scenario.hook is None else scenario.hook
    hook = _hook(profile.hooks, label) if label and scenario.world_size > 1 else None
    crowded = _stretch(schedule, placement)
    stretch = crowded * _batch_factor(schedule, compute_by_batch, scenario)
    stretch *= _hook_factor(schedule, hook, remarks)
    if hook is not None:
        remarks += hook.remarks(hook.peers(scenario.world_size, link.ranks_per_host))
    moved = _is_moved(schedule, scenario, link)
    waits = schedule.other_wait_s if moved else np.zeros_like(schedule.other_wait_s)
    outside += outside_of(schedule, scenario, placement, link, hook, sizes, batches)
    if scenario.world_size > 1 and link.slowest.backend != schedule.backend:
        remarks.append(
            f"costs of collectives were measured on {link.slowest.backend}, but the run used "
            f"{schedule.backend}"
        )
    return PredictedSetting(
        scenario=scenario,
        link=link,
        hook=hook,
        hook_crowding=1.0 if hook is None else _hook_crowding(hook, placement),
        hook_later_s=0.0 if hook is None else _hook_later_s(hook, link),
        bucket_bytes=sizes,
        ready_s=(ready - waits[:, :, None]) * stretch,
        backward_end_s=(schedule.backward_end_s - waits) * stretch,
        copy_s=schedule.copy_s_per_byte * sizes * crowded,
        others=_others(schedule, scenario, remarks) if moved and scenario.world_size > 1 else (),
        kept_wait_s=(schedule.other_wait_s - waits) * stretch,
        outside=tuple(outside),
        remarks=tuple(remarks),
    )


def _is_moved(schedule: Schedule, scenario: Scenario, link: ScenarioLink) -> bool:
    """True if the scenario changes the times of collectives that exchange no gradients."""
    other_class = (link.outer is not None) != (schedule.link == OTHER_HOST)
    return (
        scenario.world_size != schedule.world_size
        or scenario.changes_link
        or (scenario.world_size > 1 and other_class)
    )


def _buckets(schedule: Schedule, scenario: Scenario, remarks: list[str]) -> tuple[Floats, Floats]:
    cap = scenario.bucket_cap_bytes
    if math.isnan(cap):
        return schedule.bucket_bytes.astype(np.float64), schedule.ready_s
    if schedule.models > 1:
        raise CommprofError(
            f"--bucket-cap-mb needs a run with one DDP model; this run has {schedule.models}. "
            "The trace does not name the model of a bucket, and DDP never puts parameters of two "
            "models into one bucket"
        )
    parameters = parameters_of(schedule)
    if not parameters.sizes_known:
        remarks.append(
            "parameter sizes were not recorded, so the predicted buckets end at the byte limit; "
            "DDP's buckets end at parameter boundaries"
        )
    elif not parameters.times_known:
        remarks.append(
            "ready times of parameters that shared a bucket are interpolated; a run with a small "
            "bucket cap records these times"
        )
    return rebucketed(schedule, parameters, cap)


def measured_hook(hooks: Mapping[str, HookCost], label: str) -> HookCost | None:
    """Finds a compressor's cost by its label, or by its scheme's name if only one has this name.

    Returns None if no cost is found.
    """
    of_scheme = [cost for key, cost in hooks.items() if key.partition(":")[0] == label]
    return hooks.get(label, of_scheme[0] if len(of_scheme) == 1 else None)


def _hook(hooks: Mapping[str, HookCost], label: str) -> HookCost:
    cost = measured_hook(hooks, label)
    if cost is not None:
        return cost
    names = ", ".join(hooks) or "none"
    raise CommprofError(
        f"hook {label!r} was not measured (in this profile: {names}); record a run with this "
        f"command, and give the run to commprof fit too: {recording(label)}"
    )


def _stretch(schedule: Schedule, placement: Placement) -> float:
    recorded = schedule.placement
    if math.isnan(recorded.busy) and placement.crowding() != recorded.crowding():
        raise CommprofError(
            "the prediction changes the ranks per core, but no recorded world size shows how much "
            "CPU a rank uses on a core of its own; with commprof's native module, also record a "
            "world size with a core for each thread, or keep the ranks per core with "
            "--ranks-per-host and --cores-per-host"
        )
    return placement.crowding() / recorded.crowding()


def _hook_factor(schedule: Schedule, hook: HookCost | None, remarks: list[str]) -> float:
    """Returns the factor by which a compressor on the same cores lengthens a rank's own work.

    If the factor is unknown, the result is 1, and the reason is appended to ``remarks``.
    """
    if schedule.hook == ("" if hook is None else hook.label):
        return 1.0
    if hook is None:
        remarks.append(
            f"the predicted compute time includes the slowdown by the run's hook {schedule.hook}; "
            "predict from a run without a hook"
        )
        return 1.0
    unknown = f"the prediction leaves out the slowdown of compute by {hook.label}"
    if schedule.hook:
        remarks.append(
            f"{unknown}, because the run used the hook {schedule.hook}; predict from a run without "
            "a hook"
        )
        return 1.0
    if math.isnan(hook.compute_s_per_byte):
        remarks.append(
            f"{unknown}; record the same job with this hook and without a hook, and give both runs "
            "to commprof fit"
        )
        return 1.0
    own_s = float(np.median(schedule.backward_end_s))
    return max(0.0, 1 + hook.compute_s_per_byte * schedule.gradient_bytes / own_s)


def _hook_crowding(hook: HookCost, placement: Placement) -> float:
    measured = 1.0 if math.isnan(hook.ranks_per_core) else max(1.0, hook.ranks_per_core)
    return placement.ranks_per_core / measured


def _hook_later_s(hook: HookCost, link: ScenarioLink) -> float:
    """Returns ``PredictedSetting.hook_later_s``; 0 if a latency is unknown."""
    later_s = link.message_s - hook.alpha_s
    return 0.0 if math.isnan(later_s) else later_s


def _batch_factor(schedule: Schedule, compute_by_batch: Line | None, scenario: Scenario) -> float:
    """Returns the factor by which a rank's own work changes with its number of samples.

    A rank's samples change only if the ranks share a fixed global batch (strong scaling).
    """
    if scenario.scaling != STRONG or scenario.world_size == schedule.world_size:
        return 1.0
    if not schedule.batch.per_rank or compute_by_batch is None:
        raise CommprofError(
            "strong scaling needs compute times at two batch sizes or more, with the same load on "
            "the cores, and the run has fewer; record two: "
            + invocation.command("run", "--world-sizes", "1,2", "--scaling", "strong")
        )
    fixed, per_sample = compute_by_batch
    recorded = schedule.batch.per_rank
    there = recorded * schedule.world_size / scenario.world_size
    return (fixed + per_sample * there) / (fixed + per_sample * recorded)


def _others(
    schedule: Schedule, scenario: Scenario, remarks: list[str]
) -> tuple[tuple[str, float, float], ...]:
    """Returns the collectives that exchange no gradients, with their sizes in the scenario.

    Adds assumptions to ``remarks``. The size of an all-gather or gather grows with the number of
    ranks, because the part of each rank stays the same.
    """
    priced = [call for call in schedule.other_calls if canonical(call.op) in OPERATIONS]
    left_out = {call.op for call in schedule.other_calls} - {call.op for call in priced}
    if left_out:
        remarks.append(f"{', '.join(sorted(left_out))}: left out, because no cost is known")
    if priced:
        names = ", ".join(sorted({call.op for call in priced}))
        remarks.append(
            f"the times of {names} outside of the gradients' exchange are predicted with the "
            "latency and rate of all-reduce"
        )
    growth = scenario.world_size / schedule.world_size
    return tuple(
        (
            call.op,
            call.size_bytes * (growth if canonical(call.op) in ("all_gather", "gather") else 1.0),
            call.per_step,
        )
        for call in priced
    )
