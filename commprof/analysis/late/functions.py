"""Functions that take longer on a late rank than on the others, according to py-spy's samples.

``rank_N.samples.txt`` next to the traces holds collapsed stacks: ``FRAME;FRAME COUNT``, with the
outermost frame first. A sample counts only for the function of its innermost frame. Functions with
the same name and file count as one function.

Waiting for collectives counts for no function. Samples within ``torch.distributed`` are left out.
The time that DDP waited is read from the trace, and is subtracted from the backward engine's time.

If there are too few cores, py-spy sometimes waits for a core itself, and takes no samples. So
differences smaller than the largest run delay per step of any sampled rank are not reported. Run
delay is the time for which a thread waits for a core.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from commprof.analysis.late.costs import LEAST_SHARE
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.measured import MeasuredWorld
from commprof.errors import CommprofError
from commprof.files import read_bytes
from commprof.text import in_ms, listed, printable
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.run.endings import stem_of
from commprof.trace.run.run_directory import WorldRun
from commprof.units import ns_to_ms

_MOST: Final = 5
#: Number of standard errors by which a function's time must exceed its time on the other ranks.
_ERRORS: Final = 3.0
_MOST_BYTES: Final = 256 << 20
#: Frame that names the thread, as py-spy writes it.
_THREAD: Final = re.compile(r"thread \(([^()]*)\)(?:: (.*))?")
_COUNT: Final = re.compile(r"[0-9]{1,15}")
_WAITING: Final = re.compile(r"(^|/)(torch/distributed|commprof/capture)/")
#: Torch runs a backward pass in this function. DDP waits at the end of the backward pass.
_ENGINE: Final = "_engine_run_backward"
_Function: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class GrownFunction:
    """A function whose own time is longer on one rank than on the others."""

    #: ``NAME (FILE:LINE)``. The line is the one with the most samples.
    function: str
    #: Own time per step: the function's fraction of all samples, times the mean step.
    own_ms: float
    #: Median of this function's own time on the other sampled ranks.
    others_ms: float


@dataclass(frozen=True)
class GrownFunctions:
    """Functions in which one rank spends more time than the others, according to samples."""

    rank: int
    #: Sorted by how much longer the rank takes, the largest difference first.
    functions: tuple[GrownFunction, ...]
    #: Smaller differences are not reported. NaN if the ranks are not compared.
    least_ms: float
    #: Reason why the ranks are not compared; "" if they are compared.
    problem: str

    @property
    def sentence(self) -> str:
        """The result of the comparison, in one sentence."""
        whose = f"rank {self.rank}"
        if self.problem:
            return f"The functions of {whose} are not compared: {printable(self.problem)}."
        if not self.functions:
            most = in_ms(self.least_ms)
            return (
                f"py-spy's samples do not show that any function takes at least {most} longer on "
                f"{whose} than on the others."
            )
        grown = [
            f"{printable(each.function)} +{in_ms(each.own_ms - each.others_ms)}"
            for each in self.functions
        ]
        return (
            f"According to py-spy's samples, {whose} spends more time per step than the other "
            f"ranks in {listed(grown)}."
        )


def samples_path(directory: Path, rank: int, attempt: int) -> Path:
    """Returns the path of the file with the samples of a rank."""
    return directory / f"{stem_of(rank, attempt)}.samples.txt"


def grown_functions(rank: int, run: WorldRun, seen: MeasuredWorld) -> GrownFunctions | None:
    """Finds the functions that take longer on this rank; None if no rank was sampled."""
    paths = [samples_path(run.directory, each, run.attempt) for each in seen.ranks]
    sampled = [i for i, path in enumerate(paths) if path.exists()]
    if not sampled:
        return None
    place = seen.ranks.index(rank)
    if set(sampled) <= {place}:
        return GrownFunctions(rank, (), math.nan, "no other rank was sampled")
    try:
        mine = _times(paths[place], seen, place)
        others = [_times(paths[i], seen, i) for i in sampled if i != place]
    except CommprofError as error:
        return GrownFunctions(rank, (), math.nan, str(error))
    least_ms = max(LEAST_SHARE * mine.step_ms, *(each.no_core_ms for each in (mine, *others)))
    found = []
    for function in mine.own_ms:
        own_ms = mine.own_ms[function]
        others_ms = float(np.median([other.own_ms.get(function, 0.0) for other in others]))
        errors = mine.error_ms(own_ms), max(other.error_ms(others_ms) for other in others)
        if own_ms - others_ms >= max(least_ms, _ERRORS * math.hypot(*errors)):
            found.append(GrownFunction(mine.samples.label(function), own_ms, others_ms))
    found.sort(key=lambda each: each.others_ms - each.own_ms)
    return GrownFunctions(rank, tuple(found[:_MOST]), least_ms, "")


@dataclass
class Samples:
    """Samples of a rank's training thread."""

    #: Number of all samples, including samples of a waiting thread.
    total: int = 0
    #: Number of samples by function and line; the line is "" if unknown.
    lines: defaultdict[_Function, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    def label(self, function: _Function) -> str:
        """Returns ``NAME (FILE:LINE)`` with the function's most frequent line."""
        (name, file), ((line, _), *_) = function, self.lines[function].most_common(1)
        return f"{name} ({file}{':' if line else ''}{line})" if file else name


def read_samples(path: Path, thread: int, is_main: bool) -> Samples:
    """Reads the samples of one thread from a file.

    Args:
        path: output of ``py-spy record --format raw --threads --idle``.
        thread: the kernel's id of the training thread.
        is_main: True if this thread is the main thread of its process. If no sample then has the
            id ``thread``, the thread named "MainThread" is read instead.

    Raises:
        CommprofError: the file cannot be read, or holds no sample of the thread.
    """
    try:
        text = read_bytes(path, _MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise CommprofError(f"{path.name} cannot be read ({error.strerror})") from None
    stacks: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for line in text.split("\n")[:-1]:  # drops a last line that was cut off
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        root = next((root for frame in frames if (root := _THREAD.fullmatch(frame))), None)
        if root is not None and _COUNT.fullmatch(count):
            for name in {root[1], root[2]}:
                stacks[name].append((frames[-1], int(count)))
    found = Samples()
    for frame, number in stacks[str(thread)] or (stacks["MainThread"] if is_main else []):
        found.total += number
        function, line = _function(frame)
        if number and not (_WAITING.search(function[1]) or _THREAD.fullmatch(frame)):
            found.lines[function][line] += number
    if not found.total:
        raise CommprofError(
            f"{path.name} has no sample of the training thread; make the file with py-spy record "
            "--format raw --threads --idle"
        )
    return found


def _function(frame: str) -> tuple[_Function, str]:
    """Splits ``NAME (FILE:LINE)`` into the function and the line."""
    name, _, place = frame.partition(" (")
    file, _, line = place.removesuffix(")").rpartition(":")
    return ((name, file), line) if line.isdecimal() else ((name, place.removesuffix(")")), "")


@dataclass(frozen=True)
class _Times:
    samples: Samples
    step_ms: float
    #: Run delay per step.
    no_core_ms: float
    own_ms: dict[_Function, float]

    def error_ms(self, own_ms: float) -> float:
        """Returns the standard error of an own time that was estimated from samples."""
        share = min(1.0, own_ms / self.step_ms)
        return self.step_ms * math.sqrt(share * (1 - share) / self.samples.total)


def _times(path: Path, seen: MeasuredWorld, place: int) -> _Times:
    trace, measured = seen.recorded[place], seen.measured[place]
    step_ms = ns_to_ms(float(measured.wall_ns.mean()))
    no_core_ms = ns_to_ms(float(measured.host.run_delay_ns.sum(axis=1).mean()))
    thread = int(columns.steps(trace).thread[0])
    samples = read_samples(path, thread, thread == trace.metadata["pid"])
    waited = _waited_in_backward(trace)
    shares = {
        function: lines.total() / samples.total - (waited if function[0] == _ENGINE else 0.0)
        for function, lines in samples.lines.items()
    }
    own_ms = {each: max(0.0, share) * step_ms for each, share in shares.items()}
    return _Times(samples, step_ms, no_core_ms, own_ms)


def _waited_in_backward(trace: Trace) -> float:
    """Returns how long DDP waited at the end of backward passes, as a fraction of the step time."""
    exposed, steps = exposures_of(trace), columns.steps(trace)
    waited_ns = exposed.waited_ns[exposed.graph_task >= 0].sum()
    return float(waited_ns / (steps.end_ns - steps.begin_ns).sum())
