"""The result of a trial, as reports show it."""

from __future__ import annotations

from dataclasses import dataclass

from commprof.stats.intervals import Interval

#: A candidate is still settling if the second half of a block has shorter steps than the first
#: half, by more than this fraction.
_SETTLED = 0.02


@dataclass(frozen=True)
class BreakEven:
    """Bandwidth of a rank's link below which a candidate makes a step shorter."""

    #: When the candidate makes a step shorter: "below" the bandwidth, "never" or "always".
    pays: str
    #: The bandwidth if ``pays`` is "below", else None. The interval may reach infinity.
    gbit_per_s: Interval | None


@dataclass(frozen=True)
class NoBreakEven:
    """Reason why a candidate has no break-even bandwidth."""

    #: "does not apply" if candidates of this kind never have a break-even bandwidth, else
    #: "not known".
    answer: str
    #: The reason, as a text that follows the word "since".
    reason: str


@dataclass(frozen=True)
class CandidateResult:
    """Figures of one candidate over all complete rounds.

    Unless stated otherwise, a figure is the median over rounds. In each round, the figure is the
    mean of the ranks' medians over the measured steps.
    """

    label: str
    #: "baseline", "control", "headroom" or "candidate".
    role: str
    #: Number of techniques that the candidate combines; 0 unless ``role`` is "candidate".
    techniques: int
    #: True if training with the candidate gives the same bits as training without it.
    exact: bool
    #: True if the candidate has a lossy compressor, or a type in which FSDP2 reduces gradients.
    compresses: bool
    #: Typical step time on the slowest rank; see ``stats.intervals.center``.
    step_ms: float
    #: ``step_ms`` with its 95 % interval; None if there are too few rounds.
    step_ms_interval: Interval | None
    #: Step time divided by the baseline's step time, with a 95 % interval. None for the baseline,
    #: and if there are too few rounds.
    ratio: Interval | None
    #: ``ratio`` with a wider interval, at the joint level: the intervals of all candidates together
    #: have a confidence of 95 % (Bonferroni).
    joint_ratio: Interval | None
    #: Time that the training thread waited for communication.
    exposed_ms: float
    #: Time of communication during which the training thread worked.
    hidden_ms: float
    #: Time of the compressor's thread per step; NaN if not recorded.
    encode_ms: float
    #: Time of the compressor's thread per step; NaN if not recorded.
    reduce_ms: float
    #: Time of the compressor's thread per step; NaN if not recorded.
    decode_ms: float
    #: Bytes that a rank sends per step; NaN if unknown.
    wire_bytes: float
    #: Relative error of the sent values, by default in the first step of each block; NaN if not
    #: measured. Mean over buckets, weighted by size.
    relative_error: float
    #: Cosine similarity of the sent values and the values to send, measured and averaged as
    #: ``relative_error``.
    cosine: float
    #: Relative change of the loss from the baseline's loss; None if unknown.
    loss_effect: Interval | None
    #: Share of the communication overhead that the candidate saves; None if unknown. The overhead
    #: is the step time of ``none`` minus the step time of ``noop``.
    overhead_reduction: Interval | None
    break_even: BreakEven | None
    #: Reason why ``break_even`` is missing. None for settings of FSDP2, and unless ``role`` is
    #: "candidate".
    no_break_even: NoBreakEven | None = None
    #: Reason why the candidate is never recommended; empty if it may be recommended.
    barred: str = ""
    #: At most this many bytes of gathered parameters does a rank hold beyond the baseline, as
    #: computed from their sizes.
    held_bytes: float = 0.0
    #: Median step time in the second half of a block's measured steps, divided by the median in the
    #: first half. Below 1 if the candidate is still settling after a switch. None if there are too
    #: few steps or rounds.
    later_over_earlier: Interval | None = None

    @property
    def settles(self) -> bool:
        """True if the candidate was still settling, so that its step times are too long."""
        ratio = self.later_over_earlier
        return ratio is not None and ratio.high < 1 and ratio.value < 1 - _SETTLED

    @property
    def gain(self) -> Interval | None:
        """Share of the step time that the candidate saves, computed from ``joint_ratio``."""
        return less(self.joint_ratio)


@dataclass(frozen=True)
class StepShare:
    """One part of the baseline's step."""

    part: str
    ms: float


@dataclass(frozen=True)
class TrialVerdict:
    """Recommendation after a trial."""

    #: "none": change nothing; "not-the-bottleneck": faster communication could gain too little;
    #: "use": apply ``choice``; "unknown": the rounds are too few or too noisy, or a rank's trace is
    #: missing.
    answer: str
    #: Label of the recommended candidate; empty unless ``answer`` is "use".
    choice: str
    #: Share of the step time that ``choice`` saves. If ``noop`` decided the answer, the share that
    #: ``noop`` saves. Otherwise None. The interval of ``choice`` is at the joint level, and
    #: the interval of ``noop`` at 95 %.
    gain: Interval | None
    sentences: tuple[str, ...]
    #: Command or code that applies ``choice``; empty unless ``answer`` is "use".
    apply: str
    #: Label of the fastest candidate that may be recommended; empty unless ``answer`` is "use".
    fastest: str = ""
    #: ``fastest``, and labels of candidates whose speed does not differ measurably. ``choice`` is
    #: one of these labels.
    equals: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial at one world size."""

    world_size: int
    #: Number of complete rounds.
    rounds: int
    planned_rounds: int
    #: Number of measured steps of a block.
    block_steps: int
    #: Number of warm-up steps of a block, before the measured steps.
    warmup_steps: int
    #: Results of all candidates, in the order of ``TrialPlan.everyone``.
    candidates: tuple[CandidateResult, ...]
    #: Parts of the baseline's step, the largest first.
    parts: tuple[StepShare, ...]
    #: Average rate at which a rank sent while the baseline's communication was in flight; NaN if
    #: unknown.
    link_gbit_per_s: float
    #: Label and reason of each candidate that could not take part.
    left_out: tuple[tuple[str, str], ...]
    verdict: TrialVerdict

    def of_role(self, role: str) -> CandidateResult:
        """Returns the result of the candidate with this role: baseline, control or headroom."""
        return next(candidate for candidate in self.candidates if candidate.role == role)


def less(ratio: Interval | None) -> Interval | None:
    """Returns 1 minus the ratio, which is the share saved; None without a ratio."""
    if ratio is None:
        return None
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
