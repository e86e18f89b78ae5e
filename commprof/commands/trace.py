"""``commprof trace``: write a recorded run as a timeline for Perfetto."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from commprof.analysis.timeline.overview import Overview, overview
from commprof.analysis.timeline.rank import rank_timeline
from commprof.analysis.timeline.torch_trace import (
    TorchTrace,
    rank_index,
    read_torch_trace,
    sort_index,
    torch_events,
    with_all_of,
)
from commprof.errors import CommprofError, UsageError
from commprof.files import replacing
from commprof.invocation import quoted
from commprof.report.export import chrome_trace
from commprof.text import named_ranks, printable
from commprof.trace.reader import Trace, salvage_dead
from commprof.trace.run.run_directory import (
    other_recording,
    read_context,
    strategy_directories,
    trace_sources,
)


class TraceCommand:
    """The command ``commprof trace``."""

    description = """\
Writes a timeline of all ranks for https://ui.perfetto.dev or chrome://tracing: steps, phases,
exposed waiting, every collective in flight, buckets and compressors. Arrows lead from the rank that
issued a collective last to the ranks that waited for it. All ranks are on one clock.

  commprof trace RUN -o trace.json.gz          the largest world size of the run
  commprof trace RUN --world-size 2 --steps 10-20 -o two.json
  commprof trace RUN -o both.json.gz --merge rank0.pt.trace.json.gz rank1.pt.trace.json.gz
                                               with torch.profiler's traces of the same job
  commprof trace traces.tar.gz                 a job that torch.profiler recorded

A file whose name ends in .gz is compressed. See docs/reading.md.
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "run", type=Path, metavar="RUN", help="the run directory, or traces of torch.profiler"
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="the file to write (default: RUN/trace_N.json.gz for world size N; for "
            "torch.profiler's traces, in the current directory)",
        )
        parser.add_argument(
            "--world-size", type=int, metavar="N", help="recorded world size (default: the largest)"
        )
        parser.add_argument(
            "--steps", metavar="A-B", help="only steps A to B, and everything during them"
        )
        parser.add_argument(
            "--merge",
            nargs="+",
            type=Path,
            default=[],
            metavar="FILE",
            help="traces that torch.profiler wrote in ranks of this run",
        )
        parser.add_argument("--force", action="store_true", help="overwrite the file of -o")

    def run(self, args: argparse.Namespace) -> int:
        """Reads the traces, aligns their clocks and writes the timeline."""
        steps = _steps(args.steps)
        salvage_dead(args.run)
        world_size, sources = _world(args.run, args.world_size)
        beside = Path() if other_recording(args.run) else args.run
        output = args.output or beside / f"trace_{world_size}.json.gz"
        if args.output and output.exists() and not args.force:
            raise UsageError(f"{quoted(output)} exists; name another file with -o, or add --force")
        view = overview(sources, steps)
        merged = [read_torch_trace(path) for path in args.merge]
        for trace in merged:
            rank_index(view, trace)  # called only to raise its error before anything is written
        if steps is None:
            view = with_all_of(view, merged)
        with _written(output) as file:
            count = chrome_trace.write(file, _about(view, world_size), _events(view, merged))
        missing = sorted(set(range(world_size)) - set(sources))
        for line in _warnings(view, missing):
            print(f"commprof: {printable(line)}", file=sys.stderr)
        shown = quoted(output)
        print(f"{shown}: {count} events from {len(view.ranks)} of {world_size} ranks")
        print("Open it at https://ui.perfetto.dev (nothing is uploaded) or chrome://tracing")
        return 0


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise UsageError(f"--steps {text!r} is not a range such as 10-20, or a step such as 10")
    low, high = int(first), int(last or first)
    if low > high:
        raise UsageError(f"--steps {text!r} ends before it begins; give the smaller step first")
    return low, high


def _world(run: Path, wanted: int | None) -> tuple[int, Mapping[int, Path | Trace]]:
    if places := strategy_directories(run):
        raise UsageError(
            f"{quoted(run)} holds the runs of several strategies, but a timeline shows one run: "
            f"name {' or '.join(map(quoted, places))}"
        )
    sizes = read_context(run)["world_sizes"]
    recording = other_recording(run)
    found: Mapping[int, Mapping[int, Path | Trace]]
    if recording is not None:
        found = {recording.world_size: recording.traces}
    else:
        found = {size: some for size in sizes if (some := trace_sources(run, size))}
    if not found:
        raise CommprofError(f"{quoted(run)} holds no trace of a rank; nothing was recorded there")
    size = max(found) if wanted is None else wanted
    if size not in found:
        raise UsageError(
            f"--world-size {size} has no traces in {quoted(run)}; world sizes with traces: "
            + ", ".join(map(str, sorted(found)))
        )
    return size, found[size]


def _events(view: Overview, merged: list[TorchTrace]) -> Iterator[str]:
    for index, rank in enumerate(view.ranks):
        timeline = rank_timeline(view, index)
        yield from chrome_trace.rank_events(timeline, view.window.begin_ns, sort_index(rank))
    for number, trace in enumerate(merged):
        yield from map(json.dumps, torch_events(view, trace, number))


def _about(view: Overview, world_size: int) -> dict[str, Any]:
    error_us = view.clock_error_us
    return {
        "commprof": view.metadata["commprof"],
        "torch": view.metadata["torch"],
        "command": shlex.join(view.metadata["command"]),
        "world_size": world_size,
        "ranks": list(view.ranks),
        "clocks": view.aligned_by,
        "clock_error_us": None if math.isnan(error_us) else error_us,
        "begin_monotonic_ns": view.window.begin_ns,
        "begin_unix_ns": view.window.begin_ns + view.unix_offsets_ns[0],
    }


def _warnings(view: Overview, missing: list[int]) -> list[str]:
    found = list(view.problems)
    if missing:
        found.append(f"no trace of {named_ranks(missing)}")
    if view.aligned_by == "wall":
        found.append(
            "the ranks' clocks could not be compared: the timeline uses the hosts' wall clocks, "
            "which may be milliseconds apart, and draws no arrows"
        )
    return found


@contextmanager
def _written(path: Path) -> Iterator[TextIO]:
    """Opens a file for writing. The finished file replaces an older one at ``path``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing(path) as part,
            gzip.open(part, "wt", 5) if path.suffix == ".gz" else part.open("w") as file,
        ):
            yield file
    except OSError as error:
        raise UsageError(
            f"cannot write {quoted(path)}: {error.strerror}; name another file"
        ) from None
