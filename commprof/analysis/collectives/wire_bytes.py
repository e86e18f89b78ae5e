"""What collectives must send over the network, from their sizes alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, op_name
from commprof.trace.summary import Summary

Floats = npt.NDArray[np.float64]
_Factor = Callable[[Floats], Floats]

#: Payload a rank sends, on average over the ranks of the group: of its input's bytes ...
_OF_INPUT: dict[str, _Factor] = {
    # a ring's reduce-scatter and all-gather, each (n - 1) / n
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_reduce_coalesced": lambda n: 2 * (n - 1) / n,
    # every other rank must get, or give, the whole of it once: n - 1 times over n ranks
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    # its own part to everybody else
    "all_gather": lambda n: n - 1,
    "all_gather_into_tensor": lambda n: n - 1,
    "all_gather_coalesced": lambda n: n - 1,
    "all_gather_into_tensor_coalesced": lambda n: n - 1,
    # all but its own part
    "reduce_scatter": lambda n: (n - 1) / n,
    "reduce_scatter_tensor": lambda n: (n - 1) / n,
    "reduce_scatter_tensor_coalesced": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "all_to_all_single": lambda n: (n - 1) / n,
    "send": lambda n: np.ones_like(n),
    "barrier": np.zeros_like,
    "monitored_barrier": np.zeros_like,
    "recv": np.zeros_like,
    "recv_any_source": np.zeros_like,
}
#: ... or of its output's, where the root's input is all of it.
_OF_OUTPUT: dict[str, _Factor] = {"scatter": lambda n: (n - 1) / n}


def sent_bytes(trace: Trace, table: Collectives) -> Floats:
    """Per collective the payload that this rank sends on average over its group.

    Summed over all ranks it is what must pass between them at least: a ring all-reduce of S
    bytes sends 2 (n - 1) / n S, and so on. NaN for an operation that is not known and for a
    group that is not in the trace.
    """
    sizes = {group.id: group.size for group in trace.groups.values()}
    n = np.array([sizes.get(group, 0) for group in table.group.tolist()], dtype=np.float64)
    result = np.full(len(table), np.nan)
    for factors, size in ((_OF_INPUT, table.bytes_in), (_OF_OUTPUT, table.bytes_out)):
        for name, factor in factors.items():
            rows = (table.op == OPS.index(name)) & (n > 0)
            result[rows] = factor(n[rows]) * size[rows]
    return result


def all_sent_bytes(trace: Trace, table: Collectives | None = None) -> float:
    """The same over all that a rank issued while capture ran; NaN where not known of a part.

    A summary covers everything since always-on mode began, what full mode recorded later too, so
    of the records only the earlier ones count beside it.

    Args:
        trace: as it was written, by its own clock.
        table: its collectives, where the caller has them.
    """
    table = columns.collectives(trace) if table is None else table
    sent = sent_bytes(trace, table)
    if trace.summary is None:
        return float(sent.sum())
    before = table.issue_ns < trace.summary.begin_ns
    return float(sent[before].sum()) + summarised_sent_bytes(trace, trace.summary)


def summarised_sent_bytes(trace: Trace, summary: Summary) -> float:
    """The same over all that a summary counts; NaN where it is not known of a part.

    A summary keeps the larger of input and output, which does not tell what a root's part in a
    gather or a scatter is.
    """
    sizes = {group.id: group.size for group in trace.groups.values()}
    total = 0.0
    for operation in summary.operations:
        name, n = op_name(operation.op), sizes.get(operation.group, 0)
        if operation.bytes == 0:
            continue
        if name not in _OF_INPUT or name == "gather" or n == 0:
            return math.nan
        factor = float(_OF_INPUT[name](np.array([n], dtype=np.float64))[0])
        # The output of an all_gather is its larger side, n inputs.
        total += operation.bytes * (factor / n if name.startswith("all_gather") else factor)
    return total
