"""Callbacks that record a training framework's jobs; see ``docs/your_job.md``.

There is one module per framework, named after it. Only importing that module imports the framework.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import attach
from commprof.capture.job.job_directory import agree
from commprof.capture.profiler import Profiler, active, profile
from commprof.errors import CommprofError

#: Default directory of traces, the same as that of ``commprof.wrap``.
DIRECTORY = "commprof-trace"


class FrameworkRecording:
    """The capture of one training run, from its first step to its last.

    A capture that already runs, such as that of ``commprof env``, stays unchanged: it keeps its
    directory and its own rule for where steps end.
    """

    def __init__(self, directory: str | Path) -> None:
        """Prepares a recording.

        ``directory``: directory for all ranks' traces. If it holds traces of a job already, the new
        traces go to its subdirectory ``job_2``, and so on.
        """
        self._directory = Path(directory)
        self._own: Profiler | None = None

    def start(self, model: object) -> None:
        """Starts capture; call it on all ranks after ``init_process_group``, before the first step.

        model: the model that the framework trains; a DDP model is timed bucket by bucket.

        Raises:
            CommprofError: as for ``Profiler.start``.
        """
        if active() is None:
            self._own = profile(agree(self._directory)).start()
        if isinstance(model, DistributedDataParallel):
            with contextlib.suppress(CommprofError):  # A model that already has a hook keeps it.
                attach(model)

    def step(self) -> None:
        """Ends a step; call it after the update."""
        if self._own is not None:
            self._own.step()

    def figures(self) -> dict[str, float]:
        """Returns figures to log, under flat ``commprof/...`` keys; empty if no capture runs."""
        profiler = active()
        return {} if profiler is None else profiler.summary()

    def stop(self) -> None:
        """Closes the trace, if this recording opened it."""
        if self._own is not None:
            self._own.stop()
            self._own = None
