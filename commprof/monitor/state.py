"""What is known of a running job at one moment: what every output shows, and nothing else.

Totals count from the beginning of what was followed and never fall, as Prometheus's counters must.
"Recent" is the last ``RECENT_STEPS`` steps that all ranks completed; in always-on mode the last
minute. What is not known is NaN, None or not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Steps behind a recent figure.
RECENT_STEPS = 100

#: Parts of a step; they add up to it.
STEP_PARTS = ("data", "forward", "backward", "optimizer", "other", "exposed")


@dataclass(frozen=True)
class StepTimes:
    """Times of a step in seconds: of all steps counted, or the mean of the recent ones."""

    #: Behind the figures.
    steps: int
    step_s: float
    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    other_s: float
    #: The training thread stood still for communication; the three below add up to it.
    exposed_s: float
    #: Until the last rank had arrived, and after that.
    wait_s: float
    wire_s: float
    #: Not known to be either.
    unsplit_s: float
    #: Communication in flight while the training thread worked; NaN in always-on mode.
    hidden_s: float


@dataclass(frozen=True)
class OperationState:
    """Recent calls of one kind of operation on one rank."""

    #: Issued in the steps counted, and their sizes as nccl-tests counts size.
    calls: int
    bytes: int
    #: From issue to completion, of those whose completion was seen.
    timed_calls: int
    timed_s: float
    #: Of the recent of these; NaN without any.
    recent_mean_s: float = math.nan
    recent_p50_s: float = math.nan
    recent_p99_s: float = math.nan


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidth of recent calls of one kind of operation over all ranks."""

    #: Sum of size times bus factor over the sum of the times from last start to last completion.
    busbw_bytes_per_s: float
    #: What the machine profile takes for the same calls over what they took; NaN without one.
    of_profile: float


@dataclass(frozen=True)
class GradientState:
    """Gradient norms as a rank measured them last, before the exchange."""

    step: int
    #: L2 norm over all gradients; variance over the parameters of the L2 norm of each.
    norm: float = math.nan
    layer_variance: float = math.nan
    #: Time that measuring has taken so far.
    cost_s: float = math.nan


@dataclass(frozen=True)
class ProcessState:
    """One rank's process, as the kernel counts it; only on its own host."""

    cpu_s: float
    resident_bytes: int
    #: Of ``cpu_s``, by commprof's own threads in it.
    helpers_cpu_s: float


@dataclass(frozen=True)
class HostState:
    """Counters of the host that the state was taken on."""

    name: str
    #: Since boot, over all cores.
    cpu_busy_s: float
    cpu_idle_s: float
    memory_bytes: int
    memory_available_bytes: int
    #: By network interface: bytes received and sent since boot.
    interfaces: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class RankState:
    """What is known of one rank."""

    rank: int
    host: str
    #: Whether it runs on the host that this was taken on.
    is_local: bool
    #: "running", "ended" (it closed its trace), "gone" (its process is dead), or "" if not known.
    status: str
    #: Last complete step; -1 before the first.
    step: int
    #: Since a step ended last, or since capture began; NaN if not on this host's clock.
    since_step_s: float
    #: None before the first step.
    total: StepTimes | None
    recent: StepTimes | None
    #: By c10d's name.
    operations: Mapping[str, OperationState]
    #: Sum over the others of the time for which their training threads waited for this rank.
    waited_for_s: float
    #: A ring all-reduce of the same gradients in fp32, and what was sent in its place; totals.
    plain_bytes: float
    sent_bytes: float
    #: Records lost.
    dropped: int
    trace_bytes: int
    process: ProcessState | None = None
    gradients: GradientState | None = None
    #: Its process is dead and did not close its trace, or an exception ended it.
    failed: bool = False

    @property
    def compression_ratio(self) -> float:
        """How many times fewer bytes the compressor sends; NaN without a compressor."""
        return self.plain_bytes / self.sent_bytes if self.sent_bytes > 0 else math.nan


@dataclass(frozen=True)
class Late:
    """The rank that the others wait for."""

    rank: int
    #: Mean waiting per step and waiting rank that it caused, recent steps.
    wait_s: float
    #: Where it falls behind; empty if not known.
    phase: str


@dataclass(frozen=True)
class MonitorState:
    """What the monitor itself costs."""

    cpu_s: float
    resident_bytes: int
    #: What the last look took.
    look_s: float
    #: Records passed over because ranks were too far apart, and problems met in the traces.
    left_out_records: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class JobState:
    """Everything that is known of a running job."""

    #: Seconds since the epoch.
    time_s: float
    world_size: int
    backend: str
    #: "full", "always-on" or "off".
    mode: str
    ranks: tuple[RankState, ...]
    #: None where nobody is, or it cannot be told.
    late: Late | None
    #: By c10d's name.
    bandwidth: Mapping[str, Bandwidth]
    monitor: MonitorState
    host: HostState | None = None
    #: All of its ranks ended, or are gone.
    finished: bool = False
