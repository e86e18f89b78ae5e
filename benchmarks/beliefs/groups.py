"""Beliefs about process groups: creation, names, sequence numbers, modes and destruction."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.beliefs.asking import belief, operators, outcome, ranges, start_group

GROUPS = "csrc/torch/capture/process_groups.cpp"
WORLD = "commprof/capture/job"
HOST = "commprof/recordings/profiler_host.py"


@belief(
    "init_process_group exchanges nothing through c10d's operators", "nothing", starts_group=False
)
def init_exchanges() -> str:
    return operators(start_group)


@belief("new_group exchanges nothing through c10d's operators", "nothing", WORLD)
def new_group_exchanges() -> str:
    return operators(lambda: dist.new_group([0, 1]))


@belief(
    "new_group waits for all ranks of the job, even for ranks outside of the group", "waits", WORLD
)
def new_group_waits() -> str:
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(1.0)
    begin = time.monotonic()
    dist.new_group([0])
    waited: list[float] = [time.monotonic() - begin]
    dist.broadcast_object_list(waited, 0)
    return "waits" if waited[0] > 0.5 else "returns at once"


@belief("the default group is named 0, and the next one 1", "0, 1", GROUPS)
def group_names() -> str:
    return f"{dist.group.WORLD.group_name}, {dist.new_group([0, 1]).group_name}"


@belief("after destroy and init the default group has its old name", "0, 0", GROUPS)
def name_after_restart() -> str:
    before = dist.group.WORLD.group_name
    dist.destroy_process_group()
    os.environ["COMMPROF_BELIEF_STORE"] += "2"
    start_group()
    return f"{before}, {dist.group.WORLD.group_name}"


@belief(
    "after init_process_group() without a backend, get_backend() returns gloo on a CPU machine",
    "gloo",
    GROUPS,
    starts_group=False,
)
def default_backend() -> str:
    start_group(backend=None)
    return f"{dist.get_backend()}"


@belief(
    "name() of a group that was made without a backend is gloo",
    "gloo",
    GROUPS,
    starts_group=False,
)
def default_backend_of_object() -> str:
    start_group(backend=None)
    return str(dist.group.WORLD.name())


@belief(
    "the default group's description is default_pg; a new group's description is empty",
    "default_pg, ''",
    GROUPS,
)
def group_descriptions() -> str:
    return f"{dist.group.WORLD.group_desc}, {dist.new_group([0, 1]).group_desc!r}"


def _numbers(call: object) -> str:
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    call()  # type: ignore[operator]
    return f"{group._get_sequence_number_for_group() - before:+d}"


@belief("an all-reduce raises the group's sequence number by one", "+1", GROUPS)
def number_of_all_reduce() -> str:
    return _numbers(lambda: dist.all_reduce(torch.ones(2)))


@belief("a list reduce-scatter over gloo raises the group's sequence number by one", "+1", GROUPS)
def number_of_reduce_scatter() -> str:
    return _numbers(lambda: dist.reduce_scatter(torch.empty(2), [torch.ones(2) for _ in range(2)]))


@belief("monitored_barrier does not raise the group's sequence number", "+0", GROUPS)
def number_of_monitored_barrier() -> str:
    return _numbers(lambda: dist.monitored_barrier(timeout=timedelta(seconds=10)))


@belief("a message does not raise the group's sequence number", "+0", GROUPS)
def number_of_message() -> str:
    tensor, rank = torch.ones(2), dist.get_rank()
    return _numbers(lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0))


@belief("an empty all-reduce raises the group's sequence number by one", "+1", GROUPS)
def number_of_empty() -> str:
    return _numbers(lambda: dist.all_reduce(torch.empty(0)))


@belief("gloo's default time-out is 30 minutes", "0:30:00")
def default_timeout() -> str:
    return str(dist.distributed_c10d._get_default_timeout("gloo"))


@belief("split_group works over gloo", "works")
def split_group() -> str:
    return outcome(lambda: dist.split_group(split_ranks=[[0, 1]]))


@belief(
    "under DETAIL an all-reduce has more gloo ranges, because the ranks compare their calls",
    "more",
    HOST,
    TORCH_DISTRIBUTED_DEBUG="DETAIL",
)
def detail_shows() -> str:
    seen = ranges(lambda: dist.all_reduce(torch.ones(2)))
    return seen if seen == "gloo:all_reduce" else "more"


@belief(
    "under DETAIL the sequence number also rises by one per call",
    "+1",
    GROUPS,
    TORCH_DISTRIBUTED_DEBUG="DETAIL",
)
def number_under_detail() -> str:
    return _numbers(lambda: dist.all_reduce(torch.ones(2)))


@belief("under DETAIL get_backend() returns gloo", "gloo", GROUPS, TORCH_DISTRIBUTED_DEBUG="DETAIL")
def backend_under_detail() -> str:
    return f"{dist.get_backend()}"


@belief(
    "under DETAIL monitored_barrier works",
    "works",
    "commprof/recordings",
    TORCH_DISTRIBUTED_DEBUG="DETAIL",
)
def monitored_barrier_under_detail() -> str:
    return outcome(lambda: dist.monitored_barrier(timeout=timedelta(seconds=10)))


@belief("two threads may use two groups at the same time", "works")
def two_threads() -> str:
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    told: list[str] = []

    def use(group: dist.ProcessGroup) -> None:
        def call() -> None:
            for _ in range(200):
                dist.all_reduce(torch.ones(16), group=group)

        told.append(outcome(call))

    threads = [threading.Thread(target=use, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return " ".join(sorted(set(told)))


@belief("a destroyed subgroup refuses collectives", "refused", GROUPS)
def destroyed_subgroup() -> str:
    group = dist.new_group([0, 1])
    dist.destroy_process_group(group)
    told = outcome(lambda: dist.all_reduce(torch.ones(2), group=group))
    return "refused" if told != "works" else "works"


@belief("a collective called on a destroyed group's object is refused", "refused", GROUPS)
def destroyed_object() -> str:
    group = dist.new_group([0, 1])
    dist.destroy_process_group(group)
    told = outcome(lambda: group.allreduce([torch.ones(2)]).wait())
    return "refused" if told != "works" else "works"


@belief(
    "on a rank outside a group, the group's collectives do nothing and raise no error",
    "nothing",
)
def not_a_member() -> str:
    group = dist.new_group([0])
    return (
        operators(lambda: dist.all_reduce(torch.ones(2), group=group))
        if dist.get_rank() == 1
        else "nothing"
    )


@belief("symmetric memory on CPUs is refused when memory is asked for", "RuntimeError")
def symmetric_memory() -> str:
    import torch.distributed._symmetric_memory as symmetric

    told = outcome(lambda: symmetric.empty(4, device="cpu"))
    return told.partition(":")[0]


@belief("symmetric memory's rendezvous on CPUs is refused", "RuntimeError")
def symmetric_rendezvous() -> str:
    import torch.distributed._symmetric_memory as symmetric

    told = outcome(lambda: symmetric.rendezvous(torch.empty(4), dist.group.WORLD))
    return told.partition(":")[0]


@belief("all_gather_object is two all-gathers: lengths, then pickles", "2 allgather_")
def gathered_objects() -> str:
    return operators(lambda: dist.all_gather_object([None, None], {"rank": dist.get_rank()}))


@belief("broadcast_object_list of three objects is three pairs of broadcasts", "6 broadcast_")
def broadcast_objects() -> str:
    objects = [1, 2, 3]
    return operators(lambda: dist.broadcast_object_list(objects, 0))


@belief(
    "the Python methods registerPreHook and registerPostHook come with 2.15",
    "there",
    only_from=(2, 15),
)
def python_hooks() -> str:
    names = [name for name in dir(dist.ProcessGroup) if "hook" in name.lower()]
    return (
        "there"
        if any("pre" in name.lower() for name in names)
        else f"only {', '.join(names) or 'none'}"
    )


@belief("Work.get_future() of a barrier over gloo works", "works")
def barrier_has_future() -> str:
    work = dist.barrier(async_op=True)
    told = outcome(lambda: work.get_future())
    work.wait()
    return told


def _open_and_running() -> tuple[int, int]:
    """Returns the numbers of open files and of threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _cost_of_a_group() -> str:
    dist.all_reduce(torch.ones(1))
    files, threads = _open_and_running()
    groups = [dist.new_group() for _ in range(10)]
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    more_files, more_threads = _open_and_running()
    return f"{(more_files - files) / 10:g} files, {(more_threads - threads) / 10:g} threads"


@belief(
    "in each process a group of gloo takes two threads, and a connection for every other rank",
    "3 files, 2 threads",
    WORLD,
    ranks=4,
)
def cost_of_a_group() -> str:
    return _cost_of_a_group()


@belief(
    "a group of gloo that uses two interfaces also has two threads",
    "2 threads",
    "commprof/analysis/collectives/in_flight.py",
    GLOO_SOCKET_IFNAME="lo,lo",
)
def threads_of_two_interfaces() -> str:
    return _cost_of_a_group().partition(", ")[2]


@belief("destroying a subgroup frees the subgroup's files and threads", "so", GROUPS)
def groups_are_given_back() -> str:
    before = (0, 0)
    for number in range(22):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
        del group
        if number == 1:
            before = _open_and_running()
    files, threads = (now - then for now, then in zip(_open_and_running(), before, strict=True))
    return "so" if files <= 0 and threads <= 0 else f"{files} files, {threads} threads more"


@belief("destroying a subgroup removes its keys from the job's store", "0 keys per group")
def keys_are_given_back() -> str:
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    for _ in range(10):
        group = dist.new_group()
        dist.barrier()  # without it, torch 2.15 may delete keys that other ranks need
        dist.destroy_process_group(group)
    dist.barrier()
    return f"{(store.num_keys() - before) / 10:g} keys per group"


@belief(
    "two groups of the same ranks made with use_local_synchronization have two names",
    "two names, the same on both ranks",
    WORLD,
    ranks=4,
)
def names_of_local_groups() -> str:
    first = dist.get_rank() // 2 * 2
    ranks = [first, first + 1]
    groups = [dist.new_group(ranks, use_local_synchronization=True) for _ in range(2)]
    names: list[list[str]] = [[]] * 4
    dist.all_gather_object(names, [group.group_name for group in groups])
    is_alike = names[0] == names[1] and names[2] == names[3]
    is_unique = len({name for pair in (names[0], names[2]) for name in pair}) == 4
    return "two names, the same on both ranks" if is_alike and is_unique else str(names)


@belief("on a 2 x 2 mesh, the two groups of one dimension have different names", "other", ranks=4)
def names_of_mesh_groups() -> str:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    names: list[str] = [""] * 4
    dist.all_gather_object(names, mesh.get_group("tp").group_name)
    return "other" if names[0] == names[1] != names[2] == names[3] else str(names)
