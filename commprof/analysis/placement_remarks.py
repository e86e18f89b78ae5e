"""What a reader must know of the CPUs that ranks were given, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Ranks whose CPUs are listed one by one.
_LISTED = 4


def placement_remarks(context: Mapping[str, Any]) -> list[str]:
    """Where ranks were pinned at the largest world size, and whether each had CPUs of its own."""
    worlds = (context.get("pinning") or {}).get("worlds") or {}
    pinned = [size for size, found in worlds.items() if found["mode"] != "none"]
    if not pinned:
        return []
    largest = max(pinned, key=int)
    found = worlds[largest]
    sets = " | ".join(found["sets"][:_LISTED]) + (" | ..." if len(found["sets"]) > _LISTED else "")
    shared = "" if found["disjoint"] else "NOT of their own: "
    return [
        f"Ranks pinned to CPUs ({found['mode']}), at {largest}: {sets}; {shared}{found['reason']}."
    ]
