"""Scenarios to predict, and their predictions."""

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
    *("gather_dtype", "reduce_dtype", "reshard_after_forward"),
    *("shard_ranks", "wrap_blocks", "accumulate"),
)


@dataclass(frozen=True)
class Scenario:
    """A setting to predict; None and NaN keep the recorded value."""

    world_size: int
    #: Rate and one-way latency of the link between hosts.
    bandwidth_bytes_per_s: float = math.nan
    latency_s: float = math.nan
    #: Cap of all buckets; ``inf`` for one bucket.
    bucket_cap_bytes: float = math.nan
    #: Compressor as given to ``--hook``; "" for DDP's own mean.
    hook: str | None = None
    ranks_per_host: float = math.nan
    cores_per_host: float = math.nan
    scaling: str = WEAK
    algorithm: str = FLAT
    #: FSDP2: types in which parameters are gathered and gradients reduced, see ``DTYPE_BYTES``.
    gather_dtype: str | None = None
    reduce_dtype: str | None = None
    #: True if parameters are gathered again for backward.
    reshard_after_forward: bool | None = None
    #: Number of ranks that share one copy of the model; if fewer than all do, this is HSDP.
    shard_ranks: int | None = None
    #: Number of neighbouring blocks that one ``fully_shard`` wraps together.
    wrap_blocks: int | None = None
    #: Backward passes of a step; gradients are reduced in the last one.
    accumulate: int | None = None

    @property
    def changes_sharding(self) -> bool:
        """True if the scenario sets a field that only sharded steps have."""
        return any(getattr(self, name) is not None for name in SHARDING)

    @property
    def as_recorded(self) -> Scenario:
        """A copy of the scenario that leaves buckets, hook and sharding as recorded."""
        nothing: dict[str, Any] = dict.fromkeys(SHARDING)
        return dataclasses.replace(
            self,
            bucket_cap_bytes=math.nan,
            hook=None,
            **nothing,
        )

    @property
    def changes_settings(self) -> bool:
        """True if the scenario changes buckets, hook or sharding."""
        has_cap = not math.isnan(self.bucket_cap_bytes)
        return has_cap or self.hook is not None or self.changes_sharding

    @property
    def changes_link(self) -> bool:
        """True if the scenario sets the rate or latency of the link between hosts."""
        return not (math.isnan(self.bandwidth_bytes_per_s) and math.isnan(self.latency_s))


@dataclass(frozen=True)
class Estimate:
    """A predicted figure with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PredictedWaiting:
    """Communication times of the median step, in seconds; the fields are as in ``Prediction``."""

    wait_s: Estimate
    transfer_s: Estimate
    exposed_s: Estimate
    hidden_s: Estimate


@dataclass(frozen=True)
class Prediction:
    """Prediction of one scenario; times in seconds, of the median step."""

    scenario: Scenario
    step_s: Estimate
    #: Time that the training thread waits for the rank that arrives last, and for transfers.
    wait_s: float
    transfer_s: float
    #: Communication hidden under backward.
    hidden_s: float
    #: Wait, transfer, hidden and exposed (wait plus transfer), with intervals due to sampling and
    #: the fit. They do not include the model's held-out error, which is known for the step time
    #: only.
    waiting: PredictedWaiting
    #: Step minus all waiting: a rank's own work.
    compute_s: float
    #: Step without overlap and with perfect overlap: trivial predictions, which a useful model
    #: must beat.
    no_overlap_s: float
    perfect_overlap_s: float
    buckets: int
    #: Bytes that one rank sends per step.
    sent_bytes: float
    #: Throughput; NaN if the run does not record the samples of a step.
    samples_per_s: float
    #: Throughput per rank, divided by that of a rank that never waits.
    efficiency: float
    #: Bandwidth at which all buckets but the last are hidden, bytes per second; NaN for one bucket.
    hiding_bytes_per_s: float
    #: Descriptions of the scenario's parts outside the measured range; empty if there are none.
    outside: tuple[str, ...]
    #: Assumptions of the prediction.
    remarks: tuple[str, ...]

    @property
    def exposed_s(self) -> float:
        """Total time that the training thread waits for communication."""
        return self.wait_s + self.transfer_s
