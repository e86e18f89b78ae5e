"""What a trial was asked to do: its candidates, its blocks, and which candidate runs when."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from functools import cached_property

from commprof.errors import UsageError
from commprof.trials.candidates import (
    BASELINE,
    CONTROL,
    HEADROOM,
    ROLES,
    Candidate,
    is_technique,
    parse_candidate,
)


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
        """Number of steps of all blocks."""
        return self.rounds * self.candidates * (self.warmup_steps + self.block_steps)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in order of time."""
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


#: Steps before a trial: DDP cuts its buckets, optimizers make their state.
SETTLE_STEPS = 3


@dataclass(frozen=True)
class Plan:
    """A trial's candidates, rounds and block lengths, as ``parse_trial`` reads them."""

    #: Without the three that always take part.
    candidates: tuple[Candidate, ...]
    #: Every candidate has one block in each.
    rounds: int = 8
    #: Measured steps of a block.
    block: int = 6
    #: Steps after a switch that are left out.
    warmup: int = 2
    #: Seed of the order.
    shuffle: int = 0
    #: 1: noop takes part. Without it the trial says nothing of what could be won at most.
    headroom: int = 1

    @property
    def everyone(self) -> tuple[Candidate, ...]:
        """All candidates that take turns: none, none again, noop, and the named ones."""
        roles = ROLES if self.headroom else ROLES[:-1]
        return (*roles, *self.candidates)

    def schedule(self) -> Schedule:
        """Order of the blocks in all rounds."""
        return Schedule(len(self.everyone), self.rounds, self.block, self.warmup, self.shuffle)

    @property
    def steps(self) -> int:
        """Number of steps that a training needs for the whole trial."""
        return SETTLE_STEPS + self.schedule().steps

    def without(self, labels: set[str]) -> Plan:
        """The plan without the candidates of these labels."""
        kept = tuple(one for one in self.candidates if one.label not in labels)
        return dataclasses.replace(self, candidates=kept)

    @property
    def text(self) -> str:
        """The plan as ``parse_trial`` reads it."""
        words = [BASELINE, *(one.label for one in self.candidates)]
        words += [f"{name}={getattr(self, name)}" for name in SETTINGS]
        return ",".join(words)


#: Setting -> least and largest value.
SETTINGS = {
    "rounds": (3, 64),
    "block": (1, 10_000),
    "warmup": (2, 1000),
    "shuffle": (0, 2**31),
    "headroom": (0, 1),
}


def parse_trial(text: str) -> Plan:
    """Reads a plan such as ``fp16,topk:ratio=0.01,bucket-cap=5,int8+bucket-cap=5,rounds=8``.

    Commas separate candidates; options of one may follow with commas too, as in
    ``topk:ratio=0.01,feedback=0``. ``rounds``, ``block``, ``warmup``, ``shuffle`` and ``headroom``
    are of the trial itself.

    Raises:
        UsageError: an unknown word, a value out of range, or nothing to compare.
    """
    items: list[str] = []
    settings: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = word.partition("=")
        if name in settings:
            raise UsageError(f"trial: option {name!r} is given twice; keep one of them")
        if name in SETTINGS and equals:
            settings[name] = _setting(name, value)
        elif is_technique(word) or not (items and equals):
            items.append(word)
        else:
            items[-1] += f",{word}"
    # Those that always take part may be listed as well.
    listed = [item for item in items if item not in (BASELINE, CONTROL, HEADROOM)]
    candidates = tuple(dict.fromkeys(parse_candidate(item) for item in listed))
    if not items:
        raise UsageError(f"trial {text!r} names no candidate, as in fp16,int8,bucket-cap=5")
    return Plan(candidates, **settings)


def _setting(name: str, value: str) -> int:
    low, high = SETTINGS[name]
    if not value.isdecimal() or not low <= int(value) <= high:
        raise UsageError(
            f"trial: {name}={value} is out of range (allowed: a whole number from {low} to {high})"
        )
    return int(value)
