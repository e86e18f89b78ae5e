"""What came of a trial, ready to be rendered."""

from __future__ import annotations

from dataclasses import dataclass

from commprof.stats.intervals import Interval

#: Share of a step by which halves of a block may differ.
_SETTLED = 0.02


@dataclass(frozen=True)
class BreakEven:
    """Bandwidth of a rank's link below which a candidate makes a step shorter."""

    #: "below", "never" or "always".
    pays: str
    #: For "below" the bandwidth with its interval, which may reach infinity; None elsewhere.
    gbit_per_s: Interval | None


@dataclass(frozen=True)
class NoBreakEven:
    """Why a candidate has no break-even bandwidth."""

    #: "does not apply": there is none by the candidate's nature; "not known": none was measured.
    answer: str
    #: In words, as they follow "since".
    reason: str


@dataclass(frozen=True)
class CandidateResult:
    """Figures of one candidate over all complete rounds.

    A figure is the median over rounds of blocks; a block's the median over its measured steps, as
    mean over the ranks.
    """

    label: str
    #: "baseline", "control", "headroom" or "candidate".
    role: str
    #: How many techniques it combines; 0 for the first three roles.
    techniques: int
    #: Training with it has the bits of training without.
    exact: bool
    #: It changes gradients by more than the order of their sums, whether that was measured or not.
    compresses: bool
    #: Typical block (``statistics.center`` of the logarithms), on the slowest rank.
    step_ms: float
    #: The same with its interval at 95 %; None with too few rounds.
    step_ms_interval: Interval | None
    #: That over the baseline's, paired by round, at 95 %; None for the baseline itself.
    ratio: Interval | None
    #: The same at a level at which all candidates' intervals hold together (Bonferroni).
    joint_ratio: Interval | None
    #: The training thread stood still for communication.
    exposed_ms: float
    #: Communication under way while it worked.
    hidden_ms: float
    #: On the compressor's thread, per step; NaN without a compressor.
    encode_ms: float
    reduce_ms: float
    decode_ms: float
    #: Sent by a rank per step; NaN where it is not known.
    wire_bytes: float
    #: Of what was sent against what was to be sent, in the first step of each block; means over
    #: buckets by size. NaN where nothing was measured, as for candidates without a compressor.
    relative_error: float
    cosine: float
    #: Loss over the block less the baseline's, over the baseline's; None where it is not known.
    loss_effect: Interval | None
    #: Of the communication overhead (step less the headroom's step), the share that it takes away.
    overhead_reduction: Interval | None
    break_even: BreakEven | None
    #: Of a candidate without a break-even; None for the first three roles and settings of FSDP2.
    no_break_even: NoBreakEven | None = None
    #: Why it is never recommended, in words; empty where an option applies it.
    barred: str = ""
    #: Gathered parameters that a rank holds at most beyond what it holds with the baseline.
    held_bytes: float = 0.0
    #: Step in the later half of a block's measured steps over that in the earlier half, at the
    #: joint level; below 1 while it settles after a switch. None where steps or rounds are too few.
    later_over_earlier: Interval | None = None

    @property
    def settles(self) -> bool:
        """True if its steps were still getting shorter, so that its figures are too long."""
        found = self.later_over_earlier
        return found is not None and found.high < 1 and found.value < 1 - _SETTLED

    @property
    def gain(self) -> Interval | None:
        """Share of the step that it saves, at the joint confidence level."""
        return less(self.joint_ratio)


@dataclass(frozen=True)
class StepShare:
    """One part of the baseline's step."""

    part: str
    ms: float


@dataclass(frozen=True)
class Verdict:
    """What to do after a trial."""

    #: "none": leave it; "not-the-bottleneck"; "use": apply ``choice``; "unknown": too few rounds,
    #: or too noisy ones.
    answer: str
    #: Label of what to use; empty unless ``answer`` is "use".
    choice: str
    #: Share of the step that it saves, at the joint level; of the headroom where there is nothing.
    gain: Interval | None
    #: In plain words, the first the most important.
    sentences: tuple[str, ...]
    #: What applies it: a command, or what to write; empty unless ``answer`` is "use".
    apply: str
    #: Label of the fastest that wins; empty unless ``answer`` is "use".
    fastest: str = ""
    #: Labels of those that did not differ measurably from the fastest, and its own, which hold
    #: ``choice`` too.
    equals: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial at one world size."""

    world_size: int
    #: Complete ones, of those that were planned.
    rounds: int
    planned_rounds: int
    #: Measured steps of a block, and those left out before them.
    block_steps: int
    warmup_steps: int
    #: In the order of the plan.
    candidates: tuple[CandidateResult, ...]
    #: Parts of the baseline's step, the largest first.
    parts: tuple[StepShare, ...]
    #: What the link carried while the baseline's communication was under way; NaN if unknown.
    link_gbit_per_s: float
    #: Candidates that could not take part, with the reason.
    left_out: tuple[tuple[str, str], ...]
    verdict: Verdict

    def of_role(self, role: str) -> CandidateResult:
        """The candidate of a role that occurs once."""
        return next(one for one in self.candidates if one.role == role)


def less(ratio: Interval | None) -> Interval | None:
    """Share that is saved: 1 less the ratio."""
    if ratio is None:
        return None
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
