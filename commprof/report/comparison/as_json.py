"""A comparison of two runs as JSON.

``a`` and ``b`` name the runs; ``worlds`` has an object per world size of both, ``only_a`` and
``only_b`` are world sizes with figures in one run only, ``settings`` those that differ,
``fail_above`` the share given or null, ``slower`` the world sizes that exceed it. Each of
``worlds`` has ``num_processes``, ``steps`` (measured in A and in B), ``effective_steps`` (what they
are worth as independent ones), and ``parts`` and ``collectives`` with ``name``, ``a_ms``, ``b_ms``,
``ratio`` (``value``, ``low``, ``high``; null where there is none), ``p_value`` and ``significant``.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from commprof.analysis.compare import Change, RunComparison, WorldComparison
from commprof.shapes import plain

#: Raised when a field changes its meaning or goes away, not when one is added.
SCHEMA_VERSION = 1


def render(result: RunComparison, fail_above: float | None) -> str:
    """Indented JSON text; figures that do not exist are null."""
    slower = () if fail_above is None else result.slower_by_more_than(fail_above)
    value = {
        "schema_version": SCHEMA_VERSION,
        "a": result.a,
        "b": result.b,
        "worlds": [_world(world) for world in result.worlds],
        "only_a": list(result.only_a),
        "only_b": list(result.only_b),
        "settings": [dataclasses.asdict(setting) for setting in result.settings],
        "fail_above": fail_above,
        "slower": [world.world_size for world in slower],
    }
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def _world(world: WorldComparison) -> dict[str, Any]:
    return {
        "num_processes": world.world_size,
        "steps": list(world.steps),
        "effective_steps": list(world.effective_steps),
        "parts": [_change(change) for change in world.parts],
        "collectives": [_change(change) for change in world.collectives],
    }


def _change(change: Change) -> dict[str, Any]:
    return {**dataclasses.asdict(change), "significant": change.significant}
