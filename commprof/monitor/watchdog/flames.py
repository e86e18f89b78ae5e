"""Flame graphs of chosen ranks, recorded by py-spy beside them and split by phase."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commprof.errors import UsageError
from commprof.monitor.watchdog import phase_flames as flames
from commprof.monitor.watchdog import py_spy
from commprof.monitor.watchdog.feed import RankFeed
from commprof.monitor.watchdog.log import Log
from commprof.report import flame_svg
from commprof.trace.schema import PHASES, Kind

#: Samples a second; every one reads the rank's memory and does not stop it.
RATE_HZ = 100
#: Of the run, from the end of its first steps on.
LENGTH_S = 30
#: Steps that compile, allocate and regroup buckets.
_WARMUP_STEPS = 3
_END_S = 5.0
_MOST_PHASES = 200_000
_NO_STACK = "py-spy found no Python stack"
#: Of a file's time of change.
_GRAIN_NS = 4_000_000
_NS_PER_S = 1_000_000_000


def parse_ranks(text: str) -> tuple[int, ...]:
    """Ranks as ``--flamegraph`` takes them: ``0`` or ``0,3``.

    Raises:
        UsageError: it is no such list.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 8 for word in words):
        raise UsageError(
            f"--flamegraph {text!r} is not a list of ranks (allowed: whole numbers such as 0,3)"
        )
    return tuple(sorted({int(word) for word in words}))


class FlameDuty:
    """Of one rank: records for ``LENGTH_S``, or until the job ends, and writes the picture."""

    def __init__(self, directory: Path, rank: int, log: Log) -> None:
        """directory: gets ``flame_rank_R.svg``."""
        self._directory = directory
        self._rank = rank
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._begin_ns = 0
        self._written_ns = 0
        self._pid = 0
        self._samples = Path()
        self._errors = Path()
        self._phases: list[tuple[int, int, str]] = []
        self._done = False

    def look(self, feeds: Sequence[RankFeed], now_ns: int) -> None:
        """See ``Duty``."""
        mine = [feed for feed in feeds if feed.state is not None and feed.state.rank == self._rank]
        if self._done or not mine:
            return
        feed = mine[0]
        self._keep_phases(feed)
        if self._process is None:
            assert feed.state is not None
            if feed.process is not None and feed.state.steps_ended >= _WARMUP_STEPS:
                self._start(feed.process.pid)
        elif self._process.poll() is not None:
            self._draw()

    def finish(self) -> None:
        """The job is over, or the watchdog: what there is gets drawn."""
        if self._process is None or self._done:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # it then writes what it has
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._draw()

    def _keep_phases(self, feed: RankFeed) -> None:
        rows = feed.records[feed.records["kind"] == Kind.PHASE]
        for begin, end, code in zip(
            *(rows[name].tolist() for name in ("timestamp_ns", "value", "aux")), strict=True
        ):
            if code < len(PHASES) and len(self._phases) < _MOST_PHASES:
                self._phases.append((begin, end, PHASES[code]))

    def _start(self, pid: int) -> None:
        program = py_spy.find_py_spy()
        if program is None:
            self._give_up(py_spy.MISSING)
            return
        self._pid = pid
        file, name = tempfile.mkstemp(prefix="commprof-flame-", suffix=".json")
        os.close(file)
        self._samples = Path(name)
        self._errors = self._samples.with_suffix(".err")
        command = [program, "record", "--pid", str(pid), "--format", "chrometrace", "--nolineno"]
        command += ["--output", name, "--rate", str(RATE_HZ), "--duration", str(LENGTH_S)]
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    [*command, "--nonblocking", "--idle"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
        except OSError as error:
            self._give_up(f"{program} cannot be run: {error.strerror}")
            return
        # Its clock begins when it has been started; Popen returns when it has been.
        self._begin_ns = time.monotonic_ns()

    def _draw(self) -> None:
        self._done = True
        assert self._process is not None  # it has ended
        error = ""
        try:
            error = self._errors.read_text(errors="replace")
            self._errors.unlink()
            text = self._samples.read_text(errors="replace")
            ago_ns = time.time_ns() - self._samples.stat().st_mtime_ns
            self._written_ns = time.monotonic_ns() - ago_ns
            self._samples.unlink()
            stretches = flames.read_stretches(text)
        except (OSError, ValueError):
            stretches = []
            if not error:
                error = "it left no file that can be read"
        if not stretches:
            self._give_up(py_spy.explained(error, self._pid) if error else _NO_STACK)
            return
        self._phases.sort()
        period_ns = _NS_PER_S // RATE_HZ
        error_ns = self._clock_error_ns(stretches)
        found = flames.fold(stretches, self._phases, self._begin_ns, period_ns, error_ns)
        subtitle = (
            f"training thread, {found.samples} samples at {RATE_HZ} Hz; second row: phase by the "
            f"rank's records ({found.doubtful / found.samples:.0%} of the samples are within "
            f"{error_ns / 1e6:.0f} ms, the clocks' error, of its begin or end)"
        )
        picture = flame_svg.render(found.time_ns, f"commprof: rank {self._rank}", subtitle)
        path = self._directory / f"flame_rank_{self._rank}.svg"
        try:
            path.write_text(picture)
        except OSError as failed:
            self._give_up(f"{path} cannot be written: {failed.strerror}")
            return
        self._log.say(f"flame graph of rank {self._rank}: {path.name}")

    def _clock_error_ns(self, stretches: list[flames.Stretch]) -> int:
        """How much later than ``_begin_ns`` py-spy's clock may have begun.

        It writes its file after the last time that is in it.
        """
        return max(self._written_ns - stretches[-1].end_ns - self._begin_ns, 0) + _GRAIN_NS

    def _give_up(self, reason: str) -> None:
        self._done = True
        self._log.say(f"no flame graph of rank {self._rank}: {reason}")
