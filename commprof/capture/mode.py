"""The file that switches the mode of a running job."""

from __future__ import annotations

from pathlib import Path

CONTROL_FILE = "control"


def control_path(directory: Path) -> Path:
    """The file that switches the mode of all ranks that record to ``directory``.

    One for the whole run where ``commprof run`` made a directory for each world size.
    """
    in_run = directory.name.startswith("world_") and (directory.parent / "run.json").exists()
    return (directory.parent if in_run else directory) / CONTROL_FILE
