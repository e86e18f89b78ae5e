"""Runs a trial in one rank: switches candidates between steps, in the same order on all ranks."""

from __future__ import annotations

import functools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import Attachment, attach
from commprof.capture.job.metadata import rank_and_world_size
from commprof.capture.profiler import Profiler
from commprof.capture.recorder import recorder
from commprof.capture.settings import control_path
from commprof.ddp_parameters import hookless
from commprof.errors import CommprofError
from commprof.text import counted
from commprof.tune.trials.candidates import Candidate
from commprof.tune.trials.live.sharded import GatherOrder, ShardedModel, may_be_sharded
from commprof.tune.trials.live.state import Snapshot, Trainables
from commprof.tune.trials.live.switches import ReplicatedModel
from commprof.tune.trials.plan import SETTLE_STEPS, TrialPlan, TrialSchedule, parse_trial

Model = ReplicatedModel | ShardedModel


class Trial:
    """A trial in one rank.

    All ranks count the same steps, so they switch candidates together without communication.
    """

    def __init__(self, plan: TrialPlan, profiler: Profiler, state: Sequence[Any] = ()) -> None:
        """Prepares a trial without models; ``add`` adds them.

        ``state``: further objects with ``state_dict`` and ``load_state_dict`` that steps change.

        Raises:
            CommprofError: the capture is not in full mode.
        """
        if profiler.mode != "full":
            raise CommprofError(
                f"a trial needs every record, but capture is in mode {profiler.mode!r}; use "
                "mode full"
            )
        self._plan = plan
        self._profiler = profiler
        self._state = state
        # The rank is read now, because a script may destroy the process group before it ends.
        self._rank, _ = rank_and_world_size()
        self._own_hooks = 0
        #: Why the training state cannot be saved and restored; empty if it can.
        self._unkept = ""
        self._models: list[Model] = []
        self._finds_sharded = False
        self._order = GatherOrder()
        self._schedule: TrialSchedule | None = None
        self._trainables: Trainables | None = None
        self._snapshot: Snapshot | None = None
        self._losses = Losses()
        self._seen = 0
        self._first_step = 0
        self._ended = 0
        self._done = False
        profiler.listen(self)

    @property
    def done(self) -> bool:
        """True if the trial is over and the models are restored."""
        return self._done

    def add(self, model: Attachment | nn.Module) -> None:
        """Adds an attached DDP model or an FSDP2 model to the trial.

        A model that is added after the trial has begun takes no part.
        """
        if self._schedule is not None:
            self._say("a model was made after the trial began and takes no part in it")
        elif isinstance(model, Attachment):
            if why := hookless(model.ddp):
                self._say(f"a model takes no part in the trial: {why}")
            else:
                self._models.append(ReplicatedModel(model))
        else:
            self._models.append(ShardedModel(model, self._order))
            self._order.watch()

    def find_sharded(self) -> None:
        """Starts a search for FSDP2 models, which the trial then includes.

        The search ends with the first observed step in which FSDP2 models ran; these models are
        added. If there is no such step before the trial begins, the search ends without a model.
        """
        self._finds_sharded = True

    def step_ended(self, step: int) -> None:
        """Called when step ``step`` of the capture has ended.

        A trial that fails ends, and training goes on.
        """
        if self._done:
            return
        try:
            self._next(step)
        except Exception as error:
            self._give_up((str(error).splitlines() or [type(error).__name__])[0])

    def _give_up(self, why: str) -> None:
        """Ends the trial after an error; each rank on which the error occurred reports it."""
        self._done = True
        print(f"commprof: rank {self._rank}: the trial ends: {why}", file=sys.stderr)
        try:
            self._order.stop()
            if self._schedule is not None:
                self._finish()
        except Exception as error:
            print(
                f"commprof: rank {self._rank}: some settings from before the trial are not "
                f"restored: {error}",
                file=sys.stderr,
            )

    def _next(self, step: int) -> None:
        """Begins the trial or its next block, or ends the trial, if that is due after a step."""
        if self._finds_sharded and may_be_sharded():
            for root in self._order.roots():
                self._finds_sharded = False
                self.add(root)
            self._order.watch()
        if not (self._models or self._order.is_watching):
            return
        if self._schedule is None:
            self._seen += 1
            if self._seen < SETTLE_STEPS:
                return
            self._begin(step + 1)
        else:
            self._losses.end_step()
            if any(model.has_lost_its_group for model in self._models):
                self._ended += 1
                self._stop_early("the process group of a model was destroyed")
            elif any(model.has_own_hook for model in self._models):
                self._say("the script registered a communication hook, so the trial ends")
                self._finish()
        if not self._done:
            self._turn(step + 1 - self._first_step)

    def capture_ends(self) -> None:
        """Called when no more steps will come."""
        if self._schedule is None:
            self._order.stop()
            found = self._no_trial()
            recorder().add_metadata(json.dumps({"no_trial": found}))
            trace = self._profiler.trace_path
            if trace is not None and control_path(trace.parent).parent == trace.parent:
                # If `commprof run` started the ranks, it prints this sentence itself when they have
                # ended.
                self._say(f"no trial took place: {found['reason']}")
        elif not self._done:
            self._stop_early("the script ended")

    def _stop_early(self, why: str) -> None:
        """Ends the trial early, without collectives: the process group may be destroyed."""
        assert self._schedule is not None
        length = self._schedule.candidates * (self._plan.warmup + self._plan.block)
        self._say(
            f"{why} after {self._ended} of the trial's {self._schedule.steps} steps; the "
            f"report uses the complete rounds: {self._ended // length} of {self._plan.rounds}"
        )
        self._finish()

    def _no_trial(self) -> dict[str, Any]:
        """Returns metadata: ``reason`` says why the trial did not begin, without a full stop."""
        if self._own_hooks:
            reason = "every DDP model has a communication hook of its own"
        elif self._unkept:
            reason = f"the training state cannot be saved and restored: {self._unkept}"
        elif not self._models:
            reason = "the script made neither a DDP model that accepts a hook nor an FSDP2 model"
        else:
            steps = counted(self._seen, "step")
            reason = (
                f"the script ended after {steps}, but a trial begins after {SETTLE_STEPS} steps"
            )
        return {"reason": reason, "begin_monotonic_ns": time.monotonic_ns()}

    def _begin(self, first_step: int) -> None:
        for model in [one for one in self._models if one.has_own_hook]:
            self._models.remove(model)
            self._own_hooks += 1
            self._say("a model has a communication hook of its own and takes no part in the trial")
        self._order.stop()
        if not self._models:
            self._done = True
            return
        trainables = Trainables(self._state)
        self._unkept = self._cannot_keep(trainables)
        if self._unkept:
            self._done = True
            return
        left_out = self._impossible()
        for label, why in left_out.items():
            self._say(f"{label} takes no part in the trial: {why}")
        self._plan = self._plan.without(set(left_out))
        self._schedule = self._plan.schedule()
        self._first_step = first_step
        self._trainables = trainables
        self._losses.start(self._trainables.scalers)
        trial = {
            "plan": self._plan.text,
            "first_step": first_step,
            "begin_monotonic_ns": time.monotonic_ns(),
            "left_out": left_out,
            "sharded": any(isinstance(one, ShardedModel) for one in self._models),
            "held_bytes": {
                one.label: sum(model.held_bytes(one.sharding) for model in self._models)
                for one in self._plan.candidates
                if one.sharding.count
            },
        }
        recorder().add_metadata(json.dumps({"trial": trial}))
        self._say(
            f"a trial of {len(self._plan.everyone)} candidates begins; it takes "
            f"{self._schedule.steps} steps"
        )

    def _cannot_keep(self, trainables: Trainables) -> str:
        """Returns why some rank cannot take a snapshot of the training state.

        The result is empty if every rank can, or if no candidate needs a snapshot. Call this before
        the trial begins: if only one rank failed later, the others would go on with the trial.
        """
        reason, world_size = "", max(model.world_size for model in self._models)
        if all(candidate.exact(world_size) for candidate in self._plan.everyone):
            return ""
        try:
            trainables.keep()
        except Exception as error:
            reason = f"rank {self._rank}: {(str(error).splitlines() or [type(error).__name__])[0]}"
        told = [model.gathered(reason) for model in self._models]
        return next((text for texts in told for text in texts if text), reason)

    def _impossible(self) -> dict[str, str]:
        """Returns the candidates that take no part in the trial: label -> reason.

        A candidate of DDP models takes no part if one of these models cannot use it, or if there
        are only FSDP2 models. A candidate of FSDP2 models takes no part if one of these models
        cannot use it, or if there are only DDP models. All ranks get the same result.
        """
        found = {}
        for candidate in self._plan.candidates:
            meant = [model for model in self._models if model.is_for(candidate)]
            reasons = [model.impossible(candidate) for model in meant or self._models]
            if any(reasons):
                found[candidate.label] = next(filter(None, reasons))
        return found

    def _turn(self, step: int) -> None:
        """Begins a step of the trial: switches candidates, if it is time, or ends the trial."""
        assert self._schedule is not None
        self._ended = step
        if step >= self._schedule.steps:
            self._finish()
            return
        block = self._schedule.block_at(step)
        if block is not None:
            self._leave()
            self._enter(self._plan.everyone[block.candidate])

    def _enter(self, candidate: Candidate) -> None:
        assert self._trainables is not None
        if not candidate.exact(max(one.world_size for one in self._models)):
            self._snapshot = self._trainables.keep()
        for model in self._models:
            if model.is_for(candidate):
                model.enter(candidate, self._plan.warmup + self._plan.block)

    def _leave(self) -> None:
        """Restores the models' own settings and, if a snapshot was taken, the training state."""
        for model in self._models:
            model.leave()
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None

    def _finish(self) -> None:
        self._leave()
        for model in self._models:
            model.close()
        self._models = []
        self._losses.stop()
        losses = {"values": self._losses.values()}
        recorder().add_metadata(json.dumps({"trial_losses": losses}))
        self._trainables = None
        self._done = True

    def _say(self, what: str) -> None:
        if self._rank == 0:
            print(f"commprof: {what}", file=sys.stderr)


class Losses:
    """Loss of each step: the sum of the scalars from which its backward passes start."""

    def __init__(self) -> None:
        self._step: list[torch.Tensor] = []
        #: Losses per step of the trial.
        self._steps: list[list[torch.Tensor]] = []
        self._undo: Callable[[], None] | None = None

    def start(self, scalers: Sequence[Any] = ()) -> None:
        """Starts watching backward passes; ``scalers`` are the script's gradient scalers."""
        original = torch.autograd.backward

        @wraps(original)
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # A library that has wrapped this function may still call it after stop().
            watching = self._undo is not None
            if watching and isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                self._step.append(_unscaled(tensors.detach(), scalers))
            return original(tensors, *args, **kwargs)

        def undo() -> None:
            if torch.autograd.backward is watched:
                torch.autograd.backward = original

        torch.autograd.backward = watched
        self._undo = undo

    def stop(self) -> None:
        """Stops watching."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def end_step(self) -> None:
        """Ends a step of the trial."""
        # Values are read when the trial ends, because reading one waits for the GPU.
        self._steps.append(self._step)
        self._step = []

    def values(self) -> list[float | None]:
        """Returns the trial's losses, one per step; None for steps without a finite scalar loss."""
        sums = [sum(map(float, losses)) if losses else None for losses in self._steps]
        # JSON has no NaN; besides, a loss that is not finite cannot be compared.
        return [x if x is not None and math.isfinite(x) else None for x in sums]


def _unscaled(loss: torch.Tensor, scalers: Sequence[Any]) -> torch.Tensor:
    """Divides a loss by the scale of the script's GradScaler, which differs between blocks.

    Returns the loss unchanged if there are several scalers, because it is not known which of them
    scaled the loss.
    """
    scale = scalers[0]._scale if len(scalers) == 1 else None
    return loss if scale is None else loss / scale.to(loss.device)


def try_every_model(candidates: str, profiler: Profiler) -> None:
    """Prepares one trial for all models of the script together.

    The trial adds DDP models that are made between this call and the start of the trial. It also
    adds FSDP2 models, as ``Trial.find_sharded`` says, even if they were made before this call.

    Args:
        candidates: the plan, as ``commprof.tune.trials.plan.parse_trial`` reads it.
        profiler: the capture of this process.

    Raises:
        CommprofError: ``candidates`` cannot be read, or the capture is not in full mode.
    """
    trial = Trial(parse_trial(candidates), profiler)
    trial.find_sharded()
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            trial.add(attach(self))
        except Exception as error:  # training goes on
            what = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"commprof: a model takes no part in the trial: {what}", file=sys.stderr)

    DistributedDataParallel.__init__ = made
