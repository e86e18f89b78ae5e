from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import commprof
from commprof.trace import columns, schema
from commprof.trace.reader import read_trace


def issue_all(rank: int, pair: dist.ProcessGroup) -> None:
    six, twelve = torch.ones(6), torch.ones(12)
    dist.all_reduce(six)
    dist.all_reduce(six.double(), async_op=True).wait()
    dist.all_reduce(six, op=dist.ReduceOp.MAX, group=pair)
    dist.broadcast(six, src=1)
    dist.reduce(six, dst=1)
    dist.all_gather([torch.empty(6), torch.empty(6)], six)
    dist.all_gather_into_tensor(twelve, six)
    dist.reduce_scatter_tensor(six, twelve)
    dist.all_to_all_single(torch.empty(12), twelve)
    dist.gather(six, [torch.empty(6), torch.empty(6)] if rank == 0 else None, dst=0)
    dist.scatter(six, [six.clone(), six.clone()] if rank == 0 else None, src=0)
    dist.barrier()
    if rank == 0:
        dist.send(six, dst=1)
    else:
        dist.recv(six, src=0)
    dist.monitored_barrier()


def rows(path: Path) -> list[list[object]]:
    trace = read_trace(path)
    table = columns.collectives(trace)
    waited = set(columns.waits(trace).key.tolist())
    return [
        [
            schema.OPS[table.op[i]],
            trace.groups[int(table.group[i])].size,
            int(table.seq[i]),
            trace.metadata["dtypes"][table.dtype[i]],
            int(table.bytes_in[i]),
            int(table.bytes_out[i]),
            bool(table.end_ns[i] >= table.issue_ns[i]),
            int(table.op_id[i]) in waited,
        ]
        for i in range(len(table))
    ]


def main() -> None:
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1])
    directory = Path(sys.argv[1])
    with commprof.profile(directory):
        issue_all(dist.get_rank(), pair)
    print(json.dumps(rows(directory / f"rank_{dist.get_rank()}.trace")))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
