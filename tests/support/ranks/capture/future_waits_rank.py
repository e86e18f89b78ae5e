"""Waits for collectives by their futures, each in a separate step: DIRECTORY MODE.

Rank 1 issues each collective later than rank 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import commprof

LATE_S = 0.2  # much longer than a busy machine lets a rank wait for a core
#: Timeout of a group whose collectives fail, because rank 1 never issues them.
TIMEOUT_S = 0.2


def issued(group: Any = None) -> Any:
    return dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future()


def then(future: Any) -> Any:
    return future.then(lambda done: done.value()[0].sum().item())


def raises(future: Any) -> Any:
    def callback(done: Any) -> None:
        raise ValueError("of the script's own")

    return future.then(callback)


def both(futures: list[Any]) -> Any:
    return [value[0].tolist() for value in torch.futures.wait_all(futures)]


def waited(future: Any) -> Any:
    value = future.wait()
    return [each.tolist() for each in value] if isinstance(value, list) else value


def refused(future: Any) -> list[str]:
    found = []
    for method in (future.wait, future.value):
        try:
            method()
        except RuntimeError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def late(future: Any) -> Any:
    time.sleep(4 * LATE_S)
    return future


WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], bool]] = {
    "wait": (lambda group: issued(), waited, True),
    "then": (lambda group: then(issued()), waited, True),
    "wait_all": (lambda group: [issued(), issued()], both, True),
    "callback_error": (lambda group: raises(issued()), refused, True),
    "hidden": (lambda group: late(issued()), waited, True),
    "failed": (lambda group: issued(group), refused, False),
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), {}
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    with commprof.profile(sys.argv[1], mode=sys.argv[2]) as prof:
        for way, (issue, wait, together) in WAYS.items():
            dist.barrier()
            prof.step()
            if rank == 0 or together:
                time.sleep(LATE_S * rank)
                issued_ns = time.monotonic_ns()
                future = issue(group)
                begin_ns = time.monotonic_ns()
                came_of_it = wait(future)
                times = {"issued_ns": issued_ns, "begin_ns": begin_ns}
                found[way] = {**times, "end_ns": time.monotonic_ns(), "came_of_it": came_of_it}
            prof.step()
    dist.barrier()  # the end of rank 1 would end a wait of rank 0
    print(json.dumps(found), flush=True)
    os._exit(0)  # gloo's threads may still hold tensors of the failed collective


if __name__ == "__main__":
    main()
