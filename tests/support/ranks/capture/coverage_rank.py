from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import commprof
from commprof.trace import columns, schema
from commprof.trace.reader import Trace, read_trace
from tests.support.builders.coverage import CASES, N, Row


def issue(rank: int, directory: Path) -> list[dict[str, Any]]:
    found = []
    with commprof.profile(directory) as prof:
        for case, _ in CASES.values():
            run, expected = case(rank)
            dist.barrier()
            prof.step()
            error = ""
            try:
                run()
            except RuntimeError as refused:
                error = str(refused).splitlines()[0]
            prof.step()
            found.append({"expected": expected, "error": error})
    return found


def calls_of(trace: Trace) -> list[list[dict[str, Any]]]:
    """Returns the calls of every second step: the steps between only prepare a case.

    "sequence" names what "seq" counts: a group's collectives, or its messages to one peer.
    """
    table, steps = columns.collectives(trace), columns.steps(trace)
    reductions = {int(kind): name for name, kind in dist.ReduceOp.RedOpType.__members__.items()}
    found: list[list[dict[str, Any]]] = []
    for begin, end in zip(steps.begin_ns[1::2].tolist(), steps.end_ns[1::2].tolist(), strict=True):
        calls = []
        for i in range(len(table)):
            if begin <= table.issue_ns[i] < end:
                op = schema.OPS[table.op[i]]
                row = Row(
                    op,
                    int(table.bytes_in[i]),
                    int(table.bytes_out[i]),
                    "" if "barrier" in op else trace.metadata["dtypes"][table.dtype[i]],
                    reductions[int(table.reduce_op[i])] if "reduce" in op else "",
                )
                group = trace.groups[int(table.group[i])]
                is_message = op in ("send", "recv", "recv_any_source")
                calls.append(
                    {
                        "row": row,
                        "group": (group.backend, group.size),
                        "sequence": f"{group.id} {op} {table.peer[i]}" if is_message else group.id,
                        "seq": int(table.seq[i]),
                        "ended": bool(table.end_ns[i] >= table.issue_ns[i]),
                    }
                )
        found.append(calls)
    return found


def failures(trace: Trace) -> list[int]:
    steps, records = columns.steps(trace), trace.records
    times = records["timestamp_ns"][(records["flags"] & schema.FLAG_FAILED) != 0].astype(np.int64)
    return [
        int(((times >= begin) & (times < end)).sum())
        for begin, end in zip(steps.begin_ns[1::2], steps.end_ns[1::2], strict=True)
    ]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, directory = dist.get_rank(), Path(sys.argv[1])
    assert dist.get_world_size() == N
    found = issue(rank, directory)
    trace = read_trace(directory / f"rank_{rank}.trace")
    for case, calls, failed in zip(found, calls_of(trace), failures(trace), strict=True):
        case["calls"] = calls
        case["failed"] = failed
    print(json.dumps(found), flush=True)
    os._exit(0)  # gloo's threads may still hold tensors of refused collectives


if __name__ == "__main__":
    main()
