"""Shows live metrics of a running job: ``python -m commprof.monitor RUN --metrics ...``.

If started by hand, the monitor runs until Ctrl-C, even after the job has ended.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from commprof import invocation
from commprof.errors import CommprofError, UsageError
from commprof.monitor.monitor import run_monitor
from commprof.monitor.settings import add_arguments, settings_of


def main() -> int:
    """Watches until the process ``--of-process`` and this host's ranks end, or a signal arrives.

    Returns the exit code.
    """
    parser = argparse.ArgumentParser(
        prog=invocation.module("commprof.monitor"), description=__doc__
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run directory of the job")
    parser.add_argument("--of-process", default="", help=argparse.SUPPRESS)
    parser.add_argument("--this-job", action="store_true", help=argparse.SUPPRESS)
    add_arguments(parser)
    args = parser.parse_args()
    try:
        if not args.run.is_dir():
            problem = "is not a directory" if args.run.exists() else "does not exist"
            raise UsageError(
                f"{invocation.quoted(args.run)} {problem}; give the job's run directory"
            )
        settings = settings_of(args)
        if not settings.wanted:
            raise UsageError(
                "no output is chosen; give --metrics or another of the --metrics options"
            )
        return run_monitor(args.run, settings, args.of_process, not args.this_job)
    except CommprofError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
