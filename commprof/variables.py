"""Every environment variable of commprof: its name and what it is for.

An empty value counts as unset everywhere. The C++ code reads ``DEVICE_EVENTS``, ``SIMD`` and
``KERNEL_THREADS`` itself; setup.py's own variables are in setup.py.
"""

from __future__ import annotations

import os

#: Directory for traces; ``commprof.capture.boot`` and ``wrap`` record nothing without it.
OUT = "COMMPROF_OUT"
#: Mode that recording begins in: see ``trace.schema.MODES``.
MODE = "COMMPROF_MODE"
#: Signal that switches to the next mode, or "none".
SIGNAL = "COMMPROF_SIGNAL"
#: "1" records the Python frames that issue each collective.
STACKS = "COMMPROF_STACKS"
#: Whether ranks compare their clocks: auto, always or off.
CLOCK = "COMMPROF_CLOCK"
#: Steps between two measurements of the gradients' norms.
GRADIENT_NORMS = "COMMPROF_GRADIENT_NORMS"
#: Steps between two comparisons of the models of all ranks.
CHECK_SYNC = "COMMPROF_CHECK_SYNC"
#: Bucket cap in MiB of every DDP model that names none.
BUCKET_CAP_MB = "COMMPROF_BUCKET_CAP_MB"
#: Compressor of every DDP model, as ``commprof.compressors.parse`` takes it.
HOOK = "COMMPROF_HOOK"
#: Candidates that take turns on every DDP model, as ``commprof.trials.plan`` takes them.
TRIAL = "COMMPROF_TRIAL"
#: CPUs by local rank, as ``commprof.launch.pinning.Pinning.text`` lists them.
CPUS = "COMMPROF_CPUS"
#: Options of live metrics, as ``commprof.monitor.settings`` takes them.
METRICS = "COMMPROF_METRICS"
#: Threshold of the watchdog that a rank of each host starts: ``auto`` or seconds.
WATCHDOG = "COMMPROF_WATCHDOG"
#: Process whose descendants may read the ranks' stacks, where Yama restricts that.
PTRACER = "COMMPROF_PTRACER"
#: "0" records by the Python capture although the C++ module is there.
NATIVE = "COMMPROF_NATIVE"
#: Whether collectives of devices are timed by events of the device: on or off.
DEVICE_EVENTS = "COMMPROF_DEVICE_EVENTS"
#: Instruction set of the compression kernels.
SIMD = "COMMPROF_SIMD"
#: Threads of the compression kernels.
KERNEL_THREADS = "COMMPROF_KERNEL_THREADS"
#: Whether compressors connect ranks by sockets of their own: on or off.
SOCKETS = "COMMPROF_SOCKETS"
#: Name of the host that the backend ``commprof`` takes this rank to be on.
HOST = "COMMPROF_HOST"
#: Seconds that one check of ``commprof check`` may take.
CHECK_TIMEOUT_S = "COMMPROF_CHECK_TIMEOUT_S"


def given(name: str) -> str:
    """Returns the value of an environment variable; "" where it is unset or empty."""
    return os.environ.get(name, "")
