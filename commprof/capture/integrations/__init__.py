"""Callbacks that record a training framework's jobs; see ``docs/your_job.md``.

There is one module per framework, and only that module imports the framework.
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
    """Captures one training run of a framework.

    If a capture already runs, such as that of ``commprof env``, no second capture is started.
    """

    def __init__(self, directory: str | Path) -> None:
        """Prepares a recording.

        ``directory``: directory for all ranks' traces. Later jobs use its subdirectories ``job_2``,
        ``job_3`` and so on.
        """
        self._directory = Path(directory)
        self._own: Profiler | None = None

    def start(self, model: object) -> None:
        """Starts capture; call it on all ranks after ``init_process_group``, before the first step.

        ``model``: the model that the framework trains. In a DDP model, each bucket is timed.

        Raises:
            CommprofError: as for ``Profiler.start``.
        """
        if active() is None:
            self._own = profile(agree(self._directory)).start()
        if isinstance(model, DistributedDataParallel):
            with contextlib.suppress(CommprofError):  # A model that already has a hook keeps it.
                attach(model)

    def step(self) -> None:
        """Ends a step if this recording started the capture; call it after the update."""
        if self._own is not None:
            self._own.step()

    def figures(self) -> dict[str, float]:
        """Returns figures to log, with keys ``commprof/...``; empty without capture or steps."""
        profiler = active()
        return {} if profiler is None else profiler.summary()

    def stop(self) -> None:
        """Closes the trace, if this recording opened it."""
        if self._own is not None:
            self._own.stop()
            self._own = None
