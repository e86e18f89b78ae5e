"""Callback for ``transformers.Trainer``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.capture.integrations import DIRECTORY, FrameworkRecording
from commprof.errors import CommprofError

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise CommprofError(
        "commprof.capture.integrations.transformers needs transformers, which is not installed: "
        f"{invocation.pip('transformers', 'accelerate')}"
    ) from None


class CommprofCallback(TrainerCallback):
    """Records the communication of ``Trainer.train``, with one step per update.

    Use ``trainer.add_callback(CommprofCallback(trainer))``. Evaluation and checkpoints between two
    updates are part of the next step. When the trainer logs, commprof's figures are logged too,
    under keys that begin with ``commprof/``.
    """

    def __init__(self, trainer: Any, directory: str | Path = DIRECTORY) -> None:
        """Prepares the callback for ``trainer``.

        ``directory``: directory for all ranks' traces. Later jobs use its subdirectories ``job_2``,
        ``job_3`` and so on.
        """
        self._trainer = trainer
        self._recording = FrameworkRecording(directory)
        self._logging = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts capture, after the model is wrapped and before the first step."""
        self._recording.start(self._trainer.model_wrapped)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends a step of the capture; the trainer calls this method after each update."""
        self._recording.step()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Logs commprof's recent figures after the trainer has logged its own figures."""
        figures = {} if self._logging else self._recording.figures()
        if figures:
            self._logging = True
            try:
                self._trainer.log(figures)
            finally:
                self._logging = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stops capture after the last step."""
        self._recording.stop()
