"""A training job at one world size, which every rank reads from a file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof.errors import CommprofError, UsageError
from commprof.files import checked, read_json, replace_file
from commprof.invocation import quoted
from commprof.workloads.loop import planned_steps
from commprof.workloads.options import TrainingOptions, check_supported
from commprof.workloads.spec import Workload, flag, parse_spec
from commprof.workloads.strategies import Strategy, parse_strategy

SCHEMA_VERSION = 1
"""Version of the job file; a file of another version is refused."""

SCALINGS = ("weak", "strong")
"""weak: the batch per rank is fixed. strong: the global batch is fixed, and the ranks share it."""


@dataclass(frozen=True)
class Job:
    """One workload at one world size. Raises UsageError for a value out of range."""

    workload: str
    """Workload as on the command line, `NAME[:key=value,...]`."""
    world_size: int
    """Number of ranks."""
    directory: Path
    """Directory in which the ranks write `rank_R.trace` and `rank_R.json`."""
    steps: int | None = None
    """Number of steps; if None, `epochs` determines it."""
    epochs: int | None = None
    """Number of epochs; if `steps` is None too, `loop.planned_steps` chooses the steps."""
    batch_size: int | None = None
    """Samples of a backward pass, per rank (weak) or of all ranks (strong); None for the workload's
    default."""
    scaling: str = "weak"
    """One of SCALINGS."""
    backend: str = "gloo"
    """torch.distributed backend."""
    overhead_steps: int = 0
    """Number of steps after the training that measure the cost of capture; see `loop.train`."""
    seed: int = 0
    """Random seed of data and weights."""
    threads_per_rank: int = 1
    """Intra-op threads of each rank."""
    hook: bool = True
    """True if commprof's communication hook times DDP's buckets."""
    compressor: str = ""
    """Compressor of gradients, in the form of `compressors.parse`; empty: DDP's mean all-reduce."""
    trial: str = ""
    """Candidates that a trial compares, in the form of `trials.plan`; empty: no trial."""
    strategy: str = "ddp"
    """Strategy as on the command line, `NAME[:key=value]`."""
    accumulate: int = 1
    """For this field and the fields below, see `TrainingOptions`."""
    precision: str = "fp32"
    clip_norm: float = 0.0
    checkpoint_activations: bool = False
    cpu_offload: bool = False
    scale_lr: bool = False
    lr_warmup: int = 0

    def __post_init__(self) -> None:
        self.training_options()
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UsageError(
                    f"{flag(name)} {value} is out of range (allowed: {minimum} or more)"
                )
        if self.scaling not in SCALINGS:
            raise UsageError(f"unknown scaling {self.scaling!r} (allowed: {', '.join(SCALINGS)})")
        if self.steps is not None and self.epochs is not None:
            raise UsageError(
                f"--steps {self.steps} and --epochs {self.epochs} exclude each other; give "
                "one of them"
            )

    def plan(self) -> Plan:
        """Returns the workload, strategy, batch and number of steps of this job.

        Raises UsageError if the job's options are not valid or do not fit each other.
        """
        workload, strategy = parse_spec(self.workload), parse_strategy(self.strategy)
        options = self.training_options()
        check_supported(workload, options, strategy.name)
        strategy.check(self.world_size)
        self._check_strategy(strategy)
        batch_size = self.batch_size or workload.default_batch_size
        batch = per_rank_batch(batch_size, self.world_size, self.scaling)
        passes = workload.steps_per_epoch(self.world_size, batch)
        per_epoch = -(-passes // self.accumulate)
        steps = planned_steps(per_epoch, self.steps, self.epochs)
        lr_scale = batch * self.world_size * self.accumulate / batch_size
        return Plan(workload, strategy, options, batch, per_epoch, steps, lr_scale)

    def training_options(self) -> TrainingOptions:
        """Returns the training options. Raises UsageError for a value out of range."""
        names = [field.name for field in dataclasses.fields(TrainingOptions)]
        return TrainingOptions(**{name: getattr(self, name) for name in names})

    def _check_strategy(self, strategy: Strategy) -> None:
        if self.compressor and not strategy.replicated:
            raise UsageError(
                f"--hook {self.compressor} compresses DDP's gradients, but --strategy "
                f"{strategy.name} does not use DDP; use ddp or zero1, or leave --hook out"
            )
        if self.cpu_offload and not strategy.offloads:
            raise UsageError(
                f"--cpu-offload: --strategy {strategy.name} does not shard parameters (allowed "
                "with: fsdp, hsdp)"
            )
        if self.cpu_offload and self.backend != "nccl":
            raise UsageError(
                f"--cpu-offload: with backend {self.backend!r} everything is in the host's memory "
                "already; leave --cpu-offload out, or use backend nccl on GPUs"
            )

    def save(self, path: Path) -> None:
        """Writes the job as JSON, and creates the file's directory if needed.

        The file is replaced as a whole. Raises CommprofError if the file cannot be written.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["directory"] = str(self.directory)
        try:
            write_json(path, {"schema_version": SCHEMA_VERSION, **values})
        except OSError as error:
            raise CommprofError(f"cannot write {quoted(path)}: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> Job:
        """Reads a job. Raises UsageError, with the reason, if the file is not a job file."""
        try:
            values = checked(read_json(path), {"schema_version": int})
            version = values.pop("schema_version")
            if version != SCHEMA_VERSION:
                raise ValueError(f"schema_version is {version}, not {SCHEMA_VERSION}")
            unknown = sorted(values.keys() - {field.name for field in dataclasses.fields(cls)})
            if unknown:
                raise ValueError(f"unknown keys: {unknown}")
            job: Job = checked(values, cls)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is not a job file: {error}") from None
        return job


@dataclass(frozen=True)
class Plan:
    """Workload, strategy, batch and steps of a job."""

    workload: Workload
    """Workload; its model is not built yet."""
    strategy: Strategy
    options: TrainingOptions
    """Training options, which the workload and the strategy support."""
    per_rank_batch: int
    """Number of samples of a rank per backward pass."""
    steps_per_epoch: int
    """Number of steps of an epoch."""
    steps: int
    """Number of training steps, without `Job.overhead_steps`."""
    lr_scale: float
    """Factor for the learning rate: samples of all ranks per update, divided by the requested batch
    size."""


def per_rank_batch(batch_size: int, world_size: int, scaling: str) -> int:
    """Returns the number of samples per backward pass of a rank.

    Raises UsageError if a global batch (strong scaling) does not divide among the ranks.
    """
    if scaling == "weak":
        return batch_size
    if batch_size % world_size:
        fitting = [str(n) for n in range(1, batch_size + 1) if batch_size % n == 0]
        above = -(-batch_size // world_size) * world_size
        raise UsageError(
            f"batch size {batch_size} does not divide among {world_size} ranks (strong scaling; "
            f"allowed world sizes: {', '.join(fitting)}); use one of these, or a batch size "
            f"that is a multiple of {world_size}, such as {above}"
        )
    return batch_size // world_size


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes `value` as JSON; the file is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(value, indent=1) + "\n")


_MINIMA = {
    "world_size": 1,
    "steps": 1,
    "epochs": 1,
    "batch_size": 1,
    "overhead_steps": 0,
    "seed": 0,
    "threads_per_rank": 1,
}
