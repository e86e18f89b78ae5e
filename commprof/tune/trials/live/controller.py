"""Runs a trial in one rank. All ranks switch candidates between steps, in the same order."""

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

    All ranks count the same steps, so they need no communication to switch at the same step.
    """

    def __init__(self, plan: TrialPlan, profiler: Profiler, state: Sequence[Any] = ()) -> None:
        """Prepares a trial. Use ``add`` to add models.

        ``state``: further objects that training steps change. Each object must have ``state_dict``
        and ``load_state_dict``.

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
        # The rank is read now, because the script may destroy the process group later.
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

        A model that is added after the trial has begun is ignored.
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
        """Starts to look for FSDP2 models in the following steps.

        The search ends at the first step that uses FSDP2, or when the trial begins. All FSDP2
        models of that step are added to the trial.
        """
        self._finds_sharded = True

    def step_ended(self, step: int) -> None:
        """Called when step ``step`` of the capture has ended.

        If an error occurs in the trial, the trial ends and training goes on.
        """
        if self._done:
            return
        try:
            self._next(step)
        except Exception as error:
            self._give_up((str(error).splitlines() or [type(error).__name__])[0])

    def _give_up(self, why: str) -> None:
        self._done = True
        print(f"commprof: rank {self._rank}: the trial ends: {why}", file=sys.stderr)
        try:
            self._order.stop()
            if self._schedule is not None:
                self._finish()
        except Exception as error:
            print(
                f"commprof: rank {self._rank}: some settings were not restored after the trial: "
                f"{error}",
                file=sys.stderr,
            )

    def _next(self, step: int) -> None:
        """Begins the trial, switches candidates or ends the trial, as is due after a step."""
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
                # Not printed under `commprof run`, which prints the same sentence at its end.
                self._say(f"no trial took place: {found['reason']}")
        elif not self._done:
            self._stop_early("the script ended")

    def _stop_early(self, why: str) -> None:
        """Ends the trial early. Uses no collectives, because the process group may be destroyed."""
        assert self._schedule is not None
        length = self._schedule.candidates * (self._plan.warmup + self._plan.block)
        self._say(
            f"{why} after {self._ended} of the trial's {self._schedule.steps} steps; the "
            f"report uses the complete rounds: {self._ended // length} of {self._plan.rounds}"
        )
        self._finish()

    def _no_trial(self) -> dict[str, Any]:
        if self._unkept:
            reason = f"the training state cannot be saved and restored: {self._unkept}"
        elif self._own_hooks:
            reason = "every DDP model has a communication hook of its own"
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
        """Returns the reason why a rank cannot take a snapshot of the training state.

        The reason is empty if no rank fails or no candidate needs a snapshot. All ranks call this
        before the trial, because a failure on one rank must stop the trial on all ranks.
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
        """Maps the label of each candidate that cannot take part to the reason.

        A candidate can take part if there are models of its kind (DDP or FSDP2) and each of these
        models can use the candidate.
        """
        found = {}
        for candidate in self._plan.candidates:
            meant = [model for model in self._models if model.is_for(candidate)]
            reasons = [model.impossible(candidate) for model in meant or self._models]
            if any(reasons):
                found[candidate.label] = next(filter(None, reasons))
        return found

    def _turn(self, step: int) -> None:
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
    """Records the loss of each step: the sum of the scalars on which ``backward`` is called."""

    def __init__(self) -> None:
        self._step: list[torch.Tensor] = []
        self._steps: list[list[torch.Tensor]] = []
        self._undo: Callable[[], None] | None = None

    def start(self, scalers: Sequence[Any] = ()) -> None:
        """Starts watching backward passes; ``scalers`` are the script's gradient scalers."""
        original = torch.autograd.backward

        @wraps(original)
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # Another library may have wrapped this function, and then calls it even after stop().
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
        # The values are read only when the trial ends, because reading a value waits for the GPU.
        self._steps.append(self._step)
        self._step = []

    def values(self) -> list[float | None]:
        """Returns one loss per step of the trial; None if a step has no finite scalar loss."""
        sums = [sum(map(float, losses)) if losses else None for losses in self._steps]
        # JSON has neither NaN nor infinity.
        return [x if x is not None and math.isfinite(x) else None for x in sums]


def _unscaled(loss: torch.Tensor, scalers: Sequence[Any]) -> torch.Tensor:
    """Divides a loss by the scale of the script's GradScaler.

    With several scalers the loss is returned unchanged, because the right scaler is unknown.
    """
    scale = scalers[0]._scale if len(scalers) == 1 else None
    return loss if scale is None else loss / scale.to(loss.device)


def try_every_model(candidates: str, profiler: Profiler) -> None:
    """Prepares one trial that includes all models of the script.

    DDP models take part if they are made after this call and before the trial begins. For FSDP2
    models, see ``Trial.find_sharded``.

    Args:
        candidates: text from which ``parse_trial`` makes the plan.
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
