"""Computes the bandwidth below which a candidate makes a step shorter; see ``docs/trials.md``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.stats.intervals import CONFIDENCE, MIN_ROUNDS, interval_of, resamples
from commprof.tune.trials.candidates import ROLES, Candidate
from commprof.tune.trials.result import BreakEven, NoBreakEven

Floats = npt.NDArray[np.float64]

#: Bits per byte. One bit per ns is 1 Gbit/s.
_BITS = 8.0


@dataclass(frozen=True)
class BreakEvenCosts:
    """Costs of a candidate per step and rank, with one value per round."""

    #: Bytes that are sent with the baseline.
    plain_bytes: Floats
    #: Bytes that are sent with the candidate.
    wire_bytes: Floats
    #: Time of encode, reduce and decode.
    coding_ns: Floats
    #: Increase of the step time over the baseline. Waiting for communication does not count.
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
            "compressors that run as torch operations record neither bytes nor times, and only "
            "fp32 gradients are compressed"
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
    """Returns the break-even bandwidth in Gbit/s: the smaller of two bounds.

    Below ``8 (plain - wire) / (coding + slowdown)``, the saved bytes save more time than coding and
    slowdown cost. Below ``8 plain / (hidden + slowdown)``, the baseline waits longer for
    communication than the slowdown costs. The result is 0 if the candidate never makes a step
    shorter, and infinite if the candidate always makes a step shorter.
    """
    slow = np.maximum(slowdown_ns, 0.0)
    saved = _BITS * np.maximum(plain_bytes - wire_bytes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_work = np.where(saved > 0, saved / (coding_ns + slow), 0.0)
        by_exposure = np.where(plain_bytes > 0, _BITS * plain_bytes / (hidden_ns + slow), 0.0)
    return np.asarray(np.minimum(by_work, by_exposure), dtype=np.float64)
