"""Lists the live metrics: name, unit and meaning.

Names follow Prometheus's conventions: base units, and counters end in ``_total``. No label is a
step number, so the number of time series does not grow during a job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from commprof.monitor.metrics import values
from commprof.monitor.metrics.values import Labels, Of, Values
from commprof.monitor.state import JobState

_MONITORS: Final = "commprof_monitor_"


_State = TypeVar("_State")


@dataclass(frozen=True)
class Metric(Generic[_State]):
    """One metric: name, help text, kind, and the source of its values."""

    name: str
    #: "counter" or "gauge", as Prometheus defines them.
    kind: str
    help: str
    #: Yields the labels and the value of each sample in a job's state. An unknown value (NaN) is
    #: not shown.
    values: Callable[[_State], Values]
    #: True if the metric is also in JSON lines, TensorBoard and ``summary()``.
    is_recent: bool = False


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    metric: Metric[Any]
    labels: Labels
    value: float


def samples(state: JobState) -> Iterator[Sample]:
    """Yields all known values, metric by metric."""
    for metric in METRICS:
        for labels, value in metric.values(state):
            if not math.isnan(value):
                yield Sample(metric, labels, value)


def flat(state: JobState, ranks: bool = True) -> dict[str, float]:
    """Returns recent figures by names such as ``commprof/step_seconds/rank_0``, for run trackers.

    Args:
        state: state of the job.
        ranks: True to add the rank to the names. If False, figures of the monitor are left out,
            and ``state`` must hold only one rank.
    """
    return {
        _key(sample, ranks): sample.value
        for sample in samples(state)
        if sample.metric.is_recent and (ranks or not sample.metric.name.startswith(_MONITORS))
    }


def _key(sample: Sample, ranks: bool) -> str:
    name = sample.metric.name.removeprefix("commprof_").removeprefix("recent_")
    labels = [
        f"rank_{value}" if key == "rank" else value
        for key, value in sample.labels.items()
        if ranks or key != "rank"
    ]
    return "/".join(("commprof", name, *labels))


def _counter(name: str, text: str, of: Of, is_recent: bool = False) -> Metric[JobState]:
    return Metric(f"commprof_{name}_total", "counter", text, of, is_recent)


def _gauge(name: str, text: str, of: Of, is_recent: bool = False) -> Metric[JobState]:
    return Metric(f"commprof_{name}", "gauge", text, of, is_recent)


def _figure(name: str, text: str, of: Of) -> Metric[JobState]:
    return _gauge(name, text, of, is_recent=True)


def _total(name: str, text: str, of: Of) -> Metric[JobState]:
    return _counter(name, text, of, is_recent=True)


METRICS: Final = (
    _gauge("job_info", "Always 1; the labels describe the job.", values.info),
    _gauge(
        "rank_running", "1 while the rank's process lives and its trace is open.", values.running
    ),
    _gauge(
        "rank_failed",
        "1 once the rank's process was killed or ended with an exception, else 0.",
        values.failed,
    ),
    _gauge(
        "since_step_seconds",
        "Time since the rank ended the last step that all ranks completed.",
        values.ranks(lambda rank: rank.since_step_s),
    ),
    _counter(
        "steps",
        "Steps that all ranks completed; in always-on mode, steps of the rank except the first.",
        values.total("steps"),
    ),
    _counter(
        "step_seconds",
        "Total duration of the steps that commprof_steps_total counts.",
        values.total("step_s"),
    ),
    _counter(
        "step_part_seconds",
        "Time in each part of the steps that commprof_steps_total counts; the parts add up to the "
        "steps.",
        values.phases("total"),
    ),
    _counter(
        "exposed_seconds",
        "Time in which communication blocked the training thread: waiting for the last rank "
        "(wait), transfer after that (transfer), or time that could not be split (unsplit).",
        values.exposed("total"),
    ),
    _counter(
        "hidden_seconds",
        "Time with communication in flight while the training thread worked.",
        values.total("hidden_s"),
    ),
    _counter(
        "waited_for_seconds",
        "Time for which the other ranks' training threads waited for this rank, summed over the "
        "other ranks.",
        values.waited_for,
    ),
    _figure("recent_step_seconds", "Mean duration of the recent steps.", values.recent("step_s")),
    _figure(
        "recent_step_part_seconds",
        "Mean time in each part of a recent step.",
        values.phases("recent"),
    ),
    _figure(
        "recent_exposed_seconds",
        "Mean time for which communication blocked the training thread in a recent step.",
        values.exposed("recent"),
    ),
    _figure(
        "recent_hidden_seconds",
        "Time per step for which communication was in flight while the training thread worked: "
        "mean over the recent steps.",
        values.recent("hidden_s"),
    ),
    _gauge(
        "late_rank",
        "1 for the rank that the other ranks wait for, 0 for all others.",
        values.late,
    ),
    _figure(
        "late_rank_wait_seconds",
        "Time spent waiting for the late rank: mean over the recent steps (in always-on mode: all "
        "steps) and over the ranks that wait.",
        values.late_wait,
    ),
    _counter("collectives", "Operations issued.", values.operations("calls")),
    _counter(
        "collective_bytes",
        "Sizes of the operations issued, as nccl-tests counts size.",
        values.operations("bytes"),
    ),
    _counter(
        "timed_collectives",
        "Operations whose completion was recorded.",
        values.operations("timed_calls"),
    ),
    _counter(
        "collective_seconds",
        "Time from issue to completion, summed over the timed operations.",
        values.operations("timed_s"),
    ),
    _figure(
        "collective_mean_seconds",
        "Mean time from issue to completion of recent operations.",
        values.operations("recent_mean_s"),
    ),
    _figure(
        "collective_p50_seconds",
        "Median time from issue to completion of recent operations.",
        values.operations("recent_p50_s"),
    ),
    _figure(
        "collective_p99_seconds",
        "99th percentile of the time from issue to completion of recent operations.",
        values.operations("recent_p99_s"),
    ),
    _figure(
        "bus_bandwidth_bytes_per_second",
        "Bus bandwidth of recent operations: size times nccl-tests' bus factor, divided by the "
        "time from the last rank's start to the last rank's completion.",
        values.bandwidth("busbw_bytes_per_s"),
    ),
    _figure(
        "bandwidth_use_ratio",
        "Time that the machine profile predicts for recent operations, divided by their measured "
        "time; only operations that the profile covers count.",
        values.bandwidth("of_profile"),
    ),
    _counter(
        "gradient_sent_bytes",
        "Bytes that the compressor sent.",
        values.ranks(lambda rank: rank.sent_bytes or None),
    ),
    _counter(
        "gradient_plain_bytes",
        "Bytes that a ring all-reduce in fp32 would send instead of the compressor.",
        values.ranks(lambda rank: rank.plain_bytes or None),
    ),
    _figure(
        "compression_ratio",
        "Bytes that a ring all-reduce in fp32 would send, divided by the bytes that the compressor "
        "sent instead; both are totals over all steps that the monitor read.",
        values.ranks(lambda rank: rank.compression_ratio),
    ),
    _figure(
        "gradient_norm",
        "L2 norm of the rank's own gradients before the exchange, as measured last.",
        values.gradients("norm"),
    ),
    _figure(
        "gradient_layer_variance",
        "Variance of the L2 norms of the parameters' gradients, one norm per parameter.",
        values.gradients("layer_variance"),
    ),
    _total(
        "gradient_norm_cost_seconds",
        "Time spent on measuring gradient norms.",
        values.gradients("cost_s"),
    ),
    _total("process_cpu_seconds", "CPU time of the rank's process.", values.process("cpu_s")),
    _figure(
        "process_resident_bytes",
        "Resident memory of the rank's process.",
        values.process("resident_bytes"),
    ),
    _total(
        "helper_cpu_seconds",
        "CPU time of commprof's own threads in the rank's process.",
        values.process("helpers_cpu_s"),
    ),
    _counter("host_cpu_seconds", "CPU time of all cores since boot.", values.host_cpu),
    _gauge("host_memory_bytes", "Memory of the host.", values.host("memory_bytes")),
    _figure(
        "host_memory_available_bytes",
        "Available memory of the host.",
        values.host("memory_available_bytes"),
    ),
    _total(
        "network_bytes",
        "Bytes received or sent by a network interface since boot; traffic within the host counts "
        "for the interface lo.",
        values.network,
    ),
    _total(
        "arrivals",
        "Collectives in always-on mode, by what is known about the last rank to arrive: the last "
        "of all ranks is known (known), only the last of some ranks is known (partial), or nothing "
        "is known (unknown).",
        values.arrivals,
    ),
    _total(
        "dropped_events",
        "Records that were dropped because a buffer was full.",
        values.ranks(lambda rank: float(rank.dropped)),
    ),
    _gauge(
        "trace_bytes",
        "Size of the rank's trace.",
        values.ranks(lambda rank: float(rank.trace_bytes)),
    ),
    _gauge(
        "host_summary_age_seconds",
        "Age of the figures that another host of a job in always-on mode wrote.",
        values.host_ages,
    ),
    _gauge(
        "host_missing",
        "1 if a host of a job in always-on mode should have written newer figures, 0 otherwise.",
        values.missing_hosts,
    ),
    _total("monitor_cpu_seconds", "CPU time of this monitor.", values.monitor("cpu_s")),
    _gauge(
        "monitor_resident_bytes",
        "Resident memory of this monitor.",
        values.monitor("resident_bytes"),
    ),
    _gauge(
        "monitor_look_seconds",
        "Duration of the monitor's last look at the traces.",
        values.monitor("poll_s"),
    ),
    _counter(
        "monitor_left_out_events",
        "Events that the monitor skipped, because a rank recorded too many events in steps that "
        "not all ranks have completed.",
        values.monitor("left_out_records"),
    ),
    _gauge(
        "monitor_problems",
        "Number of distinct problems that the monitor found in the traces.",
        values.problems,
    ),
)
