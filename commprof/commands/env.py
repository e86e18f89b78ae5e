"""``commprof env``: record a job that something else launches."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from commprof import variables
from commprof.capture import boot
from commprof.errors import UsageError
from commprof.invocation import quoted
from commprof.monitor.settings import add_arguments, settings_of

_DESCRIPTION = """\
Records an unchanged job that torchrun, srun, mpirun, or a container's entry point launches.

  commprof env --output DIR -- torchrun --nproc-per-node 4 train.py --lr 0.1
  eval "$(commprof env --output DIR)"      the same for every job that this shell starts
  commprof report DIR

The first form executes the command in place of commprof, with the command's output and exit code.
Every rank writes DIR/rank_N.trace; a second job with the same DIR writes to DIR/job_2, and so on.
Processes that make no process group record nothing; a job of such processes says so at its end.
With --metrics the first rank of each host starts a monitor process; see docs/monitoring.md.
"""


class EnvCommand:
    """The command ``commprof env``."""

    description = _DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument(
            "--output",
            type=Path,
            default=Path("commprof-trace"),
            metavar="DIR",
            help="directory for the traces, which all machines of the job must see "
            "(default: commprof-trace)",
        )
        add_arguments(parser)
        parser.add_argument(
            "program",
            nargs=argparse.REMAINDER,
            metavar="-- COMMAND",
            help="command to run with commprof's variables in its environment (default: print the "
            "variables for a shell to set)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Prints the variables, or replaces this process by the command."""
        try:
            args.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot write to --output {quoted(args.output)}: {error.strerror}; name another "
                "directory"
            ) from None
        found = boot.environment(args.output)
        metrics = settings_of(args)
        if metrics.wanted:
            found[variables.METRICS] = shlex.join(metrics.arguments())
        program = args.program[1:] if args.program[:1] == ["--"] else args.program
        if not program:
            words = (f"{name}={shlex.quote(value)}" for name, value in found.items())
            print("export " + " ".join(words))
            return 0
        try:
            os.execvpe(program[0], program, {**os.environ, **found})
        except OSError as error:
            raise UsageError(f"cannot run {program[0]!r}: {error.strerror}") from None
