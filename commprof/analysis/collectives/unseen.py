"""Whether a run's capture saw communication: the one in pure Python sees that of DDP's hook alone.

A script without this hook then has steps and phases, and no collective. That is no evidence that
its ranks wait for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commprof.analysis.world import WorldResult


def is_unseen(context: Mapping[str, Any], world: WorldResult) -> bool:
    """True if several ranks communicate, but the capture in pure Python saw no collective.

    Args:
        context: context of the run, as in ``run.json``.
        world: the world size in question.
    """
    return context.get("capture") == "python" and world.world_size > 1 and not world.collectives
