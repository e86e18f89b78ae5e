"""Checks of the options of ``commprof run``, before anything starts."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import Any, NoReturn

from commprof import invocation, satellites
from commprof.analysis.predicted import BestPrediction, read_best
from commprof.capture.settings import RankSettings, check_sync_fits_trial
from commprof.commands.showing.price import price_of
from commprof.errors import UsageError
from commprof.launch.run_worlds import subjects_of
from commprof.launch.target import Target
from commprof.launch.topology import this_host
from commprof.monitor.watchdog.py_spy import find_py_spy
from commprof.monitor.watchdog.thresholds import AUTO, parse_threshold
from commprof.trace.run.run_directory import PREDICTIONS_FILE
from commprof.workloads.strategies import listed_strategies, parse_strategy

#: Strategies under which FSDP2 shards a built-in workload's model.
SHARDED_STRATEGIES = ("fsdp", "hsdp")


def checked_targets(args: argparse.Namespace, world_sizes: list[int]) -> list[Target]:
    """Checks the options and returns the targets to run.

    Sets ``args.settings`` and ``args.predicted``.
    """
    args.settings = _settings(args)
    _check_restarts(args)
    if price_of(args) is not None and args.trial is not None:
        raise UsageError(
            "--price-per-hour and --trial exclude each other: a trial's steps run with several "
            "settings, so the run has no single cost; leave one of the two options out"
        )
    _check_trial(args, world_sizes)
    _check_bucket_cap(args)
    _check_fsdp(args)
    args.predicted = _predicted(args, world_sizes)
    return subjects_of(args)


def _settings(args: argparse.Namespace) -> RankSettings:
    given = RankSettings.from_environment()
    if args.gradient_norms is not None and args.gradient_norms < 0:
        raise UsageError(
            f"--gradient-norms {args.gradient_norms} is out of range "
            "(allowed: 0 for never, or a number of steps)"
        )
    changes = {
        "mode": args.mode,
        "stacks": args.stacks,
        "gradient_norms_every": args.gradient_norms,
        "check_sync_every": args.check_sync,
        "bucket_cap_mb": args.bucket_cap_mb,
        "fsdp": args.fsdp,
    }
    return replace(given, **{name: value for name, value in changes.items() if value is not None})


def world_sizes_of(args: argparse.Namespace) -> list[int]:
    """Lists the world sizes to train, in order."""
    if args.world_sizes is not None:
        try:
            sizes = sorted({int(word) for word in args.world_sizes.split(",")})
        except ValueError:
            raise UsageError(
                f"--world-sizes {args.world_sizes!r} is not a list of whole numbers such as 1,2,4"
            ) from None
        most = max(sizes) if args.nproc is None else args.nproc * args.nnodes
        if most < max(sizes):
            raise UsageError(
                f"--world-sizes asks for {max(sizes)} ranks, but --nproc"
                f"{f' on {args.nnodes} machines' * (args.nnodes > 1)} allows only {most}; leave "
                "--nproc out"
            )
    else:
        nproc = this_host().usable_cores if args.nproc is None else args.nproc
        if args.script or args.trial:
            return [nproc * args.nnodes] if nproc >= 1 else _out_of_range(nproc)
        sizes = [2**power for power in range(max(nproc, 1).bit_length()) if 2**power <= nproc]
        sizes = sizes if nproc in sizes or nproc < 1 else [*sizes, nproc]
        if nproc < 1:
            _out_of_range(nproc)
        sizes = [size * args.nnodes for size in sizes]
    if min(sizes) < 1:
        raise UsageError(f"--world-sizes {args.world_sizes} is out of range (allowed: 1 or more)")
    return sizes


def _check_trial(args: argparse.Namespace, world_sizes: list[int]) -> None:
    """Brings ``args.trial`` into standard form; raises UsageError if the trial cannot be run."""
    if args.trial is None:
        return
    plan = satellites.tune().parse_trial(args.trial)
    args.trial = plan.text
    if args.hook is not None:
        raise UsageError("--hook and --trial exclude each other; name the hook in --trial")
    if not args.script:
        _check_trial_of(plan, args.strategy or "ddp")
    if len(world_sizes) > 1 or world_sizes[0] < 2:
        raise UsageError(
            f"--trial needs a single world size of 2 ranks or more, not {world_sizes}; give "
            "--nproc N"
        )
    if args.settings.mode != "full":
        raise UsageError(
            f"--trial needs every record, but mode {args.settings.mode} does not keep all records; "
            "give --mode full"
        )
    check_sync_fits_trial(args.settings.check_sync_every, plan.headroom)


def _check_trial_of(plan: Any, strategy: str) -> None:
    takes = {"ddp": False, **dict.fromkeys(SHARDED_STRATEGIES, True)}
    name = strategy.partition(":")[0]
    if name not in takes:
        raise UsageError(
            f"--trial compares settings of DDP and of FSDP2, not --strategy {strategy} (allowed: "
            f"{', '.join(takes)})"
        )
    wrong = [one.label for one in plan.candidates if bool(one.sharding.count) != takes[name]]
    if wrong:
        theirs = "FSDP2" if takes[name] else "DDP"
        raise UsageError(
            f"--trial {','.join(wrong)} cannot be used with --strategy {name} (allowed: settings "
            f"of {theirs}, see --help-all)"
        )


def _check_fsdp(args: argparse.Namespace) -> None:
    if args.fsdp is None:
        return
    args.fsdp = satellites.tune().sharding().parse_sharding(args.fsdp).label
    if args.trial is not None:
        raise UsageError(f"--fsdp and --trial exclude each other; name {args.fsdp} in --trial")
    if not args.script and (args.strategy or "ddp").partition(":")[0] not in SHARDED_STRATEGIES:
        raise UsageError(
            f"--fsdp is for FSDP2, which --strategy {args.strategy or 'ddp'} does not use "
            f"(allowed: {', '.join(SHARDED_STRATEGIES)})"
        )


def _predicted(args: argparse.Namespace, world_sizes: list[int]) -> BestPrediction | None:
    """Returns the prediction of --check-prediction; None if the option is not given.

    Raises:
        UsageError: the prediction is for another world size or other options.
    """
    if args.check_prediction is None:
        return None
    found = read_best(args.check_prediction / PREDICTIONS_FILE)
    if world_sizes != [found.world_size]:
        raise UsageError(
            f"--check-prediction: the prediction in {args.check_prediction} is for "
            f"{found.world_size} ranks, not {', '.join(map(str, world_sizes))}; give --world-sizes "
            f"{found.world_size}"
        )
    for name, value in found.options.items():
        given, option = getattr(args, name), f"--{name.replace('_', '-')}"
        if given is None or _text(given) != value:
            raise UsageError(
                f"--check-prediction: the prediction in {args.check_prediction} is for a run with "
                f"{option} {value}; give this option, or leave --check-prediction out"
            )
    return found


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_bucket_cap(args: argparse.Namespace) -> None:
    cap_mb = args.bucket_cap_mb
    if cap_mb is None:
        return
    if not 0 < cap_mb < math.inf:
        raise UsageError(f"--bucket-cap-mb {cap_mb:g} is out of range (allowed: more than 0 MiB)")
    if args.trial is not None:
        raise UsageError(
            "--bucket-cap-mb and --trial exclude each other; name bucket-cap=MB in --trial"
        )
    for name in [] if args.script else listed_strategies(args.strategy or "ddp"):
        if not parse_strategy(name).replicated:
            raise UsageError(
                f"--bucket-cap-mb is for DDP's buckets, and --strategy {name} has none; "
                "use ddp or zero1, or leave --bucket-cap-mb out"
            )


def _check_restarts(args: argparse.Namespace) -> None:
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts {args.max_restarts} is out of range (allowed: 0 or more)")
    if args.max_restarts and args.nnodes > 1:
        raise UsageError(
            "--max-restarts restarts the ranks of a single machine; on several machines, use "
            "torchrun --max-restarts with `commprof env`"
        )
    if args.check_sync is not None and args.check_sync < 1:
        raise UsageError(f"--check-sync {args.check_sync} is out of range (allowed: 1 or more)")


def _out_of_range(nproc: int) -> NoReturn:
    raise UsageError(f"--nproc {nproc} is out of range (allowed: 1 or more)")


def watch_threshold_of(args: argparse.Namespace) -> str | None:
    """Checks and returns the threshold in ``--watchdog``; None if the option is not given."""
    if args.watchdog is None:
        return None
    threshold: str = args.watchdog or AUTO
    parse_threshold(threshold)
    return threshold


def check_samples(args: argparse.Namespace) -> None:
    """Raises UsageError for ``--samples`` if py-spy is not installed."""
    if args.samples and find_py_spy() is None:
        raise UsageError(
            f"--samples needs py-spy in commprof's environment: {invocation.pip('py-spy')}"
        )
