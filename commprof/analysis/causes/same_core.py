"""Several ranks of a host are bound to the same core, although the host has more cores."""

from __future__ import annotations

from collections import Counter

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.too_many_threads import without_core
from commprof.text import counted


def _rule(facts: Facts) -> Sighting | None:
    bound: Counter[tuple[str, str]] = Counter()
    cores: Counter[str] = Counter()
    for trace in facts.seen.traces:
        machine = trace.metadata["machine"]
        host, cpus = str(machine["boot_id"]), list(machine.get("usable_cpus", ()))
        cores[host] = int(machine["cpu_count"])
        if len(cpus) == 1 == int(machine["usable_cpu_count"]):
            bound[host, str(cpus[0])] += 1
    if not bound:
        return None
    (host, core), ranks = bound.most_common(1)[0]
    if ranks < 2 or cores[host] < ranks:
        return None
    share = without_core(facts)
    if not share >= WORTH_NAMING:
        return None
    return Sighting(
        f"{counted(ranks, 'rank')} of a host are bound to core {core}, although the host has "
        f"{counted(cores[host], 'core')}. For {share:.0%} of the step, a rank was ready to run but "
        "had no core.",
        share,
    )


CAUSE = CatalogueCause(
    id="same-core",
    title="The ranks of a host are bound to the same core",
    needs=(),
    rule=_rule,
    looks_like=(
        "At least two ranks of a host may run only on the same single core, although the host has "
        "a core for each of these ranks. According to the kernel, ranks were ready to run but had "
        f"no core for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "A launcher, a batch system or OpenMP (`KMP_AFFINITY`, `GOMP_CPU_AFFINITY`) can bind each "
        "process to a core. If it binds each process separately, all processes may get the first "
        "core. All threads of these processes then share one core, while the other cores are idle."
    ),
    gain_note=(
        "Not predicted, because the run does not show how long compute takes if each rank has its "
        "own core. The fix saves at most the given share of the step."
    ),
    fix=(
        "import os\n\n"
        "# at the start of the script; or tell the launcher to bind nothing:\n"
        "# mpirun --bind-to none, srun --cpu-bind=none, KMP_AFFINITY=disabled;\n"
        "# a container or batch job that has one core needs more of them\n"
        "os.sched_setaffinity(0, range(os.cpu_count()))"
    ),
    source="https://github.com/hpcaitech/FastFold/issues/175",
)
