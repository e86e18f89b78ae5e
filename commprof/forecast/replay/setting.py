"""Computes everything that a scenario changes in the recorded run.

DDP fills buckets in the order in which gradients became ready in its first step, and closes a
bucket as soon as it holds the cap or more (``compute_bucket_assignment_by_size`` in torch's
``reducer.cpp``). If the script sets no ``bucket_cap_mb``, the first bucket's cap is 1 MiB and the
others' 25 MiB; otherwise ``bucket_cap_mb`` is the cap of all buckets.
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
    """Parameters (if unknown: parts of buckets) in the order in which gradients become ready."""

    size_bytes: tuple[float, ...]
    #: Recorded bucket of each gradient.
    bucket: tuple[int, ...]
    #: True if sizes are the model's, False if they are equal parts of recorded buckets.
    sizes_known: bool

    @property
    def times_known(self) -> bool:
        """True if each gradient had a bucket of its own, so that its ready time was recorded."""
        return self.sizes_known and len(set(self.bucket)) == len(self.bucket)


def parameters_of(schedule: Schedule) -> Parameters:
    """Returns the parameters in DDP's log; if it lacks them, equal parts of each bucket."""
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
    """Returns bucket sizes in bytes under a cap, and ready times in s as [steps, ranks, buckets].

    A parameter's ready time is interpolated by bytes: in the first recorded bucket, from the begin
    of backward to the bucket's ready time; in others, from the previous bucket's ready time.
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
    """A scenario, with the recorded run's figures converted to it."""

    scenario: Scenario
    link: ScenarioLink
    hook: HookCost | None
    hook_crowding: float
    #: Latency of one of the compressor's messages in the scenario, minus its latency in the run
    #: to which the compressor's cost was fitted.
    hook_later_s: float
    bucket_bytes: Floats
    ready_s: Floats
    backward_end_s: Floats
    copy_s: Floats
    #: Collectives that exchange no gradients: (operation, size, number per step); empty if they
    #: stay as recorded.
    others: tuple[tuple[str, float, float], ...]
    #: [steps, ranks]: recorded waits for collectives that exchange no gradients, as ``ready_s`` and
    #: ``backward_end_s`` include them; 0 if the times of these collectives are predicted.
    kept_wait_s: Floats
    outside: tuple[str, ...]
    remarks: tuple[str, ...]

    def replicate(self, number: int) -> PredictedSetting:
        """Returns the setting with all fitted costs from bootstrap replicate ``number``, from 0."""
        return dataclasses.replace(
            self,
            link=self.link.replicate(number),
            hook=None if self.hook is None else self.hook.replicate(number),
        )

    def bucket_times(self) -> tuple[Floats, Floats]:
        """Returns how long each bucket's exchange takes alone, and how long it uses the link, in s.

        With a compressor, the exchange counts as using the link all the time.
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
        """Returns the summed time per step, in s, of the collectives in ``others``."""
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
        compute_by_batch: seconds of a rank's own work in a step, as a straight line in its samples;
            None if unknown.
        scenario: the setting to predict.
        batches: smallest and largest samples per rank to which ``compute_by_batch`` was fitted.

    Raises:
        CommprofError: something that the answer depends on was not measured; the message says what
            to do.
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
    """True if the times of collectives other than the gradients' differ from the recorded ones."""
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
            "bucket cap records them"
        )
    return rebucketed(schedule, parameters, cap)


def _hook(hooks: Mapping[str, HookCost], label: str) -> HookCost:
    """Finds a compressor's cost by its label, or by its scheme's name if only one matches."""
    costs = [cost for key, cost in hooks.items() if label in (key, key.partition(":")[0])]
    if label in hooks:
        return hooks[label]
    if len(costs) == 1:
        return costs[0]
    names = ", ".join(hooks) or "none"
    raise CommprofError(
        f"hook {label!r} was not measured (in this profile: {names}); record a run with this "
        f"command, and give the run to commprof fit too: {recording(label)}"
    )


def _stretch(schedule: Schedule, placement: Placement) -> float:
    """Returns the factor by which compute takes longer if ranks lack processor time."""
    recorded = schedule.placement
    if math.isnan(recorded.busy) and placement.crowding() != recorded.crowding():
        raise CommprofError(
            "the prediction changes the ranks per core, but no recorded world size shows how much "
            "CPU a rank uses on a core of its own; also record a world size whose threads have a "
            "core each, with commprof's native module, or set --ranks-per-host and "
            "--cores-per-host to keep the ranks per core"
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
            f"the prediction still counts how much the run's hook {schedule.hook} slows compute on "
            "the same cores; predict from a run without a hook"
        )
        return 1.0
    unknown = f"the prediction leaves out how much {hook.label} slows compute on the same cores"
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
    """Returns a message's latency in the scenario minus its latency in the hook's recorded run.

    In s; 0 if one of the two latencies is unknown.
    """
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
            "strong scaling needs compute times at two batch sizes or more, and the run has one; "
            "record two: "
            + invocation.command("run", "--world-sizes", "1,2", "--scaling", "strong")
        )
    fixed, per_sample = compute_by_batch
    recorded = schedule.batch.per_rank
    there = recorded * schedule.world_size / scenario.world_size
    return (fixed + per_sample * there) / (fixed + per_sample * recorded)


def _others(
    schedule: Schedule, scenario: Scenario, remarks: list[str]
) -> tuple[tuple[str, float, float], ...]:
    """Returns the collectives that exchange no gradients, as the scenario changes them.

    Adds assumptions to ``remarks``. The recorded size of an all-gather or gather is that of all
    ranks' parts. Each rank's part stays as recorded, so the size is in proportion to the number of
    ranks.
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
