"""Scalars such as metrics are reduced one by one."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.bursts import Bursts, bursts
from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import joined_gathers, joined_in_one
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import saving_without
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes
from commprof.trace import columns
from commprof.trace.lookup import row_containing
from commprof.trace.schema import OPS, Phase

#: A call of up to this size (64 numbers of float32) takes as long as a call of one byte.
_SCALAR_BYTES = 256
#: A call within forward of up to this size holds single numbers; statistics of layers are larger.
_NUMBERS_BYTES = 16
#: Work between the calls of a loss is at most this fraction of the forward passes' own work: layers
#: do most of a forward pass between their calls.
_OF_FORWARD = 0.25
#: Least number of calls that follow one another.
_LEAST = 3
_OPS = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor")


def small(calls: RankCalls) -> Mask:
    """Small calls of the script itself that do not exchange pickled objects."""
    mask: Mask = (
        calls.chosen(_OPS)
        & calls.of_script
        & (calls.size_bytes <= _SCALAR_BYTES)
        & ~of_objects(calls)
    )
    return mask


def of_loss(calls: RankCalls) -> Mask:
    """Small calls of a loss that is computed in the forward pass, such as numbers of samples.

    They follow one another with hardly any work between them, and nothing like them is in backward:
    the statistics of a layer are between computations of layers, and have gradients.
    """
    mask: Mask = (
        calls.chosen(_OPS)
        & (calls.phase == Phase.FORWARD)
        & ~calls.in_backward
        & (calls.size_bytes <= _NUMBERS_BYTES)
        & calls.is_blocking
        & ~of_objects(calls)
    )
    if not mask.any():
        return mask
    inner = calls.chosen(_OPS) & calls.in_backward & (calls.size_bytes <= _SCALAR_BYTES)
    if np.isin(calls.table.group[inner & calls.is_blocking], calls.table.group[mask]).any():
        return np.zeros(len(mask), dtype=bool)
    in_a_row = bursts(calls, mask, _LEAST)
    same = in_a_row.burst[1:] == in_a_row.burst[:-1]
    earlier, later = in_a_row.row[:-1][same], in_a_row.row[1:][same]
    work_ns = (calls.table.issue_ns[later] - calls.wait_end_ns[earlier]).sum()
    most_ns = min(calls.blocked_ns(in_a_row.all_calls), _OF_FORWARD * _own_forward_ns(calls))
    return in_a_row.all_calls if work_ns <= most_ns else np.zeros(len(mask), dtype=bool)


def _own_forward_ns(calls: RankCalls) -> float:
    """Time of the measured forward passes in which the training thread waited for no call."""
    phases, steps = columns.phases(calls.trace), columns.steps(calls.trace)
    mine = (phases.key == Phase.FORWARD) & (phases.thread == steps.thread[0])
    mine &= row_containing(calls.begin_ns, calls.end_ns, phases.begin_ns) >= 0
    whole_ns = float((phases.end_ns[mine] - phases.begin_ns[mine]).sum())
    waited = (calls.phase == Phase.FORWARD) & (calls.step >= 0) & calls.is_blocking
    return whole_ns - calls.blocked_ns(waited)


def _rule(facts: Facts) -> Sighting | None:
    rows = facts.on_all_ranks(
        lambda calls: bursts(calls, small(calls) | of_loss(calls), _LEAST),
        lambda row: row.calls.per_step(row.all_calls) >= 1,
    )
    if not rows:
        return None
    return sighting(facts, rows, WORTH_NAMING, "scalars")


def sighting(facts: Facts, rows: list[Bursts], least: float, what: str) -> Sighting | None:
    """Returns the evidence if joining the bursts' calls saves at least ``least`` of the step."""
    removed = [row.removed() for row in rows]
    share = facts.share([float((spans.end_ns - spans.begin_ns).sum()) for spans in removed])
    if not share >= least:
        return None
    first = rows[0]
    mask = first.all_calls
    ops, count = np.unique(first.calls.table.op[mask], return_counts=True)
    op = OPS[int(ops[np.argmax(count)])]
    number, mean = first.calls.per_step(mask), float(first.calls.size_bytes[mask].mean())
    line = first.calls.line(mask)
    remain = int(first.remains.sum()) / max(1, len(np.unique(first.burst)))
    return Sighting(
        f"{counted(round(number), f'{op} call')} per step of {in_bytes(mean)} on average follow "
        f"one another{at_line(line)}: these {what} could be joined into "
        f"{counted(round(remain), 'call')}, or be exchanged in fewer steps.",
        share,
        saving_without(facts, removed),
        line,
        op=op,
    )


def edit_joined(facts: Facts, sighting: Sighting) -> str:
    """Returns one call that replaces the calls of the loop at the sighting's line."""
    script, line, op = facts.script, sighting.line, sighting.op
    if op in ("all_gather", "all_gather_into_tensor"):
        return joined_gathers(script, line)
    return joined_in_one(script, line, op)


CAUSE = CatalogueCause(
    id="scalars-one-by-one",
    title="Scalars are reduced one by one",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"In a typical step at least {_LEAST} calls of one operation and group, of at most "
        f"{_SCALAR_BYTES} bytes each, follow one another outside of forward and backward, the "
        "training thread waits for each, and no phase lies between them. So do calls of at most "
        f"{_NUMBERS_BYTES} bytes within forward, as of a loss, if nothing like them is in backward "
        "and the ranks work between them neither longer than they wait nor for more than "
        f"{_OF_FORWARD:.0%} of the forward passes' own work. Barriers between calls count as "
        "calls. The time from the end of the first to the end of the last is at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "A collective of 4 bytes takes as long as one of 4 kB: the time goes into waking threads "
        "and into latency. Metrics, losses, counts or norms that are reduced in a loop, with "
        "`.item()` after each, pay this time once per number. Put the numbers into one tensor, or "
        "add them up locally and reduce them every hundredth step. For gradient norms use "
        "`torch.nn.utils.clip_grad_norm_`: with DDP all ranks have the same gradients."
    ),
    gain_note=(
        "The joined call is assumed to last as long as the first of the calls that it replaces. "
        "Over gloo, two ranks reduced a single number in about half the time of several numbers, "
        "so the joined call may take twice as long."
    ),
    fix=(
        "names, values = zip(*YOUR_METRICS.items())  # a dictionary of tensors\n"
        "joined = torch.stack([value.detach().float() for value in values])\n"
        "torch.distributed.all_reduce(joined)\n"
        "metrics = dict(zip(names, joined.tolist()))"
    ),
    edit=edit_joined,
    source="https://github.com/vllm-project/speculators/pull/1119",
)
