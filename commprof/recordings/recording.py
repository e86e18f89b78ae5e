"""A recording of a job, however it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commprof.trace.reader import Trace


@dataclass(frozen=True)
class Recording:
    """What a run directory holds of one world size, from files that are none of commprof's."""

    #: As ``run.json`` has it, so far as the files say.
    context: dict[str, Any]
    world_size: int
    #: By rank.
    traces: dict[int, Trace]
    #: What a reader must know, in sentences without their full stop.
    problems: tuple[str, ...]
