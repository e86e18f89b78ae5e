"""Callback for Lightning, from the package ``lightning`` or ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.capture.integrations import DIRECTORY, FrameworkRecording
from commprof.errors import CommprofError

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _library() -> Any:
    """Returns the Lightning package that the script has imported, or else one that is installed."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise CommprofError(
        "commprof.capture.integrations.lightning needs Lightning, which is not installed: "
        f"{invocation.pip('pytorch-lightning')}"
    )


_Callback: Any = _library().Callback


class CommprofCallback(_Callback):
    """Records the communication of ``Trainer.fit``, with one step per optimizer update.

    Use ``Trainer(callbacks=[CommprofCallback()])``. Validation and checkpoints between two updates
    are part of the next step. The trainer's loggers get figures every ``log_every_n_steps``
    updates, under keys that begin with ``commprof/``.
    """

    def __init__(self, directory: str | Path = DIRECTORY) -> None:
        """``directory``: directory of all ranks' traces. A second job uses its ``job_2``."""
        self._recording = FrameworkRecording(directory)
        self._updates = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts capture, after the model is wrapped and before the first step."""
        self._updates = trainer.global_step
        self._recording.start(trainer.strategy.model)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends a step if this batch ended in an optimizer update."""
        if trainer.global_step != self._updates:
            self._updates = trainer.global_step
            self._recording.step()
            every = trainer.log_every_n_steps
            if every and trainer.global_step % every == 0:
                self._log(trainer)

    def _log(self, trainer: Any) -> None:
        figures = self._recording.figures()
        if figures:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stops capture after the last step."""
        self._recording.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stops capture if training fails."""
        self._recording.stop()
