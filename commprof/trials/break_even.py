"""The bandwidth below which a candidate pays; ``docs/trials.md`` derives the formula."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.stats.intervals import CONFIDENCE, MIN_ROUNDS, interval_of, resamples
from commprof.trials.candidates import ROLES, Candidate
from commprof.trials.result import BreakEven, NoBreakEven

Floats = npt.NDArray[np.float64]

#: Nanoseconds per byte -> Gbit/s: 8 bit over so many ns.
_BITS = 8.0


@dataclass(frozen=True)
class Costs:
    """A candidate's costs per round; times in ns per step, bytes per step and rank."""

    #: Sent with the baseline, and with the candidate.
    plain_bytes: Floats
    wire_bytes: Floats
    #: Encode, reduce and decode, which lengthen the chain of communication.
    coding_ns: Floats
    #: What a step lasts longer with the candidate, waiting for communication left out.
    slowdown_ns: Floats
    #: Communication that the baseline hides behind the training thread's work.
    hidden_ns: Floats


def break_even(costs: Costs) -> BreakEven | None:
    """Computes the break-even bandwidth; None with too few rounds or measurements."""
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
    found = interval_of(value, drawn, count, CONFIDENCE)
    return BreakEven("below", replace(found, low=max(0.0, found.low)))


def no_break_even(one: Candidate, rounds: int, told: bool) -> NoBreakEven | None:
    """Says why a candidate has no break-even bandwidth; None where none is expected.

    Args:
        one: a candidate of which ``break_even`` is not known.
        rounds: complete ones.
        told: whether its compressor recorded bytes and times.
    """
    if one in ROLES or one.sharding.count:
        return None
    if one.hook and not one.link_only:
        return NoBreakEven("not known", f"what {one.hook} sends is not recorded")
    if not one.link_only:
        return _does_not_apply(
            "bytes within a host go through memory, not over the network, and how many leave the "
            "host is not recorded"
        )
    if not one.compressor:
        how = "at another time" if one.hook and not one.buckets.label else "in other buckets"
        return _does_not_apply(f"the same bytes are sent {how}, and none are saved")
    if rounds < MIN_ROUNDS:
        return NoBreakEven("not known", f"{MIN_ROUNDS} complete rounds are the least")
    if not told:
        why = "compressors that run as torch operations tell neither bytes nor times"
        return NoBreakEven("not known", why)
    return NoBreakEven("not known", "a figure that it takes was not measured")


def _does_not_apply(reason: str) -> NoBreakEven:
    return NoBreakEven("does not apply", reason)


def bandwidth(
    plain_bytes: Floats,
    wire_bytes: Floats,
    coding_ns: Floats,
    slowdown_ns: Floats,
    hidden_ns: Floats,
) -> Floats:
    """The smaller of two bandwidths in bits per ns, as Gbit/s.

    ``8 saved / (coding + slowdown)`` and ``8 plain / (hidden + slowdown)``.
    Above the first the bytes saved do not make up for the work; above the second the exchange
    without a compressor has next to nothing exposed to win. 0: it never pays. Infinite: always.
    """
    slow = np.maximum(slowdown_ns, 0.0)
    saved = _BITS * np.maximum(plain_bytes - wire_bytes, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_work = np.where(saved > 0, saved / (coding_ns + slow), 0.0)
        by_exposure = np.where(plain_bytes > 0, _BITS * plain_bytes / (hidden_ns + slow), 0.0)
    return np.asarray(np.minimum(by_work, by_exposure), dtype=np.float64)
