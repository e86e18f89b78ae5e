"""``commprof run --dry-run``: what would be launched, as text."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from commprof.commands.running.run_checks import watch_threshold_of
from commprof.commands.running.run_worlds import places_of
from commprof.commands.running.target import Subject
from commprof.invocation import quoted
from commprof.launch.pinning import Pinning, RankPlacement
from commprof.launch.rendezvous import Meeting
from commprof.launch.topology import format_cpu_list
from commprof.monitor.settings import settings_of
from commprof.text import counted
from commprof.trace.run.run_directory import world_directory


def dry_run_text(
    args: argparse.Namespace,
    subjects: Sequence[Subject],
    descriptions: Sequence[str],
    world_sizes: Sequence[int],
    meeting: Meeting,
    directory: Path,
    width: int,
) -> str:
    """Everything that would be started, world size by world size; prose in ``width`` columns."""
    placing: RankPlacement = args.placing
    head = [
        "Dry run: this would be launched. Nothing was started or written.",
        f"Run directory: {quoted(directory)}",
        f"World sizes: {', '.join(map(str, world_sizes))}, one after the other",
        f"Machines: {_machines(meeting)}",
        f"Threads of a rank: {placing.threads.count} ({placing.threads.source})",
        f"This machine: {_machine(placing)}",
        f"Recording: {_recording(args)}",
    ]
    if args.trial:
        head.append(f"Trial: {args.trial}")
    if args.stacks:
        head.append("The line that issued each collective is recorded.")
    blocks = ["\n".join(_wrapped(line, width) for line in head)]
    places = places_of(directory, subjects)
    blocks += [_wrapped(text, width) for text in dict.fromkeys(descriptions)]
    planned = [(*pair, size) for pair in zip(subjects, places, strict=True) for size in world_sizes]
    for turn, (subject, place, size) in enumerate(planned):
        lines = _world(subject, world_directory(place, size), size, meeting.turn(turn), placing)
        blocks.append("\n".join(_wrapped(line, width, "    ") for line in lines))
    return "\n\n".join(blocks) + "\n"


def _machines(meeting: Meeting) -> str:
    if meeting.nodes == 1:
        return "1"
    return f"{meeting.nodes}, of which this is number {meeting.node_rank}"


def _machine(placing: RankPlacement) -> str:
    topology = placing.topology
    cores, nodes = len(topology.cores), len(topology.nodes)
    text = (
        f"{counted(cores, 'core')} on {counted(nodes, 'NUMA node')}, "
        f"CPUs {format_cpu_list(topology.cpus)}"
    )
    if topology.quota_cpus is not None:
        text += f"; the cgroup grants {topology.quota_cpus:g} CPUs of time"
    return text


def _recording(args: argparse.Namespace) -> str:
    """What goes on beside the training."""
    metrics, threshold = settings_of(args), watch_threshold_of(args)
    restarts = f"at most {args.max_restarts} restarts" if args.max_restarts else "no restarts"
    watchdog = "no watchdog" if threshold is None else f"watchdog {threshold}"
    live = "no live metrics"
    if metrics.wanted:
        live = f"live metrics ({shlex.join(metrics.arguments())})"
    return f"mode {args.settings.mode}, {restarts}, {watchdog}, {live}"


def _world(
    subject: Subject, directory: Path, size: int, meeting: Meeting, placing: RankPlacement
) -> Iterator[str]:
    """The lines of one world size."""
    here = size // meeting.nodes
    preview = subject.preview(size, directory, here)
    first = meeting.node_rank * here
    ranks = f"rank {first}" if here == 1 else f"ranks {first} to {first + here - 1}"
    strategy = f", strategy {subject.strategy}" if subject.strategy else ""
    yield f"World size {size}{strategy}: {ranks} on this machine"
    yield f"  each runs: {preview.command}"
    yield f"  they meet at: {meeting.endpoint or 'a free port of localhost'}"
    yield f"  they write to: {quoted(directory)}"
    for name, value in sorted(preview.environment.items()):
        yield f"  environment: {name}={quoted(value)}"
    yield "  environment: RANK, LOCAL_RANK, WORLD_SIZE, ... as torchrun sets them"
    yield from (f"  {line}" for line in _pinned(placing.pinning(size), first))
    if here > placing.topology.usable_cores:
        cores = placing.topology.usable_cores
        yield f"  more ranks than cores: {here} on {cores}; they take turns, so this is no scaling"
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
