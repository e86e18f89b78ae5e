"""Runs trials in the training process: candidates take turns on the script's own steps."""

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
    """Starts a trial, in which candidates take turns on the following steps.

    Call this on all ranks at the same step, inside ``with commprof.profile(...)``, before the
    models' first backward pass. ``commprof report`` shows the result. If a candidate changes any
    bit of the gradients, the training state is restored after each of its blocks; see
    ``docs/trials.md``.

    Args:
        models: DDP models, attachments from ``attach``, or FSDP2 models. Of an FSDP2 model, give
            the outermost module on which ``fully_shard`` was called.
        candidates: candidates and options, such as ``"fp16,topk:ratio=0.01,bucket-cap=5"``.
        state: further objects that training steps change. Each object must have ``state_dict`` and
            ``load_state_dict``.

    Raises:
        CommprofError: no capture in full mode is running, a model already has a communication hook,
            or a model is neither a DDP model nor an FSDP2 model.
        UsageError: ``candidates`` cannot be read, or ``noop`` takes part although ``commprof run
            --check-sync`` compares the ranks' models.
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
