"""``commprof top``: show a running job in the terminal."""

from __future__ import annotations

import argparse
import math
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from commprof import satellites
from commprof.analysis.inspector.live import LiveLogs, logs_in
from commprof.errors import UsageError
from commprof.invocation import quoted
from commprof.monitor.observer import PATIENCE_S, Observer
from commprof.monitor.state import JobState
from commprof.report.inspector_frame import inspector_frame, inspector_waiting_frame
from commprof.report.live_frame import frame, waiting_frame

if TYPE_CHECKING:
    from rich.live import Live

#: ``--once`` reads a run in at most this many parts. A part is some megabytes per rank.
_MOST_LOOKS = 200
#: Without a terminal, the command waits this many seconds for a next job in the directory, such as
#: the next world size of ``commprof run``.
_NEXT_JOB_S = 30.0
#: Without a terminal, the command ends after this many seconds without news. News is a new line in
#: a log of NCCL Inspector, or a new summary by the monitor of a host.
_SILENT_S = 300.0
_SILENT = (
    "Hosts are missing: their monitors wrote nothing for {minutes:g} minutes. Without monitors, "
    "commprof top cannot follow so many ranks, so it stops waiting. commprof report RUN reads the "
    "traces."
)


class TopCommand:
    """The command ``commprof top``."""

    description = """\
Shows a running job, rank by rank: step rate, parts of a step, waiting, the late rank, bandwidth.

  commprof top RUN               until q or Ctrl-C, which do not affect the job
  commprof top RUN --once        one frame as plain text; the run may have ended

RUN is the directory that commprof run, commprof.wrap or commprof.profile() writes to, or that the
job's NCCL Inspector writes its logs to. The command reads the traces or logs while the job writes
them, and changes nothing. In a pipe or file it prints a frame whenever something has changed, until
the job has ended. See docs/monitoring.md.
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("run", type=Path, metavar="RUN", help="the run directory")
        parser.add_argument("--once", action="store_true", help="print one frame and end")
        parser.add_argument(
            "--refresh", type=float, default=1.0, metavar="S", help="seconds per frame (default: 1)"
        )
        parser.add_argument(
            "--profile",
            type=Path,
            metavar="FILE",
            help="compare bandwidth with the machine profile in FILE, which commprof fit made",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Shows the running job; returns 0 even if the job fails."""
        if not args.run.is_dir():
            raise UsageError(
                f"{quoted(args.run)} "
                f"{'is not a directory' if args.run.exists() else 'does not exist'}; give the "
                "directory that commprof run or commprof.profile() writes to"
            )
        if not 0.1 <= args.refresh <= 3600:
            raise UsageError(f"--refresh {args.refresh:g} is out of range (allowed: 0.1 to 3600 s)")
        logs = logs_in(args.run, args.once)
        if logs is not None and args.profile is not None:
            raise UsageError(
                "--profile is for a job's traces, and this directory holds logs of NCCL Inspector; "
                "leave --profile out"
            )
        expected_s = satellites.forecast().expected_times(args.profile) if args.profile else None
        patience_s = 0.0 if args.once else PATIENCE_S
        observer = Observer(args.run, expected_s, patience_s=patience_s)
        watched = _Watched(observer, args.run, logs)
        try:
            if args.once:
                return _print_once(watched)
            with _screen() as screen:
                _watch(watched, args.refresh, screen)
        except KeyboardInterrupt:
            pass
        finally:
            observer.close()
        return 0


class _Watched:
    """Data that the command shows: the traces of a job, or the job's logs of NCCL Inspector."""

    def __init__(self, observer: Observer, run: Path, logs: LiveLogs | None) -> None:
        self.logs = logs
        self._observer, self._run = observer, run

    @property
    def caught_up(self) -> bool:
        return self._observer.caught_up if self.logs is None else self.logs.caught_up

    def lines(self) -> tuple[list[str], bool]:
        """Returns the lines to show now, and True if the job has ended."""
        width, run = shutil.get_terminal_size((100, 24)).columns, str(self._run)
        if self.logs is not None:
            now = self.logs.look()
            if now is None:
                return inspector_waiting_frame(run, width, self.logs.problems), False
            return inspector_frame(now, run, width), now.since_written_s > _SILENT_S
        state = self._observer.poll()
        if state is None:
            self.logs = logs_in(self._run)
            return waiting_frame(run, width, self._observer.problems), False
        lines = frame(state, run, width)
        if is_silent(state):
            return [*lines, _SILENT.format(minutes=_SILENT_S / 60)], True
        return lines, state.finished


def is_silent(state: JobState) -> bool:
    """True if ranks are left, but no more news of these ranks is expected.

    The monitors of their hosts were probably killed, and their traces are too many to read.
    """
    open_ranks = [rank for rank in state.ranks if rank.status not in ("ended", "gone")]
    ages_s = [host.age_s for host in state.missing_hosts]
    unheard = all(rank.status == "" for rank in open_ranks)
    return bool(open_ranks and ages_s) and unheard and min(ages_s) > _SILENT_S


def _print_once(watched: _Watched) -> int:
    lines, _ = watched.lines()
    for _ in range(_MOST_LOOKS):
        if watched.caught_up:
            break
        lines, _ = watched.lines()
    print("\n".join(lines))
    return 0


def _watch(watched: _Watched, refresh_s: float, screen: Live | None) -> None:
    before: list[str] = []
    finished_at = math.inf
    while True:
        lines, finished = watched.lines()
        finished_at = min(finished_at, time.monotonic()) if finished else math.inf
        if screen is not None:
            from rich.text import Text

            shown = [*lines[: screen.console.height - 1], "Press q to leave; the job continues."]
            screen.update(Text("\n".join(shown), no_wrap=True), refresh=True)
        elif lines != before:
            print("\n".join(lines) + "\n", flush=True)
        if screen is None and time.monotonic() - finished_at > _NEXT_JOB_S:
            return
        before = lines
        if _left(refresh_s, screen is not None):
            return


def _left(seconds: float, interactive: bool) -> bool:
    """Waits for some seconds. Returns True as soon as the user types q, else False."""
    if not interactive:
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], rest)[0]:
            typed = os.read(sys.stdin.fileno(), 64)
            if not typed or b"q" in typed.lower() or b"\x03" in typed:
                return True
    return False


@contextmanager
def _screen() -> Iterator[Live | None]:
    """Yields the terminal's alternate screen; None if there is no terminal, or TERM is dumb."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.live import Live

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        with Live(screen=True, auto_refresh=False) as screen:
            yield screen
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
