"""``commprof wrap``: run and record one rank's script, under a launcher that starts each rank."""

from __future__ import annotations

import argparse
import os
import sys

from commprof.errors import UsageError


class WrapCommand:
    """The command ``commprof wrap``."""

    description = """\
Runs and records one rank's unchanged script, under a launcher that starts each rank. Traces go to
the directory in COMMPROF_OUT, or to commprof-trace.

  torchrun --nproc-per-node 4 -m commprof.wrap train.py --lr 0.1
  torchrun --nproc-per-node 4 --no-python commprof wrap train.py --lr 0.1        the same
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "-m", dest="module", action="store_true", help="SCRIPT is a module, as for python -m"
        )
        parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the training script")
        parser.add_argument(
            "script_args",
            nargs=argparse.REMAINDER,
            metavar="ARGS",
            help="the script's own arguments",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Replaces this process by a new Python that runs the script."""
        if not args.script:
            raise UsageError("name a script, or a module after -m")
        words = [*(["-m"] if args.module else []), args.script, *args.script_args]
        os.execv(sys.executable, [sys.executable, "-m", "commprof.wrap", *words])
