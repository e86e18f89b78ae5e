"""Runs one rank of a job: by `run_rank`, or by `python -m commprof.launch.worker JOB`.

The environment must hold RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import platform
import resource
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from commprof import interrupts, invocation, satellites
from commprof.errors import CommprofError, UsageError
from commprof.launch.backends import prepare_backend
from commprof.launch.job import Job, Plan, write_json
from commprof.launch.pinning import pin_this_process
from commprof.launch.progress import ProgressFile
from commprof.monitor.watchdog.start import allow_tracer
from commprof.workloads.loop import LoopResult, StepRecorder, train
from commprof.workloads.spec import Shard, Trainee
from commprof.workloads.training import Training

RESULT_SCHEMA_VERSION = 1
"""Version of the layout of `rank_R.json`."""

_INTERRUPTED_EXIT_CODE = 130  # the exit code that shells give for SIGINT
# Pause of a rank before it raises an error that another rank seems to have caused, see `guarded`.
# The launcher polls the ranks many times in this period.
_PEER_GRACE_S = 2.0
_EXIT_PAUSE_S = 0.02
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO)


def run_rank(job_path: str, cpu_sets: str = "") -> None:
    """Trains this process's rank of a job, and writes the rank's trace and result.

    job_path: the job's file. cpu_sets: CPUs of each rank of this machine, as in `Pinning.text`.
    """
    guarded(lambda: _run(Job.load(Path(job_path)), cpu_sets))


def guarded(work: Callable[[], None]) -> None:
    """Runs a rank's work; prints an exception on stderr and raises it again. Ctrl-C prints nothing.

    If another rank's end seems to have caused the exception, pauses before raising the exception.
    So the launcher notices the other rank first.
    """
    _end_with_the_launcher()
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # inherited from the fork server
            signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
        interrupts.ignore()
    except KeyboardInterrupt:
        interrupts.ignore()  # a second interrupt would end in a traceback
        # torch's process wrapper would report the interrupt as success, and torch's launcher would
        # go on waiting.
        raise SystemExit(_INTERRUPTED_EXIT_CODE) from None
    except CommprofError as error:
        print(f"commprof: {error}", file=sys.stderr)
        raise
    except Exception as error:
        traceback.print_exc()
        if _is_from_a_peer(error):
            time.sleep(_PEER_GRACE_S)
        raise


def _run(job: Job, cpu_sets: str) -> None:
    # Imported here, because the launcher imports this module too and must not load capture.
    from commprof.capture.attachment import attach
    from commprof.capture.patches.every_model import cap_every_model
    from commprof.capture.profiler import profile
    from commprof.capture.settings import RankSettings
    from commprof.capture.sync_check import check_models

    rank, settings = _environment_rank(job), RankSettings.from_environment()
    pin_this_process(cpu_sets, int(os.environ.get("LOCAL_RANK", "0")))
    allow_tracer(settings.tracer)
    torch.set_num_threads(job.threads_per_rank)
    plan = job.plan()
    device = prepare_backend(job.backend, rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if job.cpu_offload else job.backend)
    shard = Shard(rank, job.world_size, plan.per_rank_batch, plan.steps, job.seed, device)
    memory = PeakMemory(device)
    if settings.bucket_cap_mb is not None:
        cap_every_model(settings.bucket_cap_mb)
    trainee = plan.workload.build(shard)
    training = Training(trainee, plan.strategy, plan.options, shard, plan.lr_scale)
    setup = _setup(job, plan)
    dist.barrier()
    memory.start()
    with profile(job.directory, metadata={"job": setup}) as recorder:
        if job.compressor:
            attach(training.model, satellites.tune().parse_hook(job.compressor))
        elif job.trial:
            satellites.tune().try_model(training.model, job.trial)
        elif job.hook and plan.strategy.replicated:
            attach(training.model)
        if settings.fsdp:
            satellites.tune().set_every_model(settings.fsdp, recorder)
        check_models(recorder, settings.check_sync_every, [training.model])
        result = _train(job, plan, training, recorder)
        memory_use = memory.use()
        record_cost_ns = recorder.record_cost_ns()
    measured = {
        **_measured(result, plan, trainee),
        **_exchanged(job, plan, training),
        "memory": asdict(memory_use),
    }
    _keep(
        job.directory / f"rank_{rank}.json",
        {**_identity(rank), **setup, **measured, "record_cost_ns": record_cost_ns},
    )
    dist.barrier()
    dist.destroy_process_group()


def _keep(path: Path, value: dict[str, Any]) -> None:
    try:
        write_json(path, value)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        print(f"commprof: cannot write {path}: {error.strerror}", file=sys.stderr)


def _environment_rank(job: Job) -> int:
    try:
        rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    except (KeyError, ValueError):
        raise UsageError(
            "RANK and WORLD_SIZE must be whole numbers in the environment; start the rank with "
            "torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        ) from None
    if world_size != job.world_size or not 0 <= rank < world_size:
        raise UsageError(
            f"RANK={rank} and WORLD_SIZE={world_size} contradict the job's world_size="
            f"{job.world_size}; start one process for each of ranks 0 to {job.world_size - 1}"
        )
    return rank


def _identity(rank: int) -> dict[str, Any]:
    return {
        "schema_version": RESULT_SCHEMA_VERSION,
        "rank": rank,
        "host": platform.node(),
        "pid": os.getpid(),
    }


def _setup(job: Job, plan: Plan) -> dict[str, Any]:
    return {
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "world_size": job.world_size,
        "workload": job.workload,
        "parameter_count": plan.workload.parameter_count,
        "scaling": job.scaling,
        "per_rank_batch": plan.per_rank_batch,
        "steps": plan.steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "overhead_steps": job.overhead_steps,
        "seed": job.seed,
        "threads_per_rank": job.threads_per_rank,
        "hook": job.hook,
        "compressor": job.compressor,
        "strategy": job.strategy,
        "training": asdict(plan.options),
    }


def _train(
    job: Job,
    plan: Plan,
    training: Training,
    recorder: StepRecorder,
) -> LoopResult:
    progress = ProgressFile(job.directory) if dist.get_rank() == 0 else None
    with closing(progress) if progress else nullcontext():
        return train(
            training,
            recorder,
            plan.steps,
            overhead_steps=job.overhead_steps,
            lot=_lot(),
            on_step=progress.update if progress else None,
        )


def _lot() -> str:
    """Returns a seed for random numbers. All ranks of a launch have the same seed."""
    from commprof.capture.job.metadata import elastic_run_id

    return f"{elastic_run_id()} {os.environ['MASTER_PORT']}"


def _measured(result: LoopResult, plan: Plan, trainee: Trainee) -> dict[str, Any]:
    """Returns the measured values for the result file.

    Key ``truth``: phase times of the training steps, as the workload itself recorded them. None if
    the workload records no phase times, or if a step has several backward passes.
    """
    # With accumulation, the workload records phases for each backward pass, not for each step.
    truth = trainee.truth() if plan.options.accumulate == 1 else None
    return {
        "samples": sum(result.step_samples),
        "duration_s": result.duration_ns / 1e9,
        "average_loss": result.average_loss(plan.steps_per_epoch),
        "step_ns": result.step_ns,
        "step_samples": result.step_samples,
        "losses": result.losses,
        "overhead": [[step.label, step.duration_ns] for step in result.overhead],
        "overhead_cpu_ns": [step.cpu_ns for step in result.overhead],
        "truth": truth and {name: values[: plan.steps] for name, values in truth.items()},
    }


def _exchanged(job: Job, plan: Plan, training: Training) -> dict[str, Any]:
    """Returns the expected communication per step, and a checksum of the weights.

    Key ``expected``: None with a compressor. Key ``weights_crc32``: None if no rank has all
    weights.
    """
    weights = None
    if plan.strategy.replicated:
        weights = 0
        for parameter in training.model.parameters():
            if parameter.requires_grad:
                flat = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8)
                weights = zlib.crc32(flat.numpy(), weights)
    expected = None if job.compressor else [asdict(row) for row in training.expected]
    return {"expected": expected, "weights_crc32": weights}


def _end_with_the_launcher() -> None:
    """Ends this process when the launcher ends.

    A thread waits for the launcher, because the parent process is the fork server.
    """
    launcher = multiprocessing.parent_process()
    if launcher is None:
        return

    def watch() -> None:
        launcher.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()


def _is_from_a_peer(error: Exception) -> bool:
    """True for errors of communication. Most of them occur because another rank ended."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def main() -> None:
    """Runs one rank of a job; argv[1] is the path of the job's file."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {invocation.module('commprof.launch.worker')} JOB.json")
    try:
        record(run_rank)(sys.argv[1])
    except CommprofError as error:
        sys.exit(error.exit_code)
    # torch 2.13's gloo threads may abort a process that ends directly after its last collective
    time.sleep(_EXIT_PAUSE_S)


_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs: sets the peak to the present resident size


@dataclass(frozen=True)
class MemoryUse:
    """Memory that one rank used, in bytes."""

    before_bytes: int
    """Resident memory before model and data were created: Python, torch, process group."""
    peak_bytes: int
    """Peak of resident memory from the first training step on."""
    device_peak_bytes: int | None
    """Peak of torch's GPU memory from the first training step on; None on a CPU."""


class PeakMemory:
    """Measures peak memory from `start()` on. Create the object before the model."""

    def __init__(self, device: str) -> None:
        """Reads the memory in use. ``device`` is the model's device, such as ``cuda:0``."""
        self._cuda = device if torch.device(device).type == "cuda" else None
        self._before_bytes = _resident("VmRSS")

    def start(self) -> None:
        """Returns freed memory to Linux, so that it does not count, and starts measuring."""
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):  # only glibc has it
            libc.malloc_trim(0)
        # If a sandbox forbids the reset, the measured peak may be too large.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def use(self) -> MemoryUse:
        """Returns the memory used until now."""
        device = torch.cuda.max_memory_allocated(self._cuda) if self._cuda else None
        return MemoryUse(self._before_bytes, _resident("VmHWM"), device)


def _resident(key: str) -> int:
    """Returns the value of a key of /proc/self/status, in bytes.

    If the key is missing, as in some sandboxes, returns the peak since the process started.
    """
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
