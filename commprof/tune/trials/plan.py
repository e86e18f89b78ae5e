"""The plan of a trial: candidates, blocks, and the order of the blocks."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from functools import cached_property

from commprof.errors import UsageError
from commprof.tune.trials.candidates import (
    BASELINE,
    CONTROL,
    HEADROOM,
    ROLES,
    Candidate,
    is_technique,
    parse_candidate,
)


@dataclass(frozen=True)
class TrialBlock:
    """Consecutive steps with one candidate. The first step of the trial has number 0."""

    round: int
    #: Index of the candidate in ``TrialPlan.everyone``.
    candidate: int
    #: First step of the block; the block begins with warm-up steps.
    begin: int
    #: First measured step of the block.
    measured: int
    #: First step after the block.
    end: int


@dataclass(frozen=True)
class TrialSchedule:
    """The rounds of a trial. Each round has one block per candidate, in random order."""

    candidates: int
    rounds: int
    block_steps: int
    warmup_steps: int
    seed: int

    @property
    def steps(self) -> int:
        """Number of steps in all blocks together."""
        return self.rounds * self.candidates * (self.warmup_steps + self.block_steps)

    @cached_property
    def blocks(self) -> tuple[TrialBlock, ...]:
        """All blocks in chronological order."""
        length = self.warmup_steps + self.block_steps
        turns = [(turn, who) for turn in range(self.rounds) for who in self._order(turn)]
        return tuple(
            TrialBlock(turn, who, i * length, i * length + self.warmup_steps, (i + 1) * length)
            for i, (turn, who) in enumerate(turns)
        )

    def block_at(self, step: int) -> TrialBlock | None:
        """Returns the block that begins at this step of the trial; None if no block does."""
        block, rest = divmod(step, self.warmup_steps + self.block_steps)
        return self.blocks[block] if rest == 0 and 0 <= block < len(self.blocks) else None

    def _order(self, turn: int) -> list[int]:
        # With a text as seed, the draw is the same in every process and version of Python 3.
        draw = random.Random(f"commprof trial {self.seed} {turn}")
        return draw.sample(range(self.candidates), self.candidates)


#: Number of steps before a trial. In these steps DDP builds its buckets, and optimizers build their
#: state.
SETTLE_STEPS = 3


@dataclass(frozen=True)
class TrialPlan:
    """A trial's candidates and settings."""

    #: Candidates that the user named, without ``none``, ``none again`` and ``noop``.
    candidates: tuple[Candidate, ...]
    rounds: int = 8
    #: Number of measured steps of a block.
    block: int = 6
    #: Number of warm-up steps of a block, before the measured steps.
    warmup: int = 2
    shuffle: int = 0
    #: 1 if ``noop`` takes part, else 0.
    headroom: int = 1

    @property
    def everyone(self) -> tuple[Candidate, ...]:
        """All candidates: ``none``, ``none again``, ``noop`` if it takes part, and the user's."""
        roles = ROLES if self.headroom else ROLES[:-1]
        return (*roles, *self.candidates)

    def schedule(self) -> TrialSchedule:
        """Returns the order of the blocks in all rounds."""
        return TrialSchedule(len(self.everyone), self.rounds, self.block, self.warmup, self.shuffle)

    @property
    def steps(self) -> int:
        """Number of steps that a training run needs for the whole trial."""
        return SETTLE_STEPS + self.schedule().steps

    def without(self, labels: set[str]) -> TrialPlan:
        """Returns the plan without the candidates with these labels."""
        candidates = tuple(
            candidate for candidate in self.candidates if candidate.label not in labels
        )
        return dataclasses.replace(self, candidates=candidates)

    @property
    def text(self) -> str:
        """Text from which ``parse_trial`` makes this plan."""
        words = [BASELINE, *(candidate.label for candidate in self.candidates)]
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


def parse_trial(text: str) -> TrialPlan:
    """Reads a plan such as ``fp16,topk:ratio=0.01,bucket-cap=5,int8+bucket-cap=5,rounds=8``.

    Commas separate candidates. Commas also separate the options of one candidate, as in
    ``topk:ratio=0.01,feedback=0``. ``rounds``, ``block``, ``warmup``, ``shuffle`` and ``headroom``
    are settings of the trial itself.

    Raises:
        UsageError: a word is unknown, a value is out of range, or no candidate is named.
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
    # Users may also list "none", "none again" and "noop", which TrialPlan.everyone adds.
    listed = [item for item in items if item not in (BASELINE, CONTROL, HEADROOM)]
    candidates = tuple(dict.fromkeys(parse_candidate(item) for item in listed))
    if not items:
        raise UsageError(
            f"trial {text!r} names no candidate; name some, such as fp16,int8,bucket-cap=5"
        )
    if HEADROOM in items and settings.get("headroom") == 0:
        raise UsageError(f"trial: {HEADROOM} and headroom=0 exclude each other; keep one of them")
    return TrialPlan(candidates, **settings)


def _setting(name: str, value: str) -> int:
    low, high = SETTINGS[name]
    if not value.isdecimal() or not low <= int(value) <= high:
        raise UsageError(
            f"trial: {name}={value} is out of range (allowed: a whole number from {low} to {high})"
        )
    return int(value)
