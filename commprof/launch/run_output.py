"""Chooses and creates the run directory of ``commprof run``."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime
from pathlib import Path

from commprof.errors import CommprofError, UsageError
from commprof.invocation import quoted
from commprof.launch.rendezvous import Rendezvous
from commprof.trace.run.run_directory import RUN_FILE

#: Seconds that a machine waits for machine 0 to create the run directory.
_PATIENCE_S = 900


def chosen_directory(args: argparse.Namespace, subject_name: str, rendezvous: Rendezvous) -> Path:
    """Chooses the run directory, without creating it."""
    directory: Path | None = args.output
    if directory is None and rendezvous.nodes > 1:
        raise UsageError(
            f"{rendezvous.nodes} machines need --output DIR, the same directory on all of them"
        )
    if directory is None:
        name = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{subject_name}"
        directory = Path("commprof-runs") / name
    try:
        occupied = rendezvous.is_first and directory.is_dir() and any(directory.iterdir())
    except OSError as error:
        raise _unwritable(directory, error) from None
    if occupied:
        raise UsageError(
            f"--output {quoted(directory)} is not empty, and nothing is overwritten; name a new "
            "directory"
        )
    return directory


def make_directory(directory: Path, rendezvous: Rendezvous) -> None:
    """Creates the run directory on the first machine; the other machines wait for it."""
    if not rendezvous.is_first:
        _await_first(directory)
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / RUN_FILE).touch(exist_ok=False)
    except OSError as error:
        if isinstance(error, FileExistsError) and directory.is_dir():
            raise UsageError(
                f"--output {quoted(directory)} was just created by another run; name a new "
                "directory"
            ) from None
        raise _unwritable(directory, error) from None


def _unwritable(directory: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write to --output {quoted(directory)}: {error.strerror}; name another directory"
    )


def _await_first(directory: Path) -> None:
    begin, announced = time.monotonic(), False
    while not (directory / RUN_FILE).exists():
        waited_s = time.monotonic() - begin
        if waited_s > _PATIENCE_S:
            raise CommprofError(
                f"machine 0 did not create {quoted(directory)} within {_PATIENCE_S} s; start "
                "commprof on machine 0 with the same --output, on a file system that all machines "
                "share"
            )
        if waited_s > 5 and not announced:
            print(f"commprof: waiting for machine 0 to create {quoted(directory)}", file=sys.stderr)
            announced = True
        time.sleep(0.1)
