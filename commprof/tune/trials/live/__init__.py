"""Trials in the training process: candidates take turns on the script's own steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from commprof.capture.attachment import Attachment, attach
from commprof.capture.profiler import active
from commprof.capture.settings import RankSettings, check_sync_fits_trial
from commprof.errors import CommprofError
from commprof.tune.trials.live.controller import Trial
from commprof.tune.trials.live.sharded import is_sharded
from commprof.tune.trials.plan import parse_trial

__all__ = ["Trial", "trial"]


def trial(
    models: nn.Module | Attachment | Sequence[nn.Module | Attachment],
    candidates: str,
    *,
    state: Sequence[Any] = (),
) -> Trial:
    """Starts a trial: candidates (compressors or settings) take turns on the steps that follow.

    ``commprof report`` shows the result. Call this on all ranks at the same step, inside ``with
    commprof.profile(...)``, before the models' first backward pass. After the turn of a candidate
    that changes gradients, its steps are undone; ``docs/trials.md`` lists the restored state.

    Args:
        models: DDP models, or their attachments from ``attach``; or FSDP2 models, each as the
            outermost module on which ``fully_shard`` was called.
        candidates: as in ``commprof run --trial``: ``"fp16,topk:ratio=0.01,bucket-cap=5"``.
        state: further objects with ``state_dict`` and ``load_state_dict`` that steps change.

    Raises:
        CommprofError: no capture in full mode is running, a model already has a communication hook,
            or a model is neither a DDP model nor an FSDP2 model.
        UsageError: ``candidates`` cannot be read, see ``commprof.tune.trials.plan.parse_trial``; or
            ``noop`` takes part while ``commprof run --check-sync`` compares the ranks' models.
    """
    profiler = active()
    if profiler is None:
        raise CommprofError("trial() needs a capture: call it inside `with commprof.profile(DIR):`")
    plan = parse_trial(candidates)
    if profiler.of_whole_job:
        check_sync_fits_trial(RankSettings.from_environment().check_sync_every, plan.headroom)
    given = models if isinstance(models, Sequence) else [models]
    taken = [one if _is_ready(one) else attach(one) for one in given]
    started = Trial(plan, profiler, state)
    for model in taken:
        started.add(model)
    return started


def _is_ready(model: Any) -> bool:
    return isinstance(model, Attachment) or is_sharded(model)
