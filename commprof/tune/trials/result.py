"""Result of a trial, ready to be rendered."""

from __future__ import annotations

from dataclasses import dataclass

from commprof.stats.intervals import Interval

#: A candidate counts as settled if steps in the second half of a block are shorter than in the
#: first half by at most this fraction.
_SETTLED = 0.02


@dataclass(frozen=True)
class BreakEven:
    """Bandwidth of a rank's link below which a candidate makes a step shorter."""

    #: When the candidate makes a step shorter: "below" the bandwidth, "never" or "always".
    pays: str
    #: For "below" the bandwidth with its interval, which may reach infinity; else None.
    gbit_per_s: Interval | None


@dataclass(frozen=True)
class NoBreakEven:
    """Reason why a candidate has no break-even bandwidth."""

    #: "does not apply" if candidates of this kind cannot have one; "not known" if not measured.
    answer: str
    #: The reason as a clause that follows "since".
    reason: str


@dataclass(frozen=True)
class CandidateResult:
    """Figures of one candidate over all complete rounds.

    Unless stated otherwise, a figure is the median over the rounds' blocks. The figure of a block
    is the mean, over the ranks, of each rank's median over the block's measured steps.
    """

    label: str
    #: "baseline", "control", "headroom" or "candidate".
    role: str
    #: Number of techniques that the candidate combines; 0 unless ``role`` is "candidate".
    techniques: int
    #: True if training with the candidate gives the same bits as training without it.
    exact: bool
    #: True if gradients change in other ways than by the order of summation, even if the change was
    #: not measured.
    compresses: bool
    #: Typical step on the slowest rank: Hodges-Lehmann estimate over the rounds, computed from the
    #: logarithms of their steps; see ``stats.intervals.center``.
    step_ms: float
    #: ``step_ms`` with its 95 % interval; None if rounds are too few.
    step_ms_interval: Interval | None
    #: Step divided by the baseline's step, paired by round, with its 95 % interval; None for the
    #: baseline itself.
    ratio: Interval | None
    #: ``ratio`` with a wider interval, at the joint level: the intervals of all candidates together
    #: then hold at 95 % (Bonferroni).
    joint_ratio: Interval | None
    #: Time that the training thread waited for communication.
    exposed_ms: float
    #: Communication in flight while the training thread worked.
    hidden_ms: float
    #: This and the next fields are times on the compressor's thread, per step; NaN without a
    #: compressor.
    encode_ms: float
    reduce_ms: float
    decode_ms: float
    #: Bytes that a rank sends per step; NaN if unknown.
    wire_bytes: float
    #: Relative error of the sent values, compared with the values to send, in the first step of
    #: each block; the next field is their cosine similarity. Both are means over buckets weighted
    #: by size. NaN if not measured, as without a compressor.
    relative_error: float
    cosine: float
    #: Loss in the candidate's blocks minus loss in the baseline's blocks, divided by the latter;
    #: None if unknown.
    loss_effect: Interval | None
    #: Share of the communication overhead that the candidate saves. The overhead is the
    #: step time of ``none`` minus that of ``noop``, which exchanges nothing.
    overhead_reduction: Interval | None
    break_even: BreakEven | None
    #: Reason for a missing break-even; None for other roles than "candidate", and for
    #: settings of FSDP2.
    no_break_even: NoBreakEven | None = None
    #: Reason why the candidate is never recommended; empty if it can be.
    barred: str = ""
    #: Largest number of bytes of gathered parameters that a rank holds in addition to the
    #: baseline's.
    held_bytes: float = 0.0
    #: Median step in the second half of a block's measured steps, divided by that in the first
    #: half, with its interval at the joint level. Below 1 if the candidate is still settling after
    #: a switch. None if steps or rounds are too few.
    later_over_earlier: Interval | None = None

    @property
    def settles(self) -> bool:
        """True if the candidate was still settling: steps became shorter within a block.

        The candidate's step times are then too large.
        """
        ratio = self.later_over_earlier
        return ratio is not None and ratio.high < 1 and ratio.value < 1 - _SETTLED

    @property
    def gain(self) -> Interval | None:
        """Share of the step time that the candidate saves, with its interval at the joint level."""
        return less(self.joint_ratio)


@dataclass(frozen=True)
class StepShare:
    """One part of the baseline's step."""

    part: str
    ms: float


@dataclass(frozen=True)
class TrialVerdict:
    """Recommendation after a trial."""

    #: "none": change nothing; "not-the-bottleneck": faster communication could win too little;
    #: "use": apply ``choice``; "unknown": rounds are too few or too noisy.
    answer: str
    #: Label of the recommended candidate; empty unless ``answer`` is "use".
    choice: str
    #: If ``answer`` is "use": share of the step that ``choice`` saves, at the joint level. If the
    #: time of ``noop`` decided the answer: share of the step that ``noop`` saves, at 95 %. In all
    #: other cases None.
    gain: Interval | None
    #: Sentences for the reader, the most important first.
    sentences: tuple[str, ...]
    #: Command or code that applies ``choice``; empty unless ``answer`` is "use".
    apply: str
    #: Label of the fastest winner. Winners are the candidates that have a measurable gain and may
    #: be recommended. Empty unless ``answer`` is "use".
    fastest: str = ""
    #: Labels of ``fastest``, and of the winners that do not differ measurably from it.
    #: ``choice`` is one of them.
    equals: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial at one world size."""

    world_size: int
    #: Number of complete rounds; the next field is the number of planned rounds.
    rounds: int
    planned_rounds: int
    #: Number of measured steps of a block; the next field is the number of warm-up steps before
    #: them.
    block_steps: int
    warmup_steps: int
    #: Results of all candidates, in the order of ``TrialPlan.everyone``.
    candidates: tuple[CandidateResult, ...]
    #: Parts of the baseline's step, the largest first.
    parts: tuple[StepShare, ...]
    #: Average rate at which a rank sent while the baseline's communication was in flight; NaN if
    #: unknown.
    link_gbit_per_s: float
    #: Candidates that could not take part, with the reason.
    left_out: tuple[tuple[str, str], ...]
    verdict: TrialVerdict

    def of_role(self, role: str) -> CandidateResult:
        """Returns the result of the one candidate with this role: baseline, control or headroom."""
        return next(candidate for candidate in self.candidates if candidate.role == role)


def less(ratio: Interval | None) -> Interval | None:
    """Returns the share saved, 1 minus the ratio, with its interval; None without a ratio."""
    if ratio is None:
        return None
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
