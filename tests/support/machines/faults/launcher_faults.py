from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.machines.faults import interrupts, limits
from tests.support.machines.faults.faults import SCRIPT, report_on
from tests.support.machines.launched import TORCHRUN, Launched, launch, run_of, steps_in
from tests.support.machines.processes import await_gone, gone, processes_of
from tests.support.machines.ranks import free_port

MEMORY_BYTES = 2 << 30
"""torch needs a third of this memory, and the fault ``grow`` needs more than this memory."""
_END_S = 180
_CLOCK_STEP = SCRIPT.parents[1] / "machines/faults/clock_step.c"
_STEPS = 100


@dataclass(frozen=True)
class Outcome:
    unharmed: bool
    records_kept: bool
    cause_named: bool
    said: str

    def complaint(self) -> str:
        return self.said


@dataclass(frozen=True)
class LauncherFault:
    name: str
    try_once: Callable[[Path, random.Random], Outcome]
    #: Returns the reason why this machine cannot try the fault, or an empty string.
    unavailable: Callable[[], str] = str


def launcher_killed(place: Path, chance: random.Random) -> Outcome:
    """Kills the launcher; the ranks must live on, as a script's ranks do under torchrun."""
    job = launch(run_of(place), place)
    try:
        job.await_steps()
        ranks = job.pids()
        job.process.kill()
        job.process.wait()
        job.await_growth()
        alive = not any(gone(pid) for pid in ranks)
        for pid in ranks:
            subprocess.run(["kill", "-KILL", str(pid)], check=True)
        left = await_gone(ranks)
        said, report = job.steps_said, " ".join(report_on(job.run).split())
        kept, rings = job.steps_kept, job.rings()
    finally:
        job.end()
    killed = f"the launcher (process {job.process.pid}) was killed before its ranks had ended"
    return Outcome(
        alive and not left and not rings,
        kept >= said > 0,
        killed in report and "rank 0 never closed its trace: its process" in report,
        f"alive {alive}, left {left}, {rings}; said {said}, kept {kept}\n{report}",
    )


def ctrl_c(place: Path, chance: random.Random) -> Outcome:
    kind = chance.choice(list(interrupts.KINDS))
    if kind not in _lengths_s:
        _lengths_s[kind] = interrupts.length_s(kind, place / "whole")
    after_s = chance.uniform(0, _lengths_s[kind])
    found = interrupts.interrupt(kind, after_s, place / "interrupted")
    return Outcome(not found.harm, not found.loss, found.named, found.complaint())


_lengths_s: dict[str, float] = {}


def launcher_terminated(place: Path, chance: random.Random) -> Outcome:
    job = launch(run_of(place), place)
    try:
        job.await_steps()
        ranks = job.pids()
        job.process.send_signal(signal.SIGTERM)
        code = job.process.wait(_END_S)
        left, rings = await_gone([*ranks, *processes_of(job.run)]), job.rings()
        said, kept = job.steps_said, job.steps_kept
        errors = json.loads((job.run / "run.json").read_text())["errors"]
    finally:
        job.end()
    return Outcome(
        code == -signal.SIGTERM and not left and not rings,
        kept >= said > 0,
        errors == {"2": "the launcher was ended by SIGTERM"},
        f"code {code}, left {left}, {rings}; said {said}, kept {kept}; {errors}\n{job.err}",
    )


def out_of_memory(place: Path, chance: random.Random) -> Outcome:
    with limits.memory_cgroup(MEMORY_BYTES) as cgroup:
        plain = launch([*TORCHRUN, str(SCRIPT), "grow", "40"], place / "plain", cgroup)
        plain_code = plain.process.wait(_END_S)
        told = re.search(r"rank +: 1 .*?exitcode +: (-?\d+)", plain.err, re.DOTALL)
    with limits.memory_cgroup(MEMORY_BYTES) as cgroup:
        command = run_of(place, "--nproc", "2", str(SCRIPT), "grow", "40")
        job = launch(command, place, cgroup)
        code = job.process.wait(_END_S)
        left = await_gone(processes_of(job.run))
    report = " ".join(report_on(job.run).split())
    killed = int(told[1]) if told else 0
    # torchrun always exits with 1, and prints the signal that ended the rank.
    same = plain_code == 1 and killed == -signal.SIGKILL and code == 128 + signal.SIGKILL
    cause = r"its process was ended by SIGKILL: out of memory \(processes that the kernel killed in"
    cause += r" the launcher's cgroup: 1\)"
    return Outcome(
        same and not left and not job.rings(),
        job.steps_kept >= job.steps_said >= 40,  # each of the 2 ranks prints 20 steps
        re.search(cause, report) is not None,
        f"torchrun {plain_code}, rank {killed}; commprof {code}, left {left}; said "
        f"{job.steps_said}, kept {job.steps_kept}\n{plain.err}\n{job.err}\n{report}",
    )


def clock_stepped(place: Path, chance: random.Random) -> Outcome:
    library = place / "clock_step.so"
    build = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_CLOCK_STEP)]
    subprocess.run(build, check=True)
    environment = {
        **{"LD_PRELOAD": str(library), "CLOCK_STEP_S": str(chance.choice((-3600, 3600)))},
        **{"CLOCK_STEP_AFTER_S": str(chance.randint(3, 6)), "PAUSE": "0.03"},
        "COMMPROF_OUT": str(place / "run" / "world_2"),
    }
    plain = _two_ranks((), place / "plain", environment)
    jobs = _two_ranks(("-m", "commprof.wrap"), place, environment)
    kept = [steps_in(place / f"run/world_2/rank_{rank}.trace") for rank in (0, 1)]
    report = report_on(place / "run" / "world_2")
    ended, wanted = ([_end_of(rank) for rank in ranks] for ranks in (jobs, plain))
    return Outcome(
        ended == wanted and all(code == 0 and len(sums) == 1 for code, sums in ended),
        kept == [job.steps_said for job in jobs] == [_STEPS] * 2,
        "Step boundaries were inferred" in report and "did not run" not in report,
        f"{wanted}, {ended}; kept {kept}\n{jobs[0].err}\n{jobs[1].err}\n{report}",
    )


def _end_of(rank: Launched) -> tuple[int | None, list[str]]:
    return rank.process.returncode, _checksums(rank)


def _two_ranks(wrap: Sequence[str], place: Path, environment: dict[str, str]) -> list[Launched]:
    """Starts the ranks without a launcher, whose clock must not change."""
    port = str(free_port())
    command = [sys.executable, *wrap, str(SCRIPT), "none", str(_STEPS)]
    ranks = [
        launch(
            command,
            place / f"rank_{rank}",
            **{**environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            **{"MASTER_ADDR": "localhost", "MASTER_PORT": port},
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.process.wait(_END_S)
    return ranks


def two_jobs(place: Path, chance: random.Random) -> Outcome:
    script = [str(SCRIPT), "none", str(_STEPS)]
    plain = launch([*TORCHRUN, *script], place / "plain")
    plain.process.wait(_END_S)
    out = place / "out"
    command = [*TORCHRUN, "-m", "commprof.wrap", *script]
    jobs = [launch(command, place / name, COMMPROF_OUT=str(out)) for name in ("first", "second")]
    codes = [job.process.wait(_END_S) for job in jobs]
    kept = [
        [steps_in(where / f"rank_{rank}.trace") for rank in (0, 1)]
        for where in (out, out / "job_2")
    ]
    reports = [report_on(where) for where in (out, out / "job_2")]
    same = all(_checksums(job) == _checksums(plain) for job in jobs)
    return Outcome(
        codes == [0, 0] and same and len(_checksums(plain)) == 2,
        kept == [[_STEPS] * 2] * 2,
        all("Step boundaries were inferred" in report for report in reports),
        f"{codes}, {same}, kept {kept}\n" + "\n".join([*(job.err for job in jobs), *reports]),
    )


def _checksums(job: Launched) -> list[str]:
    return sorted(re.findall(r"done (\w{8})", job.out))


def no_cgroup() -> str:
    with limits.memory_cgroup(MEMORY_BYTES) as cgroup:
        return "" if cgroup else "no cgroup can be made"


def _no_compiler() -> str:
    return "" if shutil.which("cc") else "needs a C compiler"


LAUNCHER_FAULTS = (
    LauncherFault("launcher killed", launcher_killed),
    LauncherFault("launcher terminated", launcher_terminated),
    LauncherFault("Ctrl-C at any moment", ctrl_c),
    LauncherFault("out of memory under the launcher", out_of_memory, no_cgroup),
    LauncherFault("wall clock stepped by an hour", clock_stepped, _no_compiler),
    LauncherFault("two jobs in one directory", two_jobs),
)
