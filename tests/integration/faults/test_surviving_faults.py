from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof import _native
from tests.support.machines.faults import fault_list, limits
from tests.support.machines.faults.faults import Fault, Setting, Verdict, try_fault
from tests.support.machines.forks import Forks
from tests.support.machines.netns import Hosts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the C++ module"),
]

WATCHED = ("no fault", "SIGKILL", "SIGSTOP, SIGCONT", "run directory deleted")


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


def check(verdict: Verdict) -> None:
    said = verdict.complaint()
    assert (verdict.unharmed, verdict.records_kept, verdict.cause_named) == (True,) * 3, said


def named(fault: Fault) -> str:
    return fault.name


@pytest.mark.parametrize("fault", fault_list.FAULTS, ids=named)
def test_after_a_fault_in_a_job_records_are_kept_and_the_cause_is_named(
    fault: Fault, forks: Forks, tmp_path: Path
) -> None:
    check(try_fault(fault, forks, tmp_path, Setting()))


@pytest.mark.parametrize(
    "fault", [fault for fault in fault_list.FAULTS if fault.name in WATCHED], ids=named
)
def test_after_a_fault_in_a_watched_job_records_are_kept_and_the_cause_is_named(
    fault: Fault, forks: Forks, tmp_path: Path
) -> None:
    verdict = try_fault(fault, forks, tmp_path, Setting(watched=True))
    check(verdict)
    assert verdict.at_work
    assert (tmp_path / "recorded/live/metrics.jsonl").exists()


@pytest.mark.parametrize("fault", fault_list.DISK_FAULTS, ids=named)
def test_after_a_disk_fault_records_are_kept_and_the_cause_is_named(
    fault: Fault, forks: Forks, tmp_path: Path
) -> None:
    if not limits.can_mount():
        pytest.skip("needs to mount a tmpfs")
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)
    check(try_fault(fault, forks, tmp_path, Setting()))


def test_after_a_cgroup_is_out_of_memory_records_are_kept_and_the_cause_named(
    forks: Forks, tmp_path: Path
) -> None:
    with limits.memory_cgroup(1 << 30) as cgroup:
        if not cgroup:
            pytest.skip("needs a cgroup of its own")
        check(try_fault(fault_list.OUT_OF_MEMORY, forks, tmp_path, Setting(cgroup=cgroup)))


@pytest.mark.needs_netns
@pytest.mark.parametrize("fault", fault_list.NETWORK_FAULTS, ids=named)
def test_after_a_fault_between_hosts_records_are_kept_and_the_cause_is_named(
    fault: Fault, forks: Forks, tmp_path: Path
) -> None:
    with Hosts(2, "1gbit") as hosts:
        check(try_fault(fault, forks, tmp_path, Setting(hosts.names)))
