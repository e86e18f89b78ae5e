"""What a capture tells those that act between steps."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Told of a capture's steps, on the training thread."""

    def step_ended(self, step: int) -> None:
        """The step of this number is over, and the next one begins."""

    def capture_ends(self) -> None:
        """The capture is about to stop."""
