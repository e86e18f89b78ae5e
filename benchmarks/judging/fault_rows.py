"""The rows of the fault matrix."""

from __future__ import annotations

import random
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support.builders.hostile import damaged_runs
from tests.support.machines.faults import fault_list, limits
from tests.support.machines.faults.faults import Fault, Setting, Verdict, try_fault
from tests.support.machines.faults.launcher_faults import LAUNCHER_FAULTS, LauncherFault, Outcome
from tests.support.machines.forks import Forks
from tests.support.machines.netns import Hosts, unavailable
from tests.support.ranks.capture.many_events import many_events

#: Questions about a try, each with the attribute that has the answer.
ASKED: Mapping[str, str] = {
    "training unharmed": "unharmed",
    "records kept": "records_kept",
    "cause named": "cause_named",
}
EVENTS = 10_000_000
_DAMAGED = 500
_MEMORY_BYTES = 1 << 30

Try = Verdict | Outcome
#: Tries a fault; the arguments are the forks, the number of tries and the first seed.
TryAll = Callable[[Forks, int, int], Iterable[Try]]


@dataclass(frozen=True)
class Row:
    """One fault of the matrix."""

    name: str
    #: Returns why this machine cannot try the fault; empty if it can.
    unavailable: Callable[[], str]
    try_all: TryAll
    asked: Mapping[str, str] = field(default_factory=lambda: ASKED)
    #: Number of tries; 0 for the number in --tries.
    tries: int = 0
    #: True if watchdog and live metrics run in every second try.
    watched: bool = False


def rows() -> list[Row]:
    """Returns all rows of the matrix."""
    no_mount = "no file system can be mounted"
    return [
        *(_in_a_job(fault, str) for fault in fault_list.FAULTS),
        _in_a_job(fault_list.OUT_OF_MEMORY, _no_cgroup),
        *(
            _in_a_job(fault, lambda: "" if limits.can_mount() else no_mount)
            for fault in fault_list.DISK_FAULTS
        ),
        *(_in_a_job(fault, unavailable) for fault in fault_list.NETWORK_FAULTS),
        *(_of_a_launcher(fault) for fault in LAUNCHER_FAULTS),
        Row(
            "10 million events",
            str,
            _ten_million,
            {"every record read or counted as dropped": "records_kept"},
            tries=1,
        ),
        Row(
            "damaged and hostile run directories",
            str,
            _damaged,
            {"no command crashes": "unharmed"},
            tries=_DAMAGED,
        ),
    ]


def _no_cgroup() -> str:
    with limits.memory_cgroup(_MEMORY_BYTES) as cgroup:
        return "" if cgroup else "no cgroup can be made"


def _in_a_job(fault: Fault, unavailable: Callable[[], str]) -> Row:
    """Makes the row of a fault in a job without a launcher."""
    # Ranks of another user may have no right to start this user's Python.
    watched = fault.uid == 0

    def try_all(forks: Forks, tries: int, _: int) -> Iterator[Try]:
        for number in range(tries):
            yield _guarded(partial(_one, fault, forks, watched and number % 2 == 1))

    return Row(fault.name, unavailable, try_all, watched=watched)


def _of_a_launcher(fault: LauncherFault) -> Row:
    def try_once(number: int) -> Outcome:
        with tempfile.TemporaryDirectory() as directory:
            return fault.try_once(Path(directory), random.Random(f"{fault.name} {number}"))

    def try_all(_: Forks, tries: int, first_seed: int) -> Iterator[Try]:
        for number in range(first_seed, first_seed + tries):
            yield _guarded(partial(try_once, number))

    return Row(fault.name, fault.unavailable, try_all)


def _guarded(try_once: Callable[[], Try]) -> Try:
    """Runs a try; an exception counts as a failed try."""
    try:
        return try_once()
    except Exception:
        return Outcome(False, False, False, traceback.format_exc())


def _one(fault: Fault, forks: Forks, watched: bool) -> Verdict:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o755)
        hosts = []
        if fault in fault_list.NETWORK_FAULTS:
            hosts = stack.enter_context(Hosts(2, "1gbit")).names
        cgroup = ""
        if fault is fault_list.OUT_OF_MEMORY:
            cgroup = stack.enter_context(limits.memory_cgroup(_MEMORY_BYTES))
        return try_fault(fault, forks, directory, Setting(hosts, cgroup, watched))


def _ten_million(_: Forks, tries: int, __: int) -> Iterator[Try]:
    for _number in range(tries):
        found = many_events(EVENTS)
        yield Outcome(True, found.all_accounted_for, True, str(found))


def _damaged(_: Forks, tries: int, first_seed: int) -> Iterator[Try]:
    for read in damaged_runs(tries, first_seed):
        yield Outcome(not read.crashed, True, True, read.said)
