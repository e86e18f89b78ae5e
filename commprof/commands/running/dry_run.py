"""``commprof run --dry-run``: describes what would be launched."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from commprof.commands.running.run_checks import watch_threshold_of
from commprof.invocation import quoted
from commprof.launch.pinning import Pinning, RankPlacement
from commprof.launch.rendezvous import Rendezvous
from commprof.launch.run_worlds import places_of
from commprof.launch.target import Target
from commprof.launch.topology import format_cpu_list
from commprof.monitor.settings import settings_of
from commprof.text import counted
from commprof.trace.run.run_directory import world_directory


def dry_run_text(
    args: argparse.Namespace,
    targets: Sequence[Target],
    descriptions: Sequence[str],
    world_sizes: Sequence[int],
    rendezvous: Rendezvous,
    directory: Path,
    width: int,
) -> str:
    """Describes what would be launched at each world size, wrapped to ``width`` characters."""
    placement: RankPlacement = args.placement
    head = [
        "Dry run: this would be launched. Nothing was started or written.",
        f"Run directory: {quoted(directory)}",
        f"World sizes: {', '.join(map(str, world_sizes))}, one after the other",
        f"Machines: {_machines(rendezvous)}",
        f"Threads of a rank: {placement.threads.count} ({placement.threads.source})",
        f"This machine: {_machine(placement)}",
        f"Recording: {_recording(args)}",
    ]
    if args.trial:
        head.append(f"Trial: {args.trial}")
    if args.stacks:
        head.append("The line of code that issued each collective is recorded.")
    blocks = ["\n".join(_wrapped(line, width) for line in head)]
    places = places_of(directory, targets)
    blocks += [_wrapped(text, width) for text in dict.fromkeys(descriptions)]
    planned = [(*pair, size) for pair in zip(targets, places, strict=True) for size in world_sizes]
    for turn, (target, place, size) in enumerate(planned):
        there = rendezvous.turn(turn)
        lines = _world(target, world_directory(place, size), size, there, placement)
        blocks.append("\n".join(_wrapped(line, width, "    ") for line in lines))
    return "\n\n".join(blocks) + "\n"


def _machines(rendezvous: Rendezvous) -> str:
    if rendezvous.nodes == 1:
        return "1"
    return f"{rendezvous.nodes}; this is machine {rendezvous.node_rank}, counted from 0"


def _machine(placement: RankPlacement) -> str:
    topology = placement.topology
    cores, nodes = len(topology.cores), len(topology.nodes)
    text = (
        f"{counted(cores, 'core')} on {counted(nodes, 'NUMA node')}, "
        f"CPUs {format_cpu_list(topology.cpus)}"
    )
    if topology.quota_cpus is not None:
        text += f"; the cgroup's CPU quota is {topology.quota_cpus:g} CPUs"
    return text


def _recording(args: argparse.Namespace) -> str:
    metrics, threshold = settings_of(args), watch_threshold_of(args)
    restarts = f"at most {args.max_restarts} restarts" if args.max_restarts else "no restarts"
    watchdog = "no watchdog" if threshold is None else f"watchdog {threshold}"
    if args.samples:
        watchdog += ", samples by py-spy"
    live = "no live metrics"
    if metrics.wanted:
        live = f"live metrics ({shlex.join(metrics.arguments())})"
    return f"mode {args.settings.mode}, {restarts}, {watchdog}, {live}"


def _world(
    target: Target, directory: Path, size: int, rendezvous: Rendezvous, placement: RankPlacement
) -> Iterator[str]:
    here = size // rendezvous.nodes
    preview = target.preview(size, directory, here)
    first = rendezvous.node_rank * here
    ranks = f"rank {first}" if here == 1 else f"ranks {first} to {first + here - 1}"
    strategy = f", strategy {target.strategy}" if target.strategy else ""
    yield f"World size {size}{strategy}: {ranks} on this machine"
    yield f"  each rank runs: {preview.command}"
    yield f"  rendezvous: {rendezvous.endpoint or 'a free port of localhost'}"
    yield f"  the ranks write to: {quoted(directory)}"
    for name, value in sorted(preview.environment.items()):
        yield f"  environment: {name}={quoted(value)}"
    yield "  environment: RANK, LOCAL_RANK, WORLD_SIZE, ... as torchrun sets them"
    yield from (f"  {line}" for line in _pinned(placement.pinning(size), first))
    if here > placement.topology.usable_cores:
        cores = placement.topology.usable_cores
        shared = f"{here} ranks share {counted(cores, 'core')}"
        yield f"  more ranks than cores: {shared}, so this measures no scaling"
    yield from (f"  {detail}" for detail in preview.details)


def _pinned(pinning: Pinning, first: int) -> Iterator[str]:
    if not pinning.sets:
        yield f"not pinned to CPUs: {pinning.reason}"
        return
    yield f"pinned ({pinning.mode}): {pinning.reason}"
    for number, cpus in enumerate(pinning.sets):
        yield f"  rank {first + number}: CPUs {format_cpu_list(cpus)}"


def _wrapped(text: str, width: int, rest: str = "") -> str:
    return textwrap.fill(
        text, width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
