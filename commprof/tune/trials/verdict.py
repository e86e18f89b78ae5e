"""Judges a trial's figures in plain words, and recommends what to do."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof import invocation, variables
from commprof.analysis.run_command import taken_apart
from commprof.analysis.step.breakdown import WORTH_A_LOOK
from commprof.stats.intervals import MIN_ROUNDS, Interval, ratio_of_rounds
from commprof.text import named_ranks
from commprof.tune.trials.candidates import Candidate, all_digits
from commprof.tune.trials.result import CandidateResult, StepShare, TrialVerdict, less
from commprof.tune.trials.sharding import ShardingSetting

Floats = npt.NDArray[np.float64]


_TOO_NOISY = (
    "Too noisy to say whether work on communication is worthwhile: run the trial again on a "
    "quieter machine, or with more rounds."
)


@dataclass(frozen=True)
class TrialSetting:
    """Facts about the command that started the trial."""

    command: str
    #: True if ``commprof run`` started the trial, so that its command can be repeated.
    is_run: bool
    #: Script and its arguments in ``command``; empty for a workload.
    script: tuple[str, ...] = ()


def judge(
    candidates: Sequence[Candidate],
    results: Sequence[CandidateResult],
    step_ns: Floats,
    parts: Sequence[StepShare],
    setting: TrialSetting,
) -> TrialVerdict:
    """Reaches the verdict on a trial.

    Args:
        candidates: candidates of the plan, without ``none``, ``none again`` and ``noop``.
        results: results of all candidates, with ``none``, ``none again`` and ``noop``.
        step_ns: step times, ``[candidate, round]``; candidates are in the order of ``results``.
        parts: parts of the baseline's step, the largest first.
        setting: how the trial was started; determines the command that applies the choice.
    """
    rounds = int(step_ns.shape[1])
    if rounds < MIN_ROUNDS:
        return _too_short(rounds)
    baseline = next(result for result in results if result.role == "baseline")
    sentences = [_bound_by(parts, baseline.step_ms)]
    headroom = next((result for result in results if result.role == "headroom"), None)
    if headroom is not None:
        won = less(headroom.ratio)
        assert won is not None
        sentences.insert(0, _ceiling(won))
        if won.value < WORTH_A_LOOK and won.high >= 2 * WORTH_A_LOOK:
            sentences.append(_TOO_NOISY)
            return TrialVerdict("unknown", "", won, tuple(sentences), "")
        if won.value < WORTH_A_LOOK:
            sentences.append(_not_the_bottleneck(parts))
            return TrialVerdict("not-the-bottleneck", "", won, tuple(sentences), "")
    chance = _chance(results)
    winners = [result for result in results if _wins(result, chance) and not result.barred]
    if not winners:
        sentences += [_nothing_wins(results, chance), *_barred(results, chance)]
        return TrialVerdict("none", "", None, tuple(sentences), "")
    best = min(winners, key=lambda result: result.step_ms)
    equals = [
        result for result in winners if result is best or _tied(result, best, results, step_ns)
    ]
    choice = min(equals, key=lambda result: (_damage(result), result.step_ms))
    sentences += [*_recommend(choice, equals, rounds), *_barred(results, chance)]
    candidate = next(result for result in candidates if result.label == choice.label)
    return TrialVerdict(
        "use",
        choice.label,
        choice.gain,
        tuple(sentences),
        apply(candidate, setting),
        fastest=best.label,
        equals=tuple(result.label for result in equals),
    )


def incomplete(missing: Sequence[int]) -> TrialVerdict:
    """Returns the verdict on a trial for which the traces of these ranks are missing."""
    ranks = named_ranks(missing)
    sentence = (
        f"Nothing can be compared: {ranks} left no trace of the trial. The slowest rank decides "
        "how long a step takes, so the traces of all ranks are needed. Find out why the trace is "
        "missing, and run the trial again."
    )
    return TrialVerdict("unknown", "", None, (sentence,), "")


def apply(candidate: Candidate, setting: TrialSetting) -> str:
    """Returns the command or code that applies a candidate; empty if nothing applies it.

    If ``commprof run`` did not start the job, the text has a ``commprof env`` command and code for
    the script, because a trace does not show which of the two began the trial.
    """
    if candidate.barred:
        return ""
    if candidate.sharding.count:
        return _applied_sharding(candidate.sharding, setting)
    if candidate.buckets.code:
        return _in_script(candidate)
    coded, cap = candidate.compressor, candidate.buckets.cap_mb
    cap_mb = "" if cap is None else all_digits(cap)
    if setting.is_run:
        given = (("--hook", coded), ("--bucket-cap-mb", cap_mb))
        return _run_with(setting, [word for pair in given if pair[1] for word in pair])
    under_env = _under_env(coded, cap_mb)
    return f"{under_env}; or, if the script itself began the trial: {_in_code(coded, cap_mb)}"


def _in_script(candidate: Candidate) -> str:
    """Returns code for the script, for bucket settings that no option of commprof applies."""
    hook = _in_code(candidate.compressor, "")
    return "; and ".join(filter(None, (f"in the script: {candidate.buckets.code}", hook)))


def _applied_sharding(sharding: ShardingSetting, setting: TrialSetting) -> str:
    if setting.is_run:
        return _run_with(setting, ["--fsdp", sharding.label])
    words = [f"{variables.FSDP}={sharding.label}", f"{variables.TRIAL}="]
    words.append(invocation.command("env", "--output", "DIR", "--", "COMMAND"))
    return f"{' '.join(words)}; or in the script: {sharding.code}"


def _under_env(coded: str, cap_mb: str) -> str:
    """Returns a ``commprof env`` command that begins no trial.

    The word COMMAND in the result stands for the user's own command that starts the job.
    """
    given = ((variables.HOOK, coded), (variables.BUCKET_CAP_MB, cap_mb))
    words = [f"{name}={shlex.quote(value)}" for name, value in given if value]
    words += [f"{variables.TRIAL}=", invocation.command("env", "--output", "DIR", "--", "COMMAND")]
    return " ".join(words)


def _in_code(coded: str, cap_mb: str) -> str:
    lines = []
    if coded:
        lines.append(f'commprof.attach(ddp, hook=commprof.compressors.parse("{coded}"))')
    if cap_mb:
        lines.append(f"DistributedDataParallel(model, bucket_cap_mb={cap_mb})")
    return "; and ".join(lines)


def _run_with(setting: TrialSetting, options: Sequence[str]) -> str:
    """Returns the run's command with these options in place of ``--trial``.

    ``--output`` and ``--json`` are dropped, so that the trial's own files are kept.
    """
    command = taken_apart(setting.command, setting.script)
    if command is None:
        return f"the same run with {shlex.join(options)} in place of --trial"
    return command.without(("--output", "--json")).with_in_place("--trial", options).text


def _too_short(rounds: int) -> TrialVerdict:
    sentence = (
        f"Too short for a verdict: {MIN_ROUNDS} complete rounds are needed, and the trial has "
        f"{rounds}. Train more steps, or ask for shorter blocks (block=, warmup=) or fewer "
        "candidates."
    )
    return TrialVerdict("unknown", "", None, (sentence,), "")


def _ceiling(won: Interval) -> str:
    if won.high <= 0:
        return f"Without any exchange (`noop`) a step is not shorter; gain: {_percent(won)}."
    return (
        f"Without any exchange a step is {_percent(won)} shorter. No work on communication can "
        "save more."
    )


def _not_the_bottleneck(parts: Sequence[StepShare]) -> str:
    return (
        f"Communication is not the bottleneck: less than {WORTH_A_LOOK:.0%} of a step can be "
        f"saved. Look at {_own_work(parts)} first."
    )


def _bound_by(parts: Sequence[StepShare], step_ms: float) -> str:
    total = sum(part.ms for part in parts)
    shown = ", ".join(f"{_WORDS[p.part]} {p.ms / total:.0%}" for p in parts if p.ms > 0.02 * total)
    return f"The step of {step_ms:.4g} ms is bound by {_WORDS[parts[0].part]}: {shown}."


_WORDS = {
    "data": "reading data",
    "forward": "forward",
    "backward": "backward",
    "exposed": "waiting for communication",
    "optimizer": "the optimizer",
    "other": "other work",
}


def _own_work(parts: Sequence[StepShare]) -> str:
    return _WORDS[next(part.part for part in parts if part.part != "exposed")]


def _chance(results: Sequence[CandidateResult]) -> float:
    """Returns the absolute log of the ratio of the step times of ``none again`` and ``none``.

    These candidates are identical, so that their step times differ only by chance.
    """
    control = next(result for result in results if result.role == "control")
    assert control.ratio is not None
    return abs(math.log(control.ratio.value))


def _wins(result: CandidateResult, chance: float) -> bool:
    joint = result.joint_ratio
    if result.role != "candidate" or joint is None:
        return False
    return joint.high < 1 and -math.log(joint.value) > chance


def _tied(
    result: CandidateResult,
    best: CandidateResult,
    results: Sequence[CandidateResult],
    step_ns: Floats,
) -> bool:
    places = [next(i for i, r in enumerate(results) if r is x) for x in (result, best)]
    between = ratio_of_rounds(step_ns[places[0]], step_ns[places[1]])
    return between is not None and between.contains(1.0)


def _damage(result: CandidateResult) -> tuple[float, bool]:
    """Returns a sort key: the relative error of the gradients, then True if any bits change.

    The error is 0 if gradients are not compressed, and infinite if the error was not measured.
    """
    error = result.relative_error
    if math.isnan(error):
        error = math.inf if result.compresses else 0.0
    return (error, not result.exact)


def _nothing_wins(results: Sequence[CandidateResult], chance: float) -> str:
    candidates = [result for result in results if result.role == "candidate" and not result.barred]
    tried = [(result, result.gain) for result in candidates if result.gain is not None]
    if not tried:
        return "Every candidate of this trial is for comparison only; none can be recommended."
    # A candidate with a certain gain comes before a faster candidate whose gain may be 0.
    best, gain = min(tried, key=lambda pair: (pair[1].low <= 0, pair[0].step_ms))
    if gain.low > 0:
        return (
            f"Change nothing: the best candidate, {best.label}, saves {_percent(gain)} of a step, "
            "but `none` and `none again`, which are identical, differ by "
            f"{math.expm1(chance):.1%} by chance."
        )
    return (
        "Change nothing: no candidate makes the step shorter with certainty. The best, "
        f"{best.label}, saves {_percent(gain)}."
    )


def _barred(results: Sequence[CandidateResult], chance: float) -> list[str]:
    return [
        f"{result.label} saves {_percent(result.gain)} of a step, and is not recommended: "
        f"{result.barred}."
        for result in results
        if result.barred and result.gain is not None and _wins(result, chance)
    ]


def _recommend(
    choice: CandidateResult, equals: Sequence[CandidateResult], rounds: int
) -> list[str]:
    gain = choice.gain
    assert gain is not None
    sentences = [
        f"Use {choice.label}: a step is {_percent(gain)} shorter, "
        f"{1 / (1 - gain.value):.2f} times as fast (95 % interval for all candidates together; "
        f"{rounds} rounds of interleaved blocks)."
    ]
    others = [result.label for result in equals if result is not choice]
    if others:
        why = "changes the gradients least"
        if len({_damage(result) for result in equals}) == 1:
            why = "was the fastest"
        if math.isinf(_damage(choice)[0]):
            why = "was the fastest; errors of the gradients were not measured"
        # Each of these candidates was compared only with the fastest candidate.
        best = min(equals, key=lambda result: result.step_ms)
        if choice is best or len(others) == 1:
            same = " and ".join(others)
            text = f"{same} did not differ measurably in speed from {choice.label}, which {why}."
        else:
            same = " and ".join(result.label for result in equals if result is not best)
            text = f"{same} did not differ measurably in speed from the fastest, {best.label}. "
            text += f"Of all these, {choice.label} {why}."
        sentences.append(text)
    sentences.append(_price(choice))
    if choice.held_bytes:
        held_mb = choice.held_bytes / 1e6
        sentences.append(
            f"It keeps up to {held_mb:.3g} MB more of gathered parameters on each rank."
        )
    return sentences


def _price(choice: CandidateResult) -> str:
    if choice.exact:
        return "It changes no result: the gradients have the same bits."
    if math.isnan(choice.relative_error) and not choice.compresses:
        return "It sums gradients in another order: the last bits of the result differ."
    sentence = (
        f"It changes gradients by {choice.relative_error:.2g} of their norm "
        f"(cosine {choice.cosine:.4f}). "
    )
    if math.isnan(choice.relative_error):
        sentence = "Its effect on the gradients was not measured. "
    effect = choice.loss_effect
    if effect is None:
        return sentence + "The effect on the loss was not measured: compare whole training runs."
    return sentence + (
        f"The loss in its blocks differed from the loss with `none` by {effect.value:+.2%} "
        f"[{effect.low:+.2%}, {effect.high:+.2%}]; a block is too short to show convergence: "
        "compare whole runs."
    )


def _percent(interval: Interval) -> str:
    return f"{interval.value * 100:.1f} % [{interval.low * 100:.1f}, {interval.high * 100:.1f}]"
