"""Calls of forward and backward passes that only some ranks of a group run.

If ranks differ in a call that a model's pass issues, the cause is seldom at the call: a rank runs a
pass that the others do not run, or leaves one out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from commprof.text import named_ranks
from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.lookup import among
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
#: Function of DDP that sends buffers at the begin of a forward pass.
_SENDS_BUFFERS = "_sync_buffers"


def pass_of(trace: Trace, table: Collectives, row: int) -> str:
    """Returns the pass that issued a call: FORWARD or BACKWARD; empty for neither or not known."""
    if trace.recorded is not None:
        return ""
    if table.graph_task[row] >= 0:
        return BACKWARD
    phases, issue_ns = columns.phases(trace), table.issue_ns[row]
    inside = (phases.begin_ns <= issue_ns) & (issue_ns < phases.end_ns)
    for phase, name in ((Phase.BACKWARD, BACKWARD), (Phase.FORWARD, FORWARD)):
        if (inside & among(phases.key, phase)).any():
            return name
    # The phase of a rank that was killed in its forward pass has no end.
    (stack,) = columns.stacks(trace, table.op_id[row : row + 1]).tolist()
    frames = (trace.stacks or {}).get(stack, ())
    return FORWARD if any(frame.endswith(f" {_SENDS_BUFFERS}") for frame in frames) else ""


def advice(passes: Mapping[int, str], lines: Mapping[int, str], is_ddp: bool) -> str:
    """Returns advice if only some ranks issued the call in a pass, and the others in none.

    Args:
        passes: by rank, the pass that issued its call.
        lines: by rank, the line at which it issued its call, as far as known.
        is_ddp: True if the forward pass sends buffers, as DDP does.

    Returns:
        One or two sentences; empty if no such advice holds.
    """
    names = {name for name in passes.values() if name}
    running = [rank for rank, name in passes.items() if name]
    others = [rank for rank, name in passes.items() if not name]
    if len(names) != 1 or not others:
        return ""
    (name,) = names
    runs = f"{_at(running, lines)} {'run' if len(running) > 1 else 'runs'} a {name} pass"
    runs += " of the DDP model" if is_ddp and name == FORWARD else ""
    said = f"R{runs[1:]}, but {_at(others, lines)} {'do' if len(others) > 1 else 'does'} not"
    if name == BACKWARD:
        who = "they" if len(others) > 1 else "it"
        return (
            f"{said}: {who} made a call of {'their' if len(others) > 1 else 'its'} own, left out "
            "a batch, or left a loop early. Let all ranks decide that together."
        )
    if is_ddp:
        return (
            f"{said}. To evaluate on one rank call model.module; otherwise let all ranks reach the "
            "same calls."
        )
    return (
        f"{said}. All ranks must run the passes of a sharded model, and call what gathers it, such "
        "as a full state dict."
    )


def _at(ranks: Sequence[int], lines: Mapping[int, str]) -> str:
    places = {lines.get(rank, "") for rank in ranks}
    line = next(iter(places)) if len(places) == 1 else ""
    return named_ranks(ranks) + (f", at {line}," if line else "")
