"""Advice on mismatched calls that belong to a forward or backward pass.

If ranks differ in a call of a model's pass, the call itself is seldom wrong. Usually a rank runs a
pass that the other ranks do not run, or leaves out a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from commprof.analysis.align.interfaces import ddp_logs
from commprof.text import listed, named_ranks
from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.exchanged import trained_by
from commprof.trace.lookup import among
from commprof.trace.operations import codes_of
from commprof.trace.reader import Trace
from commprof.trace.schema import Phase

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
DDP: Final = "DDP"
SHARDED: Final = "sharded"
#: Function of DDP that sends buffers at the begin of a forward pass.
_SENDS_BUFFERS = "_sync_buffers"
#: Function of FSDP1 and FSDP2 that gathers a unit's parameters at the begin of its forward pass.
_GATHERS_UNIT = "_pre_forward"
#: Part of the file names of FSDP1 and FSDP2.
_FSDP = "/torch/distributed/fsdp/"
_BROADCAST, _GATHERS = codes_of("broadcast"), codes_of("all_gather")


def pass_of(trace: Trace, table: Collectives, row: int) -> str:
    """Returns FORWARD or BACKWARD if such a pass issued a call; otherwise empty text."""
    if trace.recorded is not None:
        return ""
    if table.graph_task[row] >= 0:
        return BACKWARD
    phases, issue_ns = columns.phases(trace), table.issue_ns[row]
    inside = (phases.begin_ns <= issue_ns) & (issue_ns < phases.end_ns)
    for phase, name in ((Phase.BACKWARD, BACKWARD), (Phase.FORWARD, FORWARD)):
        if (inside & among(phases.key, phase)).any():
            return name
    # If a rank was killed in its forward pass, the phase has no end.
    frames = _frames(trace, table, row)
    return FORWARD if _by_ddp(frames) or _before_fsdp_forward(frames) else ""


def by_another_thread(trace: Trace, table: Collectives, row: int) -> bool:
    """True if a thread other than the training thread issued a call, outside of passes.

    A backward pass on a device issues its calls in a thread of autograd, so calls of passes do not
    count. False if the rank has neither a step nor a phase, or if another profiler recorded the
    rank.
    """
    threads = np.concatenate([columns.steps(trace).thread, columns.phases(trace).thread])
    is_other = len(threads) > 0 and not (threads == table.thread[row]).any()
    return is_other and trace.recorded is None and not pass_of(trace, table, row)


def library_of(trace: Trace, table: Collectives, row: int) -> str:
    """Returns what issued a call of a forward pass: DDP, or the library that shards the model.

    The frames of the call show this. Without such frames, the result follows from the kinds of
    models that the rank trained.

    Returns:
        DDP or SHARDED; empty if neither issued the call, or if this is unknown.
    """
    frames, trained = _frames(trace, table, row), trained_by(trace.metadata)
    op = table.op[row : row + 1]
    if among(op, *_BROADCAST).any():
        has_ddp = bool(ddp_logs(trace)) or (trained is not None and trained.ddp_bytes > 0)
        return DDP if _by_ddp(frames) or (has_ddp and not frames) else ""
    if any(_FSDP in frame for frame in frames):
        return SHARDED
    is_sharded = trained is not None and trained.sharded
    return SHARDED if is_sharded and among(op, *_GATHERS).any() else ""


def _frames(trace: Trace, table: Collectives, row: int) -> Sequence[str]:
    (stack,) = columns.stacks(trace, table.op_id[row : row + 1]).tolist()
    return (trace.stacks or {}).get(stack, ())


def _by_ddp(frames: Sequence[str]) -> bool:
    return any(frame.endswith(f" {_SENDS_BUFFERS}") for frame in frames)


def _before_fsdp_forward(frames: Sequence[str]) -> bool:
    return any(_FSDP in frame and frame.endswith(f" {_GATHERS_UNIT}") for frame in frames)


def advice(
    passes: Mapping[int, str],
    lines: Mapping[int, str],
    library: str,
    told: Collection[int] = (),
) -> str:
    """Returns advice if only some ranks run a pass, or if ranks run different parts of a model.

    Args:
        passes: for each rank, the pass that issued its call; empty text if no pass issued the call.
        lines: for each rank, the line that issued its call, if it is known.
        library: what issued the call in a forward pass, see :func:`library_of`.
        told: the ranks that are known to differ from the other ranks.

    Returns:
        Two to four sentences; empty if no such advice applies.
    """
    names = {name for name in passes.values() if name}
    if {*passes.values()} == {FORWARD} and library == SHARDED:
        return _of_parts(passes, lines)
    running = [rank for rank, name in passes.items() if name]
    others = [rank for rank, name in passes.items() if not name]
    if len(names) != 1 or not others:
        return ""
    (name,) = names
    runs = f"{_at(running, lines)} {'run' if len(running) > 1 else 'runs'} a {name} pass"
    runs += " of the DDP model" if library == DDP and name == FORWARD else ""
    said = f"R{runs[1:]}, but {_at(others, lines)} {'do' if len(others) > 1 else 'does'} not"
    if name == BACKWARD:
        return f"{said}: {_why(running, others, told)}. Let all ranks make such decisions together."
    if library == DDP:
        return (
            f"{said}. To evaluate on one rank, call model.module; otherwise let all ranks reach "
            "the same calls."
        )
    if library == SHARDED:
        return (
            f"{said}. All ranks must run the passes of a sharded model. All ranks must also take "
            "part when its parameters are gathered, for example for a full state dict."
        )
    return (
        f"{said}. Let all ranks run this pass, or let no rank run it. The pass makes a call that "
        "all ranks of the group must make. SyncBatchNorm and mixtures of experts make such calls."
    )


def advice_on_threads(ranks: Sequence[int], others: Sequence[int]) -> str:
    """Returns advice for a call that another thread issued on some of the ranks."""
    return (
        f"A thread other than the training thread issued the call on {named_ranks(ranks)}, but not "
        f"on {named_ranks(others)}. Calls of several threads in one group have no common order. "
        "Give the other thread a group of its own, made with torch.distributed.new_group()."
    )


def _why(running: Sequence[int], others: Sequence[int], told: Collection[int]) -> str:
    if told and {*told} <= {*running}:
        run = "run" if len(running) > 1 else "runs"
        return f"{named_ranks(running)} left out a call of the other ranks, or {run} an extra pass"
    own = "their own" if len(others) > 1 else "its own"
    return f"{named_ranks(others)} made a call of {own}, left out a batch, or left a loop early"


def _of_parts(ranks: Iterable[int], lines: Mapping[int, str]) -> str:
    by_line: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_line.setdefault(lines.get(rank, ""), []).append(rank)
    if "" in by_line or len(by_line) < 2:
        return ""
    parts = sorted(by_line.items(), key=lambda item: (len(item[1]), item[1]))
    where = listed([f"{named_ranks(ranks)} at {line}" for line, ranks in parts])
    return (
        f"Ranks run different parts of sharded models: {where}. All ranks must run the same parts "
        "in the same order. If only some ranks need a part, let the other ranks run the part with "
        "zeros."
    )


def _at(ranks: Sequence[int], lines: Mapping[int, str]) -> str:
    places = {lines.get(rank, "") for rank in ranks}
    line = next(iter(places)) if len(places) == 1 else ""
    return named_ranks(ranks) + (f", at {line}," if line else "")
