"""Predictions as JSON; times in seconds, sizes in bytes, NaN as null."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from commprof.predict.answers import Answers

SCHEMA_VERSION = 1


def render(answers: Answers, base: str, source: str, refused: Sequence[str]) -> str:
    """All fields of the results, by their names; see docs/prediction.md."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "predicted_from": base,
        "costs": source,
        "left_out": list(refused),
        **dataclasses.asdict(answers),
        "checks": [{**dataclasses.asdict(check), "error": check.error} for check in answers.checks],
    }
    return json.dumps(_plain(document), indent=1) + "\n"


def _plain(value: Any) -> Any:
    """JSON has neither NaN nor infinity: null, and "inf" for the cap that makes one bucket."""
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
