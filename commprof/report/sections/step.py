"""Table of the parts of the mean step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from commprof.analysis.scaling import RunResult
from commprof.analysis.verdict import Binding
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, decimals
from commprof.text import counted

PARTS_LEGEND = """\
Mean step in ms over ranks and steps, measured with CLOCK_MONOTONIC in the ranks:
data + forward + backward + exposed + optimizer + other = step;  exposed = wait + transfer.
exposed: the training thread waited for communication; wait: until the last rank had arrived;
transfer: after that. hidden: communication in flight while the training thread worked."""

#: Legend for collectives on GPUs. Times are those of the GPU's compute stream.
DEVICE_LEGEND = """\
Mean step in ms over ranks and steps, on the GPU's compute stream, timed by device events:
data + forward + backward + exposed + optimizer + other = step;  exposed = wait + transfer.
exposed: the stream waited for communication; wait: until the last rank had arrived; transfer: after
that. hidden: communication in flight while the stream worked, or was idle for another reason."""

#: Legend for recordings of other profilers without kernels of a GPU.
RECORDING_LEGEND = """\
Mean step in ms, over ranks and steps:
data + forward + backward + exposed + optimizer + other = step;  exposed = wait + transfer.
exposed: communication ran and nothing else did; wait: until the last rank had arrived; transfer:
after that. hidden: communication during other work."""

#: Legend for recordings of other profilers with kernels of a GPU.
KERNEL_LEGEND = """\
Mean GPU time per step in ms, over ranks and steps:
data + forward + backward + no phase + exposed + optimizer + copies + idle = step;
exposed = wait + transfer. data, forward, backward, optimizer: a kernel that was launched in the
phase ran; no phase: a kernel of unknown phase ran; exposed: kernels of communication ran, but no
others and no copies within the device; copies: copies or fills ran in the remaining time; idle:
nothing ran. wait: until the last rank had arrived; transfer: after that. hidden: communication
during other work."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the parts of the mean step, if the run has figures of steps.

    A page also states what bounds the step at each world size. On a terminal, only the verdict
    states this.
    """
    if not report.result.worlds:
        return
    bindings = report.verdict.bindings if report.verdict is not None else ()
    yield Section(
        "step",
        "Where each step goes",
        grids=(("Mean step in ms, by number of ranks", parts_grid(report.result)),),
        bullets=tuple(map(_binding, bindings)) if medium.is_page else (),
        legend=parts_legend(report.result.worlds),
    )


def parts_legend(worlds: Sequence[WorldResult]) -> str:
    """Returns the legend of the table of mean steps."""
    if _has_kernels(worlds):
        return KERNEL_LEGEND
    if any(world.recording.foreign for world in worlds):
        return RECORDING_LEGEND
    return DEVICE_LEGEND if any(world.recording.device_timed for world in worlds) else PARTS_LEGEND


def _has_kernels(worlds: Sequence[WorldResult]) -> bool:
    return any(not math.isnan(world.parts.unphased_compute_ms) for world in worlds)


def parts_grid(result: RunResult) -> Grid:
    """Makes a table of the parts of the mean step, with a row per world size."""
    rows = []
    on_device = _has_kernels(result.worlds)
    for world in result.worlds:
        parts = world.parts
        times = (
            parts.data_ms,
            parts.forward_ms,
            parts.backward_ms,
            *((parts.unphased_compute_ms,) if on_device else ()),
            parts.exposed_ms,
            parts.optimizer_ms,
            *((parts.copies_ms, parts.idle_ms) if on_device else (parts.other_ms,)),
            parts.step_ms,
            parts.wait_ms,
            parts.transfer_ms,
            parts.hidden_ms,
        )
        rows.append((world.world_size, *map(decimals, times)))
    return Grid(
        rows,
        (
            "ranks",
            "data",
            "compute:\nforward",
            "\n+ backward",
            *(("\n+ no phase",) if on_device else ()),
            "exposed",
            "opti-\nmizer",
            *(("copies", "idle") if on_device else ("other",)),
            "= step",
            "exposed:\nwait",
            "\n+ transfer",
            "hidden",
        ),
    )


def _binding(binding: Binding) -> str:
    if not binding.largest:
        return f"{counted(binding.world_size, 'rank')}: what bounds the step is not known."
    (first, share), (second, other) = binding.largest
    if binding.part is None:
        return (
            f"{counted(binding.world_size, 'rank')}: {first} {share:.1%} and {second} {other:.1%}; "
            "the difference is not significant."
        )
    return f"{counted(binding.world_size, 'rank')}: bound by {first}, {share:.1%} of the mean step."
