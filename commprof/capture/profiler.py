"""``commprof.profile()``: records one process's collectives, phases and steps into a trace."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from commprof import _native, invocation
from commprof.capture import nccl
from commprof.capture.auto_phases import FSDP, AutoPhases
from commprof.capture.cross_check_sources import CrossCheckSources
from commprof.capture.data_passes import PassNotes
from commprof.capture.device_telemetry import TelemetrySampler
from commprof.capture.ending import error_line, unhandled
from commprof.capture.garbage import GarbageCollections
from commprof.capture.gradient_norms import GradientNorms
from commprof.capture.job.direct_groups import DirectGroups, say_if_without_group
from commprof.capture.job.job_directory import (
    beside_other_replicas,
    claim,
    own_rings,
    ring_prefix,
    trace_name,
)
from commprof.capture.job.metadata import gloo_threads, rank_and_world_size, trace_metadata
from commprof.capture.job.own_trace import OwnTrace
from commprof.capture.job.store_links import ArrivalLink, ClockLink, StoreLink
from commprof.capture.patches.waits import (
    Coalescing,
    FutureWaits,
    ManualFinalization,
    StreamWaits,
    show_inner_attributes,
)
from commprof.capture.recorder import Marker, recorder
from commprof.capture.settings import RankSettings, check_kernels, control_path, mode_code
from commprof.capture.step_finder import StepFinder
from commprof.capture.torch_work import TorchWork
from commprof.capture.trained_parameters import TrainedParameters
from commprof.errors import CommprofError
from commprof.trace.ring import owner_path
from commprof.trace.schema import MODES, PHASES, STEP_DECLARED

#: After each of the first steps, up to this number, capture looks for newly imported modules of
#: ``TorchWork``. It looks for FSDP after every step.
_IMPORTING_STEPS = 8


class Listener(Protocol):
    """Interface of objects that a capture notifies of steps, on the training thread."""

    def step_ended(self, step: int) -> None:
        """Called when a step has ended; ``step`` is its number."""

    def capture_ends(self) -> None:
        """Called before the capture stops."""


#: When capture stops, it waits this long: other threads may still record ends of operations.
_LATE_COMPLETIONS_S = 0.005
#: Number of operations at the start of a launched job whose stacks are recorded. A stack costs
#: 3 to 6 us (benchmarks/own_cost/stacks.py).
_FIRST_STACKS = 1024


class Profiler:
    """The capture of this process, made by :func:`profile`; use it as a context manager.

    Capture starts on entry and stops on exit. Each call of :meth:`step` ends a step. The phases of
    a step are found automatically, and can also be declared with :meth:`phase`. If phases are
    nested, only the outermost phase is recorded.
    """

    def __init__(
        self,
        directory: Path,
        metadata: dict[str, Any],
        find_steps: bool,
        stacks: bool,
        mode: int,
    ) -> None:
        """Arguments as for :func:`profile`, but ``mode`` is a position in ``schema.MODES``."""
        settings = RankSettings.from_environment()
        check_kernels()
        self._mode = mode
        self._signal = settings.switch_signal_number
        self._compared_clocks = settings.clock
        self._directory = directory
        self._metadata = metadata
        self._stacks = stacks
        self._recorder = recorder()
        self._markers: dict[str, Marker] = {
            name: self._recorder.PhaseMarker(code) for code, name in enumerate(PHASES)
        }
        self._finder = StepFinder(self._end_step) if find_steps else None
        self._cross_check_sources = CrossCheckSources()
        self._trained = TrainedParameters(
            self._recorder,
            self._cross_check_sources.models,
            flat=lambda: self._auto_phases.sharded.is_flat,
        )
        self._data_passes = PassNotes(self._recorder)
        self._auto_phases = AutoPhases(
            self._markers,
            self._finder,
            called=self._cross_check_sources.note,
            updating=self._trained.before_update,
            loaded=self._data_passes.loaded,
        )
        self._sharded = self._auto_phases.sharded
        self._direct_groups = DirectGroups()
        self._waits = (
            *(FutureWaits(), StreamWaits(), Coalescing(), ManualFinalization()),
            self._direct_groups,
        )
        self._clock = ClockLink("off")
        self._arrivals = ArrivalLink()
        self._gloo_threads: dict[str, int] = {}
        self._threads = torch.get_num_threads()
        self._gradient_norms = GradientNorms(settings.gradient_norms_every)
        self._garbage = GarbageCollections(self._recorder)
        self._torch_work = TorchWork(self._recorder)
        self._telemetry = TelemetrySampler()
        #: Objects that are polled after each step until they have found their connection or device.
        self._connecting: list[StoreLink | TelemetrySampler] = []
        self._seen = OwnTrace()
        self._step = 0
        self._path: Path | None = None
        self._ring_prefix = ""
        self._running = False
        #: True if the process had a default group when capture started.
        self._had_group = False
        self._listeners: list[Listener] = []
        #: True if rank 0 prints the directory of the traces when capture ends.
        self.says_end = False
        #: True if a launcher started the capture, which then lasts until the process ends.
        self.of_whole_job = False

    @property
    def trace_path(self) -> Path | None:
        """Path of the trace file; None before capture started."""
        return self._path

    @property
    def mode(self) -> str:
        """Mode in which capture starts, one of ``schema.MODES``."""
        return MODES[self._mode]

    def listen(self, listener: Listener) -> None:
        """Registers a listener, which is notified of every step from now on."""
        self._listeners.append(listener)

    def start(self) -> Profiler:
        """Opens the trace and starts recording.

        Raises:
            CommprofError: the trace cannot be written or exists already, a capture already runs
                in this process, or the metadata cannot be converted to JSON.
        """
        if self._running and self.of_whole_job:
            return self
        if self._recorder.started():
            raise CommprofError(
                "capture already runs in this process; first leave the other "
                "`with commprof.profile()` block, or call its stop()"
            )
        clock = ClockLink(self._compared_clocks)
        rank, _ = rank_and_world_size()
        # Absolute, because the working directory may change and other processes read this path.
        path = beside_other_replicas(self._directory.absolute() / trace_name(rank))
        prefix = ring_prefix()
        metadata = trace_metadata(prefix, self._metadata)
        document = _document(metadata)
        session = secrets.randbits(63) | 1
        claim(path)
        try:
            self._recorder.start(
                str(path),
                prefix,
                document,
                session,
                mode=self._mode,
                control_path=str(control_path(path.parent)),
                switch_signal=self._signal,
            )
        except (OSError, RuntimeError) as error:
            path.unlink(missing_ok=True)
            raise CommprofError(f"cannot record to {path}: {error}") from error
        self._path = path
        self._running = True
        if (not_recorded := nccl.set_up()) and rank == 0:
            print(f"commprof: {not_recorded}", file=sys.stderr)
        self._ring_prefix = prefix
        own_rings(prefix, path, session, metadata)
        global _any_started
        _any_started = True
        _started.append(self)
        self._recorder.set_stacks(self._stacks)
        self._recorder.install_observer()
        show_inner_attributes()
        for waits in self._waits:
            waits.install()
        self._cross_check_sources.start(self._recorder)
        self._telemetry.start(self._recorder)
        self._data_passes.start()
        self._auto_phases.install()
        self._gradient_norms.install(path.with_suffix(".gradients"))
        self._trained.install(path)
        self._garbage.install()
        self._torch_work.install()
        self._had_group = dist.is_available() and dist.is_initialized()
        self._step = 0
        self._clock = clock
        self._clock.start()
        self._arrivals = ArrivalLink()
        self._arrivals.start()
        waiting = (self._clock, self._arrivals, self._telemetry)
        self._connecting = [one for one in waiting if one.pending]
        self._gloo_threads, self._threads = {}, torch.get_num_threads()
        self._note_gloo_threads()
        self._note_ending("")
        self._recorder.mark_step(0, False)
        # Unlike atexit, this also runs at the end of a multiprocessing child.
        self._at_exit = Finalize(None, self._stop_at_exit, exitpriority=100)
        return self

    def note_first_lines(self) -> None:
        """In full mode, records the stacks of the next ``_FIRST_STACKS`` operations.

        Does nothing if the stacks of all operations are recorded.
        """
        if not self._stacks and self.mode == "full":
            self._recorder.set_stacks(True, _FIRST_STACKS)

    def _stop_at_exit(self) -> None:
        error = unhandled()
        self._stop(error)
        if not error and self._path is not None and _native.native is not None:
            # The exit code of `raise SystemExit` is known only once the interpreter has ended.
            _native.native.note_exit_status(self._path)

    def stop(self) -> None:
        """Stops recording and closes the trace.

        Does nothing if capture is not running, or if a launcher started capture: capture then lasts
        until the process ends.
        """
        if not self.of_whole_job:
            self._stop("")

    def _stop(self, error: str) -> None:
        """Stops recording and closes the trace; does nothing if this capture does not run.

        ``error``: error line of the exception that ended the capture; "" if there was none.
        """
        # In a forked child, ``_running`` may be True, but the recorder has not started.
        if not (self._running and self._recorder.started()):
            return
        self._running = False
        while self._listeners:
            listener = self._listeners.pop()
            try:
                listener.capture_ends()
            except Exception as failure:  # a failed listener must not keep the trace open
                what = f"the listener {type(listener).__name__} failed when capture ended"
                print(f"commprof: {what}: {error_line(failure)}", file=sys.stderr)
        _started.remove(self)
        self._at_exit.cancel()
        self._auto_phases.remove()
        for waits in self._waits:
            waits.remove()
        self._gradient_norms.remove()
        self._trained.remove()
        self._garbage.remove()
        self._torch_work.remove()
        self._data_passes.stop()
        self._note_gloo_threads()
        self._note_threads()
        self._note_ending(error)
        self._cross_check_sources.stop(self._recorder)
        self._telemetry.stop()
        self._clock.stop()
        time.sleep(_LATE_COMPLETIONS_S)
        self._recorder.stop()
        self._arrivals.stop()
        if self._ring_prefix:
            with suppress(OSError):
                owner_path(self._ring_prefix).unlink(missing_ok=True)
        first = self._path is not None and self._path.name == trace_name(0)
        if first and self._path and not self.of_whole_job and not self._had_group:
            say_if_without_group(self._path)
        if self.says_end and first and self._path is not None:
            directory = invocation.quoted(self._path.parent)
            with suppress(OSError, ValueError):  # stderr may be closed
                print(
                    f"commprof: recorded to {directory}; next: "
                    + invocation.command("report", directory),
                    file=sys.stderr,
                )

    def _note_ending(self, error: str) -> None:
        """Writes the error that ended the capture to the metadata; "" means no error.

        Metadata also goes into later traces of this process. So "" replaces the error of an earlier
        capture.
        """
        global _ending_noted
        if error or _ending_noted:
            self._recorder.add_metadata(json.dumps({"ending": {"error": error}}))
            _ending_noted = bool(error)

    def _note_gloo_threads(self) -> None:
        known = {**self._gloo_threads, **gloo_threads()}
        if known != self._gloo_threads:
            self._gloo_threads = known
            self._recorder.add_metadata(json.dumps({"gloo_threads": known}))

    def _note_threads(self) -> None:
        if (threads := torch.get_num_threads()) != self._threads:
            self._recorder.add_metadata(json.dumps({"threads": threads}))

    def step(self) -> None:
        """Ends the current step and begins the next.

        The first call turns off the automatic detection of steps.
        """
        if self._finder is not None:
            self._finder.stop()
        self._end_step(STEP_DECLARED)

    def _end_step(self, found: int) -> None:
        self._recorder.mark_step(self._step, True, found)
        self._step += 1
        if self._connecting:
            self._poll()
        if self._sharded.pending and FSDP in sys.modules:
            self._sharded.poll()
        if self._torch_work.pending and self._step <= _IMPORTING_STEPS:
            self._torch_work.poll()
        for listener in self._listeners:
            self._tell(listener)

    def _tell(self, listener: Listener) -> None:
        try:
            listener.step_ended(self._step - 1)
        except Exception as failure:  # training must go on
            self._listeners = [one for one in self._listeners if one is not listener]
            what = f"the listener {type(listener).__name__} failed and is no longer called"
            print(f"commprof: {what}: {error_line(failure)}", file=sys.stderr)

    def _poll(self) -> None:
        for one in self._connecting:
            one.poll()
        self._connecting = [one for one in self._connecting if one.pending]

    def phase(self, name: str) -> Marker:
        """Returns a context manager for a phase: "data", "forward", "backward" or "optimizer".

        Raises:
            CommprofError: there is no such phase.
        """
        try:
            return self._markers[name]
        except KeyError:
            allowed = ", ".join(self._markers)
            raise CommprofError(f"unknown phase {name!r} (allowed: {allowed})") from None

    def set_enabled(self, on: bool) -> None:
        """Pauses or resumes recording; call it between two steps, on all ranks at the same step."""
        self._cross_check_sources.set_enabled(on)
        if on:
            self._recorder.set_enabled(True)
            self._recorder.mark_step(self._step, False)
        else:
            self._recorder.set_enabled(False)

    def stats(self) -> Any:
        """Returns the recorder's counters, such as the number of dropped records."""
        return self._recorder.stats()

    def summary(self) -> dict[str, float]:
        """Returns recent figures of this rank, with keys such as ``commprof/step_seconds``.

        Experiment trackers can log the result, for example ``wandb.log(prof.summary())``. The
        result is empty before the first complete step. ``docs/monitoring.md`` describes the
        figures.
        """
        if self._running:
            self._recorder.flush()
        return self._seen.figures(self._path)

    def record_cost_ns(self, count: int = 100_000) -> float:
        """Measures the mean time that a record takes, in nanoseconds.

        ``count``: number of records in the measurement; they are not written to the trace.
        """
        return self._recorder.record_cost_ns(count)

    def __enter__(self) -> Profiler:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.of_whole_job:
            self._stop(error_line(error))


#: Holds the running capture, or nothing. Empty in a forked child.
_started: list[Profiler] = []
_any_started = False
#: True if this process's metadata contains an error that ended a capture.
_ending_noted = False
os.register_at_fork(after_in_child=_started.clear)


def recorded_anything() -> bool:
    """True if a capture has started in this process."""
    return _any_started


def active() -> Profiler | None:
    """Returns the capture that runs in this process; None if none does."""
    return _started[0] if _started else None


def step() -> None:
    """Ends a step of the running capture; does nothing if no capture runs.

    Scripts under ``commprof run`` can call this function. Otherwise, their steps end at updates of
    an optimizer.
    """
    profiler = active()
    if profiler is not None:
        profiler.step()


def profile(
    directory: str | Path,
    *,
    metadata: dict[str, Any] | None = None,
    find_steps: bool = False,
    mode: str | None = None,
    stacks: bool | None = None,
) -> Profiler:
    """Records this rank's training into ``directory/rank_<rank>.trace``.

    Args:
        directory: directory of the trace; made if missing. All ranks of a job may share it.
        metadata: further keys for the trace's header; their values must be convertible to JSON.
        find_steps: end steps at the updates of an optimizer, until :meth:`Profiler.step` is called.
            ``step_finder.py`` explains which optimizer this is.
        mode: "full" keeps every record; "always-on" keeps histograms of bounded size; "off" keeps
            nothing until recording is switched on (see ``docs/monitoring.md``). None: the
            environment's COMMPROF_MODE, or "full" if that is unset.
        stacks: record the Python stack of each operation, which takes microseconds per operation.
            None: only if ``COMMPROF_STACKS`` is 1 in the environment.

    Raises:
        UsageError: there is no such mode, or a ``COMMPROF_`` variable has a value that is not
            valid.

    Ranks that do not share a clock compare their clocks over UDP. ``COMMPROF_CLOCK=off`` in the
    environment turns this off.

    Under a command that records the whole script, such as ``commprof run``, this function ignores
    all arguments and returns the command's capture, if that has begun (``init_process_group``
    begins it).

    Call it after ``init_process_group``, or with the launcher's ``RANK`` in the environment::

        with commprof.profile("run") as prof:
            commprof.attach(ddp)
            for batch in loader:
                loss(ddp(batch)).backward()
                optimizer.step()
                prof.step()
    """
    running = active()
    if running is not None and running.of_whole_job:
        _say_joined(directory, running)
        return running
    if stacks is None:
        stacks = RankSettings.from_environment().stacks
    return Profiler(Path(directory), dict(metadata or {}), find_steps, stacks, mode_code(mode))


def _say_joined(directory: str | Path, running: Profiler) -> None:
    path = running.trace_path
    if path is not None and path.name == trace_name(0):
        print(
            f"commprof: the whole script is being recorded to {invocation.quoted(path.parent)}; "
            "commprof.profile() starts no other capture, and nothing goes to "
            f"{invocation.quoted(Path(directory))}",
            file=sys.stderr,
        )


def _document(metadata: dict[str, Any]) -> str:
    try:
        return json.dumps(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise CommprofError(f"profile(metadata=...) cannot be converted to JSON: {error}") from None
