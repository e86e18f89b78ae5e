from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commprof.trace.columns import Ints
from commprof.trace.schema import Phase
from tests.support.builders.exact.jobs import FINISH, ISSUE, WAIT, WORK, Call, Job, Op, Role
from tests.support.builders.traces import MS

Floats = npt.NDArray[np.float64]
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = (
    Phase.DATA,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.OPTIMIZER,
    Phase.OTHER,
)
PAUSE = "host pause"
LATE_IN = {"data": DATA, "forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}


@dataclass(frozen=True)
class Late:
    """The rank is late by ``extra_ns[step]``, because of ``cause``."""

    rank: int
    cause: str
    extra_ns: Floats


@dataclass(frozen=True)
class Drawn:
    job: Job
    clean: Job
    late: tuple[Late, ...] = ()
    backward_ns: float = math.nan
    facts: dict[str, object] = field(default_factory=dict)


class _Draw:
    def __init__(self, seed: int, size: int, steps: int) -> None:
        self.random = np.random.default_rng(seed)
        self.size, self.steps = size, steps
        #: Every time has this standard deviation, as a fraction of its mean.
        self.noise = float(self.random.uniform(0.02, 0.08))
        uniform = self.random.uniform
        self.data, self.forward = uniform(0.3, 2.0) * MS, uniform(3.0, 8.0) * MS
        self.backward, self.optimizer = uniform(6.0, 14.0) * MS, uniform(0.8, 2.5) * MS
        self.other = uniform(0.3, 1.2) * MS
        self.wire = uniform(0.1, 0.9) * self.backward

    def noisy(self, mean_ns: float, count: int, noise: float | None = None) -> Ints:
        """Draws times in ns, as an array ``[step, count]``."""
        spread = self.random.standard_normal((self.steps, count)) * (noise or self.noise)
        times: Ints = np.rint(np.maximum(1000, mean_ns * (1 + spread))).astype(np.int64)
        return times

    def between(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high, endpoint=True))

    def job(
        self, name: str, roles: Sequence[tuple[Ints, list[tuple[Op, float]]]], calls: Sequence[Call]
    ) -> Job:
        parts = [Role(ranks, tuple(op for op, _ in ops)) for ranks, ops in roles]
        work = {
            (r, i): self.noisy(mean, len(ranks))
            for r, (ranks, ops) in enumerate(roles)
            for i, (op, mean) in enumerate(ops)
            if op.kind == WORK
        }
        wire = [self.wire / len(calls) for _ in calls]
        return Job(
            name=name,
            size=self.size,
            steps=self.steps,
            roles=parts,
            calls=calls,
            work_ns=work,
            wire_ns={c: self.noisy(wire[c], len(call.groups), 0.2) for c, call in enumerate(calls)},
            seen_after_ns={
                c: self.random.integers(1000, 20_000, (self.steps, self.size))
                for c in range(len(calls))
            },
            copy_ns=self.between(1_000, 30_000),
            begin_ns=self.random.integers(0, MS, self.size),
        )

    def frame(
        self, forward: list[tuple[Op, float]], backward: list[tuple[Op, float]]
    ) -> list[tuple[Op, float]]:
        before = [(Op(WORK, DATA), self.data), (Op(WORK, OTHER), 30_000.0)]
        gap = [(Op(WORK, OTHER), 50_000.0)]
        after = [(Op(WORK, OPTIMIZER), self.optimizer), (Op(WORK, OTHER), self.other)]
        return [*before, *forward, *gap, *backward, *gap, *after]


def _world(size: int) -> Ints:
    return np.arange(size)[np.newaxis, :]


def _ddp(draw: _Draw, groups: Ints | None = None, layers: int = 1) -> Job:
    """Makes a DDP job, in which each group reduces its own gradients.

    ``groups`` is an array ``[group, member]``; by default, all ranks are one group.
    """
    buckets = draw.between(4, 25)
    groups = _world(draw.size) if groups is None else groups
    calls = [Call("all_reduce", "dp", groups, 1 << 18, True) for _ in range(buckets)]
    backward: list[tuple[Op, float]] = []
    for c in range(buckets):
        backward.append((Op(WORK, BACKWARD), draw.backward / buckets))
        backward.append((Op(ISSUE, BACKWARD, c), 0.0))
    backward.append((Op(WORK, BACKWARD), float(draw.random.uniform(10_000, 300_000))))
    backward.append((Op(FINISH, BACKWARD, calls=tuple(range(buckets))), 0.0))
    forward = [(Op(WORK, FORWARD), draw.forward)]
    return draw.job("ddp", [(np.arange(draw.size), draw.frame(forward, backward))], calls)


def _handles(draw: _Draw) -> Job:
    buckets = draw.between(3, 16)
    calls = [Call("all_reduce", "dp", _world(draw.size), 1 << 18) for _ in range(buckets)]
    backward: list[tuple[Op, float]] = []
    for c in range(buckets):
        backward.append((Op(WORK, BACKWARD), draw.backward / buckets))
        backward.append((Op(ISSUE, BACKWARD, c), 0.0))
    backward += [(Op(WAIT, BACKWARD, c), 0.0) for c in range(buckets)]
    forward = [(Op(WORK, FORWARD), draw.forward)]
    return draw.job("handles", [(np.arange(draw.size), draw.frame(forward, backward))], calls)


def _fsdp2(draw: _Draw) -> Job:
    layers, ahead = draw.between(2, 6), bool(draw.random.integers(2))
    groups = _world(draw.size)
    calls: list[Call] = []

    def call(op: str) -> int:
        calls.append(Call(op, "fsdp", groups, 1 << 20))
        return len(calls) - 1

    def gathered(phase: Phase, work: float) -> list[tuple[Op, float]]:
        gathers = [call("all_gather_into_tensor") for _ in range(layers)]
        ops, scattering = [(Op(ISSUE, phase, gathers[0]), 0.0)], -1
        for layer in range(layers):
            ops.append((Op(WAIT, phase, gathers[layer]), 0.0))
            later = [(Op(ISSUE, phase, c), 0.0) for c in gathers[layer + 1 : layer + 2]]
            work_of_layer = (Op(WORK, phase), work / layers)
            ops += [*later, work_of_layer] if ahead else [work_of_layer, *later]
            if phase == BACKWARD:
                if scattering >= 0:
                    ops.append((Op(WAIT, phase, scattering), 0.0))
                scattering = call("reduce_scatter_tensor")
                ops.append((Op(ISSUE, phase, scattering), 0.0))
        return [*ops, (Op(WAIT, phase, scattering), 0.0)] if scattering >= 0 else ops

    forward, backward = gathered(FORWARD, draw.forward), gathered(BACKWARD, draw.backward)
    return draw.job("fsdp2", [(np.arange(draw.size), draw.frame(forward, backward))], calls)


def _groups(draw: _Draw) -> Job:
    """Makes tensor parallel groups of 2 or 4 ranks, and lets DDP reduce across the groups.

    If the number of ranks is odd, all ranks are one tensor parallel group.
    """
    tensor = 2 << int(draw.random.integers(2))
    while draw.size % tensor:
        tensor = tensor // 2 if tensor > 2 else draw.size
    ranks = np.arange(draw.size)
    within, across = ranks.reshape(-1, tensor), ranks.reshape(-1, tensor).T
    layers, buckets = draw.between(1, 4), draw.between(2, 8)
    calls = [Call("all_reduce", "tp", within, 1 << 16) for _ in range(2 * layers)]
    calls += [Call("all_reduce", "dp", across, 1 << 18, True) for _ in range(buckets)]
    forward: list[tuple[Op, float]] = []
    for layer in range(layers):
        forward.append((Op(WORK, FORWARD), draw.forward / layers))
        forward += [(Op(ISSUE, FORWARD, layer), 0.0), (Op(WAIT, FORWARD, layer), 0.0)]
    backward: list[tuple[Op, float]] = []
    for layer in range(layers, 2 * layers):
        backward.append((Op(WORK, BACKWARD), draw.backward / 2 / layers))
        backward += [(Op(ISSUE, BACKWARD, layer), 0.0), (Op(WAIT, BACKWARD, layer), 0.0)]
    for c in range(2 * layers, len(calls)):
        backward.append((Op(WORK, BACKWARD), draw.backward / 2 / buckets))
        backward.append((Op(ISSUE, BACKWARD, c), 0.0))
    backward.append((Op(FINISH, BACKWARD, calls=tuple(range(2 * layers, len(calls)))), 0.0))
    return draw.job("groups", [(ranks, draw.frame(forward, backward))], calls)


def _pipeline(draw: _Draw) -> Job:
    stages = draw.between(2, min(4, draw.size))
    while draw.size % stages:
        stages -= 1
    of_stage = np.arange(draw.size).reshape(stages, -1)
    batches, blocking = draw.between(2, 6), bool(draw.random.integers(2))
    calls: list[Call] = []
    for stage in range(stages - 1):
        pairs = np.stack((of_stage[stage], of_stage[stage + 1]), axis=1)
        for to in (pairs, pairs[:, ::-1]):
            calls += [Call("send", "pp", to, 1 << 16) for _ in range(batches)]

    def message(stage: int, back: int, batch: int) -> int:
        return (2 * stage + back) * batches + batch

    replicas = of_stage.shape[1] > 1
    reduces = len(calls)
    if replicas:
        calls.append(Call("all_reduce", "dp", of_stage, 1 << 18))
    roles = []
    for stage in range(stages):
        sent: list[int] = []

        def send(phase: Phase, c: int, sent: list[int] = sent) -> list[tuple[Op, float]]:
            sent.append(c)
            return [(Op(kind, phase, c), 0.0) for kind in ((ISSUE, WAIT) if blocking else (ISSUE,))]

        def receive(phase: Phase, c: int) -> list[tuple[Op, float]]:
            return [(Op(ISSUE, phase, c), 0.0), (Op(WAIT, phase, c), 0.0)]

        forward, backward = [], []
        for batch in range(batches):
            if stage:
                forward += receive(FORWARD, message(stage - 1, 0, batch))
            forward.append((Op(WORK, FORWARD), draw.forward / batches))
            if stage < stages - 1:
                forward += send(FORWARD, message(stage, 0, batch))
                backward += receive(BACKWARD, message(stage, 1, batch))
            backward.append((Op(WORK, BACKWARD), draw.backward / batches))
            if stage:
                backward += send(BACKWARD, message(stage - 1, 1, batch))
        if not blocking:
            backward += [(Op(WAIT, BACKWARD, c), 0.0) for c in sent]
        if replicas:
            backward += [(Op(kind, BACKWARD, reduces), 0.0) for kind in (ISSUE, WAIT)]
        roles.append((of_stage[stage], draw.frame(forward, backward)))
    return draw.job("pipeline", roles, calls)


def chain(seed: int, size: int, steps: int) -> Job:
    """Makes rank 1 wait for rank 0, and then all further ranks wait for rank 1; no rank is late."""
    draw = _Draw(seed, size, steps)
    draw.wire = 0.2 * MS
    pair, rest = np.array([[0, 1]]), np.arange(1, size)[np.newaxis, :]
    calls = [
        Call("all_reduce", "first", pair, 1 << 16),
        Call("all_reduce", "second", rest, 1 << 16),
    ]

    def ops(numbers: Sequence[int]) -> list[tuple[Op, float]]:
        work = [(Op(WORK, BACKWARD), draw.backward)]
        waits = [(Op(kind, BACKWARD, c), 0.0) for c in numbers for kind in (ISSUE, WAIT)]
        return draw.frame([(Op(WORK, FORWARD), draw.forward)], [*work, *waits])

    roles = [(np.array([0]), ops([0])), (np.array([1]), ops([0, 1])), (rest[0, 1:], ops([1]))]
    return draw.job("chain", roles, calls)


SHAPES: dict[str, Callable[[_Draw], Job]] = {
    "ddp": _ddp,
    "handles": _handles,
    "fsdp2": _fsdp2,
    "groups": _groups,
    "pipeline": _pipeline,
}


def drawn(
    shape: str,
    seed: int,
    size: int,
    steps: int = 16,
    late: int = 1,
    cause: str | None = None,
    times_backward: float | None = None,
    in_turn: bool = False,
    hosts: int = 1,
) -> Drawn:
    """Draws a job.

    Args:
        shape: one of ``SHAPES``.
        seed: seed of all random numbers.
        size: number of ranks.
        steps: number of steps.
        late: number of late ranks.
        cause: one of ``LATE_IN``, or ``PAUSE``; drawn if None.
        times_backward: lateness in backward passes; drawn between 0.2 and 3 if None.
        in_turn: True if the late ranks take turns. If False, all of them are late in all steps,
            each further rank by a quarter of the previous late rank's time.
        hosts: number of hosts; each host has its own clock.
    """
    draw = _Draw(seed, size, steps)
    state = draw.random.bit_generator.state
    clean = SHAPES[shape](draw)
    draw.random.bit_generator.state = state
    job = SHAPES[shape](draw)
    for each in (clean, job):
        each.ranks_per_host = math.ceil(size / hosts) if hosts > 1 else 0
    choose = draw.random.choice
    ranks = [int(rank) for rank in choose(size, late, replace=False)]
    factor = times_backward or float(np.exp(draw.random.uniform(math.log(0.2), math.log(3))))
    made = []
    for place, rank in enumerate(ranks):
        why = cause or str(choose([*LATE_IN, PAUSE]))
        by_ns = factor * draw.backward * (1.0 if in_turn else 0.25**place)
        step = np.arange(steps)
        here = (step % late == place) if in_turn else np.ones(steps, dtype=np.bool_)
        extra_ns = np.where(here, by_ns * (1 + 0.05 * draw.random.standard_normal(steps)), 0.0)
        _make_late(draw, job, Late(rank, why, extra_ns))
        made.append(Late(rank, why, extra_ns))
    return Drawn(job, clean, tuple(made), draw.backward)


def _make_late(draw: _Draw, job: Job, late: Late) -> None:
    role = job.role_of(late.rank)
    if late.cause == PAUSE:
        works = job.works(FORWARD, role)
        job.pause(late.rank, works[draw.between(0, len(works) - 1)], late.extra_ns)
        return
    works = job.works(LATE_IN[late.cause], role)
    chosen = works if draw.random.integers(2) else [works[draw.between(0, len(works) - 1)]]
    job.lengthen(late.rank, LATE_IN[late.cause], late.extra_ns, chosen)


def any_job(seed: int, late: int = 1, in_turn: bool = False, most_ranks: int = 1024) -> Drawn:
    """Draws a job of any shape and size, on one to four hosts.

    Of 50 seeds, one has 256 ranks or more, and four have 32 to 256 ranks, unless ``most_ranks`` is
    less.
    """
    random = np.random.default_rng([seed, late, in_turn])
    low, high = (8, 10) if seed % 50 == 49 else (5, 8) if seed % 10 == 9 else (1, 5)
    size = min(most_ranks, round(2 ** random.uniform(low, high)))
    shape = str(random.choice(list(SHAPES)))
    if shape == "pipeline":
        size += size % 2
    hosts = int(random.integers(1, 5)) if size >= 8 else 1
    # In a pipeline, or among many ranks, a late rank shows only over more steps.
    most = 25 if shape == "pipeline" or size > 256 else 13
    steps = most - 1 if size > 32 else int(random.integers(16, 25))
    return drawn(shape, seed, size, steps, late, in_turn=in_turn, hosts=hosts)
