"""Calls of forward and backward passes that only some ranks of a group run.

If ranks differ in a call that a model's pass issues, the cause is seldom at the call: a rank runs a
pass that the others do not run, or leaves one out.
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
    frames = _frames(trace, table, row)
    return FORWARD if _by_ddp(frames) or _before_fsdp_forward(frames) else ""


def by_another_thread(trace: Trace, table: Collectives, row: int) -> bool:
    """True if no pass issued a call, and its thread runs none of the rank's steps and phases.

    The thread alone does not tell: a backward pass on a device issues its calls in a thread of
    autograd, while the script waits. False if the rank has neither a step nor a phase, or if
    another profiler recorded it.
    """
    threads = np.concatenate([columns.steps(trace).thread, columns.phases(trace).thread])
    is_other = len(threads) > 0 and not (threads == table.thread[row]).any()
    return is_other and trace.recorded is None and not pass_of(trace, table, row)


def library_of(trace: Trace, table: Collectives, row: int) -> str:
    """Returns what issued a call of a forward pass: DDP, or the library that shards the model.

    DDP sends its buffers, and a sharded model gathers its parameters. The frames of the call tell
    which of them it was. If the call has no frames, the answer depends on which kinds of models the
    rank is known to have trained. This also holds for an all-gather without frames of FSDP.

    Returns:
        DDP or SHARDED; empty if neither issued the call, as for layers that communicate
        themselves, or if this is not known.
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
    """True if FSDP gathers a unit's parameters because its forward pass begins."""
    return any(_FSDP in frame and frame.endswith(f" {_GATHERS_UNIT}") for frame in frames)


def advice(
    passes: Mapping[int, str],
    lines: Mapping[int, str],
    library: str,
    told: Collection[int] = (),
) -> str:
    """Returns advice if only some ranks run a pass, or if ranks run different parts of a model.

    Args:
        passes: by rank, the pass that issued its call; empty text for none.
        lines: by rank, the line at which it issued its call, as far as known.
        library: what issued the call in a forward pass, see :func:`library_of`.
        told: the ranks that are known to differ from the others; empty if none is known.

    Returns:
        One or two sentences; empty if no such advice applies.
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
            f"{said}. All ranks must run the passes of a sharded model, and take part in all that "
            "gathers it, such as a full state dict."
        )
    return (
        f"{said}. Let all ranks run that pass, or none of them: it makes a call that all ranks of "
        "the group must make, as SyncBatchNorm and mixtures of experts do."
    )


def advice_on_threads(ranks: Sequence[int], others: Sequence[int]) -> str:
    """Returns advice for a call that a thread beside the training thread issued, on some ranks."""
    return (
        f"On {named_ranks(ranks)} a thread beside the training thread issued the call, but not on "
        f"{named_ranks(others)}: calls of several threads in one group have no common order. Give "
        "that thread a group of its own, made with torch.distributed.new_group()."
    )


def _why(running: Sequence[int], others: Sequence[int], told: Collection[int]) -> str:
    """Says what may have gone wrong if some ranks run a backward pass and the others do not."""
    if told and {*told} <= {*running}:
        run = "run" if len(running) > 1 else "runs"
        return f"{named_ranks(running)} left out the others' call, or {run} a pass too many"
    own = "their own" if len(others) > 1 else "its own"
    return f"{named_ranks(others)} made a call of {own}, left out a batch, or left a loop early"


def _of_parts(ranks: Iterable[int], lines: Mapping[int, str]) -> str:
    """Returns advice if all ranks gather parameters in forward passes, but at different lines."""
    by_line: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_line.setdefault(lines.get(rank, ""), []).append(rank)
    if "" in by_line or len(by_line) < 2:
        return ""
    parts = sorted(by_line.items(), key=lambda item: (len(item[1]), item[1]))
    where = listed([f"{named_ranks(ranks)} at {line}" for line, ranks in parts])
    return (
        f"Ranks run different parts of sharded models: {where}. All ranks must run the same parts "
        "in the same order: let all run what only some need, with zeros where a rank has nothing "
        "for it."
    )


def _at(ranks: Sequence[int], lines: Mapping[int, str]) -> str:
    places = {lines.get(rank, "") for rank in ranks}
    line = next(iter(places)) if len(places) == 1 else ""
    return named_ranks(ranks) + (f", at {line}," if line else "")
