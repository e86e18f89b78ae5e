"""Reads a run directory at intervals, and writes live metrics to the outputs.

The job continues even if the monitor or an output fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from commprof import satellites
from commprof.analysis.inspector.live import LiveLogs, logs_in
from commprof.errors import CommprofError, UsageError
from commprof.files import replace_file
from commprof.monitor.metrics.endpoint import PATH, Endpoint, listen, parse_address
from commprof.monitor.metrics.inspector import inspector_samples
from commprof.monitor.metrics.outputs import (
    JsonLines,
    Output,
    Scraped,
    TensorBoard,
    TextFile,
    show_in,
    write_to,
)
from commprof.monitor.observer import Observer
from commprof.monitor.settings import Settings
from commprof.monitor.state import JobState
from commprof.text import printable
from commprof.trace.run.processes import identity

#: Seconds between two checks for the job's end.
_ALERT_S: Final = 0.5
_MOST_COMPLAINTS: Final = 100
_LAST_LOOKS: Final = 20
#: Largest share of a core that the monitor uses. To keep this limit, the monitor reads the run
#: directory less often, but at least every ``_LONGEST_S`` seconds.
_OF_A_CORE: Final = 0.02
_LONGEST_S: Final = 30.0
#: Niceness of the monitor. With the largest niceness, the monitor would starve on a busy host.
_NICE: Final = 10
_PATIENCE_S: Final = 5.0


class Monitor:
    """Watches one run directory and shows its metrics."""

    def __init__(
        self, run: Path, settings: Settings, of_process: str = "", nested: bool = True
    ) -> None:
        """Opens the outputs that the settings name.

        Args:
            run: the run directory; it need not hold a trace yet.
            settings: the outputs and their options.
            of_process: ``PID:START`` of a process; the monitor ends after this process. Empty for
                none. START is the start time in clock ticks since boot, as in /proc/PID/stat.
            nested: as for ``Observer``.

        Raises:
            CommprofError: the endpoint's address or the machine profile cannot be used.
        """
        self._run = run
        self._interval_s = settings.interval_s
        self._pid, _, self._began = of_process.partition(":")
        self._ending = threading.Event()
        self._complaints: set[str] = set()
        #: Content of the file with the endpoint's address; empty without an endpoint.
        self._address = b""
        self._a_rank_runs = False
        expected_s = (
            satellites.forecast().expected_times(settings.profile) if settings.profile else None
        )
        self._observer = Observer(run, expected_s, nested=nested, is_monitor=True)
        #: Logs of NCCL Inspector; None if the directory holds none so far.
        self._logs: LiveLogs | None = None
        self._follow_logs()
        if self._logs is not None and (settings.jsonl or settings.tensorboard):
            raise UsageError(
                "--metrics-jsonl and --metrics-tensorboard need step numbers, which logs of NCCL "
                "Inspector do not hold; give --metrics, --metrics-address or --metrics-textfile"
            )
        self._outputs = list(self._open(settings))

    def run(self) -> None:
        """Runs until the watched process and all ranks of this host end, or until :meth:`end`."""
        used_s = time.process_time()
        while not self._ending.is_set():
            lived = self._job_lives()
            self._poll()
            if not lived and not self._a_rank_runs:
                break
            # ``used_s - before_s`` is the CPU time of the last round.
            before_s, used_s = used_s, time.process_time()
            rest_s = min((used_s - before_s) / _OF_A_CORE, _LONGEST_S)
            rest_s = max(self._interval_s, rest_s)
            next_s = time.monotonic() + rest_s
            self._publish(rest_s)
            while (left_s := next_s - time.monotonic()) > 0:
                if self._ending.wait(min(_ALERT_S, left_s)):
                    break
                if lived and not self._job_lives():
                    break
        for _ in range(_LAST_LOOKS):
            self._poll()
            if self._logs.caught_up if self._logs is not None else self._observer.caught_up:
                break
        self._poll()
        self._publish(self._interval_s)

    def end(self) -> None:
        """Ends :meth:`run` after a last update. Any thread or signal handler may call this."""
        self._ending.set()

    def close(self) -> None:
        """Closes all outputs and files."""
        # Remove the address file before closing the endpoint: after that, another monitor may use
        # the same address and write an equal file.
        with suppress(OSError):
            if address_file(self._run).read_bytes() == self._address:
                address_file(self._run).unlink()
        for output in self._outputs:
            with suppress(OSError):
                output.close()
        self._observer.close()

    def _publish(self, next_s: float) -> None:
        try:
            self._observer.publish(next_s)
        except OSError as error:
            self._complain(f"the summary of this host cannot be written: {error}")
        except Exception as error:  # contradictory summaries must not end the monitor
            self._complain(
                f"the summary of this host cannot be made: {type(error).__name__}: {error}"
            )

    def _follow_logs(self) -> None:
        with suppress(OSError, CommprofError):
            self._logs = logs_in(self._run)

    def _poll_logs(self, logs: LiveLogs) -> None:
        try:
            state = logs.look()
        except Exception as error:  # a damaged log must not end the monitor
            self._complain(f"the logs cannot be analysed: {type(error).__name__}: {error}")
            return
        if state is None:
            for problem in logs.problems:
                self._complain(problem)
            return
        for problem in state.problems:
            self._complain(problem)
        for output in self._outputs:
            show_in(output, partial(inspector_samples, state), self._complain)

    def _poll(self) -> None:
        if self._logs is not None:
            self._poll_logs(self._logs)
            return
        state: JobState | None = None
        try:
            state = self._observer.poll()
        except OSError as error:
            self._complain(str(error))
        except Exception as error:  # a damaged trace must not end the monitor
            self._complain(f"the traces cannot be analysed: {type(error).__name__}: {error}")
        self._a_rank_runs = state is not None and any(
            rank.is_local and rank.status == "running" for rank in state.ranks
        )
        if state is None:
            self._follow_logs()
            for problem in self._observer.problems:
                self._complain(problem)
            return
        for problem in state.monitor.problems:
            self._complain(problem)
        for output in self._outputs:
            write_to(output, state, self._complain)

    def _job_lives(self) -> bool:
        return not self._pid or identity(int(self._pid)) == self._began

    def _open(self, settings: Settings) -> list[Output]:
        outputs: list[Output] = []
        if settings.address:
            endpoint = Endpoint(self._listen(settings.address))
            outputs.append(Scraped(endpoint))
            self._write_address(endpoint)
        if settings.textfile:
            outputs.append(TextFile(settings.textfile))
        if settings.jsonl:
            outputs.append(JsonLines(settings.jsonl))
        if settings.tensorboard:
            outputs.append(TensorBoard(settings.tensorboard))
        return outputs

    def _listen(self, address: str) -> socket.socket:
        """Listens on ``address``; waits if an earlier attempt's monitor still uses the address."""
        until = time.monotonic() + (_PATIENCE_S if self._pid else 0.0)
        while True:
            try:
                return listen(parse_address(address))
            except UsageError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_ALERT_S)

    def _write_address(self, endpoint: Endpoint) -> None:
        host, port = endpoint.address
        shown = f"[{host}]" if ":" in host else host
        address = {"url": f"http://{shown}:{port}{PATH}", "host": host, "port": port}
        self._address = json.dumps(address).encode() + b"\n"
        try:
            replace_file(address_file(self._run), self._address)
        except OSError as error:
            self._complain(f"cannot write the endpoint's address to a file: {error}")

    def _complain(self, text: str) -> None:
        text = printable(text)
        if text not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(text)
            with suppress(OSError, ValueError):
                print(f"commprof monitor: {text}", file=sys.stderr, flush=True)


def address_file(run: Path) -> Path:
    """Returns the path of the JSON file with the address of this host's endpoint."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname())
    return run / f"metrics_{host}.json"


def run_monitor(run: Path, settings: Settings, of_process: str = "", nested: bool = True) -> int:
    """Runs a monitor in this process, at a low priority; returns its exit code."""
    with suppress(OSError):
        os.nice(_NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        monitor = Monitor(run, settings, of_process, nested)
    except CommprofError as error:
        print(f"commprof monitor: {error}", file=sys.stderr, flush=True)
        return error.exit_code

    def end(_: int, __: FrameType | None) -> None:
        monitor.end()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        monitor.run()
    finally:
        monitor.close()
    return 0
