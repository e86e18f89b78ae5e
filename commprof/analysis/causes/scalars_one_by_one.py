"""Scalars such as metrics are reduced one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from commprof.analysis.causes.bursts import Bursts, bursts
from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import joined_gathers, joined_in_one
from commprof.analysis.causes.facts import Facts, Floats, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving
from commprof.text import counted, in_bytes
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import row_containing
from commprof.trace.schema import ELEMENT_BYTES, OPS, Phase

#: A call of up to this size (64 numbers of float32) takes as long as a call of one byte.
_SCALAR_BYTES = 256
#: Calls in forward of up to this size exchange single numbers. Statistics of layers are larger.
_NUMBERS_BYTES = 16
#: Largest amount of work between the calls of a loss, as a fraction of the own work of forward
#: passes. There is more work between the calls of layers.
_OF_FORWARD = 0.25
#: Least number of calls that follow one another.
_LEAST = 3
#: A reduction of up to this size takes hardly longer than a reduction of a few numbers.
_LATENCY_BYTES = 2**18
_ALL_REDUCE = OPS.index("all_reduce")
_OPS = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor")


def small(calls: RankCalls) -> Mask:
    """Returns a mask of the script's small calls, without exchanges of pickled objects."""
    mask: Mask = (
        calls.chosen(_OPS)
        & calls.of_script
        & (calls.size_bytes <= _SCALAR_BYTES)
        & ~of_objects(calls)
    )
    return mask


def of_loss(calls: RankCalls) -> Mask:
    """Returns a mask of the small calls of a loss in forward, such as sums of sample counts.

    There is hardly any work between the calls of a loss, and backward has no such calls. This
    distinguishes them from calls for the statistics of layers.
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
    phases, steps = columns.phases(calls.trace), columns.steps(calls.trace)
    mine = (phases.key == Phase.FORWARD) & (phases.thread == steps.thread[0])
    mine &= row_containing(calls.begin_ns, calls.end_ns, phases.begin_ns) >= 0
    whole_ns = float((phases.end_ns[mine] - phases.begin_ns[mine]).sum())
    waited = (calls.phase == Phase.FORWARD) & (calls.step >= 0) & calls.is_blocking
    return whole_ns - calls.blocked_ns(waited)


def _rule(facts: Facts) -> Sighting | None:
    rows = facts.on_all_ranks(
        lambda calls: replace(
            bursts(calls, small(calls) | of_loss(calls), _LEAST), of_numbers=True
        ),
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
        f"{counted(round(number), f'{op} call')} per step ({in_bytes(mean)} on average) follow "
        f"one another{at_line(line)}. These {what} could be joined into "
        f"{counted(round(remain), 'call')}, or be exchanged in fewer steps.",
        share,
        _saving(facts, rows, removed),
        line,
        op=op,
    )


def _saving(facts: Facts, rows: list[Bursts], removed: list[Removed]) -> Saving | None:
    if facts.replays is None:
        return None
    joined_ns = [_joined_ns(facts, position, row) for position, row in enumerate(rows)]
    return saving_without(facts, removed, joined_ns)


def _joined_ns(facts: Facts, position: int, series: Bursts) -> Floats:
    """Returns the assumed transfer times, in ns, of joined calls.

    NaN for calls that keep their recorded time. gloo reduces a single number in about half the time
    of several numbers. So a joined call is assumed to take as long as the smallest reduction of
    several numbers in the same step and group, if there is one of at most ``_LATENCY_BYTES``.
    """
    calls, transfer_ns = series.calls, facts.transfer_ns[position]
    table, taken = calls.table, np.full(len(series.calls.table), np.nan)
    of_gloo = [number for number, group in calls.trace.groups.items() if group.backend == "gloo"]
    reduced = (table.op == _ALL_REDUCE) & np.isin(table.group, of_gloo) & (calls.step >= 0)
    single = calls.size_bytes <= _element_bytes(calls)
    first = series.row[series.remains]
    first = first[(reduced & single)[first]]
    others = np.flatnonzero(reduced & ~single & (calls.size_bytes <= _LATENCY_BYTES))
    others = others[np.lexsort((calls.size_bytes[others], calls.step[others], table.group[others]))]
    key = table.group[others] * len(calls.begin_ns) + calls.step[others]
    wanted = table.group[first] * len(calls.begin_ns) + calls.step[first]
    smallest = np.searchsorted(key, wanted)
    has_other = smallest < len(key)
    has_other[has_other] = key[smallest[has_other]] == wanted[has_other]
    taken[first[has_other]] = transfer_ns[others[smallest[has_other]]]
    return taken


def _element_bytes(calls: RankCalls) -> Ints:
    names = list(calls.trace.metadata.get("dtypes", ()))
    of_type = np.array([ELEMENT_BYTES.get(name, 0) for name in names] or [0], dtype=np.int64)
    dtype = np.minimum(calls.table.dtype, len(of_type) - 1)
    size: Ints = of_type[dtype]
    return size


def edit_joined(facts: Facts, sighting: Sighting) -> str:
    """Returns code with one call in place of the loop at the sighting's line."""
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
        f"In a typical step, at least {_LEAST} calls of one operation and group, of at most "
        f"{_SCALAR_BYTES} bytes each, follow one another outside of forward and backward. The "
        "training thread waits for each call, and no phase lies between the calls. The work "
        "between two calls takes no longer, in the median, than the waiting for the second call. "
        "Waiting in barriers between calls counts as waiting for the next call. The time from the "
        "end of the first call to the end of the last is at least "
        f"{WORTH_NAMING:.0%} of the step. Calls of at most {_NUMBERS_BYTES} bytes in "
        "forward, for example of a loss, count too if backward has no such calls and if there is "
        "little work between the calls. This work may take at most as long as the waiting for the "
        f"calls, and at most {_OF_FORWARD:.0%} of the forward passes' own work."
    ),
    why=(
        "A collective of 4 bytes takes as long as one of 4 kB, because most of the time is "
        "latency. A loop that reduces metrics, losses, counts or norms one by one takes this time "
        "for every number. Put the numbers into one tensor, or add them up on each rank and reduce "
        "them every hundredth step. With DDP, gradient norms need no reduction, because all ranks "
        "have the same gradients: use `torch.nn.utils.clip_grad_norm_`."
    ),
    gain_note=(
        "The joined call is assumed to take as long as the first call that it replaces. But gloo "
        "reduces a single number in about half the time of several numbers. Over gloo, a call that "
        "joins single numbers is therefore assumed to take as long as the smallest reduction of "
        "several numbers in the step. If the step has no such reduction of up to "
        f"{_LATENCY_BYTES // 2**10} KiB, the joined call may take twice as long as assumed."
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
