"""How many samples a row gets: by time, so that small sizes get many and large ones enough."""

from __future__ import annotations

from commprof.units import NS_PER_MS

_BUDGET_NS = 200 * NS_PER_MS  # per row, over all rounds
_LEAST, _MOST = 20, 400  # nccl-tests' standard; what a p99 and the result file need at most
_WARMUP_NS = 5 * NS_PER_MS  # per round
_MOST_WARMUP = 5

#: For the result's context.
WARMUP_RULE = "1 to 5 calls per size and round, as many as fit into 5 ms"


def samples_per_round(call_ns: float, rounds: int, asked: int | None) -> tuple[int, ...]:
    """Samples of each round for a call of this length; asked: so many in all, see ``-n``."""
    wanted = asked or min(max(int(_BUDGET_NS / call_ns), _LEAST), _MOST)
    if asked is None:
        wanted = -(-wanted // rounds) * rounds
    return tuple(wanted * (turn + 1) // rounds - wanted * turn // rounds for turn in range(rounds))


def warmup_calls(call_ns: float, asked: int | None) -> int:
    """Calls before the samples of a round; asked: see ``-w``."""
    if asked is not None:
        return asked
    return min(max(int(_WARMUP_NS / call_ns), 1), _MOST_WARMUP)
