"""Facts about the calls and the steps of a job, for the rules of the catalogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.causes.edits.script import Script, script_of
from commprof.analysis.collectives.kinds import caller
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.analysis.replay.gains import Replays, recorded_replays
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.measured import MeasuredWorld
from commprof.analysis.world import WorldResult
from commprof.text import listed, plural
from commprof.trace import columns
from commprof.trace.columns import Collectives, Ints
from commprof.trace.lookup import among, distinct_rows, is_in, row_containing, row_of
from commprof.trace.operations import codes_of
from commprof.trace.ranks import lengths_of
from commprof.trace.reader import Trace
from commprof.trace.schema import FLAG_DEVICE_ASYNC, OPS, Kind, Phase
from commprof.units import ns_to_ms

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Seen = TypeVar("Seen")

_NO_TIME = np.iinfo(np.int64).max
#: A sentence names at most this many lines of code.
_MOST_LINES = 3


@dataclass(frozen=True)
class RankCalls:
    """All recorded collectives of one rank.

    Columns and masks have one element per row of ``table``.
    """

    rank: int
    trace: Trace
    table: Collectives
    #: Begin and end of each measured step.
    begin_ns: Ints
    end_ns: Ints
    #: Index of the measured step that contains the call; -1 outside of the measured steps.
    step: Ints
    #: Phase in which the call was issued; ``Phase.OTHER`` outside of all phases.
    phase: Ints
    #: Number of phases that began before the call was issued. No phase begins between two calls
    #: with equal numbers.
    segment: Ints
    #: Size of the call as nccl-tests defines it.
    size_bytes: Ints
    #: Time at which the training thread stopped waiting for the call; 0 if the thread did not wait.
    #: It is the end of the call if the wait was too short to be recorded (see ``_found_done``).
    wait_end_ns: Ints
    #: Time for which the call blocked the training thread.
    exposed_ns: Floats
    #: The part of ``exposed_ns`` inside the function that issues the call.
    in_call_ns: Floats
    #: True if the tensors of the call are on a device.
    on_device: Mask
    #: True if the size was recorded. Also true for barriers, which have no size.
    has_size: Mask

    def chosen(self, ops: Sequence[str]) -> Mask:
        """Returns a mask of the calls of ``ops`` in measured steps whose size is known."""
        return self.measured(ops) & self.has_size

    def measured(self, ops: Sequence[str]) -> Mask:
        """Returns a mask of the calls of ``ops`` in measured steps."""
        codes = [OPS.index(op) for op in ops]
        mask: Mask = among(self.table.op, *codes) & (self.step >= 0)
        return mask

    @property
    def in_backward(self) -> Mask:
        """True for the calls that were issued by a backward pass."""
        mask: Mask = (self.table.graph_task >= 0) | (self.phase == Phase.BACKWARD)
        return mask

    @property
    def of_script(self) -> Mask:
        """True for the calls that were issued outside of forward and backward.

        Calls inside of these passes belong to layers of the model, so a fix cannot join them.
        Without DDP and FSDP, forward passes are not recorded. A call before backward then counts as
        a call in forward if backward waits for calls in the same group.
        """
        mask: Mask = ~self.in_backward & (self.phase != Phase.FORWARD)
        if (columns.phases(self.trace).key == Phase.FORWARD).any():
            return mask
        groups = np.unique(self.table.group[self.in_backward & self.is_blocking])
        after = self.last_begun(Phase.BACKWARD, Phase.OPTIMIZER) == Phase.BACKWARD
        return mask & (after | ~np.isin(self.table.group, groups))

    @property
    def after_backward(self) -> Mask:
        """True for the calls from the start of a backward pass to the next forward pass."""
        mask: Mask = self.last_begun(Phase.FORWARD, Phase.BACKWARD) == Phase.BACKWARD
        return mask

    @property
    def before_update(self) -> Mask:
        """True for the calls from the start of a backward pass to the next update.

        False for all calls of a rank whose updates were not recorded.
        """
        is_open = self.last_begun(Phase.BACKWARD, Phase.OPTIMIZER) == Phase.BACKWARD
        mask: Mask = is_open & bool((columns.phases(self.trace).key == Phase.OPTIMIZER).any())
        return mask

    def last_begun(self, *kinds: Phase) -> Ints:
        """Returns the kind of the last phase that began before each call was issued.

        Only phases of ``kinds`` count. -1 if none of them began before the call.
        """
        phases = columns.phases(self.trace)
        chosen = among(phases.key, *kinds)
        begun, key = phases.begin_ns[chosen], phases.key[chosen]
        order = np.argsort(begun, kind="stable")
        last = np.searchsorted(begun[order], self.table.issue_ns, side="right")
        return np.append(-1, key[order])[last].astype(np.int64)

    @property
    def is_blocking(self) -> Mask:
        """True if the training thread waited for the call before it issued the next call."""
        follows = np.append(self.table.issue_ns[1:], _NO_TIME)
        mask: Mask = (self.wait_end_ns > 0) & (self.wait_end_ns <= follows)
        return mask

    def per_step(self, mask: Mask) -> float:
        """Returns the median number of masked calls in a measured step."""
        return float(np.median(np.bincount(self.step[mask], minlength=len(self.begin_ns))))

    def more_forwards(self, steps: Ints) -> float:
        """Returns how many more forward passes ``steps`` have than the other measured steps.

        Compares the medians; 0 if there are no other steps. ``steps``: indices of measured steps.
        """
        phases = columns.phases(self.trace)
        begun = np.sort(phases.begin_ns[phases.key == Phase.FORWARD])
        count = np.searchsorted(begun, self.end_ns) - np.searchsorted(begun, self.begin_ns)
        usual = np.delete(count, steps)
        return float(np.median(count[steps]) - np.median(usual)) if len(usual) else 0.0

    def blocked_ns(self, mask: Mask) -> float:
        """Returns the total time from the issue of each masked call to the end of its wait."""
        until = np.maximum(self.wait_end_ns, self.table.issue_ns)[mask]
        return float((until - self.table.issue_ns[mask]).sum())

    def line(self, mask: Mask) -> str:
        """Returns the line of code that issued most of the masked calls; empty if unknown.

        Looks at the most frequent operation, group and size. Calls outside of the mask count too,
        because stacks may be recorded in some steps only.
        """
        stacks = self.trace.stacks
        if not stacks or not mask.any():
            return ""
        number = columns.stacks(self.trace, self.table.op_id)
        keys = np.stack([self.table.op, self.table.group, self.size_bytes], axis=1)
        for kinds in (keys, keys[:, :2]):
            wanted, count = np.unique(kinds[mask], axis=0, return_counts=True)
            alike = (kinds == wanted[np.argmax(count)]).all(axis=1) & (number > 0)
            alike &= self.in_backward == self.in_backward[mask][0]
            if alike.any():
                values, times = np.unique(number[alike], return_counts=True)
                return caller(stacks.get(int(values[np.argmax(times)]), ()))
        return ""

    def lines(self, mask: Mask) -> list[str]:
        """Returns all lines of code that issued the masked calls.

        If none of these calls has a recorded stack, returns only :meth:`line`. Empty if no stacks
        were recorded at all.
        """
        if not self.trace.stacks:
            return []
        numbers = np.unique(columns.stacks(self.trace, self.table.op_id)[mask]).tolist()
        stacks = (self.trace.stacks.get(number, ()) for number in numbers)
        return sorted({caller(frames) for frames in stacks if frames}) or [self.line(mask)]


def at_line(line: str) -> str:
    """Returns " at FILE:LINE in FUNCTION", without folders; "" for an empty line."""
    place, _, function = line.partition(" ")
    name = place.replace("\\", "/").rpartition("/")[2]
    return f" at {name}" * bool(name) + f" in {function}" * (function not in ("", "<module>"))


def at_lines(lines: Sequence[str]) -> str:
    """Returns " at FILE:LINE and FILE:LINE", without folders.

    Names at most ``_MOST_LINES`` lines, and the number of further lines.
    """
    if len(lines) <= 1:
        return at_line("".join(lines))
    places = [at_line(line.partition(" ")[0]).removeprefix(" at ") for line in lines]
    more = len(places) - _MOST_LINES
    if more > 0:
        places = [*places[:_MOST_LINES], f"{more} more {plural(more, 'line')}"]
    return f" at {listed(places)}"


@dataclass(frozen=True)
class Passes:
    """Numbers of backward passes before an update of one rank."""

    #: Median number of backward passes before an update.
    backward: int
    #: Median number of these passes that exchange gradients.
    exchanged: int
    #: Fraction of the updates whose last backward pass exchanged gradients.
    last_share: float
    #: Fraction of the updates with these numbers of passes, or with fewer passes. The last update
    #: of an epoch may have fewer.
    usual_share: float
    updates: int


@dataclass(frozen=True)
class Facts:
    """Facts about a job at one world size."""

    context: Mapping[str, Any]
    world: WorldResult
    seen: MeasuredWorld
    #: Results of functions that are decorated with :func:`once`.
    results: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def ranks(self) -> Sequence[RankCalls]:
        """Calls of each recorded rank, computed when a rule first uses them."""
        return _RanksCalls(self.seen)

    def on_all_ranks(
        self, look: Callable[[RankCalls], Seen], suffices: Callable[[Seen], bool]
    ) -> list[Seen]:
        """Returns the result of ``look`` for each rank; empty if a result does not suffice.

        Stops at the first result that ``suffices`` rejects.
        """
        seen = []
        for calls in self.ranks:
            seen.append(look(calls))
            if not suffices(seen[-1]):
                return []
        return seen

    @cached_property
    def replays(self) -> Replays | None:
        """The replay of the recorded steps; None if no replay is possible."""
        return recorded_replays(self.seen, self.world.evidence)

    @cached_property
    def transfer_ns(self) -> tuple[Floats, ...]:
        """For each rank, the times of its calls without waiting for late ranks.

        Empty if no replay is possible.
        """
        if self.replays is None:
            return ()
        recorded_ns = self.replays.stretches[0][1].transfer_ns
        return tuple(np.split(recorded_ns, np.cumsum(lengths_of(self.seen.tables))[:-1]))

    def transferring_ns(self, position: int, mask: Mask) -> float:
        """Returns the time for which the masked calls block the rank at index ``position``.

        The waiting for late ranks is left out, unless no replay is possible.
        """
        exposed = self.ranks[position].exposed_ns[mask]
        if self.transfer_ns:
            exposed = np.fmin(exposed, self.transfer_ns[position][mask])
        return float(exposed.sum())

    @property
    def first(self) -> RankCalls:
        """Calls of the first recorded rank."""
        return self.ranks[0]

    @cached_property
    def step_ns(self) -> float:
        """Mean length of the measured steps of all ranks."""
        return float(self.seen.measured.table("wall").mean(axis=1).mean())

    @cached_property
    def script(self) -> Script:
        """The files of the training script that can be read on this machine."""
        return script_of(self.first.trace)

    @property
    def steps(self) -> int:
        """Number of measured steps."""
        return len(self.seen.measured.step)

    def share(self, total_ns: Sequence[float]) -> float:
        """Returns the mean of the ranks' times as a fraction of the measured time.

        ``total_ns``: one time per rank, summed over all measured steps. NaN without times or steps.
        """
        if not total_ns or not self.steps:
            return math.nan
        return float(np.mean(total_ns)) / self.steps / self.step_ns

    def per_step_ms(self, total_ns: Sequence[float]) -> float:
        """Returns the mean of the ranks' times in ms per step.

        ``total_ns``: one time per rank, summed over all measured steps.
        """
        return ns_to_ms(float(np.mean(total_ns)) / self.steps)

    @property
    def on_device(self) -> bool:
        """True if any collectives ran on a device."""
        of_ranks = zip(self.seen.traces, self.seen.tables, strict=True)
        return any(bool(_on_device(*of_rank).any()) for of_rank in of_ranks)

    @cached_property
    def ddp_logs(self) -> tuple[Mapping[str, Any], ...]:
        """The logs of DDP for all models on all ranks."""
        sources = (trace.metadata.get("cross_check_sources") or {} for trace in self.seen.traces)
        return tuple(
            log for source in sources for log in source.get("ddp_logs", ()) if isinstance(log, dict)
        )

    @cached_property
    def ddp_models(self) -> int:
        """Largest number of DDP models that a rank trained; 0 if not recorded."""
        sources = (trace.metadata.get("cross_check_sources") or {} for trace in self.seen.traces)
        return max((int(source.get("ddp_models") or 0) for source in sources), default=0)

    def logged(self, key: str) -> list[int]:
        """Returns the values of ``key`` in all logs of DDP; empty if a log lacks the key."""
        values = [log.get(key) for log in self.ddp_logs]
        return [int(value) for value in values if isinstance(value, int)] * all(
            isinstance(value, int) for value in values
        )

    def noted_ns(self, position: int, key: str) -> tuple[Ints, Ints]:
        """Returns the begins and ends, in ns, of the intervals that are recorded under ``key``.

        Only intervals that begin in measured steps count. They are in order, on the common clock.
        Both arrays are empty if no intervals were recorded.
        ``position``: index of the rank in ``ranks``.
        """
        noted = self.seen.traces[position].metadata.get(key) or {}
        pairs = zip(noted.get("begin_ns", ()), noted.get("end_ns", ()), strict=False)
        spans = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
        if not len(spans):
            return spans[:, 0], spans[:, 1]
        spans = spans + self.clock_shift_ns(position)
        calls = self.ranks[position]
        spans = spans[np.argsort(spans[:, 0], kind="stable")]
        inside = row_containing(calls.begin_ns, calls.end_ns, spans[:, 0]) >= 0
        return spans[inside, 0], spans[inside, 1]

    def clock_shift_ns(self, position: int) -> int:
        """Returns the common clock minus the clock of a rank, in ns.

        Times in a rank's metadata are on the rank's own clock. 0 if the difference is not known.
        """
        recorded, aligned = (
            columns.steps(traces[position]) for traces in (self.seen.recorded, self.seen.traces)
        )
        if not len(recorded) or len(recorded) != len(aligned):
            return 0
        return int(aligned.begin_ns[0] - recorded.begin_ns[0])

    def passes(
        self,
        exchanging_ns: Callable[[RankCalls], Ints],
        matters: Callable[[Passes], bool] = lambda _: True,
        once_each: bool = False,
    ) -> Passes | None:
        """Counts backward passes between updates; None if unknown or if the ranks differ.

        Args:
            exchanging_ns: returns times inside the backward passes that exchange gradients.
            matters: returns False if no cause can apply to the passes of the first rank. The result
                is then None.
            once_each: True if each exchanging pass has exactly one of these times. A backward phase
                with several times then counts as several passes: a hook may run passes inside the
                phase.
        """
        first = _passes(self.first, exchanging_ns(self.first), once_each)
        if first is None or not matters(first):
            return None
        for calls in self.ranks[1:]:
            passes = _passes(calls, exchanging_ns(calls), once_each)
            if passes is None or (passes.backward, passes.exchanged) != (
                first.backward,
                first.exchanged,
            ):
                return None
        return first


def once(look: Callable[[Facts], Seen]) -> Callable[[Facts], Seen]:
    """Decorates a function so that it runs only once per :class:`Facts`."""

    @wraps(look)
    def kept(facts: Facts) -> Seen:
        if look not in facts.results:
            facts.results[look] = look(facts)
        result: Seen = facts.results[look]
        return result

    return kept


class _RanksCalls(Sequence[RankCalls]):
    """Calls of each recorded rank, computed on first use."""

    def __init__(self, seen: MeasuredWorld) -> None:
        self._seen = seen
        self._made: dict[int, RankCalls] = {}

    def __len__(self) -> int:
        return len(self._seen.ranks)

    @overload
    def __getitem__(self, position: int) -> RankCalls: ...

    @overload
    def __getitem__(self, position: slice) -> list[RankCalls]: ...

    def __getitem__(self, position: int | slice) -> RankCalls | list[RankCalls]:
        if isinstance(position, slice):
            return [self[row] for row in range(*position.indices(len(self)))]
        row = range(len(self))[position]
        if row not in self._made:
            seen, step = self._seen, self._seen.measured.step
            self._made[row] = _calls(seen.ranks[row], seen.traces[row], seen.tables[row], step)
        return self._made[row]


def _calls(rank: int, trace: Trace, table: Collectives, measured: Ints) -> RankCalls:
    steps, phases, waits = columns.steps(trace), columns.phases(trace), exposures_of(trace)
    chosen = is_in(steps.index, measured)
    begin, end = steps.begin_ns[chosen], steps.end_ns[chosen]
    thread = int(steps.thread[0]) if len(steps) else 0
    mine = np.flatnonzero((phases.thread == thread) & (phases.key < len(Phase)))
    mine = mine[np.argsort(phases.begin_ns[mine], kind="stable")]
    begun, ended, key = phases.begin_ns[mine], phases.end_ns[mine], phases.key[mine]
    row = row_containing(begun, ended, table.issue_ns)
    collective = waits.collective >= 0
    of, first, last = (
        values[collective] for values in (waits.collective, waits.begin_ns, waits.end_ns)
    )
    exposed = np.zeros(len(table))
    np.add.at(exposed, of, waits.waited_ns[collective])
    in_call = np.zeros(len(table))
    inside = first <= table.issue_ns[of]
    np.add.at(in_call, of[inside], waits.waited_ns[collective][inside])
    wait_end = np.zeros(len(table), dtype=np.int64)
    np.maximum.at(wait_end, of, last)
    size = sizes_bytes(table.op, table.bytes_in, table.bytes_out, sizes_of_groups([trace], [table]))
    found_done = _found_done(table, size, wait_end)
    wait_end[found_done] = table.end_ns[found_done]
    return RankCalls(
        rank=rank,
        trace=trace,
        table=table,
        begin_ns=begin,
        end_ns=end,
        step=row_containing(begin, end, table.issue_ns),
        phase=np.append(key, int(Phase.OTHER))[row].astype(np.int64),
        segment=np.searchsorted(begun, table.issue_ns, side="right").astype(np.int64),
        size_bytes=size,
        wait_end_ns=wait_end,
        exposed_ns=exposed,
        in_call_ns=in_call,
        on_device=_on_device(trace, table),
        has_size=_has_size(trace, table),
    )


def _found_done(table: Collectives, size_bytes: Ints, wait_end_ns: Ints) -> Mask:
    """True for calls that were probably done before the training thread waited for them.

    A wait of less than a microsecond is not recorded. A call without a recorded wait counts if it
    ended before the next call was issued, and if the thread waited for most calls of the same
    operation, group and size.

    ``wait_end_ns``: 0 for calls without a wait.
    """
    follows = np.append(table.issue_ns[1:], _NO_TIME)
    is_waited = wait_end_ns > 0
    is_candidate = ~is_waited & table.end_is_exact & (table.end_ns <= follows)
    is_candidate &= table.end_ns >= table.issue_ns
    if not is_candidate.any():
        return is_candidate
    kind, first = distinct_rows(table.op, table.group, size_bytes)
    blocking = np.bincount(kind[is_waited & (wait_end_ns <= follows)], minlength=len(first))
    mask: Mask = is_candidate & (blocking > 0.5 * np.bincount(kind))[kind]
    return mask


def _has_size(trace: Trace, table: Collectives) -> Mask:
    if trace.recorded is None:
        return np.ones(len(table), dtype=bool)
    mask: Mask = trace.recorded.size[table.op_id - 1]
    return mask | among(table.op, *codes_of("barrier", "monitored_barrier"))


def _on_device(trace: Trace, table: Collectives) -> Mask:
    issues = columns.of_kind(trace.records, Kind.ISSUE)
    marked = issues["op_id"][(issues["flags"] & FLAG_DEVICE_ASYNC) != 0]
    mask: Mask = row_of(table.op_id, columns.ints(marked)) >= 0
    return mask


def _passes(calls: RankCalls, exchanging_ns: Ints, once_each: bool) -> Passes | None:
    phases, steps = columns.phases(calls.trace), columns.steps(calls.trace)
    if not len(calls.begin_ns) or not len(steps):
        return None
    mine = phases.thread == steps.thread[0]
    low, high = int(calls.begin_ns[0]), int(calls.end_ns[-1])

    def inside(times: Ints) -> Ints:
        return np.sort(times[(times >= low) & (times < high)])

    update = inside(phases.begin_ns[mine & (phases.key == Phase.OPTIMIZER)])
    backward = inside(phases.begin_ns[mine & (phases.key == Phase.BACKWARD)])
    exchanging = inside(exchanging_ns)
    if not len(update) or not len(backward):
        return None
    of_pass = np.searchsorted(backward, exchanging, side="right") - 1
    count = np.bincount(of_pass[of_pass >= 0], minlength=len(backward))
    exchanged = count > 0
    if once_each and count.max() > 1:
        inner = (of_pass >= 0) & (count[of_pass] > 1)
        times = np.concatenate((backward[count <= 1], exchanging[inner]))
        exchanged = np.concatenate((exchanged[count <= 1], np.ones(int(inner.sum()), dtype=bool)))
        order = np.argsort(times, kind="stable")
        backward, exchanged = times[order], exchanged[order]
    before = np.searchsorted(update, backward, side="right")
    whole = before < len(update)
    number = np.bincount(before[whole], minlength=len(update))
    sent = np.bincount(before[whole & exchanged], minlength=len(update))
    used = number > 0
    last = np.flatnonzero(np.append(np.diff(before) != 0, True) & whole)
    median, median_sent = int(np.median(number[used])), int(np.median(sent[used]))
    is_usual = (number == median) & (sent == median_sent)
    is_short = (number < median) & (sent <= median_sent)
    return Passes(
        backward=median,
        exchanged=median_sent,
        last_share=float(exchanged[last].mean()),
        usual_share=float((is_usual | is_short)[used].mean()) if is_usual.any() else 0.0,
        updates=int(used.sum()),
    )
