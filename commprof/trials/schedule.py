"""Whose turn is when: a pure function of a few numbers, so that ranks need not negotiate."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Block:
    """Steps that follow each other with one candidate."""

    round: int
    #: Its place among all that take turns.
    candidate: int
    #: Of the trial's steps, counted from 0; the first of the block, of which warm-up are left out.
    begin: int
    #: The first that is measured, and the first of the next block.
    measured: int
    end: int


@dataclass(frozen=True)
class Schedule:
    """Rounds in which each candidate has one block, in an order drawn anew for each round."""

    candidates: int
    rounds: int
    block_steps: int
    warmup_steps: int
    seed: int

    @property
    def steps(self) -> int:
        """Of all blocks."""
        return self.rounds * self.candidates * (self.warmup_steps + self.block_steps)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """In order of time."""
        length = self.warmup_steps + self.block_steps
        turns = [(turn, who) for turn in range(self.rounds) for who in self._order(turn)]
        return tuple(
            Block(turn, who, i * length, i * length + self.warmup_steps, (i + 1) * length)
            for i, (turn, who) in enumerate(turns)
        )

    def block_at(self, step: int) -> Block | None:
        """The block that begins with this step of the trial."""
        place, rest = divmod(step, self.warmup_steps + self.block_steps)
        return self.blocks[place] if rest == 0 and 0 <= place < len(self.blocks) else None

    def _order(self, turn: int) -> list[int]:
        # A text as seed: the same draw in every process and version of Python 3.
        draw = random.Random(f"commprof trial {self.seed} {turn}")
        return draw.sample(range(self.candidates), self.candidates)
