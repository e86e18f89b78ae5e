"""Functions that read the values of the live metrics from a :class:`JobState`.

A function of type ``Of`` takes a job's state, and yields the labels and the value of each sample of
one metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from commprof.monitor.state import STEP_PARTS, JobState, RankState, StepTimes

Labels: TypeAlias = Mapping[str, str]
Values: TypeAlias = Iterator[tuple[Labels, float]]
Of: TypeAlias = Callable[[JobState], Values]


def ranks(value: Callable[[RankState], float | None]) -> Of:
    """Returns a function that yields ``value(rank)`` for each rank of this host.

    The function skips ranks for which ``value`` returns None.
    """

    def values(state: JobState) -> Values:
        for rank in local(state):
            found = value(rank)
            if found is not None:
                yield {"rank": str(rank.rank)}, float(found)

    return values


def local(state: JobState) -> Iterator[RankState]:
    """Yields the local ranks; all ranks if none is local, as in a run copied from another host."""
    found = [rank for rank in state.ranks if rank.is_local]
    yield from found or state.ranks


def total(name: str) -> Of:
    """Returns a function that yields each local rank's ``total.<name>``, a sum over all steps."""
    return ranks(lambda rank: getattr(rank.total, name) if rank.total else None)


def recent(name: str) -> Of:
    """Returns a function that yields each local rank's ``recent.<name>``, a mean per step."""
    return ranks(lambda rank: getattr(rank.recent, name) if rank.recent else None)


def phases(chosen: str) -> Of:
    """Returns a function that yields the time of each part of the step on each local rank.

    Args:
        chosen: which times, "total" or "recent".
    """

    def values(state: JobState) -> Values:
        for rank in local(state):
            times: StepTimes | None = getattr(rank, chosen)
            for part in STEP_PARTS if times is not None else ():
                yield {"rank": str(rank.rank), "part": part}, getattr(times, f"{part}_s")

    return values


def exposed(chosen: str) -> Of:
    """Returns a function that yields the parts of each local rank's exposed time.

    Args:
        chosen: which times, "total" or "recent".
    """

    def values(state: JobState) -> Values:
        for rank in local(state):
            times: StepTimes | None = getattr(rank, chosen)
            for part in ("wait", "transfer", "unsplit") if times is not None else ():
                yield {"rank": str(rank.rank), "part": part}, getattr(times, f"{part}_s")

    return values


def operations(name: str) -> Of:
    """Returns a function that yields the field ``name`` of each operation on each local rank."""

    def values(state: JobState) -> Values:
        for rank in local(state):
            for op, found in rank.operations.items():
                yield {"rank": str(rank.rank), "op": op}, float(getattr(found, name))

    return values


def bandwidth(name: str) -> Of:
    """Returns a function that yields the field ``name`` of each operation's bandwidth in the job.

    The function yields values only on rank 0's host.
    """

    def values(state: JobState) -> Values:
        for op, found in state.bandwidth.items() if tells_of_job(state) else ():
            yield {"op": op}, getattr(found, name)

    return values


def tells_of_job(state: JobState) -> bool:
    """True on the host of rank 0. Only this host shows the figures of the whole job."""
    return any(rank.rank == 0 for rank in local(state))


def waited_for(state: JobState) -> Values:
    """Yields the time that the other ranks waited for each rank.

    If hosts write summaries, the monitor on rank 0's host shows the times of all ranks.
    """
    for rank in state.ranks if state.hosts and tells_of_job(state) else local(state):
        yield {"rank": str(rank.rank)}, rank.waited_for_s


def host_ages(state: JobState) -> Values:
    """Yields the age of the figures of each host that writes a summary."""
    for host in state.hosts if tells_of_job(state) else ():
        yield {"host": host.name}, host.age_s


def missing_hosts(state: JobState) -> Values:
    """Yields 1 for each host whose figures are overdue or unreadable, and 0 for the others."""
    for host in state.hosts if tells_of_job(state) else ():
        yield {"host": host.name}, float(host.missing)


def arrivals(state: JobState) -> Values:
    """Yields each local rank's numbers of known, partial and unknown arrivals."""
    for rank in local(state):
        if rank.arrivals is not None and state.world_size > 1:
            for name in ("known", "partial", "unknown"):
                count = float(getattr(rank.arrivals, name))
                yield {"rank": str(rank.rank), "state": name}, count


def late(state: JobState) -> Values:
    """Yields 1 for the late rank and 0 for the others, on rank 0's host, from the first step on."""
    if not tells_of_job(state) or not any(rank.recent for rank in state.ranks):
        return
    for rank in state.ranks:
        yield (
            {"rank": str(rank.rank)},
            float(state.late is not None and state.late.rank == rank.rank),
        )


def late_wait(state: JobState) -> Values:
    """Yields the seconds that ranks wait for the late rank, if any; only on rank 0's host."""
    if state.late is not None and tells_of_job(state):
        yield {"rank": str(state.late.rank)}, state.late.wait_s


def info(state: JobState) -> Values:
    """Yields 1 with the job's world size, backend and mode as labels."""
    yield (
        {"world_size": str(state.world_size), "backend": state.backend, "mode": state.mode},
        1.0,
    )


def running(state: JobState) -> Values:
    """Yields 1 for running ranks and 0 for other ranks; skips ranks of unknown status."""
    for rank in local(state):
        if rank.status:
            yield {"rank": str(rank.rank)}, float(rank.status == "running")


def failed(state: JobState) -> Values:
    """Yields 1 for failed ranks and 0 for other ranks; skips ranks of unknown status."""
    for rank in local(state):
        if rank.status:
            yield {"rank": str(rank.rank)}, float(rank.failed)


def host(name: str) -> Of:
    """Returns a function that yields the field ``name`` of this host's state, if it is known."""

    def values(state: JobState) -> Values:
        if state.host is not None:
            yield {}, float(getattr(state.host, name))

    return values


def host_cpu(state: JobState) -> Values:
    """Yields the busy and idle time of this host's cores."""
    if state.host is not None:
        yield {"state": "busy"}, state.host.cpu_busy_s
        yield {"state": "idle"}, state.host.cpu_idle_s


def network(state: JobState) -> Values:
    """Yields bytes by interface and direction."""
    for name, (received, sent) in state.host.interfaces.items() if state.host else ():
        yield {"interface": name, "direction": "received"}, float(received)
        yield {"interface": name, "direction": "sent"}, float(sent)


def monitor(name: str) -> Of:
    """Returns a function that yields the field ``name`` of the monitor's own state."""
    return lambda state: iter([({}, float(getattr(state.monitor, name)))])


def problems(state: JobState) -> Values:
    """Yields the number of problems that the monitor found."""
    yield {}, float(len(state.monitor.problems))


def process(name: str) -> Of:
    """Returns a function that yields the field ``name`` of each local rank's process, if known."""
    return ranks(lambda rank: getattr(rank.process, name) if rank.process else None)


def gradients(name: str) -> Of:
    """Returns a function that yields the field ``name`` of each local rank's gradient norms.

    The function skips ranks whose gradient norms were not measured.
    """
    return ranks(lambda rank: getattr(rank.gradients, name) if rank.gradients else None)
