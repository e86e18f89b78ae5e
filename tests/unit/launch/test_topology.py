"""Cores from sample trees of /sys, /proc and /sys/fs/cgroup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from commprof.errors import UsageError
from commprof.launch.topology import Topology, format_cpu_list, parse_cpu_list, read_topology
from tests.support.builders.sys_trees import machine, write


def cores(topology: Topology) -> list[tuple[int, tuple[int, ...]]]:
    return [(core.node, core.cpus) for core in topology.cores]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11\n", (0, 1, 8, 10, 11)), ("\n", ())],
)
def test_a_list_of_cpus_is_read_and_written(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
    assert format_cpu_list(cpus) == text.strip()


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0-3-5", "0 1"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no list of CPUs such as 0-3,8"):
        parse_cpu_list(text)


def test_one_node_without_hyper_threads(tmp_path: Path) -> None:
    machine(tmp_path, nodes=1, cores=4, threads=1)
    found = read_topology(range(4), tmp_path)
    assert cores(found) == [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,))]
    assert (found.usable_cpus, found.usable_cores, found.quota_cpus) == (4, 4, None)


def test_two_nodes_with_hyper_threads(tmp_path: Path) -> None:
    # Linux numbers all first hyper-threads before the second ones.
    machine(tmp_path, nodes=2, cores=2, threads=2)
    found = read_topology(range(8), tmp_path)
    assert cores(found) == [(0, (0, 4)), (0, (1, 5)), (1, (2, 6)), (1, (3, 7))]
    assert found.nodes == (0, 1)
    assert (found.usable_cpus, found.usable_cores) == (8, 4)


def test_nodes_that_are_interleaved_come_in_order(tmp_path: Path) -> None:
    machine(tmp_path, nodes=2, cores=2, threads=1)
    write(tmp_path, {"sys/devices/system/node/node0/cpulist": "0,2"})
    write(tmp_path, {"sys/devices/system/node/node1/cpulist": "1,3"})
    assert cores(read_topology(range(4), tmp_path)) == [(0, (0,)), (0, (2,)), (1, (1,)), (1, (3,))]


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
    machine(tmp_path, nodes=1, cores=2, threads=2)
    # CPU 2, the second thread of core 0, is off; the kernel drops it from its sibling's list too.
    write(tmp_path, {"sys/devices/system/cpu/online": "0-1,3"})
    write(tmp_path, {"sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0"})
    assert cores(read_topology(range(4), tmp_path)) == [(0, (0,)), (0, (1, 3))]


def test_a_restricted_cpuset_leaves_parts_of_cores_and_nodes(tmp_path: Path) -> None:
    machine(tmp_path, nodes=2, cores=4, threads=2)
    found = read_topology([6, 7, 14], tmp_path)
    assert cores(found) == [(1, (6, 14)), (1, (7,))]
    assert found.nodes == (1,)


def test_a_kernel_that_tells_nothing_gives_a_core_for_each_cpu(tmp_path: Path) -> None:
    assert cores(read_topology([1, 3], tmp_path)) == [(0, (1,)), (0, (3,))]


def test_siblings_under_the_older_name(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(tmp_path, {folder.format(cpu): "0-1" for cpu in (0, 1)})
    assert cores(read_topology([0, 1], tmp_path)) == [(0, (0, 1))]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        # The tightest of a group and those above it.
        (
            {
                "proc/self/cgroup": "0::/jobs/a\n",
                "sys/fs/cgroup/jobs/a/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/jobs/cpu.max": "300000 100000\n",
            },
            3.0,
        ),
        # A container of cgroup v1 sees its own group at the top, under the host's name for it.
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/1a2b\n4:memory:/docker/1a2b\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_the_cgroups_quota(tmp_path: Path, files: Mapping[str, str], quota: float | None) -> None:
    machine(tmp_path, nodes=1, cores=4, threads=1)
    write(tmp_path, files)
    found = read_topology(range(4), tmp_path)
    assert found.quota_cpus == quota
    assert found.usable_cpus == (4 if quota is None else int(quota))


def test_a_quota_below_one_cpu_leaves_one(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert read_topology([0, 1], tmp_path).usable_cpus == 1
