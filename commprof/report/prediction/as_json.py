"""Predictions as JSON; times in seconds, sizes in bytes, NaN as null, an infinite cap as "inf".

``predicted_from`` and ``costs`` say in words what was replayed, with which costs; ``left_out`` is
what was refused. ``answers``, one per scenario, have ``prediction``, ``interval_s``,
``samples_per_s`` and ``efficiency`` with intervals, ``cost``, ``epoch_sent_bytes``, and of
``--optimize`` ``candidates`` (``gain`` with bounds as shares of the step, ``certainty``,
``certainty_beyond_error``, ``is_gain``) and ``search`` (what was combined, ``refused`` with
reasons). ``prediction.waiting`` has ``wait_s``, ``wire_s``, ``exposed_s`` and ``hidden_s`` with
intervals that do not hold the held-out error. ``checks`` are recorded settings beside the model,
``error`` its ``mean``, ``worst``, ``points`` and ``margin`` on those held out, and
``is_skilled``, false where it misses more than half of ``trivial_mean``, the mean error of the
better ``trivial`` answer (``as_is_s``, ``perfect_overlap_s``); ``is_sharded`` is true of FSDP2,
HSDP and ZeRO stage 1, whose scenarios alone have ``gather_dtype``, ``reduce_dtype``,
``reshard_after_forward``, ``shard_ranks`` and ``wrap_blocks``;
``interval_holds_held_out_error`` is false where ``interval_s`` is the range of sampling and fit
alone. ``best`` is the shortest step of those that change a setting, null without one:
``candidate`` as those of ``--optimize``, its ``interval_s``, ``setting`` in words, ``options`` of
``commprof run`` that set it, ``in_script`` what none sets, and the ``command`` that tries it.
``amdahl`` has ``residuals`` and ``limit``, null for none; ``notes`` are sentences.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from commprof.predict.fit.held_out import ModelError
from commprof.predict.what_if.answers import AmdahlFit, Answer, Answers
from commprof.report.prediction.best import setting_words

SCHEMA_VERSION = 1


def render(
    answers: Answers,
    base: str,
    source: str,
    refused: Sequence[str],
    tried: Mapping[str, Any] | None = None,
) -> str:
    """Renders all fields of the answers as JSON; ``tried`` says how to try the best one."""
    best = answers.best and {
        **dataclasses.asdict(answers.best),
        "setting": setting_words(answers.best.candidate.prediction.scenario),
        **(tried or {}),
    }
    document = {
        "schema_version": SCHEMA_VERSION,
        "predicted_from": base,
        "costs": source,
        "left_out": list(refused),
        **dataclasses.asdict(answers),
        "best": best,
        "error": None if answers.error is None else _error(answers.error),
        "interval_holds_held_out_error": answers.error is not None,
        "answers": [_answer(each) for each in answers.answers],
        "checks": [{**dataclasses.asdict(check), "error": check.error} for check in answers.checks],
        "amdahl": None if answers.amdahl is None else _amdahl(answers.amdahl),
    }
    return json.dumps(_plain(document), indent=1) + "\n"


def _answer(found: Answer) -> dict[str, Any]:
    """An answer as plain values, with the properties that ``asdict`` passes over."""
    document = dataclasses.asdict(found)
    document["prediction"]["exposed_s"] = found.prediction.exposed_s
    for name, figure in (("samples_per_s", found.samples_per_s), ("efficiency", found.efficiency)):
        document[name] = dataclasses.asdict(figure)
    candidates = [] if found.search is None else document["search"].pop("candidates")
    for chosen, each in zip(candidates, found.candidates, strict=True):
        chosen["prediction"]["exposed_s"] = each.prediction.exposed_s
    return {**document, "candidates": candidates}


def _error(found: ModelError) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "is_skilled": found.is_skilled}


def _amdahl(fit: AmdahlFit) -> dict[str, Any]:
    limit = None if math.isinf(fit.limit) else fit.limit
    return {**dataclasses.asdict(fit), "residuals": fit.residuals, "limit": limit}


def _plain(value: Any) -> Any:
    """JSON has neither NaN nor infinity: null, and "inf" for the cap that makes one bucket."""
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
