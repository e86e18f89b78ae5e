"""Compares the CPU instructions that the compressors' kernels use on the hosts."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from commprof import _native, variables
from commprof.analysis.checks.outcome import PASS, SKIP, WARN, Outcome, per_host
from commprof.checks.ranks import Ranks

NAME = "kernels"


def measure(ranks: Ranks) -> tuple[str, str]:
    """Returns the host, and its instruction set and CPU type ("" without the C++ module)."""
    lacks = _native.tune_error is not None
    level = "" if lacks else f"{_native.tune.simd_level()} on {platform.machine()}"
    return ranks.host, level


def judge(values: Sequence[tuple[str, str]]) -> Outcome:
    """Warns if hosts use different instructions or lack the module: their speeds then differ."""
    levels = {host: level for host, level in sorted(per_host(values).items()) if level}
    if not levels:
        return Outcome(NAME, SKIP, "no C++ module: the compressors' kernels are not available")
    figure = "; ".join(f"{host}: {level}" for host, level in levels.items())
    if len({*levels.values()}) == 1 and len(levels) == len(per_host(values)):
        return Outcome(NAME, PASS, figure)
    without = [host for host in sorted(per_host(values)) if host not in levels]
    figure += "".join(f"; {host}: no C++ module" for host in without)
    advice = "compressors run at the speed of the slowest host: compare the hosts' processors and "
    advice += variables.SIMD
    return Outcome(NAME, WARN, figure, advice)
