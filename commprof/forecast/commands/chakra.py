"""``commprof chakra``: write a recorded run as Chakra traces for network simulators."""

from __future__ import annotations

import argparse
from pathlib import Path

from commprof.errors import UsageError
from commprof.forecast.what_if.chakra import export
from commprof.invocation import quoted
from commprof.trace.run.run_directory import read_context, read_world


class ChakraCommand:
    """The command ``commprof chakra``."""

    description = """\
Writes the measured DDP steps of a recorded run as MLCommons Chakra execution traces, one file per
rank, which ASTRA-sim or another network simulator can replay. A step is left out unless all ranks
recorded it with the same buckets and one synchronised backward pass.

  commprof chakra RUN --output traces        traces/commprof.0.et, traces/commprof.1.et, ...
  AstraSim_Analytical_Congestion_Aware --workload-configuration=traces/commprof ...
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("run", type=Path, metavar="RUN", help="the run directory")
        parser.add_argument(
            "--output", type=Path, metavar="DIR", required=True, help="directory for the files"
        )
        parser.add_argument(
            "--world-size", type=int, metavar="N", help="recorded world size (default: the largest)"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Writes the files and prints their paths."""
        sizes = read_context(args.run)["world_sizes"]
        size = max(sizes) if args.world_size is None else args.world_size
        if size not in sizes:
            raise UsageError(
                f"--world-size {size} was not recorded (allowed: {', '.join(map(str, sizes))})"
            )
        for path in export(read_world(args.run, size), args.output):
            print(quoted(path))
        return 0
