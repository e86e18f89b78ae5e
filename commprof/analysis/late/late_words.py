"""Sentences on a late rank, for full mode and for always-on mode."""

from __future__ import annotations

from typing import Protocol

from commprof.analysis.late.stragglers import each_waits
from commprof.text import in_seconds


class _Late(Protocol):
    @property
    def share(self) -> float: ...
    @property
    def p_value(self) -> float: ...
    @property
    def cost_s(self) -> float: ...
    @property
    def waiting_ranks(self) -> int: ...


def with_cost(is_late: str, late: _Late, wait_ms: float, world_size: int) -> str:
    """Returns a sentence that states what the late rank costs per step.

    Args:
        is_late: beginning of the sentence, such as "rank 3 is late".
        late: ``stragglers.LateRank`` or ``SummaryLateRank``.
        wait_ms: time per step for which one waiting rank waits for the late rank, on average.
        world_size: number of ranks.
    """
    waits = each_waits(late.waiting_ranks, world_size)
    return (
        f"{is_late}: {waits} {wait_ms:.1f} ms per step for it, {late.share:.0%} of all waiting "
        f"(probability of this by chance: p = {late.p_value:.4f})."
    )


def cost_in_all(late: _Late) -> str:
    """Returns what the late rank cost in all examined steps, as the end of a sentence."""
    return f"cost the others {in_seconds(1000 * late.cost_s)} of waiting in all"
