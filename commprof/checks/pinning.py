"""Checks that a host has a core per thread, and that any two ranks share all cores or none.

Each hyper-thread counts as a core.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from commprof.analysis.checks.outcome import PASS, WARN, Outcome
from commprof.checks.ranks import Ranks

NAME = "cores"


def measure(ranks: Ranks) -> tuple[str, frozenset[int], int]:
    """Returns the host's name, the cores that this rank may use, and its intra-op thread count."""
    return ranks.host, frozenset(os.sched_getaffinity(0)), torch.get_num_threads()


def judge(values: Sequence[tuple[str, frozenset[int], int]]) -> Outcome:
    """Warns of more threads than cores, and of ranks whose cores overlap only in part."""
    problems, figures = [], []
    for host in sorted({host for host, _, _ in values}):
        mine = [(cores, threads) for name, cores, threads in values if name == host]
        cores = frozenset().union(*(cores for cores, _ in mine))
        threads = sum(threads for _, threads in mine)
        figures.append(f"{len(mine)} ranks, {threads} threads, {len(cores)} cores on {host}")
        if threads > len(cores):
            problems.append(
                f"{host} has more threads than cores: start fewer ranks, or set OMP_NUM_THREADS to "
                f"{max(1, len(cores) // len(mine))}"
            )
        kinds = {cores for cores, _ in mine}
        if any(a & b for a in kinds for b in kinds if a != b):
            problems.append(
                f"ranks on {host} share some of their cores but not all: give each rank its own "
                "cores, for example with numactl or taskset"
            )
    return Outcome(NAME, WARN if problems else PASS, "; ".join(figures), "; ".join(problems))
