"""What is asked for, and what comes out."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

FLAT, HIERARCHICAL = "flat", "hierarchical"
ALGORITHMS = (FLAT, HIERARCHICAL)
WEAK, STRONG = "weak", "strong"
#: Bytes of an element of the types that a scenario may name.
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
#: Fields of a scenario that only sharded steps have.
SHARDING = (
    *("gather_dtype", "reduce_dtype", "reshard_after_forward", "shard_ranks", "wrap_blocks"),
)


@dataclass(frozen=True)
class Scenario:
    """A setting to predict; None and NaN stand for what was recorded."""

    world_size: int
    #: Of the link between hosts, in bytes per second and seconds, one way.
    bandwidth_bytes_per_s: float = math.nan
    latency_s: float = math.nan
    #: Of all buckets; ``inf`` for one bucket.
    bucket_cap_bytes: float = math.nan
    #: Compressor as given to ``--hook``; "" for DDP's own mean.
    hook: str | None = None
    ranks_per_host: float = math.nan
    cores_per_host: float = math.nan
    scaling: str = WEAK
    algorithm: str = FLAT
    #: Of FSDP2: types in which parameters are gathered and gradients reduced, see ``DTYPE_BYTES``.
    gather_dtype: str | None = None
    reduce_dtype: str | None = None
    #: Parameters are gathered once more for backward.
    reshard_after_forward: bool | None = None
    #: Ranks that share one copy of the model: fewer than all make it HSDP.
    shard_ranks: int | None = None
    #: Neighbouring blocks that one ``fully_shard`` wraps together.
    wrap_blocks: int | None = None

    @property
    def changes_sharding(self) -> bool:
        """True if it changes something that only sharded steps have."""
        return any(getattr(self, name) is not None for name in SHARDING)

    @property
    def as_recorded(self) -> Scenario:
        """The same ranks and link with buckets, exchange and sharding as they were recorded."""
        nothing: dict[str, Any] = dict.fromkeys(SHARDING)
        return dataclasses.replace(
            self,
            bucket_cap_bytes=math.nan,
            hook=None,
            **nothing,
        )

    @property
    def changes_settings(self) -> bool:
        """True if it sets something that ``as_recorded`` does not."""
        has_cap = not math.isnan(self.bucket_cap_bytes)
        return has_cap or self.hook is not None or self.changes_sharding

    @property
    def changes_link(self) -> bool:
        """True if the link between hosts is another than the measured one."""
        return not (math.isnan(self.bandwidth_bytes_per_s) and math.isnan(self.latency_s))


@dataclass(frozen=True)
class Estimate:
    """A predicted figure with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Waiting:
    """Communication in the median step, with intervals; see ``Prediction``."""

    wait_s: Estimate
    wire_s: Estimate
    exposed_s: Estimate
    hidden_s: Estimate


@dataclass(frozen=True)
class Prediction:
    """Prediction of one scenario; times in seconds, of the median step."""

    scenario: Scenario
    step_s: Estimate
    #: The training thread stands still: for the last rank, and for the wire.
    wait_s: float
    wire_s: float
    #: Communication under backward.
    hidden_s: float
    #: The same three and exposed, which is the first two's sum, with intervals of the steps drawn
    #: and the fit: without the model's held-out error, which is of steps.
    waiting: Waiting
    #: Step less all waiting: this rank's own work.
    compute_s: float
    #: Bounds that any model must beat: nothing is hidden, and all but nothing is exposed.
    no_overlap_s: float
    perfect_overlap_s: float
    buckets: int
    #: Sent by one rank per step.
    sent_bytes: float
    #: NaN where the run does not say how many samples a step has.
    samples_per_s: float
    #: Throughput per rank over that of a rank that waits for nobody.
    efficiency: float
    #: Bandwidth at which all buckets but the last are hidden, bytes per second; NaN for one bucket.
    hiding_bytes_per_s: float
    #: Why parts of this lie outside the measured range; empty inside.
    outside: tuple[str, ...]
    #: What was assumed.
    remarks: tuple[str, ...]

    @property
    def exposed_s(self) -> float:
        """All waiting of the training thread for communication."""
        return self.wait_s + self.wire_s
