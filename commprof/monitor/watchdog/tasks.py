"""Tasks of the watchdog: hangs, mismatched collectives, anomalies and samples."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from commprof.analysis.collectives.mismatches import (
    Mismatch,
    MismatchFinder,
    issue_rows,
    issued_of,
    with_lines,
)
from commprof.analysis.late.anomalies import (
    AnomalyFinder,
    bandwidth_by_step,
    merged_changes,
    step_figures,
)
from commprof.analysis.late.functions import samples_path
from commprof.monitor.figures.steps import StepFollower
from commprof.monitor.watchdog import py_spy
from commprof.monitor.watchdog.feed import RankFeed
from commprof.monitor.watchdog.hang import DEAD, Hang, find_hang
from commprof.monitor.watchdog.hang_files import HangFile, now_text
from commprof.monitor.watchdog.issue_lines import IssueLines
from commprof.monitor.watchdog.thresholds import Threshold
from commprof.text import printable

#: Largest number of events that are written, so that events cannot fill the disk.
_MOST_EVENTS = 1000


class Log:
    """Log of this host's watchdog: a text file and JSON lines. Errors in writing are ignored."""

    def __init__(self, directory: Path, quiet: bool = False) -> None:
        """Names the files after the host. If ``quiet``, nothing is written to stderr."""
        host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname())
        self._text = directory / f"watchdog_{host}.log"
        self._events = directory / f"watchdog_{host}.jsonl"
        self._quiet = quiet
        self._count = 0

    def say(self, text: str) -> None:
        """Writes one line."""
        line = printable(text)
        _append(self._text, f"{now_text()} {line}\n")
        if not self._quiet:
            with suppress(OSError, ValueError):
                print(f"commprof: watchdog: {line}", file=sys.stderr, flush=True)

    def event(self, kind: str, sentence: str, what: Any) -> None:
        """Logs a sentence. Adds a JSON line with the sentence and the dataclass ``what``."""
        self._count += 1
        if self._count > _MOST_EVENTS:
            return
        self.say(sentence)
        fields = {"kind": kind, "time": now_text(), "sentence": sentence, **asdict(what)}
        _append(self._events, json.dumps(fields) + "\n")


def _append(path: Path, text: str) -> None:
    with suppress(OSError), path.open("a") as file:
        file.write(text)


_MOST_READ = 3


class WatchTask(Protocol):
    """Interface of a task, which runs each time the watchdog has read the ranks' records."""

    def poll(self, feeds: Sequence[RankFeed], now_ns: int) -> None:
        """Examines the ranks' new records; ``now_ns`` is ``CLOCK_MONOTONIC``."""

    def finish(self) -> None:
        """Completes the task when the job or the watchdog ends; called once."""


class HangTask:
    """Reports hangs. A new hang is reported only after all ranks have continued."""

    def __init__(
        self,
        directory: Path,
        threshold: Threshold,
        log: Log,
        mismatches: Callable[[], Sequence[Mismatch]] = tuple,
    ) -> None:
        """Prepares for the first look.

        Args:
            directory: directory for hang files.
            threshold: the limit, which may be learnt from step times.
            log: gets the reports.
            mismatches: returns the mismatched collectives that are known so far.
        """
        self._directory = directory
        self._mismatches = mismatches
        self._threshold = threshold
        self._log = log
        self._open: HangFile | None = None
        #: The rank whose native stacks are being read.
        self._native: tuple[int, py_spy.NativeDump] | None = None
        #: Ranks and process ids whose native stacks are read next.
        self._native_wanted: list[tuple[int, int]] = []

    def poll(self, feeds: Sequence[RankFeed], now_ns: int) -> None:
        """Reports hangs and the ends of hangs, and stores stacks."""
        states = [feed.state for feed in feeds if feed.state is not None and feed.is_seen]
        for state in states:
            for step_ns in state.new_step_ns:
                self._threshold.learn(step_ns, state.rank)
        processes = {
            feed.state.rank: feed.process
            for feed in feeds
            if feed.state is not None and feed.process is not None
        }
        seen = {state.rank for state in states}
        world_size = max((state.world_size for state in states), default=0)
        unseen = [rank for rank in range(world_size) if rank not in seen]
        hang = find_hang(
            states, processes, self._threshold.limit_ns, now_ns, unseen, self._mismatches
        )
        if hang is None:
            alive = any(p.state != DEAD for p in processes.values())
            self._close(now_ns, over=alive or any(state.closed for state in states))
        elif self._open is None:
            self._open = HangFile(self._directory, hang, feeds, now_ns)
            self._open.set_threshold(self._threshold.text)
            self._read_stacks(self._open, hang, feeds)
        self._go_on()

    def finish(self) -> None:
        """Ends py-spy if it is reading native stacks."""
        if self._native is not None:
            self._native[1].close()
            self._native = None

    def _close(self, now_ns: int, over: bool) -> None:
        """Closes the open hang, if any. ``over`` is False if all ranks died during the hang."""
        if self._open is None:
            return
        if self._native is not None:
            reason = "the hang was over before the native stacks were read"
            self._open.add_stack(self._native[0], ".native", "", reason)
        self.finish()
        self._native_wanted.clear()
        if over:
            self._log.say(f"hang {self._open.number} is over after {self._open.end(now_ns):g} s")
        else:
            self._log.say(f"hang {self._open.number}: all ranks are dead")
        self._open = None

    def _read_stacks(self, file: HangFile, hang: Hang, feeds: Sequence[RankFeed]) -> None:
        here = {
            feed.state.rank: feed.process
            for feed in feeds
            if feed.state is not None and feed.process is not None and feed.process.state != DEAD
        }
        wanted = [rank for rank in hang.to_compare(here)][:_MOST_READ]
        stacks = {rank: py_spy.dump(here[rank].pid) for rank in wanted}
        places = py_spy.script_places({rank: read.text for rank, read in stacks.items()})
        hang = hang.at(places)
        file.set_sentence(hang.sentence)
        self._log.say(f"HANG {file.number}: {hang.sentence}")
        for rank, read in stacks.items():
            name = file.add_stack(rank, "", read.text, read.problem)
            self._log.say(f"stacks of rank {rank}: {name or read.problem}")
        # py-spy stops a process to read native frames, so stopped processes are left out.
        movable = [rank for rank in wanted if not here[rank].held_up]
        if py_spy.find_py_spy():
            self._native_wanted = [(rank, here[rank].pid) for rank in movable]

    def _go_on(self) -> None:
        if self._native is not None and self._open is not None:
            rank, reader = self._native
            read = reader.poll()
            if read is None:
                return
            self._open.add_stack(rank, ".native", read.text, read.problem)
            self._native = None
        if self._native_wanted and self._open is not None:
            rank, pid = self._native_wanted.pop(0)
            with suppress(OSError):
                self._native = rank, py_spy.NativeDump(pid)


class SampleTask:
    """Samples the stacks of this host's ranks with py-spy, from each rank's first step on."""

    def __init__(self, directory: Path, log: Log) -> None:
        """Sets the directory for samples, and the log for failures."""
        self._directory = directory
        self._log = log
        self._samplers: dict[int, py_spy.Sampler] = {}
        #: Ranks for which a failure to start py-spy was logged.
        self._failed: set[int] = set()

    def poll(self, feeds: Sequence[RankFeed], now_ns: int) -> None:
        """Starts py-spy for each rank that has begun its first step."""
        for feed in feeds:
            state, process = feed.state, feed.process
            if state is None or process is None or state.rank in self._samplers:
                continue
            if state.step >= 0 and process.state != DEAD:
                path = samples_path(self._directory, state.rank, feed.attempt)
                try:
                    self._samplers[state.rank] = py_spy.Sampler(process.pid, path)
                except OSError as error:  # tried again at the next look
                    if state.rank not in self._failed:
                        self._failed.add(state.rank)
                        why = str(error) if py_spy.find_py_spy() else py_spy.MISSING
                        self._log.say(f"no samples of rank {state.rank}: {why}")

    def finish(self) -> None:
        """Ends all sampling, and logs why a rank has no samples."""
        for sampler in self._samplers.values():
            sampler.stop()
        for rank, sampler in self._samplers.items():
            if problem := sampler.end():
                self._log.say(f"no samples of rank {rank}: {problem}")


class MismatchTask:
    """Reports ranks that issue different collectives."""

    def __init__(self, log: Log) -> None:
        """Sets the log that gets the reports."""
        self._log = log
        self._finder = MismatchFinder()
        self._lines = IssueLines()

    def poll(self, feeds: Sequence[RankFeed], now_ns: int) -> None:
        """Compares the collectives that the ranks issued since the last look."""
        for feed in feeds:
            if feed.state is None:
                continue
            self._lines.take(feed)
            dtypes = feed.metadata["dtypes"]
            sizes = feed.group_sizes
            for row in issue_rows(feed.records):
                if row["group"] not in sizes:
                    continue
                name, size = sizes[row["group"]]
                self._finder.add(
                    feed.state.rank,
                    name,
                    size,
                    row["seq"],
                    issued_of(row, dtypes),
                    row["timestamp_ns"],
                )
        self._tell(last=False)

    def known(self) -> list[Mismatch]:
        """Returns each group's first and latest reported mismatch, and unreported mismatches.

        Some ranks may not have issued the collective of an unreported mismatch yet.
        """
        differing = [*self._finder.first(), *self._finder.known()]
        by_number = {(mismatch.group, mismatch.seq): mismatch for mismatch in differing}
        return [*map(self._with_lines, by_number.values())]

    def finish(self) -> None:
        """Reports the remaining mismatches."""
        self._tell(last=True)

    def _tell(self, last: bool) -> None:
        for mismatch in map(self._with_lines, self._finder.poll(last)):
            self._log.event("mismatch", mismatch.sentence, mismatch)

    def _with_lines(self, mismatch: Mismatch) -> Mismatch:
        ranks = [rank for rank, _ in mismatch.issue_ns]
        paths = self._lines.of(mismatch.group, mismatch.seq, ranks)
        return with_lines(mismatch, paths, self._finder.agree_since(mismatch.group, mismatch.seq))


class AnomalyTask:
    """Reports lasting changes of step time, of a rank's own work, and of bandwidth."""

    def __init__(self, log: Log) -> None:
        """Sets the log that gets the reports."""
        self._log = log
        self._steps: StepFollower | None = None
        self._finder = AnomalyFinder()

    def poll(self, feeds: Sequence[RankFeed], now_ns: int) -> None:
        """Looks for lasting changes in the steps that all ranks of this host have completed."""
        # Ranks of other hosts are left out, because each host has its own clock and watchdog.
        here = {
            feed.state.rank: (feed, feed.state)
            for feed in feeds
            if feed.state is not None and feed.process is not None
        }
        if not here:
            return
        if self._steps is None:
            self._steps = StepFollower(max(state.world_size for _, state in here.values()))
        for rank, (feed, _) in here.items():
            self._steps.add(rank, feed.records)
        new = self._steps.advance({rank: feed.tail for rank, (feed, _) in here.items()})
        if new is None:
            return
        rates = bandwidth_by_step(new.world)
        for figures in step_figures(new.ranks, new.parts, new.world.steps, rates):
            of_step = self._finder.add(replace(figures, step=figures.step + new.before))
            for anomaly in merged_changes(of_step):
                self._log.event("anomaly", anomaly.sentence, anomaly)

    def finish(self) -> None:
        """Does nothing: changes are reported as they are found."""
