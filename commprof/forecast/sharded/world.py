"""Makes each rank's sequence of events for the replay, from recorded steps drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from commprof.analysis.replay.engine import Condition, DrawnSteps, ReplayedCalls, replay_drawn
from commprof.analysis.replay.program import MARK, Program
from commprof.forecast.sharded.changes import ShardedChange
from commprof.forecast.sharded.costs import ShardedCosts
from commprof.forecast.sharded.crowding import Crowding
from commprof.forecast.sharded.steps import ALL, SHARD, ShardedSteps

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """All ranks of a scenario, whose steps are drawn from the recorded steps.

    The ranks are divided into blocks, which have at most as many ranks as the recorded run. In a
    drawn step, each block has the times of a recorded step that was chosen at random.
    """

    steps: ShardedSteps
    change: ShardedChange
    world_size: int
    #: Factor for the time that a rank works in the optimizer.
    update: float
    #: Change of the times if another number of ranks shares a core.
    crowding: Crowding = field(default_factory=Crowding)

    def draw(self, count: int, random: np.random.Generator, rows: Ints | None = None) -> Ints:
        """Draws recorded steps; returns their indices as ``[drawn step, block of ranks]``.

        ``rows`` holds the indices to draw from; None means all recorded steps.
        """
        recorded_rows = np.arange(len(self.steps.own_ns)) if rows is None else rows
        blocks = -(-self.world_size // self.steps.world_size)
        return recorded_rows[random.integers(0, len(recorded_rows), (count, blocks))]

    def replay(self, drawn: Ints, costs: ShardedCosts | None) -> DrawnSteps:
        """Replays the drawn steps at these costs; if ``costs`` is None, transfers take no time."""
        ranks = range(self.world_size)
        made = [self._program(rank, self._of(rank, drawn)) for rank in ranks]
        recorded = [self._transfers(self._of(rank, drawn)) for rank in ranks]
        transfer = [0.0 * each if costs is None else costs.of(each) for each in recorded]
        return replay_drawn(made, self._calls(np.concatenate(transfer)), len(drawn))

    def busy_ns(self, drawn: Ints, costs: ShardedCosts) -> float:
        """Returns a step's total transfer time: mean over ranks, then median over drawn steps."""
        ranks = range(min(self.world_size, self.steps.world_size))
        each = [costs.of(self._transfers(self._of(rank, drawn))).sum(axis=0) for rank in ranks]
        return float(np.median(np.mean(each, axis=0)))

    def own_ns(self, drawn: Ints) -> Floats:
        """Returns each step's time without waits for communication: ``[rank, drawn step]``."""
        ranks = [self._of(rank, drawn) for rank in range(self.world_size)]
        whole = [self._own(at)[:, -1] + self._more_passes(at) for at in ranks]
        return np.stack(whole) + self.crowding.longer_ns

    def _of(self, rank: int, drawn: Ints) -> tuple[Ints, int]:
        """Returns the recorded steps and the recorded rank from which a rank's times are taken."""
        return drawn[:, rank // self.steps.world_size], rank % self.steps.world_size

    def _own(self, drawn_at: tuple[Ints, int]) -> Floats:
        update = self.steps.update_ns[drawn_at]
        own_ns = self.steps.own_ns[drawn_at] + (self.update - 1) * update
        result: Floats = self.crowding.own * own_ns
        return result

    def _more_passes(self, drawn_at: tuple[Ints, int]) -> Floats:
        """Returns the own time in ns of the passes that the scenario adds, per drawn step."""
        added = self.change.passes - self.steps.passes
        return added * self._pass_ns(drawn_at)

    def _pass_ns(self, drawn_at: tuple[Ints, int]) -> Floats:
        """Returns the own time in ns of one pass, per drawn step."""
        result: Floats = self.crowding.own * self.steps.pass_ns[drawn_at]
        return result

    def _transfers(self, drawn_at: tuple[Ints, int]) -> Floats:
        """Returns a rank's recorded transfer times in ns, as ``[collective, drawn step]``."""
        recorded = [call.recorded for call in self.change.calls]
        result: Floats = self.steps.transfer_ns[drawn_at][:, recorded].T
        return result

    def _program(self, rank: int, drawn_at: tuple[Ints, int]) -> Program:
        events = self.change.events
        places = [event.recorded for event in events]
        passes = np.array([event.passes for event in events])[:, np.newaxis]
        offset = rank * len(self.change.calls)
        own_ns = self._own(drawn_at)
        until_ns = own_ns[:, -1] + self._more_passes(drawn_at) + self.crowding.longer_ns
        extra = self.steps.extra_ns[drawn_at][:, places].T
        nothing = np.zeros((1, extra.shape[1]))
        return Program(
            rank=rank,
            begin_ns=0,
            until_ns=0,
            # The step ends at the recorded step's last event, even if the scenario drops this
            # event.
            own_ns=np.concatenate(
                [own_ns[:, places].T + passes * self._pass_ns(drawn_at), until_ns[np.newaxis]]
            ),
            kind=np.array([*(event.kind for event in events), MARK]),
            row=np.array([*(offset + event.call for event in events), 1]),
            extra_ns=np.concatenate([extra, nothing]),
        )

    def _calls(self, transfer_ns: Floats) -> ReplayedCalls:
        number = len(self.change.calls)
        rows = number * self.world_size
        nothing = np.zeros(rows, dtype=np.int64)
        before = np.full((self.world_size, number), -1, dtype=np.int64)
        last: dict[str, int] = {}
        for call, changed in enumerate(self.change.calls):
            if changed.call.among in last:
                before[:, call] = np.arange(self.world_size) * number + last[changed.call.among]
            last[changed.call.among] = call
        return ReplayedCalls(
            conditions=list(self._conditions()),
            before=before.reshape(-1),
            issue_ns=nothing,
            transfer_ns=transfer_ns,
            end_ns=nothing,
            outside=np.zeros(rows, dtype=bool),
            group=nothing,
        )

    def _conditions(self) -> list[Condition]:
        number = len(self.change.calls)
        conditions = []
        for call, changed in enumerate(self.change.calls):
            for group in self._groups(changed.call.among):
                rows = tuple(rank * number + call for rank in group)
                conditions.append(Condition(rows, rows))
        return conditions

    def _groups(self, among: str) -> list[range]:
        shard, ranks = self.change.shard_ranks, self.world_size
        if among == ALL:
            return [range(ranks)]
        if among == SHARD:
            return [range(first, first + shard) for first in range(0, ranks, shard)]
        return [range(first, ranks, shard) for first in range(shard)]
