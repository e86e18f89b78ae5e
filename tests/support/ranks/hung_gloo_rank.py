from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

#: The ranks dump this time after all ranks have joined; their work needs microseconds.
_UNTIL_DUMP_S = 1.5


def main() -> None:
    folder, cause = Path(sys.argv[1]), sys.argv[4]
    rank, world_size, guilty = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    import torch
    import torch.distributed as dist

    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    values = torch.ones(64)
    pairs = [dist.new_group([one, one + 1]) for one in range(world_size - 1)]
    other = dist.new_group(list(range(world_size)))
    for _ in range(3):  # a gloo dump shows a group's ranks only once the group was used
        for group in (None, other, *pairs[max(rank - 1, 0) : rank + 1]):
            dist.all_reduce(values, group=group)
    threading.Thread(target=dump, args=(folder, rank, world_size), daemon=True).start()
    if cause == "absent":
        if rank != guilty:
            dist.all_reduce(values)
    elif cause == "busy":
        handles = [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(2)]
        while rank == guilty:
            pass
        handles.append(dist.all_reduce(values, async_op=True))
        for handle in handles:
            handle.wait()
    elif cause == "mismatch":
        dist.broadcast(values, 0) if rank == guilty else dist.all_reduce(values)
    elif cause == "chain":
        if rank + 1 < world_size:
            dist.all_reduce(values, group=pairs[rank])
    elif cause == "circle":
        first, second = (other, None) if rank == guilty else (None, other)
        dist.all_reduce(values, group=first)
        dist.all_reduce(values, group=second)
    time.sleep(600)


def dump(folder: Path, rank: int, world_size: int) -> None:
    from torch._C._distributed_c10d import _dump_fr_trace

    time.sleep(_UNTIL_DUMP_S)
    partial = folder / f"partial_{rank}.tmp"
    partial.write_bytes(_dump_fr_trace(True, False, False))
    partial.rename(folder / f"dump_{rank}")
    while len(list(folder.glob("dump_*"))) < world_size:
        time.sleep(0.05)
    time.sleep(0.2)
    os._exit(0)


if __name__ == "__main__":
    main()
