"""Builds a machine profile from microbenchmarks, recorded runs, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from commprof import invocation
from commprof.errors import CommprofError
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST, CostCurve, link_words
from commprof.forecast.costs.hook_costs import HookCost
from commprof.forecast.costs.machine_profile import LinkProfile, MachineProfile
from commprof.forecast.fit.calibrate import calibrate
from commprof.forecast.fit.fit import fit_curves
from commprof.forecast.fit.hook_fit import fit_hook
from commprof.forecast.fit.points import Measurement
from commprof.forecast.replay.recorded import RecordedJob
from commprof.forecast.scenario.schedule import RecordedSteps, Schedule
from commprof.forecast.sharded.costs import fit_sharded
from commprof.forecast.sharded.steps import ShardedSteps


def curves_of(
    recorded: Sequence[RecordedSteps], measured: Mapping[str, CostCurve]
) -> dict[str, CostCurve]:
    """Returns a cost curve per operation.

    The curves in ``measured`` are kept. Curves of other operations are fitted to the recorded runs,
    which must all use links of one class. Runs with a compressor are skipped.
    """
    plain = [steps for steps in recorded if steps.world_size > 1 and not steps.hook]
    sharded = [steps for steps in plain if isinstance(steps, ShardedSteps)]
    replicated = [steps for steps in plain if isinstance(steps, Schedule)]
    curves = fit_sharded(sharded) if sharded else {}
    if replicated and "all_reduce" not in measured:
        curves["all_reduce"] = calibrate(replicated)
    return {**curves, **measured}


def build_profile(
    measurements: Sequence[Measurement],
    recorded: Sequence[RecordedJob],
    sources: Sequence[str],
    bandwidth_bytes_per_s: float = math.nan,
    latency_s: float = math.nan,
) -> tuple[MachineProfile, list[str]]:
    """Fits a machine profile, and describes the data that was left out.

    If an operation has enough measurements on a link class, its curve is fitted to the
    measurements. Otherwise, its curve is fitted to recorded steps.

    Args:
        measurements: measured collectives of microbenchmarks, or of recorded jobs without steps.
        recorded: recorded runs, one entry per world size.
        sources: names of all files and runs, for the profile.
        bandwidth_bytes_per_s: the rate that the user states for the link between hosts; NaN if not
            stated. If no link between hosts was measured, this is the rate of the link within a
            host.
        latency_s: the one-way latency that the user states for the same link; NaN if not stated.

    Raises:
        CommprofError: no collective has enough measurements to fit its costs, or a run has a hook
            and all-reduce on its link was not measured.
    """
    left_out = [reason for measurement in measurements for reason in measurement.left_out]
    curves = _curves(measurements, recorded, left_out)
    if not curves:
        raise CommprofError(
            "; ".join(left_out)
            or "no collective between ranks was measured; give a run of 2 ranks or more without a "
            "hook, or the file that this command writes: "
            + invocation.command("microbench", "all_reduce", "--json", "FILE")
        )
    links = {link: LinkProfile(curves_of_link) for link, curves_of_link in curves.items()}
    stated = OTHER_HOST if OTHER_HOST in links else SAME_HOST
    links[stated] = LinkProfile(curves[stated], bandwidth_bytes_per_s, latency_s)
    profile = MachineProfile(
        links=links,
        hooks=_hooks(recorded, curves, left_out),
        sources=tuple(sources),
        machine=_machine(measurements),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    return profile, left_out


def _curves(
    measurements: Sequence[Measurement], recorded: Sequence[RecordedJob], left_out: list[str]
) -> dict[str, dict[str, CostCurve]]:
    points = [point for each in measurements for point in each.points]
    steps = [each.schedule for each in recorded]
    curves = {}
    for link in sorted({each.link for each in points} | {each.link for each in steps}):
        fitted, refused = fit_curves([each for each in points if each.link == link])
        left_out += refused
        measured = _of_one_backend(link, fitted, recorded, left_out)
        curves[link] = curves_of([each for each in steps if each.link == link], measured)
    return {link: found for link, found in curves.items() if found}


def _of_one_backend(
    link: str,
    fitted: Sequence[CostCurve],
    recorded: Sequence[RecordedJob],
    left_out: list[str],
) -> dict[str, CostCurve]:
    """Chooses one fitted curve per operation.

    Backends of the recorded runs come first, then gloo, then any other backend. ``left_out`` gets a
    message for each unused curve.
    """
    wanted = [job.schedule.backend for job in recorded if job.schedule.link == link]
    preferred = (*wanted, "gloo")
    known = {backend: place for place, backend in reversed([*enumerate(preferred)])}
    ranked = sorted(fitted, key=lambda curve: known.get(curve.backend, math.inf))
    chosen: dict[str, CostCurve] = {}
    for curve in ranked:
        taken = chosen.setdefault(curve.op, curve)
        if taken is not curve:
            left_out.append(
                f"{curve.op} on {curve.backend} ({link_words(link)}): a profile holds an "
                f"operation's cost on one backend, in this case {taken.backend}; to fit "
                f"{curve.backend}, give only its files"
            )
    return chosen


def _hooks(
    recorded: Sequence[RecordedJob],
    curves: Mapping[str, Mapping[str, CostCurve]],
    left_out: list[str],
) -> dict[str, HookCost]:
    """Fits each compressor's cost to its runs with the most ranks.

    ``left_out`` gets a message for each cost that cannot be fitted. Raises CommprofError if
    all-reduce on the link of a run with a hook was not measured.
    """
    hooks: dict[str, list[tuple[RecordedJob, Schedule]]] = {}
    plain = []
    for job in recorded:
        if not isinstance(job.schedule, Schedule):
            continue
        if not job.schedule.hook:
            plain.append(job.schedule)
        elif job.schedule.world_size > 1:
            hooks.setdefault(job.schedule.hook, []).append((job, job.schedule))
    costs = {}
    for label, runs in hooks.items():
        ranks = max(schedule.world_size for _, schedule in runs)
        largest = [job for job, schedule in runs if schedule.world_size == ranks]
        schedules = [schedule for _, schedule in runs if schedule.world_size == ranks]
        curve = curves.get(schedules[0].link, {}).get("all_reduce")
        if curve is None:
            raise CommprofError(
                f"{largest[0].name} has hook {label}, but all-reduce on its link was not "
                "measured; record the job without a hook too, and give both runs to commprof fit"
            )
        rows = [row for job in largest for row in job.compression]
        try:
            costs[label] = fit_hook(label, rows, schedules, curve, plain)
        except CommprofError as error:
            left_out.append(str(error))
    return costs


def _machine(measurements: Sequence[Measurement]) -> Mapping[str, Any]:
    return measurements[0].machine if measurements else {}
