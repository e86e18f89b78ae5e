"""Builds a machine profile from microbenchmarks, recorded runs, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from commprof import invocation
from commprof.errors import CommprofError
from commprof.predict.fit.calibrate import calibrate
from commprof.predict.fit.cost_model import CostCurve
from commprof.predict.fit.fit import fit_curves
from commprof.predict.fit.hook_costs import HookCost
from commprof.predict.fit.hook_fit import fit_hook
from commprof.predict.fit.machine_profile import LinkProfile, MachineProfile
from commprof.predict.fit.points import Measurement
from commprof.predict.replay.recorded import Recorded
from commprof.predict.replay.schedule import RecordedSteps, Schedule
from commprof.predict.sharded.costs import fit_sharded
from commprof.predict.sharded.steps import ShardedSteps


def curves_of(recorded: Sequence[RecordedSteps]) -> dict[str, CostCurve]:
    """Fits a curve per operation to runs over links of one class; skips runs with a compressor."""
    plain = [each for each in recorded if each.world_size > 1 and not each.hook]
    sharded = [each for each in plain if isinstance(each, ShardedSteps)]
    replicated = [each for each in plain if isinstance(each, Schedule)]
    curves = fit_sharded(sharded) if sharded else {}
    return {**curves, "all_reduce": calibrate(replicated)} if replicated else curves


def build_profile(
    measurements: Sequence[Measurement],
    recorded: Sequence[Recorded],
    sources: Sequence[str],
    bandwidth_bytes_per_s: float = math.nan,
    latency_s: float = math.nan,
) -> tuple[MachineProfile, list[str]]:
    """Fits a machine profile; also returns descriptions of the data that it left out.

    The curves of a link class (same host or other host) are fitted to microbenchmarks if there are
    any. Otherwise all-reduce is calibrated on recorded DDP steps, and the collectives of sharded
    steps are fitted to their recorded calls.

    Args:
        measurements: files of microbenchmarks.
        recorded: recorded runs, one entry per world size; the cost of a compressor is fitted to
            the runs with this compressor.
        sources: names of all files and runs, for the profile.
        bandwidth_bytes_per_s: the link's own rate, if the user states it.
        latency_s: the link's one-way latency, if the user states it.

    Raises:
        CommprofError: neither an all-reduce nor a reduce-scatter was measured.
    """
    curves: dict[str, dict[str, CostCurve]] = {}
    left_out = [reason for each in measurements for reason in each.left_out]
    for link in sorted({each.link for each in measurements}):
        mine = [each for each in measurements if each.link == link]
        points = [point for each in mine for point in each.points]
        fitted, refused = fit_curves(points)
        left_out += refused
        curves[link] = _of_one_backend(link, fitted, recorded, left_out)
    steps = [each.schedule for each in recorded]
    plain = [each for each in steps if each.world_size > 1 and not each.hook]
    for link in sorted({each.link for each in plain} - set(curves)):
        curves[link] = curves_of([each for each in plain if each.link == link])
    if not any({"all_reduce", "reduce_scatter"} & each.keys() for each in curves.values()):
        raise CommprofError(
            "; ".join(left_out)
            or "no all-reduce between ranks was measured; give a run of 2 ranks or more without a "
            "hook, or a file of "
            + invocation.command("microbench", "all_reduce", "--json", "FILE")
        )
    profile = MachineProfile(
        links={
            link: LinkProfile(found, bandwidth_bytes_per_s, latency_s)
            for link, found in curves.items()
        },
        hooks=_hooks(recorded, curves, left_out),
        sources=tuple(sources),
        machine=_machine(measurements),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    return profile, left_out


def _of_one_backend(
    link: str,
    fitted: Sequence[CostCurve],
    recorded: Sequence[Recorded],
    left_out: list[str],
) -> dict[str, CostCurve]:
    """Chooses one fitted curve per operation, by its backend.

    A backend of the recorded runs is preferred to gloo, and gloo to any other backend. Curves that
    are not chosen are named in ``left_out``.
    """
    wanted = [each.schedule.backend for each in recorded if each.schedule.link == link]
    preferred = (*wanted, "gloo")
    known = {backend: place for place, backend in reversed([*enumerate(preferred)])}
    ranked = sorted(fitted, key=lambda curve: known.get(curve.backend, math.inf))
    chosen: dict[str, CostCurve] = {}
    for curve in ranked:
        taken = chosen.setdefault(curve.op, curve)
        if taken is not curve:
            left_out.append(
                f"{curve.op} on {curve.backend} ({link.replace('_', ' ')}): a profile holds the "
                f"costs of one backend, in this case {taken.backend}; to fit {curve.backend}, give "
                "only its files"
            )
    return chosen


def _hooks(
    recorded: Sequence[Recorded],
    curves: Mapping[str, Mapping[str, CostCurve]],
    left_out: list[str],
) -> dict[str, HookCost]:
    """Fits each compressor to its runs with the most ranks; names failures in ``left_out``."""
    hooks: dict[str, list[tuple[Recorded, Schedule]]] = {}
    plain = []
    for each in recorded:
        if not isinstance(each.schedule, Schedule):
            continue
        if not each.schedule.hook:
            plain.append(each.schedule)
        elif each.schedule.world_size > 1:
            hooks.setdefault(each.schedule.hook, []).append((each, each.schedule))
    found = {}
    for label, runs in hooks.items():
        ranks = max(schedule.world_size for _, schedule in runs)
        largest = [each for each, schedule in runs if schedule.world_size == ranks]
        schedules = [schedule for _, schedule in runs if schedule.world_size == ranks]
        curve = curves.get(schedules[0].link, {}).get("all_reduce")
        if curve is None:
            raise CommprofError(
                f"{largest[0].name} has hook {label}, but all-reduce on its link was not "
                "measured; record the job without a hook too, and give both runs to commprof fit"
            )
        rows = [row for each in largest for row in each.compression]
        try:
            found[label] = fit_hook(label, rows, schedules, curve, plain)
        except CommprofError as error:
            left_out.append(str(error))
    return found


def _machine(measurements: Sequence[Measurement]) -> Mapping[str, Any]:
    return measurements[0].machine if measurements else {}
