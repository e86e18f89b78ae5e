"""A trial in one rank: it switches candidates between steps, by a schedule all ranks know."""

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
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import Attachment, attach
from commprof.capture.job.metadata import rank_and_world_size
from commprof.capture.profiler import Profiler
from commprof.capture.recorder import recorder
from commprof.compressors import Compressor, parse
from commprof.compressors.torch_ops import lacks
from commprof.errors import CommprofError
from commprof.text import counted
from commprof.trials.candidates import HEADROOM, Candidate
from commprof.trials.live import switches
from commprof.trials.live.state import Snapshot, Trainables
from commprof.trials.live.switches import Bucketings, obstacle
from commprof.trials.plan import SETTLE_STEPS, Plan, Schedule, parse_trial

#: Where a DDP model says that rank 0's buffers go to all in forward; older versions have the other.
_BUFFER_FLAGS = ("forward_sync_buffers", "broadcast_buffers")


class Trial:
    """Told of every step's end. Nothing is negotiated: all ranks count the same steps."""

    def __init__(self, plan: Plan, profiler: Profiler, state: Sequence[Any] = ()) -> None:
        """Waits for models; see ``add``.

        Raises:
            CommprofError: the capture does not keep every record.
        """
        if profiler.mode != "full":
            raise CommprofError(
                f"a trial needs every record, and capture is in mode {profiler.mode!r}; take "
                "mode full"
            )
        self._plan = plan
        self._state = state
        # Scripts destroy the process group before they end.
        self._rank, _ = rank_and_world_size()
        self._own_hooks = 0
        self._attachments: list[Attachment] = []
        self._bucketings: dict[Attachment, Bucketings] = {}
        self._schedule: Schedule | None = None
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
        """Whether all blocks are over and the model is as it was."""
        return self._done

    def add(self, attachment: Attachment) -> None:
        """A model whose communication takes part; one that comes after the begin does not."""
        if self._schedule is None:
            self._attachments.append(attachment)
        else:
            self._say("a model was made after the trial began and takes no part in it")

    def step_ended(self, step: int) -> None:
        """The capture's step of this number ended."""
        if self._done or not self._attachments:
            return
        if self._schedule is None:
            self._seen += 1
            if self._seen < SETTLE_STEPS:
                return
            self._begin(step + 1)
        else:
            self._losses.end_step(True)
            if any(_has_lost_its_group(one) for one in self._attachments):
                self._ended += 1
                self._stop_early("the process group of a model was destroyed")
            elif any(one.has_own_hook for one in self._attachments):
                self._say("a communication hook was registered, and so the trial ends here")
                self._finish()
        if not self._done:
            self._turn(step + 1 - self._first_step)

    def capture_ends(self) -> None:
        """No more steps will be told of."""
        if self._schedule is None:
            recorder().add_metadata(json.dumps({"no_trial": self._no_trial()}))
        elif not self._done:
            self._stop_early("the script ended")

    def _stop_early(self, why: str) -> None:
        """It needs no process group, which may be gone."""
        assert self._schedule is not None
        length = self._schedule.candidates * (self._plan.warmup + self._plan.block)
        self._say(
            f"{why} after {self._ended} of the trial's {self._schedule.steps} steps; complete "
            f"rounds are used: {self._ended // length} of {self._plan.rounds}"
        )
        self._finish()

    def _no_trial(self) -> dict[str, Any]:
        """Why it did not begin, as the end of a sentence."""
        if self._own_hooks:
            reason = "every DDP model has a communication hook of its own"
        elif not self._attachments:
            reason = "the script made no DDP model that a hook could be attached to"
        else:
            steps = counted(self._seen, "step")
            reason = f"the script ended after {steps}, and a trial begins after {SETTLE_STEPS}"
        return {"reason": reason, "begin_monotonic_ns": time.monotonic_ns()}

    def _begin(self, first_step: int) -> None:
        for attachment in [one for one in self._attachments if one.has_own_hook]:
            self._attachments.remove(attachment)
            self._own_hooks += 1
            self._say("a model has a communication hook of its own and takes no part in the trial")
        if not self._attachments:
            self._done = True
            return
        left_out = self._impossible()
        for label, why in left_out.items():
            self._say(f"{label} takes no part in the trial: {why}")
        self._plan = self._plan.without(set(left_out))
        self._schedule = self._plan.schedule()
        self._first_step = first_step
        self._bucketings = {one: Bucketings(one) for one in self._attachments}
        self._trainables = Trainables(self._state)
        self._losses.start()
        trial = {
            "plan": self._plan.text,
            "first_step": first_step,
            "begin_monotonic_ns": time.monotonic_ns(),
            "left_out": left_out,
        }
        recorder().add_metadata(json.dumps({"trial": trial}))
        self._say(
            f"a trial of {len(self._plan.everyone)} candidates begins; it takes "
            f"{self._schedule.steps} steps"
        )

    def _impossible(self) -> dict[str, str]:
        """Why a model rules a candidate out, by label: the same on all ranks."""
        found = {}
        if not all(one.is_native for one in self._attachments):
            coded = [one for one in self._plan.candidates if one.compressor]
            reasons = {one.label: lacks(parse(one.compressor).scheme) for one in coded}
            found = {label: why for label, why in reasons.items() if why}
        if obstacles := [why for one in self._attachments if (why := obstacle(one.ddp))]:
            capped = [one for one in self._plan.candidates if one.bucket_cap_mb is not None]
            why = f"DDP's buckets cannot be cut anew: {obstacles[0]}"
            found |= {one.label: why for one in capped}
        return found

    def _turn(self, step: int) -> None:
        """Before the trial's step of this number."""
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
        world_size = self._attachments[0].ddp.process_group.size()
        if not candidate.exact(world_size):
            self._snapshot = self._trainables.keep()
        for attachment in self._attachments:
            self._bucketings[attachment].use(candidate.bucket_cap_mb)
            if candidate.compressor:
                attachment.set_hook(self._compressor(candidate.compressor))
            elif candidate.hook:
                attachment.set_hook(switches.make(candidate.hook, attachment.ddp))
            elif candidate.label == HEADROOM:
                attachment.set_hook(switches.noop)
                _sync_buffers(attachment, False)

    def _leave(self) -> None:
        """Back to DDP's own mean and buckets, and to the state before a block that changed it."""
        for attachment in self._attachments:
            attachment.set_hook(None)
            _sync_buffers(attachment, True)
            self._bucketings[attachment].use(None)
            if attachment.has_own_hook:
                attachment.set_hook(*attachment.ddp._comm_hooks[0])
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None

    def _finish(self) -> None:
        self._leave()
        for bucketing in self._bucketings.values():
            bucketing.close()
        self._losses.stop()
        losses = {"values": self._losses.values()}
        recorder().add_metadata(json.dumps({"trial_losses": losses}))
        self._trainables = None
        self._done = True

    def _compressor(self, text: str) -> Compressor:
        """A new one, without residuals; it measures its error in the first step only."""
        made = parse(text)
        if made.measure_every == 0:
            length = self._plan.warmup + self._plan.block
            separator = "," if ":" in text else ":"
            made = parse(f"{text}{separator}measure_every={length}")
        return made

    def _say(self, what: str) -> None:
        if self._rank == 0:
            print(f"commprof: {what}", file=sys.stderr)


def _has_lost_its_group(attachment: Attachment) -> bool:
    """True if the script destroyed the group over which this model exchanges gradients."""
    try:
        dist.get_process_group_ranks(attachment.ddp.process_group)
    except (KeyError, ValueError):
        return True
    return False


def _sync_buffers(attachment: Attachment, on: bool) -> None:
    """Whether forward sends rank 0's buffers; only ever switched off and back on."""
    ddp = attachment.ddp
    name = next(flag for flag in _BUFFER_FLAGS if flag in vars(ddp))
    kept = "_commprof_sync_buffers"
    if not on:
        setattr(ddp, kept, getattr(ddp, name))
        setattr(ddp, name, False)
    elif kept in vars(ddp):
        setattr(ddp, name, getattr(ddp, kept))
        delattr(ddp, kept)


class Losses:
    """Adds up what the backward passes of a step begin with, where that is one number."""

    def __init__(self) -> None:
        self._step: list[torch.Tensor] = []
        #: Per step of the trial.
        self._steps: list[list[torch.Tensor]] = []
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        """Begins to watch."""
        original = torch.autograd.backward

        @wraps(original)
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
                self._step.append(tensors.detach())
            return original(tensors, *args, **kwargs)

        def undo() -> None:
            if torch.autograd.backward is watched:
                torch.autograd.backward = original

        torch.autograd.backward = watched
        self._undo = undo

    def stop(self) -> None:
        """No longer watches."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def end_step(self, counts: bool) -> None:
        """A step ended; ``counts`` says whether it was one of the trial's."""
        if counts:
            # Values are read at the end: on a GPU it would wait for them.
            self._steps.append(self._step)
        self._step = []

    def values(self) -> list[float | None]:
        """Per step of the trial; None where no single number was differentiated."""
        sums = [sum(map(float, losses)) if losses else None for losses in self._steps]
        # JSON has no NaN; a loss that is not finite is no basis for a comparison either.
        return [x if x is not None and math.isfinite(x) else None for x in sums]


def try_every_model(candidates: str, profiler: Profiler) -> None:
    """Makes each DDP model that is made from now on take part in one trial.

    Args:
        candidates: as ``commprof.trials.plan.parse_trial`` takes it.
        profiler: the capture of this process.

    Raises:
        CommprofError: it does not take it, or the capture is not full.
    """
    trial = Trial(parse_trial(candidates), profiler)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            trial.add(attach(self))
        except CommprofError as error:
            print(f"commprof: a model takes no part in the trial: {error}", file=sys.stderr)

    DistributedDataParallel.__init__ = made
