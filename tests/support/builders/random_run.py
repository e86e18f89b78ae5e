from __future__ import annotations

import random
from dataclasses import dataclass, field

from commprof.trace.schema import Phase
from tests.support.builders.traces import Rank


@dataclass
class Truth:
    """True times of one rank in ns, by step."""

    exposed: list[int] = field(default_factory=list)
    #: Waiting is not part of a phase.
    phases: list[dict[Phase, int]] = field(default_factory=list)


class RandomRun:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        count = self._random.choice((1, 2, 3, 5))
        self.ranks = [Rank(rank, count) for rank in range(count)]
        self.truth = [Truth() for _ in self.ranks]
        self._now = [1_000 * rank for rank in range(count)]
        self._begin = [0] * count
        self._seq = 0
        self._wire_free = 0
        for step in range(self._random.randint(1, 6)):
            self._step(step)

    def _step(self, step: int) -> None:
        begins = list(self._now)
        for truth in self.truth:
            truth.exposed.append(0)
            truth.phases.append(dict.fromkeys(Phase, 0))
        self._work(Phase.DATA)
        self._work(Phase.FORWARD)
        if self._random.random() < 0.5:
            self._blocking_collective(Phase.FORWARD)
        self._backward(graph_task=step)
        if self._random.random() < 0.5:
            self._blocking_collective(Phase.OTHER)
        self._work(Phase.OPTIMIZER)
        self._work(Phase.OTHER)
        for rank, begin, end in zip(self.ranks, begins, self._now, strict=True):
            rank.step(begin, end)

    def _work(self, phase: Phase) -> None:
        for i, rank in enumerate(self.ranks):
            begin, length = self._now[i], self._random.randint(0, 5_000)
            self._now[i] += length
            self.truth[i].phases[-1][phase] += length
            if phase != Phase.OTHER:
                rank.phase(phase, begin, self._now[i])

    def _wire(self, issues: list[int]) -> int:
        self._wire_free = max(self._wire_free, *issues, 0) + self._random.randint(1, 4_000)
        return self._wire_free

    def _blocking_collective(self, phase: Phase) -> None:
        issues = list(self._now)
        end = self._wire(issues)
        for i, rank in enumerate(self.ranks):
            op_id = rank.collective(self._seq, issues[i], end)
            rank.wait(op_id, issues[i], end)
            if phase != Phase.OTHER:
                rank.phase(phase, issues[i], end)
            self.truth[i].exposed[-1] += end - issues[i]
            self._now[i] = end
        self._seq += 1

    def _backward(self, graph_task: int) -> None:
        begins = list(self._now)
        ends, sizes = [], []
        for _ in range(self._random.randint(1, 4)):
            for i in range(len(self.ranks)):
                length = self._random.randint(0, 3_000)
                self._now[i] += length
                self.truth[i].phases[-1][Phase.BACKWARD] += length
            ends.append(self._wire(self._now))
            sizes.append(self._random.randint(0, 500))
            for i, rank in enumerate(self.ranks):
                rank.collective(self._seq, self._now[i], ends[-1], sizes[-1], graph_task)
            self._seq += 1
        for i, rank in enumerate(self.ranks):
            self._finalize(i, rank, graph_task, ends, sizes)
            rank.phase(Phase.BACKWARD, begins[i], self._now[i])

    def _finalize(
        self, i: int, rank: Rank, graph_task: int, ends: list[int], sizes: list[int]
    ) -> None:
        begin = self._now[i]
        blocked, cpu, speed = 0, 0, self._random.choice((0, 1, 3))
        for end, size in zip(ends, sizes, strict=True):
            blocked += max(0, end - self._now[i])
            self._now[i] = max(self._now[i], end) + speed * size
            cpu += speed * size
        stopped = self._random.choice((0, 0, 2_000))
        self._now[i] += stopped
        rank.finalize(begin, self._now[i], cpu, run_delay=stopped, graph_task=graph_task)
        self.truth[i].exposed[-1] += blocked + stopped
        self.truth[i].phases[-1][Phase.BACKWARD] += cpu
