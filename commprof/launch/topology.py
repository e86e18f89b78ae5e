"""Finds the CPU cores that this process may use.

Sources: the kernel's Documentation/ABI (sysfs-devices-system-cpu, sysfs-devices-node) for sysfs,
Documentation/admin-guide/cgroup-v2 for cgroup v2, and sched-bwc for cgroup v1. The CPU affinity of
a process respects the cpuset of its cgroup, but not the CPU quota.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from commprof.errors import UsageError

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_CGROUPS = "sys/fs/cgroup"


@dataclass(frozen=True)
class Core:
    """A physical core, with the hyper-threads that this process may use."""

    node: int
    """NUMA node; 0 if the kernel does not name one."""
    cpus: tuple[int, ...]
    """Hyper-threads of the core that are online and allowed, at least one."""


@dataclass(frozen=True)
class Topology:
    """The cores that this process may use."""

    cores: tuple[Core, ...]
    """Cores, sorted by node, then by their first hyper-thread."""
    quota_cpus: float | None = None
    """CPU quota of the cgroup, in CPUs (CPU time per elapsed time); None if unlimited."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """All usable hyper-threads, in the order of the cores."""
        return tuple(cpu for core in self.cores for cpu in core.cpus)

    @property
    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes that have a usable core."""
        return tuple(sorted({core.node for core in self.cores}))

    @property
    def usable_cpus(self) -> int:
        """Number of threads that can run at the same time, limited by hyper-threads and quota."""
        granted = len(self.cpus) if self.quota_cpus is None else max(1, int(self.quota_cpus))
        return min(len(self.cpus), granted)

    @property
    def usable_cores(self) -> int:
        """Number of physical cores that this process may use, at most `usable_cpus`."""
        return min(len(self.cores), self.usable_cpus)


def this_host() -> Topology:
    """Returns the cores that the calling process may use."""
    return read_topology(os.sched_getaffinity(0))


def read_topology(allowed: Iterable[int], root: Path = Path("/")) -> Topology:
    """Returns the cores of the CPUs ``allowed``, read from the kernel's files under ``root``.

    If the kernel does not list siblings, each CPU counts as a core. If the kernel does not list
    nodes, all cores are on node 0.
    """
    usable = set(allowed)
    online = _cpu_list(root / _CPUS / "online")
    usable = usable & set(online) or usable
    node_of = {cpu: node for node, cpus in _nodes(root) for cpu in cpus}
    cores: dict[tuple[int, ...], int] = {}
    for cpu in sorted(usable):
        siblings = tuple(sorted({cpu, *_siblings(root, cpu)} & usable))
        cores[siblings] = node_of.get(cpu, 0)
    ordered = sorted(cores.items(), key=lambda item: (item[1], item[0]))
    return Topology(tuple(Core(node, cpus) for cpus, node in ordered), _quota(root))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Reads a list of CPUs as the kernel writes it, e.g. ``0-3,8``; empty for an empty line.

    Raises:
        UsageError: the text is not such a list.
    """
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{text.strip()!r} is not a list of CPUs such as 0-3,8")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Returns a list of CPUs as the kernel writes it, with ranges as ``first-last``."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _cpu_list(path: Path) -> tuple[int, ...]:
    """Reads a list of CPUs from a file; empty if the file is missing or malformed."""
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, UsageError):
        return ()


def _nodes(root: Path) -> Iterator[tuple[int, tuple[int, ...]]]:
    for path in (root / _NODES).glob("node[0-9]*"):
        yield int(path.name.removeprefix("node")), _cpu_list(path / "cpulist")


def _siblings(root: Path, cpu: int) -> tuple[int, ...]:
    # Kernels before 5.3 have only thread_siblings_list.
    folder = root / _CPUS / f"cpu{cpu}" / "topology"
    return _cpu_list(folder / "core_cpus_list") or _cpu_list(folder / "thread_siblings_list")


def _quota(root: Path) -> float | None:
    """Returns the smallest CPU quota of this process's cgroups, in CPUs; None if unlimited."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for folder in _ancestors(root / _CGROUPS, controllers, group):
            quota = _quota_v1(folder) if controllers else _quota_v2(folder)
            quotas += [] if quota is None else [quota]
    return min(quotas, default=None)


def _ancestors(mount: Path, controllers: str, group: str) -> Iterator[Path]:
    """Yields the folders of a cgroup and of its parents; some folders may not exist."""
    mounts = [mount, mount / "unified"] if not controllers else []
    if "cpu" in controllers.split(","):
        mounts = [mount / "cpu", mount / controllers]
    parts = PurePosixPath(group).relative_to("/")
    for base in mounts:
        for relative in (parts, *parts.parents):
            yield base / relative


def _quota_v2(folder: Path) -> float | None:
    """Returns the CPU quota of a cgroup v2, in CPUs; None if there is no quota.

    ``cpu.max`` holds quota and period in microseconds, with the word "max" for no quota.
    """
    words = _words(folder / "cpu.max")
    return _ratio(*words) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    """Returns the CPU quota of a cgroup v1, in CPUs; None if there is no quota.

    Two files hold quota and period in microseconds, with -1 for no quota.
    """
    words = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    return _ratio(*words) if len(words) == 2 else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _ratio(quota: str, period: str) -> float | None:
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)
