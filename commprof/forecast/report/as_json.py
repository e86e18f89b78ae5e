"""Predictions as JSON.

Times are in seconds and sizes in bytes. NaN is null, and an infinite cap is "inf".

``predicted_from`` names the replayed run, and ``costs`` the source of the costs. ``left_out`` has
the reasons why recorded world sizes cannot be replayed. ``notes`` are sentences.

``answers`` has an object per scenario. Its keys are ``prediction``, ``interval_s``,
``samples_per_s``, ``efficiency``, ``cost`` and ``epoch_sent_bytes``. The intervals in
``prediction.waiting`` cover only the errors of sampling and fit. If
``interval_holds_held_out_error`` is true, each ``interval_s`` also covers the model's error on
held-out settings. If it is false, this error is unknown.

An answer also has ``candidates`` and ``search``; without ``--optimize``, they are empty and null. A
candidate's ``gain`` and its bounds are fractions of the step of the answer's own scenario.
``certainty`` is the share of the bootstrap replicates with a gain. ``certainty_beyond_error`` is
the share with a gain above the model's worst held-out error. ``is_gain`` is true if the gain's
whole interval is above this error, and null if the error is unknown.
``search`` has the settings that were combined. ``search.refused`` has the settings that cannot be
predicted, each with the reason.

``checks`` compares recorded settings with the model. ``error`` has the model's errors on held-out
settings. Two answers need no model: ``as_is_s`` and ``perfect_overlap_s``. ``error.trivial`` names
the better answer, and ``error.trivial_mean`` is the mean error of that answer. ``error.is_skilled``
is false if the model's mean error is more than half of ``error.trivial_mean``.

``is_sharded`` is true for FSDP2, HSDP and ZeRO stage 1. In scenarios of DDP, ``accumulate``,
``gather_dtype``, ``reduce_dtype``, ``reshard_after_forward``, ``shard_ranks`` and ``wrap_blocks``
are null.

``best`` describes the changed setting with the shortest step per backward pass. It is null if there
is no such setting. The ``gain`` in ``best.candidate`` is relative to the recorded buckets, hook and
sharding with the ranks and link of the setting.
``best.options`` are options of ``commprof run``. ``best.in_script`` lists the changes to the script
that no option makes. ``best.command`` tries the setting.

``amdahl`` is null without a fit. Its ``residuals`` are relative, and its ``limit`` is null if the
speed-up has no limit.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from commprof.forecast.fit.held_out import ModelError
from commprof.forecast.report.best import setting_words
from commprof.forecast.what_if.answers import AmdahlFit, Answer, Answers
from commprof.forecast.what_if.optimize import PredictedCandidate

SCHEMA_VERSION = 2


def render(
    answers: Answers,
    base: str,
    source: str,
    refused: Sequence[str],
    tried: Mapping[str, Any] | None = None,
) -> str:
    """Renders all fields of the answers as JSON.

    Args:
        answers: the predictions.
        base: name of the replayed run.
        source: source of the costs.
        refused: reasons why recorded world sizes cannot be replayed.
        tried: fields ``options``, ``in_script`` and ``command`` of ``best``; None if there is
            no best setting.
    """
    best = answers.best and {
        **dataclasses.asdict(answers.best),
        "candidate": _candidate(answers.best.candidate),
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
        "answers": [_answer(answer) for answer in answers.answers],
        "checks": [{**dataclasses.asdict(check), "error": check.error} for check in answers.checks],
        "amdahl": None if answers.amdahl is None else _amdahl(answers.amdahl),
    }
    return json.dumps(_plain(document), indent=1) + "\n"


def _answer(answer: Answer) -> dict[str, Any]:
    document = dataclasses.asdict(answer)
    document["prediction"]["exposed_s"] = answer.prediction.exposed_s
    for name, figure in (
        ("samples_per_s", answer.samples_per_s),
        ("efficiency", answer.efficiency),
    ):
        document[name] = dataclasses.asdict(figure)
    if answer.search is not None:
        del document["search"]["candidates"]
    return {**document, "candidates": [_candidate(candidate) for candidate in answer.candidates]}


def _candidate(candidate: PredictedCandidate) -> dict[str, Any]:
    document = dataclasses.asdict(candidate)
    document["prediction"]["exposed_s"] = candidate.prediction.exposed_s
    return document


def _error(error: ModelError) -> dict[str, Any]:
    return {**dataclasses.asdict(error), "is_skilled": error.is_skilled}


def _amdahl(fit: AmdahlFit) -> dict[str, Any]:
    limit = None if math.isinf(fit.limit) else fit.limit
    return {**dataclasses.asdict(fit), "residuals": fit.residuals, "limit": limit}


def _plain(value: Any) -> Any:
    """Replaces NaN by None, and infinity by "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
