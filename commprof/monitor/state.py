"""State of a running job at one moment: the figures that every output of the monitor shows.

Totals count from the first step that the monitor analyses, or in always-on mode from the start of
the mode. Like Prometheus's counters, totals grow or start again at 0, for example after a rank's
restart. "Recent" means the last ``RECENT_STEPS`` steps that all ranks completed; in always-on mode,
the last minute, or the last steps if no step ended in that minute. Unknown figures are NaN, None or
absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from commprof.trace.host_summary import SeenHost

#: Number of steps that a recent figure covers.
RECENT_STEPS = 100

#: Parts of a step; they add up to the step.
STEP_PARTS = ("data", "forward", "backward", "optimizer", "other", "exposed")


@dataclass(frozen=True)
class StepTimes:
    """Times of steps in seconds: sums over all counted steps, or means of the recent steps."""

    #: Number of steps that the times cover.
    steps: int
    step_s: float
    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    other_s: float
    #: Time for which communication blocked the training thread; the sum of the three fields below.
    #: In always-on mode it may exceed this sum: it includes the steps of the last seconds, whose
    #: split is not known yet.
    exposed_s: float
    #: Exposed time until the last rank arrived; the next field is the exposed time after that.
    wait_s: float
    transfer_s: float
    #: Exposed time that could not be split.
    unsplit_s: float
    #: Communication in flight while the training thread worked; NaN in always-on mode.
    hidden_s: float


@dataclass(frozen=True)
class OperationState:
    """Calls of one kind of operation on one rank: totals, and times of the recent calls."""

    #: Number of calls issued in the counted steps; the next field is the sum of their sizes, as
    #: nccl-tests counts size.
    calls: int
    bytes: int
    #: Number of calls whose completion was seen; the next field is the sum of their times from
    #: issue to completion.
    timed_calls: int
    timed_s: float
    #: Mean of the recent times; the next fields are percentiles. NaN if there are none.
    recent_mean_s: float = math.nan
    recent_p50_s: float = math.nan
    recent_p99_s: float = math.nan


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidth of recent calls of one kind of operation, across all ranks."""

    #: Sum of the calls' size x bus factor, divided by the sum of their transfer times. A transfer
    #: begins when the last rank has started the call, and ends when the last rank has completed it.
    busbw_bytes_per_s: float
    #: Time predicted by the machine profile divided by the measured time, for calls on links in the
    #: profile; NaN if there are none.
    of_profile: float


@dataclass(frozen=True)
class GradientState:
    """Norms of a rank's own gradients in the last measured step; in DDP before the all-reduce."""

    step: int
    #: L2 norm of all gradients; the next field is the variance of the L2 norms of the single
    #: parameters' gradients.
    norm: float = math.nan
    layer_variance: float = math.nan
    #: Total time that the measurements of these norms took.
    cost_s: float = math.nan


@dataclass(frozen=True)
class ProcessState:
    """Kernel counters of one rank's process; known only on the rank's own host."""

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
    #: Bytes received and sent since boot, by network interface.
    interfaces: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ArrivalState:
    """Counts of a rank's collectives in always-on mode, by whether the last arrival is known."""

    #: Number of collectives whose last rank to arrive is known.
    known: int
    #: Number of collectives for which only the last of some ranks is known: ranks on other hosts
    #: were not seen, and may have come later.
    partial: int
    #: Number of all other collectives: their waiting is not split from the transfer.
    unknown: int


@dataclass(frozen=True)
class RankState:
    """State of one rank."""

    rank: int
    host: str
    #: True if the rank runs on the monitor's host.
    is_local: bool
    #: "running", "ended" (it closed its trace), "gone" (its process is dead), or "" if not known.
    status: str
    #: Index of the last complete step; -1 before the first, in always-on mode before the second.
    step: int
    #: Time since the last step's end, or since recording began. NaN in always-on mode, while
    #: recording is switched off, after the rank's end, and if the rank does not share the monitor's
    #: clock.
    since_step_s: float
    #: Sums over all steps; the next field has means of the recent steps. None before the first
    #: step.
    total: StepTimes | None
    recent: StepTimes | None
    #: Operations by c10d's name.
    operations: Mapping[str, OperationState]
    #: Time that the other ranks' training threads waited for this rank, summed over the other
    #: ranks.
    waited_for_s: float
    #: Total number of bytes that an fp32 ring all-reduce would send; the next field is the number
    #: that the compressor sent instead.
    plain_bytes: float
    sent_bytes: float
    #: Number of records lost.
    dropped: int
    trace_bytes: int
    process: ProcessState | None = None
    gradients: GradientState | None = None
    #: True if the process died without closing its trace, or an exception ended it.
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
    #: Mean waiting that the rank caused per recent step and waiting rank.
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
    #: Number of records skipped because a rank recorded too many of them in steps that not all
    #: ranks completed; the next field has the problems found in the traces.
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
    #: None if no rank is late, or if this is not known.
    late: Late | None
    #: Bandwidth by c10d's name of the operation.
    bandwidth: Mapping[str, Bandwidth]
    monitor: MonitorState
    host: HostState | None = None
    #: True if all ranks have ended or are gone.
    finished: bool = False
    #: Hosts whose summaries were read instead of their ranks' traces.
    hosts: tuple[SeenHost, ...] = ()

    @property
    def missing_hosts(self) -> tuple[SeenHost, ...]:
        """Hosts whose figures are no longer known."""
        return tuple(host for host in self.hosts if host.missing)
