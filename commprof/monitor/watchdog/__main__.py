"""``python -m commprof.monitor.watchdog DIR``: watches the ranks that record into DIR."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from commprof import invocation
from commprof.errors import CommprofError
from commprof.monitor.watchdog.thresholds import AUTO, OFF, parse_threshold
from commprof.monitor.watchdog.watchdog import watch

_DESCRIPTION = """\
Watches a job that records into DIR. Reports hangs and the ranks that caused them, ranks that issue
different collectives, and lasting changes of speed. commprof run --watchdog starts the watchdog. It
can also be started by hand for a running job, and ended at any time without effect on the job.
"""


def main() -> int:
    """Watches until this host's ranks and the launcher have ended; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=invocation.module("commprof.monitor.watchdog"),
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of the traces")
    parser.add_argument(
        "--threshold",
        default=AUTO,
        help="seconds after which a step or collective counts as hung, auto (learnt from the run's "
        "steps), or off (report nothing, for use with --samples) (default: auto)",
    )
    parser.add_argument(
        "--samples", action="store_true", help="sample the Python stacks of the ranks with py-spy"
    )
    parser.add_argument(
        "--parent",
        type=int,
        metavar="PID",
        help="process id of the launcher; watch until it and this host's ranks have ended",
    )
    parser.add_argument("--quiet", action="store_true", help="write files only")
    args = parser.parse_args()
    if args.parent is None and not args.directory.is_dir():
        said = "does not exist; watching begins if a job records into it within 10 minutes"
        print(f"commprof watchdog: {invocation.quoted(args.directory)} {said}", file=sys.stderr)
    # With a launcher, Ctrl-C is meant for the job, and the watchdog ends after the job.
    signal.signal(signal.SIGINT, _end if args.parent is None else signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    if not args.samples:  # samples must be taken on time
        os.nice(5)  # the ranks have priority
    try:
        watch(
            args.directory,
            None if args.threshold == OFF else parse_threshold(args.threshold),
            parent=args.parent,
            quiet=args.quiet,
            tells=args.threshold != OFF,
            samples=args.samples,
        )
    except CommprofError as error:
        print(f"commprof watchdog: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    """Handles a signal by an exception, so that the loop can end py-spy."""
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
