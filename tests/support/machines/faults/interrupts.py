from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.machines.commands import call
from tests.support.machines.faults.faults import SCRIPT
from tests.support.machines.launched import Launched, launch, run_of
from tests.support.machines.processes import await_gone, processes_of

KINDS: Mapping[str, tuple[str, ...]] = {
    "script": ("--nproc", "2", str(SCRIPT), "none", "100"),
    "workload": (
        *("--world-sizes", "2", "--workload", "timed:forward_ms=3,backward_ms=3,data_ms=1"),
        *("--steps", "100", "--overhead-steps", "0"),
    ),
}
"""Each rank of a script has its own process group; the ranks of a workload do not."""

INTERRUPTED = 130
_PACKAGE = str(SCRIPT.parents[3] / "commprof") + os.sep
_LONGEST_S = 200


@dataclass(frozen=True)
class Interrupt:
    kind: str
    after_s: float
    code: int
    err: str
    #: When the signal came, a rank had been started (``begun``), or the run had ended (``over``).
    begun: bool
    over: bool
    left: list[int]
    in_memory: list[str]
    said: int
    kept: int
    report_code: int
    report: str

    @property
    def harm(self) -> list[str]:
        # Before the command begins and after it has ended, SIGINT ends Python itself.
        allowed = [INTERRUPTED, *([] if self.begun and not self.over else [-signal.SIGINT])]
        allowed += [0] if self.over else []
        found = [] if self.code in allowed else [f"exit code {self.code}, not one of {allowed}"]
        found += [f"a traceback of commprof's:\n{text}" for text in own_tracebacks(self.err)]
        found += [f"process {pid} lives on" for pid in self.left]
        return [*found, *(f"{name} is left in memory" for name in self.in_memory)]

    @property
    def loss(self) -> list[str]:
        found = [] if self.kept >= self.said else [f"{self.kept} of {self.said} steps kept"]
        # If no step was printed, the report may end with an error.
        readable = (0,) if self.said else (0, 1, 2)
        if self.report_code not in readable or "Traceback" in self.report:
            found.append(f"report: {self.report_code}: {self.report}")
        return found

    @property
    def named(self) -> bool:
        return self.code != INTERRUPTED or "interrupted" in self.err

    def complaint(self) -> str:
        found = [*self.harm, *self.loss, *([] if self.named else ["not named"])]
        where = f"{self.kind}, Ctrl-C after {self.after_s:.2f} s, exit code {self.code}"
        return "\n".join([where, *found, self.err[-3000:]]) if found else ""


def own_tracebacks(err: str) -> list[str]:
    blocks = re.split(r"^(?=Traceback )", err, flags=re.MULTILINE)[1:]
    return [text for text in blocks if _PACKAGE in text and str(SCRIPT) not in text]


def length_s(kind: str, place: Path) -> float:
    begin = time.monotonic()
    job = launch(run_of(place, *KINDS[kind]), place)
    assert job.process.wait(_LONGEST_S) == 0, job.err
    return time.monotonic() - begin


def moment_s(length: float, part: int, parts: int, chance: random.Random) -> float:
    return length * (part + chance.random()) / parts


def interrupt(kind: str, after_s: float, place: Path) -> Interrupt:
    job = launch(run_of(place, *KINDS[kind]), place)
    try:
        try:
            job.process.wait(after_s)
        except subprocess.TimeoutExpired:
            # A terminal, too, sends SIGINT to the whole process group.
            os.killpg(job.process.pid, signal.SIGINT)
        code = job.process.wait(_LONGEST_S)
        left = await_gone(processes_of(job.run))
        return _what_came(job, kind, after_s, code, left)
    finally:
        job.end()


def _what_came(job: Launched, kind: str, after_s: float, code: int, left: list[int]) -> Interrupt:
    memory = job.rings()  # the report may remove the files
    begun = (job.world / "endings.json").exists()
    report = call("-m", "commprof", "report", str(job.run), "--all") if job.run.exists() else None
    return Interrupt(
        kind=kind,
        after_s=after_s,
        code=code,
        err=job.err,
        begun=begun,
        over=(job.run / "result.json").exists(),
        left=left,
        in_memory=memory,
        said=job.steps_said,
        kept=job.steps_kept,
        report_code=report.returncode if report else 0,
        report=report.stdout + report.stderr if report else "",
    )
