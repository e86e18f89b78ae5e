"""Bandwidth below which a trial's candidate makes a step shorter; see ``docs/trials.md``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.stats.intervals import CONFIDENCE, MIN_ROUNDS, interval_of, resamples
from commprof.tune.trials.candidates import ROLES, Candidate
from commprof.tune.trials.result import BreakEven, NoBreakEven

Floats = npt.NDArray[np.float64]

#: Bits per byte; bits per ns equal Gbit/s.
_BITS = 8.0


@dataclass(frozen=True)
class BreakEvenCosts:
    """A candidate's costs per step, one value per round: times in ns; bytes per rank."""

    #: Bytes sent with the baseline, and, in the next field, bytes sent with the candidate.
    plain_bytes: Floats
    wire_bytes: Floats
    #: Time of encode, reduce and decode, which lengthens the chain of communication.
    coding_ns: Floats
    #: Step time without waiting for communication: the candidate's minus the baseline's.
    slowdown_ns: Floats
    #: Time of the baseline's communication during which the training thread worked.
    hidden_ns: Floats


def break_even(costs: BreakEvenCosts) -> BreakEven | None:
    """Computes the break-even bandwidth; None if rounds or measurements are missing."""
    rows = np.stack(
        [
            costs.plain_bytes,
            costs.wire_bytes,
            costs.coding_ns,
            costs.slowdown_ns,
            costs.hidden_ns,
        ]
    )
    count = rows.shape[1]
    if count < MIN_ROUNDS or not np.isfinite(rows).all():
        return None
    value = float(bandwidth(*np.median(rows, axis=1)))
    if value == 0:
        return BreakEven("never", None)
    if np.isinf(value):
        return BreakEven("always", None)
    drawn = bandwidth(*np.median(rows[:, resamples(count)], axis=2))
    interval = interval_of(value, drawn, count, CONFIDENCE)
    return BreakEven("below", replace(interval, low=max(0.0, interval.low)))


def no_break_even(candidate: Candidate, rounds: int, is_recorded: bool) -> NoBreakEven | None:
    """Returns why a candidate has no break-even bandwidth.

    Returns None for the trial's own candidates (``none``, ``none again`` and ``noop``), and for
    candidates with settings of FSDP2.

    Args:
        candidate: a candidate without a break-even bandwidth.
        rounds: number of complete rounds.
        is_recorded: True if the candidate's compressor recorded bytes and times.
    """
    if candidate in ROLES or candidate.sharding.count:
        return None
    if candidate.hook and not candidate.link_only:
        return NoBreakEven("not known", f"the bytes that {candidate.hook} sends are not recorded")
    if not candidate.link_only:
        return _does_not_apply(
            "bytes within a host go through memory, not over the network, and the number of bytes "
            "that leave the host is not recorded"
        )
    if not candidate.compressor:
        how = (
            "at another time"
            if candidate.hook and not candidate.buckets.label
            else "in other buckets"
        )
        return _does_not_apply(f"the same bytes are sent {how}, and none are saved")
    if rounds < MIN_ROUNDS:
        return NoBreakEven("not known", f"at least {MIN_ROUNDS} complete rounds are needed")
    if not is_recorded:
        why = (
            "compressors that run as torch operations record neither bytes nor times, and "
            "gradients that are not fp32 are not compressed"
        )
        return NoBreakEven("not known", why)
    return NoBreakEven(
        "not known", "bytes or times needed to compute the bandwidth were not measured"
    )


def _does_not_apply(reason: str) -> NoBreakEven:
    return NoBreakEven("does not apply", reason)


def bandwidth(
    plain_bytes: Floats,
    wire_bytes: Floats,
    coding_ns: Floats,
    slowdown_ns: Floats,
    hidden_ns: Floats,
) -> Floats:
    """Returns the break-even bandwidth in Gbit/s (bits per ns): the smaller of two bounds.

    The arguments are the fields of ``BreakEvenCosts``; ``saved`` is ``plain - wire``. Above either
    bound, the candidate costs more time than it saves. Above ``8 saved / (coding + slowdown)``,
    sending the saved bytes takes less time than coding and slowdown add. Above ``8 plain / (hidden
    + slowdown)``, the slowdown exceeds the part of the baseline's communication that is not hidden.
    The result is 0 if the candidate never makes a step shorter, and infinite if it always does.
    """
    slow = np.maximum(slowdown_ns, 0.0)
    saved = _BITS * np.maximum(plain_bytes - wire_bytes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_work = np.where(saved > 0, saved / (coding_ns + slow), 0.0)
        by_exposure = np.where(plain_bytes > 0, _BITS * plain_bytes / (hidden_ns + slow), 0.0)
    return np.asarray(np.minimum(by_work, by_exposure), dtype=np.float64)
