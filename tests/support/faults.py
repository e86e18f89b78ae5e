"""The faults that a training may meet: each is run with commprof and without, and compared.

One :class:`Fault` says what the script does (``scripts/faulty.py``), what is done to it from
outside, and what the report must say of it.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from commprof.commands import main
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.forks import Forks, Rank
from tests.support.ranks import free_port

SCRIPT = Path(__file__).parent / "scripts/faulty.py"
_TIMEOUT_S = 60
_RANKS = 2


@dataclass
class Job:
    """Ranks that run, and where."""

    ranks: list[Rank]
    #: Working directory, and where traces go.
    directory: Path
    traces: Path
    hosts: list[str]

    def await_step(self, step: int) -> None:
        """Returns once rank 0 has said that this step is done."""
        limit = time.monotonic() + _TIMEOUT_S
        while steps_said(self.ranks[0]) <= step:
            assert time.monotonic() < limit, f"no step {step}: {self.ranks[0].stderr}"
            time.sleep(0.01)


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    #: Of ``scripts/faulty.py``.
    inside: str = "none"
    steps: int = 40
    #: Done to the job while it trains.
    outside: Callable[[Job], None] | None = None
    #: What each rank's own environment gets.
    environment: dict[str, str] = field(default_factory=dict)
    #: Of the ranks' address space; 0: none.
    memory_bytes: int = 0
    #: Room of a file system for the traces alone; 0: they lie with everything else.
    disk_bytes: int = 0
    #: Who the ranks run as; 0: who runs this.
    uid: int = 0
    #: Must stand in the report, as a regular expression.
    cause: str = ""
    #: Steps said but not in the trace, at most: 0 where records outlive their process.
    may_lose: int = 0
    #: Whether ranks fail as they happen to notice it: then only the failing ranks are compared.
    errors_vary: bool = True


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    returncode: int
    #: Last line of its first traceback, less numbers; empty without one.
    error: str
    #: Of its weights; empty if it did not come to its end.
    checksum: str
    steps: int


@dataclass(frozen=True)
class Verdict:
    """Of one try of one fault."""

    name: str
    plain: list[Ended]
    recorded: list[Ended]
    #: Steps in each rank's trace; -1 for no trace.
    kept: list[int]
    report: str
    fault: Fault

    @property
    def unharmed(self) -> bool:
        """Same exit codes, same errors, same weights."""
        return all(self._same(a, b) for a, b in zip(self.plain, self.recorded, strict=True))

    def _same(self, plain: Ended, recorded: Ended) -> bool:
        same = (plain.returncode, plain.checksum) == (recorded.returncode, recorded.checksum)
        if self.fault.errors_vary and "gloo" in plain.error:
            # Which of its peer's connections fails first is chance.
            return same and "gloo" in recorded.error
        return same and plain.error == recorded.error

    @property
    def records_kept(self) -> bool:
        """Every step that a rank said is in its trace."""
        return all(
            kept >= ended.steps - self.fault.may_lose
            for kept, ended in zip(self.kept, self.recorded, strict=True)
        )

    @property
    def cause_named(self) -> bool:
        """The report says what happened."""
        return re.search(self.fault.cause, " ".join(self.report.split())) is not None

    def complaint(self) -> str:
        """What to read where one of the three is false."""
        return (
            f"plain {self.plain}\nrecorded {self.recorded}\nkept {self.kept}\n"
            f"cause wanted: {self.fault.cause!r}\n{self.report}"
        )


def try_fault(
    fault: Fault, forks: Forks, directory: Path, hosts: list[str] | None = None, cgroup: str = ""
) -> Verdict:
    """Runs it twice, at first without commprof."""
    plain = _run(fault, forks, directory / "plain", False, hosts or [], cgroup)
    with ExitStack() as stack:
        place = directory / "recorded"
        if fault.disk_bytes:
            stack.enter_context(small_disk(place / "out", fault.disk_bytes))
        recorded = _run(fault, forks, place, True, hosts or [], cgroup)
        traces = place / "out"
        kept = [_steps_kept(traces / f"rank_{rank}.trace") for rank in range(_RANKS)]
        report = report_on(traces)
    return Verdict(fault.name, plain, recorded, kept, report, fault)


def _run(
    fault: Fault, forks: Forks, place: Path, recorded: bool, hosts: list[str], cgroup: str
) -> list[Ended]:
    place.mkdir(parents=True, exist_ok=True)
    for host in hosts:  # the run before may have cut it off
        subprocess.run(["ip", "-n", host, "link", "set", "eth0", "up"], check=True)
    job = _start(fault, forks, place, recorded, hosts, cgroup)
    if fault.outside is not None:
        fault.outside(job)
    for rank in job.ranks:
        forks.wait(rank, _TIMEOUT_S)
    return [_ended(rank) for rank in job.ranks]


def report_on(directory: Path) -> str:
    """What ``commprof report`` prints."""
    text = io.StringIO()
    with redirect_stdout(text):
        main(["report", str(directory)])
    return text.getvalue()


def steps_said(rank: Rank) -> int:
    """Steps that it has said are done."""
    return len(re.findall(r"^step \d+$", rank.stdout, re.MULTILINE))


def _start(
    fault: Fault, forks: Forks, place: Path, recorded: bool, hosts: list[str], cgroup: str
) -> Job:
    traces = place / "out"
    port = 29500 if hosts else free_port()
    meeting = {
        "MASTER_ADDR": "10.96.0.1" if hosts else "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(_RANKS),
        "COMMPROF_OUT": str(traces),
        # Nobody answers there when the store asks for names.
        **({"GLOO_SOCKET_IFNAME": "eth0", "RES_OPTIONS": "timeout:1 attempts:1"} if hosts else {}),
    }
    ranks = [
        forks.start(
            [str(SCRIPT), fault.inside, str(fault.steps)],
            place,
            f"rank_{rank}",
            recorded=recorded,
            environment={**meeting, **fault.environment, "RANK": str(rank)},
            netns=hosts[rank] if hosts else "",
            cgroup=cgroup if rank == _RANKS - 1 else "",
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
    """Last line of the first traceback, without what differs from try to try."""
    lines = iter(stderr.splitlines())
    for line in lines:
        if line.startswith("Traceback"):
            break
    for line in lines:
        if line and not line.startswith((" ", "Traceback")):
            return re.sub(r"\d+", "N", line)
    return ""


def _steps_kept(path: Path) -> int:
    return len(columns.steps(read_trace(path))) if path.exists() else -1


@contextmanager
def small_disk(where: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own with so much room; needs root."""
    where.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=777", "tmpfs", str(where)],
        check=True,
    )
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def can_mount() -> bool:
    """Whether :func:`small_disk` works here."""
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True
    )
    return probe.returncode == 0


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[str]:
    """A cgroup with so much memory and no swap; an empty string where none can be made."""
    for root, names in (
        ("/sys/fs/cgroup", {"memory.max": limit_bytes, "memory.swap.max": 0}),
        ("/sys/fs/cgroup/memory", {"memory.limit_in_bytes": limit_bytes}),
    ):
        if not Path(root, "cgroup.procs").exists():
            continue  # not the place of this version of cgroups
        group = Path(root) / f"commprof-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                for name, value in names.items():
                    (group / name).write_text(str(value))
            except OSError:
                continue
            yield str(group)
            return
        finally:
            with suppress(OSError):
                group.rmdir()
    yield ""
