"""Scenarios to predict, and their predictions."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

FLAT, HIERARCHICAL = "flat", "hierarchical"
ALGORITHMS = (FLAT, HIERARCHICAL)
WEAK, STRONG = "weak", "strong"
#: Bytes of an element, by name of the type.
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
#: Fields of ``Scenario`` that apply only to sharded steps.
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
    #: FSDP2: element types of gathered parameters and of reduced gradients, see ``DTYPE_BYTES``.
    gather_dtype: str | None = None
    reduce_dtype: str | None = None
    #: True if parameters are gathered again for backward.
    reshard_after_forward: bool | None = None
    #: Number of ranks that share one copy of the model.
    shard_ranks: int | None = None
    #: Number of neighbouring blocks that one ``fully_shard`` wraps together.
    wrap_blocks: int | None = None
    #: Number of backward passes of a step.
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
        """True if the scenario sets buckets, hook or sharding, even to the recorded values."""
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
    #: Time that the training thread waits for the last rank to arrive.
    wait_s: float
    #: Time that the training thread waits for transfers.
    transfer_s: float
    #: Time of communication that overlaps with compute.
    hidden_s: float
    #: Waiting, transfer, exposed and hidden time with intervals. The intervals do not include the
    #: model's held-out error.
    waiting: PredictedWaiting
    #: Step time minus waiting.
    compute_s: float
    #: Step times of two trivial predictions: without overlap, and with perfect overlap.
    no_overlap_s: float
    perfect_overlap_s: float
    buckets: int
    #: Bytes that one rank sends per step; in DDP's steps, only for buckets.
    sent_bytes: float
    #: Throughput; NaN if the run does not record the samples of a step.
    samples_per_s: float
    #: Throughput per rank, divided by that of a rank that never waits.
    efficiency: float
    #: Bandwidth, in bytes per second, that hides all buckets but the last; NaN for one bucket, for
    #: buckets that are ready at the same time, and for sharded steps.
    hiding_bytes_per_s: float
    #: Parts of the scenario that are outside the measured range.
    outside: tuple[str, ...]
    #: Assumptions of the prediction.
    remarks: tuple[str, ...]

    @property
    def exposed_s(self) -> float:
        """Total time that the training thread waits for communication."""
        return self.wait_s + self.transfer_s
