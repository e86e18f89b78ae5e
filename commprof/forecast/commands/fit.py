"""``commprof fit``: fit the cost of this machine's collectives, for predictions."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from commprof.commands.options.quantities import duration, rate
from commprof.commands.options.reading_progress import reading_progress
from commprof.commands.options.terminal import prose_width, table_width
from commprof.errors import CommprofError, UsageError
from commprof.forecast.costs.machine_profile import default_path, save_profile
from commprof.forecast.fit.build import build_profile
from commprof.forecast.fit.inspector_points import read_inspector_points
from commprof.forecast.fit.points import Measurement, read_points
from commprof.forecast.fit.recorded_calls import read_calls
from commprof.forecast.replay.recorded import RecordedJob, read_recorded
from commprof.forecast.report import profile_table
from commprof.invocation import quoted
from commprof.recordings.inspector import is_inspector
from commprof.text import printable

#: Matches a latency of zero, which may be given without a unit.
_ZERO = re.compile(r"0+(\.0*)? *([num]?s)?")


class FitCommand:
    """The command ``commprof fit``."""

    description = """\
Fits latency, rate and reduction cost of this machine's collectives, with intervals, residuals and
held-out error. Writes them to a machine profile, which `commprof predict` reads by default.

  commprof microbench all_reduce all_gather --nproc 2,4 -e 64M --json bench.json
  commprof fit bench.json                    per operation, over all world sizes and message sizes
  commprof fit allreduce.log allgather.log   from the output of nccl-tests, or its JSON
  commprof fit LOGS                          from a job's logs of NCCL Inspector
  commprof fit RUN RUN_WITH_HOOK             from recorded steps; also fits the DDP hook's cost
  commprof fit RUN_WITHOUT_STEPS             from the collectives of a job without recorded steps
  commprof fit RUN --link-bandwidth 1Gbps --link-latency 20us
                                             so that `predict` covers other links too
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "sources",
            nargs="+",
            type=Path,
            metavar="SOURCE",
            help="JSON of a microbenchmark, output of nccl-tests, logs of NCCL Inspector, or a run "
            "directory",
        )
        parser.add_argument(
            "--output",
            type=Path,
            metavar="FILE",
            help=f"the profile (default: {default_path()})",
        )
        parser.add_argument(
            "--link-bandwidth",
            metavar="RATE",
            help="rate of the link that was measured, such as 1Gbps",
        )
        parser.add_argument(
            "--link-latency",
            metavar="TIME",
            help="one-way latency of the measured link, such as 20us; 0s if it is negligible",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Fits the costs, writes the machine profile and prints it."""
        bandwidth = _stated("--link-bandwidth", args.link_bandwidth)
        latency = math.nan
        if args.link_latency is not None:
            is_zero = _ZERO.fullmatch(args.link_latency.strip())
            latency = 0.0 if is_zero else duration("--link-latency", args.link_latency)
        measurements, recorded, refused = _read(args.sources)
        names = [str(path.resolve()) for path in args.sources]
        try:
            profile, left_out = build_profile(measurements, recorded, names, bandwidth, latency)
        except CommprofError as error:
            if not refused:
                raise
            raise CommprofError(f"{error}; left out: {'; '.join(refused)}") from None
        path = args.output or default_path()
        save_profile(profile, path)
        print(profile_table.render(profile, prose_width(), table_width()), end="")
        for reason in (*refused, *left_out):
            print(f"Left out: {printable(reason)}")
        for remark in (remark for one in measurements for remark in one.remarks):
            print(f"Note: {printable(remark)}.")
        for job in recorded:
            if job.sampled_steps:
                print(f"Note: {printable(job.name)}.")
        print(f"Machine profile: {quoted(path)}")
        return 0


def _stated(option: str, text: str | None) -> float:
    return math.nan if text is None else rate(option, text)


def _read(sources: list[Path]) -> tuple[list[Measurement], list[RecordedJob], list[str]]:
    measurements: list[Measurement] = []
    recorded: list[RecordedJob] = []
    refused: list[str] = []
    for source in sources:
        if is_inspector(source):
            with reading_progress() as progress:
                measurements.append(read_inspector_points(source, progress))
        elif source.is_dir():
            found, reasons = read_recorded(source)
            recorded += found
            refused += reasons
            measurements += read_calls(source, {job.schedule.world_size for job in found})
        elif source.is_file():
            measurements.append(read_points(source))
        else:
            raise UsageError(
                f"{quoted(source)} does not exist; give the JSON of a microbenchmark, an output "
                "of nccl-tests, logs of NCCL Inspector, or a run directory"
            )
    return measurements, recorded, refused
