"""What ``commprof predict --format json`` writes, as far as reports read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def answer(world_size: int, samples_per_s: float | None, **scenario: Any) -> dict[str, Any]:
    """A step of 100 ms, of 80 to 125 with the model's error; more in `scenario`."""
    same = {"bandwidth_bytes_per_s": None, "hook": None, "scaling": "weak", "algorithm": "flat"}
    return {
        "prediction": {
            "scenario": {"world_size": world_size, **same, **scenario},
            "step_s": {"value": 0.1, "low": 0.09, "high": 0.11},
            "samples_per_s": samples_per_s,
            "outside": ["more ranks than were measured"] if world_size > 8 else [],
        },
        "interval_s": {"value": 0.1, "low": 0.08, "high": 0.125},
    }


def write_predictions(path: Path, *answers: dict[str, Any], **changes: Any) -> Path:
    """The file; `changes` of its first level."""
    document = {"schema_version": 1, "answers": answers, "error": {"worst": 0.13}, **changes}
    path.write_text(json.dumps(document))
    return path
