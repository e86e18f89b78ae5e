from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from commprof import variables
from commprof.commands import main
from commprof.monitor.monitor import address_file
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.machines.faults.limits import small_disk
from tests.support.machines.forks import Forks, Rank
from tests.support.machines.processes import await_gone, gone, processes_of
from tests.support.machines.ranks import free_port

SCRIPT = Path(__file__).parents[2] / "scripts/faulty.py"
_TIMEOUT_S = 60
_RANKS = 2


@dataclass
class Job:
    ranks: list[Rank]
    directory: Path
    traces: Path
    hosts: list[str]
    #: Number of steps that each trace must have; if empty, all printed steps but ``may_lose``.
    must_keep: list[int] = field(default_factory=list)

    def await_step(self, step: int) -> None:
        limit = time.monotonic() + _TIMEOUT_S
        while steps_said(self.ranks[0]) <= step:
            assert time.monotonic() < limit, f"no step {step}: {self.ranks[0].stderr}"
            time.sleep(0.01)

    def keep_until_now(self) -> None:
        """Lets the traces lack the steps that are printed after this call."""
        self.must_keep = [steps_said(rank) for rank in self.ranks]

    def end(self, forks: Forks) -> None:
        for rank in self.ranks:
            if rank.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
                forks.wait(rank, _TIMEOUT_S)


@dataclass(frozen=True)
class Setting:
    #: Names of network namespaces, one for each rank; if empty, all ranks run on this host.
    hosts: list[str] = field(default_factory=list)
    cgroup: str = ""
    #: The watchdog and live metrics run, in the try with commprof.
    watched: bool = False


@dataclass(frozen=True)
class Fault:
    name: str
    inside: str = "none"
    steps: int = 40
    outside: Callable[[Job], None] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    #: Limit of the last rank's address space; 0 means no limit.
    memory_bytes: int = 0
    disk_bytes: int = 0
    #: User that the ranks run as; 0 means the present user.
    uid: int = 0
    cause: str = ""
    may_lose: int = 0
    #: The pause after each step gives the watchers time to start before the fault.
    watched_pause_s: float = 0.1
    #: If this is True, any two errors of gloo count as the same, because the errors depend on
    #: chance.
    errors_vary: bool = True


@dataclass(frozen=True)
class Ended:
    returncode: int
    error: str
    checksum: str
    steps: int


@dataclass(frozen=True)
class Verdict:
    name: str
    plain: list[Ended]
    recorded: list[Ended]
    kept: list[int]
    report: str
    fault: Fault
    must_keep: list[int]
    at_work: bool = False
    #: Process IDs of watchers that had to be killed.
    left: list[int] = field(default_factory=list)

    @property
    def unharmed(self) -> bool:
        same = all(self._same(a, b) for a, b in zip(self.plain, self.recorded, strict=True))
        return same and not self.left

    def _same(self, plain: Ended, recorded: Ended) -> bool:
        same = (plain.returncode, plain.checksum) == (recorded.returncode, recorded.checksum)
        if self.fault.errors_vary and plain.returncode == -signal.SIGABRT:
            # gloo sometimes ends a rank by std::terminate, which raises SIGABRT.
            return plain.checksum == recorded.checksum and recorded.returncode != 0
        if self.fault.errors_vary and "gloo" in plain.error:
            # Chance decides which of the peer's connections fails first.
            return same and "gloo" in recorded.error
        return same and plain.error == recorded.error

    @property
    def records_kept(self) -> bool:
        wanted = [ended.steps - self.fault.may_lose for ended in self.recorded]
        pairs = zip(self.kept, self.must_keep or wanted, strict=True)
        return all(kept >= steps for kept, steps in pairs)

    @property
    def cause_named(self) -> bool:
        return re.search(self.fault.cause, " ".join(self.report.split())) is not None

    def complaint(self) -> str:
        return (
            f"plain {self.plain}\nrecorded {self.recorded}\nkept {self.kept}, "
            f"must keep {self.must_keep}; at work {self.at_work}, left {self.left}\n"
            f"cause wanted: {self.fault.cause!r}\n{self.report}"
        )


def try_fault(fault: Fault, forks: Forks, directory: Path, setting: Setting) -> Verdict:
    plain = _run(fault, forks, directory / "plain", False, setting)
    with ExitStack() as stack:
        place = directory / "recorded"
        if fault.disk_bytes:
            stack.enter_context(small_disk(place / "out", fault.disk_bytes))
        ran = _run(fault, forks, place, True, setting)
        traces = place / "out"
        kept = [steps_kept(traces / f"rank_{rank}.trace") for rank in range(_RANKS)]
        report = report_on(traces)
    return Verdict(
        name=fault.name,
        plain=plain.ended,
        recorded=ran.ended,
        kept=kept,
        report=report,
        fault=fault,
        must_keep=ran.must_keep,
        at_work=ran.at_work,
        left=ran.left,
    )


@dataclass(frozen=True)
class _Ran:
    ended: list[Ended]
    must_keep: list[int]
    at_work: bool
    left: list[int]


def _run(fault: Fault, forks: Forks, place: Path, recorded: bool, setting: Setting) -> _Ran:
    place.mkdir(parents=True, exist_ok=True)
    for host in setting.hosts:  # an earlier fault may have cut off the host
        subprocess.run(["ip", "-n", host, "link", "set", "eth0", "up"], check=True)
    job = _start(fault, forks, place, recorded, setting)
    watched = recorded and setting.watched
    left: list[int] = []
    try:
        at_work = watched and await_watchers(job.traces, [rank.pid for rank in job.ranks])
        if fault.outside is not None:
            fault.outside(job)
        for rank in job.ranks:
            forks.wait(rank, _TIMEOUT_S)
    finally:
        job.end(forks)
        if watched:
            left = end_watchers(job.traces)
    return _Ran([_ended(rank) for rank in job.ranks], job.must_keep, at_work, left)


def report_on(directory: Path) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        main(["report", str(directory), "--all"])
    return text.getvalue()


def steps_said(rank: Rank) -> int:
    return len(re.findall(r"^step \d+$", rank.stdout, re.MULTILINE))


def _start(fault: Fault, forks: Forks, place: Path, recorded: bool, setting: Setting) -> Job:
    traces, hosts = place / "out", setting.hosts
    port = 29500 if hosts else free_port()
    shared = {
        "MASTER_ADDR": "10.96.0.1" if hosts else "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(_RANKS),
        "COMMPROF_OUT": str(traces),
        # In a namespace no name server answers, so the store's queries must time out soon.
        **({"GLOO_SOCKET_IFNAME": "eth0", "RES_OPTIONS": "timeout:1 attempts:1"} if hosts else {}),
    }
    if setting.watched:
        shared |= {"PAUSE": str(fault.watched_pause_s), **watchers_environment(place / "live")}
    ranks = [
        forks.start(
            [str(SCRIPT), fault.inside, str(fault.steps)],
            place,
            f"rank_{rank}",
            recorded=recorded,
            environment={**shared, **fault.environment, "RANK": str(rank)},
            netns=hosts[rank] if hosts else "",
            cgroup=setting.cgroup if rank == _RANKS - 1 else "",
            memory_bytes=fault.memory_bytes if rank == _RANKS - 1 else 0,
            uid=fault.uid,
        )
        for rank in range(_RANKS)
    ]
    return Job(ranks, place, traces, hosts)


def _ended(rank: Rank) -> Ended:
    done = re.search(r"^done (\w+)$", rank.stdout, re.MULTILINE)
    assert rank.returncode is not None
    return Ended(
        rank.returncode, first_error(rank.stderr), done[1] if done else "", steps_said(rank)
    )


def first_error(stderr: str) -> str:
    lines = iter(stderr.splitlines())
    for line in lines:
        if line.startswith("Traceback"):
            break
    for line in lines:
        if line and not line.startswith((" ", "Traceback", "commprof: ")):
            return re.sub(r"\d+", "N", line)
    return ""


def steps_kept(path: Path) -> int:
    if not path.exists():
        return -1
    trace = read_trace(path)
    if trace.summary is None or trace.summary.mode == "full":
        return len(columns.steps(trace))
    summarised = trace.summary.steps.count
    return summarised + 1 if summarised else 0  # a summary does not count the first step


#: A stopped rank stands still for 1.5 s, and a partitioned rank waits 8 s.
_THRESHOLD_S = 5
_INTERVAL_S = 0.2
_START_S = 20
_POLL_S = 0.05


def watchers_environment(place: Path) -> dict[str, str]:
    place.mkdir(parents=True)
    place.chmod(0o777)  # the ranks may run as another user
    lines = shlex.quote(str(place / "metrics.jsonl"))
    return {
        variables.WATCHDOG: str(_THRESHOLD_S),
        variables.METRICS: f"--metrics-address 127.0.0.1:0 --metrics-jsonl {lines} "
        f"--metrics-interval {_INTERVAL_S}",
    }


def await_watchers(traces: Path, ranks: Sequence[int]) -> bool:
    limit = time.monotonic() + _START_S
    listened = watched = False
    while not (listened and watched):
        if time.monotonic() > limit or all(gone(pid) for pid in ranks):
            return False
        listened = listened or address_file(traces).exists()
        watched = watched or any(_is_watchdog(pid) for pid in processes_of(traces))
        time.sleep(_POLL_S)
    return True


def end_watchers(traces: Path) -> list[int]:
    left = await_gone(processes_of(traces))
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _is_watchdog(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[1:3] == [b"-m", b"commprof.monitor.watchdog"]
    return False
