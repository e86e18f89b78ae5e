from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from commprof.analysis.checks.outcome import Outcome
from commprof.capture import boot
from commprof.commands import check
from commprof.commands.running.run_checks import world_sizes_of
from commprof.errors import UsageError
from commprof.forecast.commands import microbench
from commprof.launch import topology as topologies
from commprof.launch.pinning import PIN_MODES, choose_threads, pin_this_process, plan_pinning
from commprof.launch.topology import Core, Topology, format_cpu_list, parse_cpu_list, read_topology


def cores(topology: Topology) -> list[tuple[int, tuple[int, ...]]]:
    return [(core.node, core.cpus) for core in topology.cores]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11\n", (0, 1, 8, 10, 11)), ("\n", ())],
)
def test_a_list_of_cpus_is_parsed_and_formatted(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
    assert format_cpu_list(cpus) == text.strip()


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0-3-5", "0 1"])
def test_a_malformed_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of CPUs such as 0-3,8"):
        parse_cpu_list(text)


def test_topology_of_one_node_without_hyper_threads_is_read(tmp_path: Path) -> None:
    machine(tmp_path, nodes=1, cores=4, threads=1)
    found = read_topology(range(4), tmp_path)
    assert cores(found) == [(0, (0,)), (0, (1,)), (0, (2,)), (0, (3,))]
    assert (found.usable_cpus, found.usable_cores, found.quota_cpus) == (4, 4, None)


def test_topology_of_two_nodes_with_hyper_threads_is_read(tmp_path: Path) -> None:
    # Linux numbers the first hyper-threads of all cores before the second ones.
    machine(tmp_path, nodes=2, cores=2, threads=2)
    found = read_topology(range(8), tmp_path)
    assert cores(found) == [(0, (0, 4)), (0, (1, 5)), (1, (2, 6)), (1, (3, 7))]
    assert found.nodes == (0, 1)
    assert (found.usable_cpus, found.usable_cores) == (8, 4)


def test_cores_of_interleaved_nodes_are_ordered_by_node(tmp_path: Path) -> None:
    machine(tmp_path, nodes=2, cores=2, threads=1)
    write(tmp_path, {"sys/devices/system/node/node0/cpulist": "0,2"})
    write(tmp_path, {"sys/devices/system/node/node1/cpulist": "1,3"})
    assert cores(read_topology(range(4), tmp_path)) == [(0, (0,)), (0, (2,)), (1, (1,)), (1, (3,))]


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
    machine(tmp_path, nodes=1, cores=2, threads=2)
    # CPU 2 is offline, so the kernel drops CPU 2 from the list of its sibling, CPU 0, too.
    write(tmp_path, {"sys/devices/system/cpu/online": "0-1,3"})
    write(tmp_path, {"sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0"})
    assert cores(read_topology(range(4), tmp_path)) == [(0, (0,)), (0, (1, 3))]


def test_a_restricted_cpuset_limits_the_topology_to_its_cpus(tmp_path: Path) -> None:
    machine(tmp_path, nodes=2, cores=4, threads=2)
    found = read_topology([6, 7, 14], tmp_path)
    assert cores(found) == [(1, (6, 14)), (1, (7,))]
    assert found.nodes == (1,)


def test_without_topology_files_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert cores(read_topology([1, 3], tmp_path)) == [(0, (1,)), (0, (3,))]


def test_siblings_are_read_from_the_older_file_name(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(tmp_path, {folder.format(cpu): "0-1" for cpu in (0, 1)})
    assert cores(read_topology([0, 1], tmp_path)) == [(0, (0, 1))]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/jobs/a\n",
                "sys/fs/cgroup/jobs/a/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/jobs/cpu.max": "300000 100000\n",
            },
            3.0,
        ),
        # A container of cgroup v1 has its group at the top of the tree, but reads the host's path.
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
def test_the_cpu_quota_is_read_from_the_cgroup(
    tmp_path: Path, files: Mapping[str, str], quota: float | None
) -> None:
    machine(tmp_path, nodes=1, cores=4, threads=1)
    write(tmp_path, files)
    found = read_topology(range(4), tmp_path)
    assert found.quota_cpus == quota
    assert found.usable_cpus == (4 if quota is None else int(quota))


def test_a_quota_below_one_cpu_leaves_one_usable_cpu(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert read_topology([0, 1], tmp_path).usable_cpus == 1


def grid(nodes: int, cores: int, threads: int = 1, quota: float | None = None) -> Topology:
    total = nodes * cores
    found = [
        Core(i // cores, tuple(i + thread * total for thread in range(threads)))
        for i in range(total)
    ]
    return Topology(tuple(found), quota)


@pytest.mark.parametrize(
    ("topology", "of_run", "of_check", "of_microbench"),
    [
        (grid(1, 7, threads=2), [1, 2, 4, 7], 7, 14),
        (grid(1, 7, threads=2, quota=5.5), [1, 2, 4, 5], 5, 5),
        (grid(1, 7, quota=0.5), [1], 1, 1),
    ],
)
def test_the_default_number_of_ranks_follows_from_cores_cpus_and_quota(
    topology: Topology,
    of_run: list[int],
    of_check: int,
    of_microbench: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(topologies, "read_topology", lambda allowed: topology)
    names = ("world_sizes", "nproc", "script", "trial")
    assert world_sizes_of(argparse.Namespace(**dict.fromkeys(names), nnodes=1)) == of_run
    launched: list[int] = []

    def launch(ranks: int) -> tuple[Outcome, ...]:
        launched.append(ranks)
        return ()

    monkeypatch.setattr(check, "_launched", launch)
    assert check.CheckCommand().run(argparse.Namespace(nproc=None)) == 0
    assert launched == [of_check]
    parser = argparse.ArgumentParser()
    microbench.add_arguments(parser)
    plan = microbench.make_plan(parser.parse_args(["all_reduce"]), None)
    assert plan.world_sizes == (of_microbench,)


@pytest.mark.parametrize(
    ("mode", "topology", "ranks", "sets"),
    [
        ("cores", grid(1, 4), 2, "0-1/2-3"),
        ("cores", grid(1, 4), 3, "0/1/2"),
        ("cores", grid(1, 4, threads=2), 2, "0-1,4-5/2-3,6-7"),
        ("cores", grid(1, 2, threads=2), 4, "0/1/2/3"),
        ("cores", grid(2, 3), 2, "0-2/3-5"),
        ("cores", grid(2, 3), 3, "0-1/2-3/4-5"),
        ("numa", grid(2, 3), 3, "0/1/3"),
        ("numa", grid(2, 4), 1, "0-3"),
        ("numa", grid(2, 4), 4, "0-1/2-3/4-5/6-7"),
        ("numa", grid(2, 2, threads=2), 2, "0-1,4-5/2-3,6-7"),
        ("numa", grid(2, 1, threads=2), 4, "0/2/1/3"),
        ("auto", grid(2, 2), 4, "0/1/2/3"),
        ("auto", grid(1, 4), 2, ""),
        ("auto", grid(2, 2), 5, ""),
        ("auto", grid(2, 2, quota=1.5), 2, ""),
        ("none", grid(2, 2), 2, ""),
        ("cores", grid(1, 2), 3, "0/1/0"),
        ("numa", grid(2, 1), 4, "0/0/1/1"),
    ],
)
def test_each_pin_mode_gives_the_expected_cpus_to_each_rank(
    mode: str, topology: Topology, ranks: int, sets: str
) -> None:
    assert plan_pinning(mode, topology, ranks).text == sets


@pytest.mark.parametrize("mode", [mode for mode in PIN_MODES if mode != "none"])
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_cpu_sets_are_equal_in_size_and_disjoint_if_cpus_suffice(
    mode: str, nodes: int, threads: int
) -> None:
    topology = grid(nodes, 4, threads)
    for ranks in range(1, 3 * nodes * 4):
        check_sets(mode, topology, ranks)


def check_sets(mode: str, topology: Topology, ranks: int) -> None:
    found = plan_pinning(mode, topology, ranks)
    if not found.sets:
        assert mode == "auto"
        return
    assert len(found.sets) == ranks
    assert len({len(cpus) for cpus in found.sets}) == 1
    used = [cpu for cpus in found.sets for cpu in cpus]
    assert set(used) <= set(topology.cpus)
    assert found.disjoint == (len(used) == len(set(used))) == (ranks <= len(topology.cpus))
    if found.mode == "numa":
        node_of = {cpu: core.node for core in topology.cores for cpu in core.cpus}
        assert all(len({node_of[cpu] for cpu in cpus}) == 1 for cpus in found.sets)
        assert sorted(node_of[cpus[0]] for cpus in found.sets) == [
            node_of[cpus[0]] for cpus in found.sets
        ]


@pytest.mark.parametrize(
    ("mode", "topology", "ranks", "reason"),
    [
        ("auto", grid(1, 4), 2, "one NUMA node: all cores are equally near"),
        ("auto", grid(2, 2), 5, "5 ranks on 4 cores"),
        ("auto", grid(2, 2, quota=1), 2, "2 ranks on 1 core:"),
        ("cores", grid(1, 2), 3, "3 ranks share 2 CPUs"),
        ("cores", grid(1, 2, threads=2), 3, "different ranks get hyper-threads of the same core"),
        ("cores", grid(1, 4, quota=1.5), 2, "the cgroup grants CPU time of only 1.5 CPUs"),
        ("numa", grid(2, 2), 2, "no two ranks share a CPU, and no rank crosses nodes (2 NUMA"),
    ],
)
def test_the_plan_of_pinning_gives_its_reason(
    mode: str, topology: Topology, ranks: int, reason: str
) -> None:
    assert reason in plan_pinning(mode, topology, ranks).reason


def test_an_unknown_pin_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown --pin 'core' \(allowed: none, cores, numa"):
        plan_pinning("core", grid(1, 1), 1)


def test_a_thread_is_pinned_to_the_cpus_of_its_local_rank() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    seen: list[set[int]] = []

    def rank() -> None:
        pin_this_process(f"{allowed[-1]}/{allowed[0]}", 1)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=rank)  # Each thread has its own affinity.
    thread.start()
    thread.join()
    assert seen == [{allowed[0]}]
    assert sorted(os.sched_getaffinity(0)) == allowed


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [("0/1", 2, "no set for local rank 2"), ("99999", 0, "cannot be pinned to CPUs 99999")],
)
def test_an_unavailable_cpu_set_is_refused(text: str, rank: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pin_this_process(text, rank)


@pytest.mark.parametrize(
    ("asked", "omp", "topology", "mode", "ranks", "count", "source"),
    [
        (None, None, grid(1, 8), "none", 2, 1, "default"),
        (None, "3", grid(1, 8), "none", 2, 3, "OMP_NUM_THREADS"),
        (None, "4,2", grid(1, 8), "none", 2, 4, "OMP_NUM_THREADS"),
        ("2", "3", grid(1, 8), "none", 2, 2, "--threads-per-rank"),
        ("auto", "3", grid(1, 8), "none", 2, 3, "OMP_NUM_THREADS"),
        ("auto", None, grid(1, 8), "none", 2, 4, "auto"),
        ("auto", None, grid(1, 8, threads=2), "cores", 2, 4, "auto"),
        ("auto", None, grid(1, 8, quota=3), "none", 2, 1, "auto"),
        ("auto", None, grid(1, 2), "none", 4, 1, "auto"),
        ("auto", None, grid(2, 4), "numa", 1, 4, "auto"),
    ],
)
def test_threads_per_rank_come_from_option_variable_or_default(
    asked: str | None,
    omp: str | None,
    topology: Topology,
    mode: str,
    ranks: int,
    count: int,
    source: str,
) -> None:
    found = choose_threads(asked, omp, topology, plan_pinning(mode, topology, ranks), ranks)
    assert (found.count, found.source) == (count, source)


@pytest.mark.parametrize(
    ("asked", "omp", "message"),
    [
        ("0", None, "--threads-per-rank 0 is out of range (allowed: a whole number, 1 or more, or"),
        ("many", None, "--threads-per-rank many is out of range"),
        (None, "x", "OMP_NUM_THREADS=x is out of range"),
    ],
)
def test_invalid_numbers_of_threads_are_refused(
    asked: str | None, omp: str | None, message: str
) -> None:
    nothing = plan_pinning("none", grid(1, 1), 1)
    with pytest.raises(UsageError) as caught:
        choose_threads(asked, omp, grid(1, 1), nothing, 1)
    assert message in str(caught.value)


def test_a_script_is_pinned_at_its_start_and_the_variable_is_removed() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    shown = "import os; print(sorted(os.sched_getaffinity(0)), 'COMMPROF_CPUS' in os.environ)"
    environment = {
        **os.environ,
        **boot.environment(Path("unused")),
        "COMMPROF_CPUS": f"{allowed[0]}/{allowed[-1]}",
        "LOCAL_RANK": "1",
    }
    command = [sys.executable, "-c", shown]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"[{allowed[-1]}] False\n", "")


_CPU = "sys/devices/system/cpu"


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path, nodes: int, cores: int, threads: int) -> None:
    """Writes files of a machine. CPUs are numbered node by node, and again for further threads."""
    total = nodes * cores
    write(root, {f"{_CPU}/online": f"0-{total * threads - 1}\n"})
    for node in range(nodes):
        mine = range(node * cores, (node + 1) * cores)
        cpus = [core + thread * total for thread in range(threads) for core in mine]
        listed = ",".join(map(str, cpus))
        write(root, {f"sys/devices/system/node/node{node}/cpulist": f"{listed}\n"})
        for core in mine:
            siblings = [core + thread * total for thread in range(threads)]
            text = ",".join(map(str, siblings)) + "\n"
            write(root, {f"{_CPU}/cpu{cpu}/topology/core_cpus_list": text for cpu in siblings})
