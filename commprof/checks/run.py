"""Runs all checks, one after the other, on every rank of a job."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from commprof import variables
from commprof.analysis.checks.outcome import FAIL, Outcome
from commprof.checks import (
    all_reduce,
    clocks,
    file_limits,
    gradients,
    interfaces,
    kernels,
    loss,
    pairs,
    pinning,
    pressure,
    ring,
    shared_memory,
)
from commprof.checks.ranks import Ranks, own_ranks
from commprof.errors import UsageError
from commprof.files import replace_file


class Check(Protocol):
    """Interface that the module of each health check provides."""

    NAME: str

    def measure(self, ranks: Ranks) -> Any:
        """Returns this rank's measurement for ``judge``; all ranks call it at the same time."""

    def judge(self, values: Sequence[Any]) -> Outcome:
        """Judges the measurements of all ranks, in order of rank."""


CHECKS: tuple[Check, ...] = (
    pressure,
    pinning,
    file_limits,
    shared_memory,
    interfaces,
    kernels,
    ring,
    pairs,
    clocks,
    all_reduce,
    gradients,
    loss,
)
"""All checks, in order. Pressure comes first, because the other checks cause load."""


def run_checks(checks: Sequence[Check] = CHECKS) -> tuple[Outcome, ...]:
    """Runs checks in a job that torchrun has set up; every rank returns the same outcomes.

    A rank that dies or does not answer breaks the process group. The current check then fails, with
    each rank's own error, and the checks after it are not run.

    Raises:
        UsageError: COMMPROF_CHECK_TIMEOUT_S is not a number of seconds.
    """
    timeout = timedelta(seconds=_timeout_s())
    dist.init_process_group("gloo", timeout=timeout)
    try:
        ranks = own_ranks()
        outcomes: list[Outcome] = []
        for check in checks:
            try:
                outcomes.append(check.judge(ranks.gather(check.measure(ranks))))
            except (RuntimeError, OSError) as error:
                outcomes.append(_broken(check.NAME, ranks.rank, error))
                break
        return tuple(outcomes)
    finally:
        dist.destroy_process_group()


def run_rank(result_path: str) -> None:
    """Runs all checks as one rank of ``commprof check``; rank 0 writes the outcomes as JSON."""
    outcomes = run_checks()
    if os.environ["RANK"] == "0":
        found = json.dumps([asdict(outcome) for outcome in outcomes])
        replace_file(Path(result_path), found)


def read_outcomes(result_path: Path) -> tuple[Outcome, ...]:
    """Reads the outcomes that :func:`run_rank` wrote."""
    values = json.loads(result_path.read_text())
    return tuple(Outcome(**{**value, "details": tuple(value["details"])}) for value in values)


def _timeout_s() -> float:
    try:
        return float(variables.CHECK_TIMEOUT_S.value())
    except ValueError as error:
        raise UsageError(str(error)) from None


def _broken(name: str, rank: int, error: Exception) -> Outcome:
    reason = str(error).partition("\n")[0]
    return Outcome(
        name,
        FAIL,
        f"the check ended with this error on rank {rank}: {reason}",
        "a rank died or did not answer: see its output, and check for a firewall between the hosts",
    )
