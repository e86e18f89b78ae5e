"""Jobs for the catalogue of causes, whose times are given so that savings are known by hand."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.registry import named_causes
from commprof.analysis.named_cause import NamedCause
from commprof.analysis.step.measured import measured_world
from commprof.analysis.world import world_result
from commprof.trace.schema import Phase
from tests.support.builders.results import context
from tests.support.builders.traces import MS, Rank, world_run

DTYPES = ["", "Float", "Long", "Byte", "Int"]
LOG = {
    "broadcast_buffers": 1,
    "has_sync_bn": 0,
    "find_unused_parameters": 0,
    "unused_parameter_size": 0,
    "static_graph": 0,
}


class Meeting:
    def __init__(self, ranks: int) -> None:
        self._times = [0.0] * ranks
        self._barrier = threading.Barrier(ranks, timeout=30)

    def latest(self, rank: int, now_ms: float) -> float:
        self._times[rank] = now_ms
        self._barrier.wait()
        last = max(self._times)
        self._barrier.wait()
        return last


class Script:
    def __init__(self, rank: Rank, meeting: Meeting, meets: bool = False) -> None:
        """With ``meets``, every collective begins when the last rank has issued the collective."""
        self.rank, self.now_ms, self._meeting, self._meets = rank, 0.0, meeting, meets
        self.passes = self._seq = 0
        self.steps_ms: list[float] = []

    def _all_here(self) -> float:
        return self._meeting.latest(self.rank.rank, self.now_ms) if self._meets else self.now_ms

    @property
    def _now(self) -> int:
        return round(self.now_ms * MS)

    def work(self, ms: float, phase: Phase = Phase.OTHER) -> None:
        begin = self._now
        self.now_ms += ms
        if phase != Phase.OTHER:
            self.rank.phase(phase, begin, self._now)

    def call(
        self,
        op: str = "all_reduce",
        size: int = 4,
        ms: float = 1.0,
        dtype: str = "Float",
        stack: tuple[str, ...] = (),
        found_done: bool = False,
        **fields: Any,
    ) -> None:
        """Issues a collective of ``ms``, and waits for its end.

        With ``found_done`` the thread has no core until the collective has ended, so that no wait
        is recorded.
        """
        self._seq += 1
        begin = self._now
        self.now_ms = self._all_here() + ms
        op_id = self.rank.collective(
            self._seq, begin, self._now, size, op=op, dtype=DTYPES.index(dtype), **fields
        )
        if not found_done:
            self.rank.wait(op_id, begin, self._now)
        if stack:
            stacks = self.rank.stacks
            number = next((n for n, frames in stacks.items() if frames == stack), len(stacks) + 1)
            stacks[number] = stack
            self.rank.stack(op_id, number)

    def meet(self, ms: float, size: int = 4_000_000) -> None:
        self._seq += 1
        begin = self._now
        self.now_ms = self._meeting.latest(self.rank.rank, self.now_ms) + ms
        op_id = self.rank.collective(self._seq, begin, self._now, size, dtype=1)
        self.rank.wait(op_id, begin, self._now)

    def forward(self, ms: float, *calls: Callable[[], None]) -> None:
        begin = self._now
        for call in calls:
            call()
        self.now_ms += ms
        self.rank.phase(Phase.FORWARD, begin, self._now)

    def backward(
        self,
        ms: float,
        buckets: dict[int, float] | None = None,
        marks: dict[int, float] | None = None,
        copy_ms: float = 0.0,
        no_core_ms: float = 0.0,
        held_ms: float = 0.0,
    ) -> None:
        """Runs a backward pass that exchanges buckets at its end.

        Args:
            ms: time that the pass computes.
            buckets: ms of each exchange, by bytes.
            marks: by bytes, ms of the exchanges in which ranks tell which parameters they used.
            copy_ms: time to copy gradients into the buckets, and again to copy them back.
            no_core_ms: part of the wait in which the thread has no core.
            held_ms: time for which the exchanges take the training thread's core. If it is not 0,
                the buckets are issued in the middle of the pass.
        """
        begin, task = self._now, self.passes
        self.passes += 1
        self.now_ms += (ms + copy_ms * bool(buckets)) / (2 if held_ms else 1)
        if buckets:
            issue, end = self._now, self._all_here()
            if held_ms:
                self.now_ms += ms / 2 + held_ms
                delay = round(held_ms * MS)
                self.rank.no_core(issue, self._now, delay, helpers_cpu=delay)
            final = self._now
            sent = [(*bucket, "Float") for bucket in buckets.items()]
            for size, wire, dtype in [*sent, *((*mark, "Int") for mark in (marks or {}).items())]:
                self._seq += 1
                end += wire
                self.rank.collective(
                    self._seq, issue, round(end * MS), size, task, dtype=DTYPES.index(dtype)
                )
            self.now_ms = max(self.now_ms, end) + copy_ms
            cpu, no_core = round(copy_ms * MS), round(no_core_ms * MS)
            self.rank.finalize(final, self._now, cpu, no_core, graph_task=task)
        self.rank.phase(Phase.BACKWARD, begin, self._now)

    def sharded(
        self,
        units: Sequence[int],
        ms: float = 5.0,
        again: bool = True,
        reduce: bool = True,
        copy_ms: float = 0.0,
        noted_ms: float = 0.0,
        anew: bool = True,
        forward_noted_ms: float = 0.0,
        stack: tuple[str, ...] = (),
    ) -> None:
        """Runs forward and backward of FSDP2; each collective takes 1 ms.

        Args:
            units: bytes of each unit.
            ms: time that a unit computes in forward; in backward it computes for twice this time.
            again: True if backward gathers each unit again, after copying for ``copy_ms``.
            reduce: True if backward reduce-scatters the gradients.
            copy_ms: see ``again``.
            noted_ms: time of noted copies before and after each collective of backward.
            anew: True if forward gathers each unit.
            forward_noted_ms: time of noted copies before and after each collective of forward.
            stack: frames of the gathers.
        """
        ranks, begin, task = self.rank.world_size, self._now, self.passes
        self.passes += 1

        def gathered(size: int, graph_task: int = -1) -> None:
            sizes = {"bytes_in": size // ranks, "bytes_out": size, "graph_task": graph_task}
            self.call("all_gather_into_tensor", size, stack=stack, **sizes)

        for size in units:
            if anew:
                with self.copying("fsdp_forward_gathers", forward_noted_ms):
                    gathered(size)
            self.now_ms += ms
        self.rank.phase(Phase.FORWARD, begin, self._now)
        begin = self._now
        for size in reversed(units):
            if again:
                self.now_ms += copy_ms
                with self.copying("fsdp_backward_gathers", noted_ms):
                    gathered(size, task)
            self.now_ms += 2 * ms
            if reduce:
                sizes = {"bytes_in": size, "bytes_out": size // ranks, "graph_task": task}
                with self.copying("fsdp_reductions", noted_ms):
                    self.call("reduce_scatter_tensor", size, **sizes)
        self.rank.finalize(self._now, self._now + 1, 0, graph_task=task)
        self.rank.phase(Phase.BACKWARD, begin, self._now)

    @contextmanager
    def copying(self, key: str, ms: float) -> Iterator[None]:
        """Copies for ``ms`` before and after the context, and notes the whole, except for 0 ms."""
        begin_ms = self.now_ms
        self.now_ms += ms
        yield
        self.now_ms += ms
        if ms:
            self.note(key, begin_ms)

    def note(self, key: str, begin_ms: float) -> None:
        times = self.rank.metadata.setdefault(key, {"begin_ns": [], "end_ns": []})
        times["begin_ns"].append(round(begin_ms * MS))
        times["end_ns"].append(self._now)

    def step(self, body: Callable[[], None]) -> None:
        begin, begin_ms = self._now, self.now_ms
        self.now_ms += 0.001  # no event has the time of the step's begin
        body()
        self.rank.step(begin, self._now)
        self.steps_ms.append(self.now_ms - begin_ms)


def causes_of(
    body: Callable[[Script, int], None],
    *,
    ranks: int = 2,
    steps: int = 12,
    models: int = 1,
    log: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    meets: bool = False,
    fewer: dict[int, int] | None = None,
    **metadata: Any,
) -> dict[str, NamedCause]:
    """Returns the causes that a job shows, by name.

    Args:
        body: is called with each rank's script and the number of each step.
        ranks: number of ranks.
        steps: number of steps; the first step is warm-up.
        models: number of DDP models.
        log: DDP's log of each model, in addition to ``LOG``.
        about: changes of the run's context.
        meets: True if every collective begins when the last rank has issued the collective.
        fewer: number of steps that a rank leaves out at the end, by rank.
        metadata: further metadata of every rank's trace.
    """
    scripts = trained(body, ranks, steps, models, log, meets, metadata, fewer)
    run = world_run([script.rank for script in scripts])
    seen = measured_world(run)
    assert seen is not None
    found = named_causes(context(**(about or {})), world_result(run, seen), seen)
    return {cause.id: cause for cause in found}


def facts_of(body: Callable[[Script, int], None], *, ranks: int = 2, **metadata: Any) -> Facts:
    scripts = trained(body, ranks, 12, 1, None, True, metadata)
    run = world_run([script.rank for script in scripts])
    seen = measured_world(run)
    assert seen is not None
    return Facts(context(), world_result(run, seen), seen)


def mean_step_ms(
    body: Callable[[Script, int], None], *, ranks: int = 2, steps: int = 12, meets: bool = True
) -> float:
    """Returns the mean step after the warm-up by the scripts' clocks, without an analysis."""
    scripts = trained(body, ranks, steps, 0, None, meets, {})
    return float(np.mean([script.steps_ms[1:] for script in scripts]))


def trained(
    body: Callable[[Script, int], None],
    ranks: int,
    steps: int,
    models: int = 1,
    log: dict[str, Any] | None = None,
    meets: bool = False,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    fewer: dict[int, int] | None = None,
) -> list[Script]:
    logs = [{**LOG, **(log or {})}] * models
    meeting = Meeting(ranks)
    scripts: list[Script] = []
    for number in range(ranks):
        sources = {"ddp_logs": logs, "ddp_models": models}
        rank = Rank(number, ranks, dtypes=DTYPES, cross_check_sources=sources, **metadata)
        scripts.append(Script(rank, meeting, meets))

    def train(script: Script) -> None:
        for step in range(steps - (fewer or {}).get(script.rank.rank, 0)):
            script.step(partial(body, script, step))

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(train, scripts))
    return scripts


def saved(cause: NamedCause) -> float:
    """Returns the fraction of the step that the fix wins; NaN if unknown."""
    return math.nan if cause.saving is None else cause.saving.saved.value
