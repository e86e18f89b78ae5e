"""Jobs in which one known cause makes ranks wait: as programs, and as simulated traces.

A program lists the instructions of one rank in one step. Real ranks can run it from JSON
(``benchmarks/ranks/blame_rank.py``):

    ["work", phase, ms]      the rank computes in the phase; "other" is outside of all phases
    ["pause", ms]            the process is stopped in the forward phase
    ["starve", phase, ms]    the process has no core in the phase
    ["call", op, group, root, slow_ms]  a blocking collective, whose transfer takes ``slow_ms``
                             longer than usual; ``root`` is a rank of the job, or -1 for no root
    ["send" or "recv", peer] a blocking message in the group of all ranks
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commprof.trace.schema import PHASES, Phase
from tests.support.builders.traces import MS, Rank

Instruction = list[Any]
Program = list[Instruction]

ALL = "all"
_WIRE_MS = 1.0
_STARTED_MS = 1.0


@dataclass(frozen=True)
class Job:
    name: str
    groups: dict[str, tuple[int, ...]]
    #: The program of a rank is ``steps[step][rank]``.
    steps: list[list[Program]]
    #: Most of the waiting begins at these ranks.
    ranks: frozenset[int]
    #: The waiting is caused by a phase, "host pause", "no core" or "transfer".
    cause: str

    @property
    def size(self) -> int:
        return len(self.groups[ALL])


class _Draw:
    def __init__(self, seed: int, steps: int) -> None:
        self.chance = random.Random(seed)
        self.steps = steps
        self.late_ms = self.chance.uniform(12, 25)
        self.phase = self.chance.choice(["data", "forward", "backward"])

    def rank(self, *ranks: int) -> int:
        return self.chance.choice(ranks)

    def work(self, extra: dict[str, float] | None = None) -> Program:
        """Returns data, forward and backward; ``extra`` maps a phase to its additional ms."""
        extra = extra or {}
        return [
            ["work", phase, self.chance.uniform(3.8, 4.2) + extra.get(phase, 0.0)]
            for phase in ("data", "forward", "backward")
        ]

    def update(self) -> Instruction:
        return ["work", "optimizer", self.chance.uniform(1.9, 2.1)]

    @property
    def extra(self) -> dict[str, float]:
        return {self.phase: self.late_ms}


def _all(size: int) -> dict[str, tuple[int, ...]]:
    return {ALL: tuple(range(size))}


def _job(
    draw: _Draw,
    name: str,
    groups: dict[str, tuple[int, ...]],
    program: Callable[[int, int], Program],
    ranks: Sequence[int],
    cause: str,
) -> Job:
    size = len(groups[ALL])
    steps = [[program(step, rank) for rank in range(size)] for step in range(draw.steps)]
    return Job(name, groups, steps, frozenset(ranks), cause)


_SYNC = ["call", "all_reduce", ALL, -1, 0.0]


def _late_root(op: str) -> Callable[[_Draw], Job]:
    def make(draw: _Draw) -> Job:
        root = draw.rank(0, 1, 2, 3)
        leaf = (root + 2) % 4  # in the broadcast's tree, the leaf is directly under the root

        def program(step: int, rank: int) -> Program:
            extra = draw.late_ms * {root: 1.0, leaf: 1.4}.get(rank, 0.0)
            # The root and the leaf have less other work, so that they catch up before the step
            # ends.
            rest = draw.late_ms * (0.2 if rank in (root, leaf) else 0.6)
            own = [*draw.work({draw.phase: extra}), ["call", op, ALL, root, 0.0]]
            return [*own, ["work", "other", rest], draw.update(), _SYNC]

        return _job(draw, f"late root of {op}", _all(4), program, [root], draw.phase)

    return make


def _late_leaf(draw: _Draw) -> Job:
    root, late = draw.chance.sample(range(4), 2)

    def program(step: int, rank: int) -> Program:
        extra = draw.extra if rank == late else {}
        return [*draw.work(extra), ["call", "gather", ALL, root, 0.0], draw.update(), _SYNC]

    return _job(draw, "late leaf of gather", _all(4), program, [late], draw.phase)


def _late_end(sender: bool) -> Callable[[_Draw], Job]:
    def make(draw: _Draw) -> Job:
        source, target = draw.chance.sample(range(2), 2)
        late = source if sender else target

        def program(step: int, rank: int) -> Program:
            own = draw.work(draw.extra if rank == late else {})
            message = ["send", target] if rank == source else ["recv", source]
            return [*own, message, draw.update()]

        name = "late sender" if sender else "late receiver"
        return _job(draw, name, _all(2), program, [late], draw.phase)

    return make


def _chain(draw: _Draw) -> Job:
    order = draw.chance.sample(range(3), 3)
    groups = {**_all(3), "first": tuple(sorted(order[:2])), "second": tuple(sorted(order[1:]))}

    def program(step: int, rank: int) -> Program:
        own = draw.work(draw.extra if rank == order[0] else {})
        mine = [name for name in ("first", "second") if rank in groups[name]]
        return [*own, *(["call", "all_reduce", name, -1, 0.0] for name in mine), draw.update()]

    return _job(draw, "chain", groups, program, [order[0]], draw.phase)


def _hsdp(draw: _Draw) -> Job:
    late = draw.rank(0, 1, 2, 3)
    groups = {**_all(4), "s0": (0, 1), "s1": (2, 3), "r0": (0, 2), "r1": (1, 3)}

    def program(step: int, rank: int) -> Program:
        data, forward, backward = draw.work(draw.extra if rank == late else {})
        shard, replica = f"s{rank // 2}", f"r{rank % 2}"
        gather = ["call", "all_gather", shard, -1, 0.0]
        scatter = ["call", "reduce_scatter", shard, -1, 0.0]
        reduce = ["call", "all_reduce", replica, -1, 0.0]
        return [data, gather, forward, gather, backward, scatter, reduce, draw.update()]

    return _job(draw, "HSDP", groups, program, [late], draw.phase)


def _pipeline(draw: _Draw) -> Job:
    size = draw.rank(3, 4)
    slow = draw.rank(*range(size - 1))

    def program(step: int, rank: int) -> Program:
        done: Program = []
        for _ in range(3):
            done += [["recv", rank - 1]] if rank else []
            length = 4 + (draw.late_ms / 3 if rank == slow else 0)
            done.append(["work", "forward", length * draw.chance.uniform(0.97, 1.03)])
            done += [["send", rank + 1]] if rank < size - 1 else []
        return [*done, draw.update()]

    return _job(draw, "pipeline", _all(size), program, [slow], "forward")


def _in_turn(draw: _Draw) -> Job:
    size = 4
    late = draw.chance.sample(range(size), 2)

    def program(step: int, rank: int) -> Program:
        return [*draw.work(draw.extra if rank == late[step % 2] else {}), _SYNC, draw.update()]

    return _job(draw, "two in turn", _all(size), program, late, draw.phase)


def _every_fifth(draw: _Draw) -> Job:
    size = draw.rank(2, 3, 4)
    late = draw.rank(*range(size))

    def program(step: int, rank: int) -> Program:
        extra = {draw.phase: 3 * draw.late_ms} if rank == late and step % 5 == 2 else {}
        return [*draw.work(extra), _SYNC, draw.update()]

    return _job(draw, "every fifth step", _all(size), program, [late], draw.phase)


def _held(instruction: str, cause: str) -> Callable[[_Draw], Job]:
    def make(draw: _Draw) -> Job:
        size = draw.rank(2, 3, 4)
        late = draw.rank(*range(size))
        held = ["pause"] if instruction == "pause" else ["starve", "forward"]

        def program(step: int, rank: int) -> Program:
            data, forward, backward = draw.work()
            extra = [[*held, draw.late_ms]] if rank == late else []
            return [data, *extra, forward, backward, _SYNC, draw.update()]

        return _job(draw, cause, _all(size), program, [late], cause)

    return make


def _slow_link(draw: _Draw) -> Job:
    order = draw.chance.sample(range(3), 3)
    groups = {**_all(3), "far": tuple(sorted(order[:2])), "near": tuple(sorted(order[1:]))}

    def program(step: int, rank: int) -> Program:
        calls: Program = []
        if rank in groups["far"]:
            calls.append(["call", "all_reduce", "far", -1, draw.late_ms])
        if rank in groups["near"]:
            calls.append(["call", "all_reduce", "near", -1, 0.0])
        return [*draw.work(), *calls, draw.update()]

    return _job(draw, "slow link", groups, program, [order[1]], "transfer")


def _parameter_server(draw: _Draw) -> Job:
    root, late = draw.chance.sample(range(4), 2)

    def program(step: int, rank: int) -> Program:
        own = draw.work(draw.extra if rank == late else {})
        calls = [["call", op, ALL, root, 0.0] for op in ("gather", "scatter")]
        return [*own, *calls, draw.update()]

    return _job(draw, "parameter server", _all(4), program, [late], draw.phase)


def _batch_norm(draw: _Draw) -> Job:
    root, late = 0, draw.late_ms

    def program(step: int, rank: int) -> Program:
        length = {root: late, 2: 1.3 * late}.get(rank, 0.0)
        data, forward, backward = draw.work({"data": length})
        if rank == 2:
            forward[2] = 0.5
        buffers = ["call", "broadcast", ALL, root, 0.0]
        return [data, buffers, forward, backward, _SYNC, draw.update()]

    return _job(draw, "broadcast of buffers", _all(4), program, [root], "data")


SHAPES: dict[str, Callable[[_Draw], Job]] = {
    "broadcast": _late_root("broadcast"),
    "scatter": _late_root("scatter"),
    "gather": _late_leaf,
    "sender": _late_end(True),
    "receiver": _late_end(False),
    "chain": _chain,
    "hsdp": _hsdp,
    "pipeline": _pipeline,
    "in_turn": _in_turn,
    "fifth": _every_fifth,
    "paused": _held("pause", "host pause"),
    "throttled": _held("starve", "no core"),
    "slow_link": _slow_link,
    "parameter_server": _parameter_server,
    "batch_norm": _batch_norm,
}


def job(shape: str, seed: int, steps: int = 12) -> Job:
    return SHAPES[shape](_Draw(1000 * list(SHAPES).index(shape) + seed, steps))


SCENARIOS = [(shape, seed) for seed in range(4) for shape in SHAPES]


def simulated(of: Job) -> list[Rank]:
    return _Simulation(of).run()


class _Simulation:
    def __init__(self, of: Job) -> None:
        self._job = of
        numbers = {name: number for number, name in enumerate(of.groups, 1)}
        self._numbers = numbers
        self.ranks = [
            Rank(
                r,
                of.size,
                groups={numbers[n]: (n, len(m)) for n, m in of.groups.items() if r in m},
            )
            for r in range(of.size)
        ]
        for r, rank in enumerate(self.ranks):
            rank.group_ranks = {numbers[n]: m.index(r) for n, m in of.groups.items() if r in m}
        self._left = [
            deque([*(i for step in of.steps for i in (*step[r], ["end"]))]) for r in range(of.size)
        ]
        self._now = [int(_STARTED_MS * MS)] * of.size
        self._began = list(self._now)
        self._turns: Counter[tuple[Any, ...]] = Counter()
        self._came: dict[tuple[Any, ...], dict[int, int]] = {}
        self._at: list[tuple[Any, ...] | None] = [None] * of.size

    def run(self) -> list[Rank]:
        while any(self._left):
            went = [self._advance(r) for r in range(self._job.size)]
            assert any(went), "the ranks wait for each other"
        return self.ranks

    def _advance(self, r: int) -> bool:
        went = False
        while self._left[r]:
            name, *arguments = self._left[r][0]
            if name in ("call", "send", "recv"):
                if not self._communicate(r, name, arguments):
                    return went
            else:
                self._alone(r, name, arguments)
            self._left[r].popleft()
            went = True
        return went

    def _alone(self, r: int, name: str, arguments: list[Any]) -> None:
        rank, begin = self.ranks[r], self._now[r]
        if name == "end":
            rank.step(self._began[r], begin)
            self._began[r] = begin
            return
        end = self._now[r] = begin + int(arguments[-1] * MS)
        phase = Phase.FORWARD if name == "pause" else Phase(PHASES.index(arguments[0]))
        if phase != Phase.OTHER:
            rank.phase(phase, begin, end)
        if name == "pause":
            rank.pause(begin, end)
        if name == "starve":
            rank.no_core(begin, end, end - begin)

    def _communicate(self, r: int, name: str, arguments: list[Any]) -> bool:
        if self._at[r] is None:
            ends = (r, *arguments) if name == "send" else (*arguments, r)
            what = ("call", arguments[1]) if name == "call" else ("message", *ends)
            self._turns[(r, *what)] += 1
            self._at[r] = (*what, self._turns[(r, *what)] - 1)
            self._came.setdefault(self._at[r], {})[r] = self._now[r]
        at, came = self._at[r], self._came[self._at[r]]
        needed = self._needed(r, name, arguments)
        if not set(needed) <= set(came):
            return False
        slow_ms = arguments[3] if name == "call" else 0.0
        begin = self._now[r]
        end = max(came[other] for other in needed) + int((_WIRE_MS + slow_ms) * MS)
        group = self._numbers[arguments[1] if name == "call" else ALL]
        if name == "call":
            op, peer = arguments[0], self._place(arguments)
            fields = {"bytes": 8}
        else:
            op, peer = name, arguments[0]
            fields = {"bytes_in": 8 * (name == "send"), "bytes_out": 8 * (name == "recv")}
        peer = {} if peer < 0 else {"aux": peer}
        call = self.ranks[r].collective(at[-1], begin, end, op=op, group=group, **fields, **peer)
        self.ranks[r].wait(call, begin, end)
        self._now[r], self._at[r] = end, None
        return True

    def _place(self, arguments: list[Any]) -> int:
        return self._job.groups[arguments[1]].index(arguments[2]) if arguments[2] >= 0 else -1

    def _needed(self, r: int, name: str, arguments: list[Any]) -> list[int]:
        """Returns the ranks for which gloo was observed to let this rank wait."""
        if name != "call":
            return [r, arguments[0]]
        op, group, root, _ = arguments
        members = self._job.groups[group]
        if op in ("gather", "scatter"):
            return list(members) if r == root else [r, root]
        if op != "broadcast":
            return list(members)
        start, size = members.index(root), len(members)
        place = (members.index(r) - start) % size
        tree = {place}
        at = place
        while at:
            at ^= 1 << (at.bit_length() - 1)
            tree.add(at)
        bit = 1 << place.bit_length()
        while place + bit < size:
            tree.add(place + bit)
            bit *= 2
        return [members[(each + start) % size] for each in tree]
