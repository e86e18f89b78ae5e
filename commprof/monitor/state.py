"""State of a running job at one moment, as the monitor's outputs show it.

Totals count from the first step that the monitor analyses. In always-on mode they count from the
start of the mode. Totals start again at 0 when a rank restarts. Recent figures cover the last
``RECENT_STEPS`` steps that all ranks completed (of operations: the last 2048 calls); in always-on
mode, the last minute, or the last steps if no step ended in that minute. Unknown figures are NaN,
None or absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from commprof.trace.host_summary import SeenHost

RECENT_STEPS = 100

#: These parts add up to the step.
STEP_PARTS = ("data", "forward", "backward", "optimizer", "other", "exposed")


@dataclass(frozen=True)
class StepTimes:
    """Times of steps in seconds: sums over all counted steps, or means over recent steps."""

    steps: int
    step_s: float
    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    other_s: float
    #: Time for which communication blocked the training thread. The next three fields are its
    #: parts. In always-on mode, the parts of the last seconds are not known yet, so ``exposed_s``
    #: may exceed the sum of its parts.
    exposed_s: float
    #: Exposed time before the last rank arrived.
    wait_s: float
    #: Exposed time after the last rank arrived.
    transfer_s: float
    #: Exposed time that could not be split into waiting and transfer.
    unsplit_s: float
    #: Time for which communication ran while the training thread worked; NaN in always-on mode.
    hidden_s: float


@dataclass(frozen=True)
class OperationState:
    """Numbers, sizes and times of the calls of one kind of operation on one rank."""

    calls: int
    #: Sum of the calls' sizes, as nccl-tests counts size.
    bytes: int
    #: Number of calls whose completion was recorded.
    timed_calls: int
    #: Sum of the timed calls' times from issue to completion.
    timed_s: float
    #: Mean time of the recent calls; the next fields are percentiles. NaN without recent calls.
    recent_mean_s: float = math.nan
    recent_p50_s: float = math.nan
    recent_p99_s: float = math.nan


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidth of recent calls of one kind of operation, across all ranks."""

    #: Sum of size x bus factor over the calls, divided by the sum of the transfer times. A transfer
    #: lasts from the last rank's start of the call to the last rank's completion of the call.
    busbw_bytes_per_s: float
    #: Time that the machine profile predicts, divided by the measured time. NaN if the profile does
    #: not describe the links.
    of_profile: float


@dataclass(frozen=True)
class GradientState:
    """Norms of a rank's gradients in the last measured step; in DDP, before the all-reduce."""

    step: int
    #: L2 norm of all gradients together.
    norm: float = math.nan
    #: Each parameter's gradient has an L2 norm. This is the variance of these norms.
    layer_variance: float = math.nan
    #: Total time spent on measuring gradient norms.
    cost_s: float = math.nan


@dataclass(frozen=True)
class ProcessState:
    """Resource use of one rank's process; known only on the rank's host."""

    cpu_s: float
    resident_bytes: int
    #: Part of ``cpu_s`` that commprof's own threads used.
    helpers_cpu_s: float


@dataclass(frozen=True)
class HostState:
    """Counters of the monitor's host."""

    name: str
    #: CPU time since boot, summed over all cores.
    cpu_busy_s: float
    cpu_idle_s: float
    memory_bytes: int
    memory_available_bytes: int
    #: Bytes received and bytes sent since boot, by network interface.
    interfaces: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ArrivalState:
    """Counts a rank's collectives by whether the last arrival is known. Only in always-on mode."""

    #: Number of collectives whose last rank to arrive is known.
    known: int
    #: Number of collectives for which arrivals are known on some hosts only.
    partial: int
    #: Number of the remaining collectives. Their waiting is not separated from the transfer.
    unknown: int


@dataclass(frozen=True)
class RankState:
    """State of one rank."""

    rank: int
    host: str
    is_local: bool
    #: "running", "ended" (the trace is closed), "gone" (the process is dead), or "" if not known.
    status: str
    #: Index of the last step that is known to be complete; -1 without such a step.
    step: int
    #: Time since the last step ended, or since recording began if no step has ended. NaN if not
    #: known, for example in always-on mode.
    since_step_s: float
    #: Sums over all steps; None before the first step.
    total: StepTimes | None
    #: Means over the recent steps; None before the first step.
    recent: StepTimes | None
    #: The keys are c10d's names of operations.
    operations: Mapping[str, OperationState]
    #: Time that the other ranks' training threads waited for this rank, summed over the other
    #: ranks.
    waited_for_s: float
    #: Number of bytes that a ring all-reduce of fp32 gradients would have sent.
    plain_bytes: float
    #: Number of bytes that the gradient compressor sent instead.
    sent_bytes: float
    dropped: int
    trace_bytes: int
    process: ProcessState | None = None
    gradients: GradientState | None = None
    #: True if the process died without closing its trace, or ended with an exception.
    failed: bool = False
    #: None outside always-on mode.
    arrivals: ArrivalState | None = None

    @property
    def compression_ratio(self) -> float:
        """Bytes without compression divided by bytes sent; NaN without a compressor."""
        return self.plain_bytes / self.sent_bytes if self.sent_bytes > 0 else math.nan


@dataclass(frozen=True)
class Late:
    """The late rank, for which the other ranks wait."""

    rank: int
    #: Mean time that a waiting rank waited for the late rank in a recent step (in always-on mode:
    #: in any step).
    wait_s: float
    #: Phase in which the rank falls behind; empty if not known.
    phase: str
    #: Number of ranks that wait for the late rank; 0 if not known.
    waiting_ranks: int = 0


@dataclass(frozen=True)
class MonitorState:
    """Resource use and problems of the monitor itself."""

    cpu_s: float
    resident_bytes: int
    #: Time that the last reading of the job took.
    poll_s: float
    #: Number of records dropped because a rank was too far ahead of another rank.
    left_out_records: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class JobState:
    """State of a running job."""

    #: Seconds since the epoch.
    time_s: float
    world_size: int
    backend: str
    #: "full", "always-on" or "off".
    mode: str
    ranks: tuple[RankState, ...]
    #: None if no rank is known to be late.
    late: Late | None
    #: The keys are c10d's names of operations.
    bandwidth: Mapping[str, Bandwidth]
    monitor: MonitorState
    host: HostState | None = None
    #: True if all ranks have ended or are gone.
    finished: bool = False
    #: Hosts whose summaries were read instead of their ranks' traces.
    hosts: tuple[SeenHost, ...] = ()

    @property
    def missing_hosts(self) -> tuple[SeenHost, ...]:
        """Hosts that no longer report their figures."""
        return tuple(host for host in self.hosts if host.missing)
