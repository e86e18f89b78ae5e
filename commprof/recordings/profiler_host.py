"""Reads collectives of backends that transfer on the host, such as gloo.

A collective has two kinds of events. An operator of c10d (``c10d::_reduce_scatter_base_``) issues
the collective. A range (``gloo:all_reduce``) shows when the backend's own thread ran the
collective. The events do not name each other: a range belongs to the operator with the same input,
in the order of issue.

The operation is taken from the operator, because the backend may run another operation instead. For
example, gloo runs a reduce-scatter as an all-reduce of the whole input, and a list reduce-scatter
as one all-reduce for each rank.

The tensors of the operator also show the size of the process group. :mod:`profiler_groups` finds
the group.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from commprof.recordings.element_types import element_bytes
from commprof.recordings.profiler_calls import ROOTED, Call, described
from commprof.recordings.profiler_events import Intervals, ProfilerEvents
from commprof.recordings.profiler_handed_over import OF_DEVICES
from commprof.recordings.profiler_named import Event
from commprof.recordings.profiler_part_copies import end_with_part_copies
from commprof.recordings.profiler_words import (
    backend_of,
    form_of,
    has_certain_word,
    is_backend_of_torch,
    is_collective_range,
    operation,
)
from commprof.trace.documents import MOST_RANKS

#: Operations whose operators have the output as first and the input as second argument. In all
#: other operators, the first argument is both input and output.
_TWO_SIDED: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
#: Upper limit for the number of elements of tensors.
_MOST_ELEMENTS: Final = 2**48
#: Largest number of operators that run at the same time.
_DEEPEST: Final = 64
_C10D: Final = "c10d::"

#: Number of elements of each tensor; None if not recorded.
Elements = tuple[int, ...] | None
#: Key by which ranges are joined with operators: the operation without its variants (see
#: ``form_of``), and the numbers of elements of the input.
_Kind = tuple[str, Elements]


@dataclass(frozen=True)
class HostCalls:
    """Collectives on the host."""

    #: In order of issue.
    calls: list[Call]
    #: Names of c10d's operators that return only after their collective is complete.
    blocking: frozenset[str]
    #: Copies with which a waiting thread completes a reduce-scatter; the tag is the thread.
    part_copies: Intervals
    #: Number of operators without a range. The ends of their collectives are not known.
    unseen: int
    #: Number of ranges that may be the script's own.
    doubtful: int
    #: Name of the first such range.
    doubtful_name: str


@dataclass(frozen=True)
class _Issued:
    """One operator of c10d that issues a collective or message."""

    event: Event
    op: str
    #: Numbers of elements of the tensors that the backend reads.
    inputs: Elements
    #: Numbers of elements of the tensors that the backend writes.
    outputs: Elements
    #: Element type of the tensors; empty if not recorded.
    dtype: str

    @property
    def kind(self) -> _Kind:
        """Key that the operator shares with its ranges.

        torch does not record the inputs of a reduce-scatter of a list. Each input has the size of
        the output, so the output is used instead.
        """
        is_list = self.op == "reduce_scatter" and self.inputs is None
        return form_of(self.op), self.outputs if is_list else self.inputs


def no_host_calls() -> HostCalls:
    """Returns the calls of a recording without collectives on the host."""
    return HostCalls([], frozenset(), Intervals(), 0, 0, "")


def host_calls(events: ProfilerEvents) -> HostCalls:
    """Joins c10d's operators with the ranges of the backend.

    A call has a group only if an event names the group. ``group_size`` is derived from the tensors;
    it is 0 if not known.
    """
    issued = [_issued(event) for event in _operators(events)]
    ran, doubtful = _ranges(events, issued)
    around = _around(issued, ran)
    whole, ran = ran, _without_callbacks(issued, ran, around)
    owner, in_doubt = _joined(issued, ran, around)
    joined = set(owner)
    parts: defaultdict[int, list[int]] = defaultdict(list)
    alone = []
    for position, transfer in enumerate(ran):
        outer = around[position]
        if owner[position] >= 0:
            parts[owner[position]].append(position)
        elif outer < 0 or not _is_part(transfer, issued[outer].event):
            alone.append(position)
        elif outer not in joined:
            parts[outer].append(position)
    untimed = _handed_over(issued, ran, around)
    several = [
        *((issued[number], places) for number, places in parts.items()),
        *((_unissued(ran[position]), [position]) for position in alone),
    ]
    calls: list[Call] = []
    of_sums: list[tuple[int, int, int]] = []
    for operator, places in several:
        call = _call(operator, [ran[position] for position in places], in_doubt.isdisjoint(places))
        until_ns = max(whole[position].end_ns for position in places)
        if until_ns > call.end_ns:
            call = replace(call, kernels=((call.begin_ns, until_ns),))
        if (
            operator.op.startswith("reduce_scatter")
            and operation(ran[places[0]].name) != operator.op
        ):
            of_sums.append((operator.event.thread, operator.event.end_ns, len(calls)))
        calls.append(replace(call, timed=call.backend not in untimed))
    copies = end_with_part_copies(events, calls, of_sums)
    calls.sort(key=lambda call: (call.begin_ns, call.end_ns))
    return HostCalls(
        *(calls, _blocking(issued, ran, around), copies, len(issued) - len(parts)),
        *(len(doubtful), doubtful[0].name if doubtful else ""),
    )


def host_backend(events: ProfilerEvents) -> str:
    """Returns the backend in the name of the host's first collective; empty if there is none."""
    names = (event.name for event in events.ranges if is_collective_range(event.name))
    others = (event.name for event in events.backend_ranges)
    return backend_of(next(others, "") or next(names, ""))


def _operators(events: ProfilerEvents) -> list[Event]:
    """Returns the operators that issue collectives, in order.

    The event ``record_param_comms`` inside an operator has the group's name and the number of the
    call, which are added to the operator. If no operator is around ``record_param_comms``, this
    event counts as an operator.
    """
    named = sorted(
        (
            event
            for event in events.issued
            if event.name.startswith(_C10D) and operation(event.name) != "other"
        ),
        key=_begin,
    )
    of_thread: defaultdict[int, list[int]] = defaultdict(list)
    for position, event in enumerate(named):
        of_thread[event.thread].append(position)
    begins = {
        thread: [named[position].begin_ns for position in places]
        for thread, places in of_thread.items()
    }
    alone = []
    for event in events.issued:
        name = event.arguments.get("Collective name")
        if event.name.startswith(_C10D) or not isinstance(name, str):
            continue
        turn = bisect_right(begins.get(event.thread, []), event.begin_ns) - 1
        position = of_thread[event.thread][turn] if turn >= 0 else -1
        if position >= 0 and event.end_ns <= named[position].end_ns:
            whole = {**event.arguments, **named[position].arguments}
            named[position] = named[position]._replace(arguments=whole)
        elif operation(name) != "other":
            alone.append(event._replace(name=name))
    return sorted(named + alone, key=_begin)


def _begin(event: Event) -> int:
    return event.begin_ns


def _issued(event: Event) -> _Issued:
    op = operation(event.name)
    if "barrier" in op:
        return _Issued(event, op, None, None, "")
    first, second = (_elements(event, argument) for argument in (0, 1))
    types = event.arguments.get("Input type")
    names = [str(name) for name in types[:2]] if isinstance(types, list) else []
    dtype = next((name for name in names if element_bytes(name)), "")
    if op.startswith(_TWO_SIDED):
        return _Issued(event, op, second, first, dtype)
    return _Issued(event, op, first, first, dtype)


def _unissued(transfer: Event) -> _Issued:
    """Makes an operator for a range whose operator was not recorded."""
    op, inputs = operation(transfer.name), _inputs(transfer)
    is_like_input = not op.startswith(_TWO_SIDED) or op.startswith("all_to_all")
    return _Issued(transfer, op, inputs, inputs if is_like_input else None, "")


def _elements(event: Event, argument: int) -> Elements:
    """Returns the number of elements of each tensor in an argument; None if not recorded.

    The argument may be a tensor or a list of tensors. torch does not record sizes in a list of
    lists.
    """
    shapes, types = event.arguments.get("Input Dims"), event.arguments.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    if argument >= min(len(shapes), len(types)):
        return None
    shape, is_tensor = shapes[argument], element_bytes(str(types[argument])) > 0
    if not isinstance(shape, list) or not (is_tensor or types[argument] == "TensorList"):
        return None
    tensors = [shape] if is_tensor else shape
    if not tensors or not all(
        isinstance(lengths, list) and all(type(length) is int and length >= 0 for length in lengths)
        for lengths in tensors
    ):
        return None
    counts = tuple(math.prod(lengths) for lengths in tensors)
    return counts if sum(counts) <= _MOST_ELEMENTS else None


def _inputs(transfer: Event) -> Elements:
    shapes = transfer.arguments.get("Input Dims")
    if not isinstance(shapes, list):
        return None
    counts: list[int] = []
    for argument in range(len(shapes)):
        tensors = _elements(transfer, argument)
        if tensors is None:
            return None
        counts += tensors
    return tuple(counts) or None


def _ranges(events: ProfilerEvents, issued: Sequence[_Issued]) -> tuple[list[Event], list[Event]]:
    """Returns the ranges of collectives in order, and ranges that may be the script's own.

    A script may give its own range a similar name. If a range does not name a backend of torch or
    of the job, two more checks apply. The range is left out if an operator of its thread begins
    inside it. If all words of its name are common, as in ``data:gather``, it may be the script's
    own unless c10d issued the same operation.
    """
    issuing = {form_of(call.op) for call in issued}
    begins: defaultdict[int, list[int]] = defaultdict(list)
    for call in issued:
        begins[call.event.thread].append(call.event.begin_ns)
    backends = events.backends
    ran: list[Event] = []
    doubtful: list[Event] = []
    for event in sorted(events.ranges, key=lambda event: (event.begin_ns, event.end_ns)):
        if not is_collective_range(event.name):
            continue
        is_named = is_backend_of_torch(event.name) or backend_of(event.name) in backends
        turn = bisect_right(begins[event.thread], event.begin_ns)
        if not is_named and turn < bisect_right(begins[event.thread], event.end_ns):
            continue
        is_issued = form_of(operation(event.name)) in issuing
        is_sure = is_named or is_issued or has_certain_word(event.name)
        (ran if is_sure else doubtful).append(event)
    return ran, doubtful


def _around(issued: Sequence[_Issued], ran: Sequence[Event]) -> list[int]:
    """Returns, for each range, an operator that was running when the range began; -1 if none.

    An operator of the range's thread is preferred.
    """
    around, following = [-1] * len(ran), 0
    running: list[int] = []
    for position, transfer in enumerate(ran):
        while following < len(issued) and issued[following].event.begin_ns <= transfer.begin_ns:
            running.append(following)
            following += 1
        running = [n for n in running if issued[n].event.end_ns >= transfer.begin_ns]
        running = running[-_DEEPEST:]
        of_thread = [n for n in running if issued[n].event.thread == transfer.thread]
        around[position] = next(reversed(of_thread or running), -1)
    return around


def _without_callbacks(
    issued: Sequence[_Issued], ran: Sequence[Event], around: Sequence[int]
) -> list[Event]:
    """Returns the ranges, each cut at the first operator that the range's thread issues in it.

    gloo's thread runs the callbacks of a collective, such as the rest of PowerSGD's hook, before it
    ends the collective's range. Operators of the callbacks begin after the transfer. Exposed time
    still counts up to the end of the whole range, because a thread may wait for the callbacks too.
    """
    begins: defaultdict[int, list[int]] = defaultdict(list)
    for call in issued:
        begins[call.event.thread].append(call.event.begin_ns)
    ended = []
    for transfer, outer in zip(ran, around, strict=True):
        of_thread = begins[transfer.thread]
        turn = bisect_right(of_thread, transfer.begin_ns)
        is_own = outer < 0 or issued[outer].event.thread != transfer.thread
        if is_own and turn < len(of_thread):
            end_ns = min(transfer.end_ns, of_thread[turn])
            transfer = transfer._replace(end_ns=end_ns)
        ended.append(transfer)
    return ended


def _is_part(transfer: Event, operator: Event) -> bool:
    """True if a range that began during an operator is part of the operator's work."""
    return transfer.thread == operator.thread or transfer.end_ns <= operator.end_ns


def _joined(
    issued: Sequence[_Issued], ran: Sequence[Event], around: Sequence[int]
) -> tuple[list[int], set[int]]:
    """Returns the operator of each range, or -1; also returns the ranges in doubt.

    A range in doubt may belong to another operator of the same kind.
    """
    owner, in_doubt = [-1] * len(ran), set[int]()
    transfers: defaultdict[_Kind, list[int]] = defaultdict(list)
    for position, transfer in enumerate(ran):
        form, outer = form_of(operation(transfer.name)), around[position]
        if outer >= 0 and issued[outer].event.thread == transfer.thread:
            if form_of(issued[outer].op) == form:
                owner[position] = outer
            continue  # a range of another form is part of the operation, such as a message
        transfers[form, _inputs(transfer)].append(position)
    taken = set(owner)
    free = [number for number in range(len(issued)) if number not in taken]
    for kind, numbers in _operators_by_kind(issued, free, transfers).items():
        places = transfers[kind]
        for position, number, is_certain in _in_order(issued, numbers, ran, places):
            owner[position] = number
            if not is_certain:
                in_doubt.add(position)
    return owner, in_doubt


def _operators_by_kind(
    issued: Sequence[_Issued], free: Iterable[int], transfers: dict[_Kind, list[int]]
) -> dict[_Kind, list[int]]:
    """Returns, for each kind of ranges, the indices of the operators in order.

    If an operator's own kind has no ranges, the operator is listed under another kind with enough
    unused ranges; see :func:`_other_kinds`. An operator with several ranges is listed several
    times.
    """
    by_kind: defaultdict[_Kind, list[int]] = defaultdict(list)
    for number in free:
        by_kind[issued[number].kind].append(number)
    operators = {kind: numbers for kind, numbers in by_kind.items() if kind in transfers}
    joined_forms = {form for form, inputs in operators if inputs is not None}
    of_form: defaultdict[str, list[_Kind]] = defaultdict(list)
    of_inputs: defaultdict[Elements, list[_Kind]] = defaultdict(list)
    for other in transfers:
        of_form[other[0]].append(other)
        of_inputs[other[1]].append(other)
    for kind, numbers in by_kind.items():
        others = _other_kinds(kind, of_form[kind[0]], of_inputs[kind[1]], joined_forms)
        for other in () if kind in transfers else others:
            spare = len(transfers[other]) - len(operators.get(other, []))
            if spare >= len(numbers):
                is_list = issued[numbers[0]].op == "reduce_scatter"
                times = spare // len(numbers) if is_list else 1
                operators[other] = sorted([*operators.get(other, []), *(numbers * times)])
                break
    return operators


def _other_kinds(
    kind: _Kind, of_form: Sequence[_Kind], of_inputs: Sequence[_Kind], joined_forms: set[str]
) -> Sequence[_Kind]:
    """Returns the kinds of ranges that may belong to operators whose own kind has no ranges.

    Kinds of the same form are preferred: inputs may not be recorded, or the backend may describe
    inputs in another way. If no range has this form, kinds with the same input are returned: the
    backend may run another operation instead.

    Args:
        kind: the kind of the operators.
        of_form: kinds of ranges of the same form.
        of_inputs: kinds of ranges with the same input.
        joined_forms: forms in which some operators have ranges of their own kind.
    """
    form, inputs = kind
    if not of_form:
        return of_inputs if inputs is not None or len(of_inputs) == 1 else []
    if inputs is None or form not in joined_forms:
        return of_form
    return [other for other in of_form if other[1] is None]


def _in_order(
    issued: Sequence[_Issued], numbers: Sequence[int], ran: Sequence[Event], places: Sequence[int]
) -> list[tuple[int, int, bool]]:
    """Pairs ranges with operators of their kind, in order.

    A range cannot begin before its operator. A pair is certain if pairing from the last range
    backwards gives the same pair.

    Returns:
        For each pair: range, operator, and True if the pair is certain.
    """
    begins = [issued[number].event.begin_ns for number in numbers]
    first: dict[int, int] = {}
    turn = 0
    for position in places:
        if turn < len(numbers) and begins[turn] <= ran[position].begin_ns:
            first[position] = turn
            turn += 1
    last: dict[int, int] = {}
    turn = len(numbers) - 1
    for position in reversed(places):
        while turn >= 0 and begins[turn] > ran[position].begin_ns:
            turn -= 1
        if turn >= 0:
            last[position] = turn
            turn -= 1
    return [(position, numbers[row], last.get(position) == row) for position, row in first.items()]


def _blocking(
    issued: Sequence[_Issued], ran: Sequence[Event], around: Sequence[int]
) -> frozenset[str]:
    """Returns the names of operators that return only after their collective is complete.

    All operators with such a name enclose a range. A single operator may enclose a range by chance,
    for example if its thread was not running for a while.
    """
    encloses = {
        outer
        for transfer, outer in zip(ran, around, strict=True)
        if outer >= 0 and transfer.end_ns <= issued[outer].event.end_ns
    }
    names = Counter(call.event.name for call in issued)
    enclosing = Counter(issued[number].event.name for number in encloses)
    return frozenset(name for name, count in enclosing.items() if count == names[name])


def _handed_over(
    issued: Sequence[_Issued], ran: Sequence[Event], around: Sequence[int]
) -> set[str]:
    """Returns the backends whose ranges show only the hand-over of a collective to a device.

    All ranges of such a backend lie within their operators, on the same thread. If a backend
    transfers on the host, its ranges are on another thread or end after their operators. The result
    includes the backends in ``OF_DEVICES``.
    """
    names, within = Counter[str](), Counter[str]()
    for transfer, outer in zip(ran, around, strict=True):
        backend = backend_of(transfer.name)
        names[backend] += 1
        if outer >= 0 and form_of(issued[outer].op) == form_of(operation(transfer.name)):
            operator = issued[outer].event
            is_inside = transfer.end_ns <= operator.end_ns
            within[backend] += is_inside and transfer.thread == operator.thread
    inside = {backend for backend, count in within.items() if count == names[backend]}
    return inside | {*OF_DEVICES}


def _call(issued: _Issued, transfers: Sequence[Event], is_certain: bool) -> Call:
    event, first = issued.event, transfers[0]
    call = described(event.name, {**first.arguments, **event.arguments}, 0)
    begin_ns = first.begin_ns
    if is_certain:
        begin_ns = min(begin_ns, event.begin_ns)
    call = replace(
        call,
        launch_ns=begin_ns,
        launch_thread=event.thread,
        begin_ns=begin_ns,
        end_ns=max(transfer.end_ns for transfer in transfers),
        backend=backend_of(first.name),
        **_peer(issued),
    )
    if "In msg nelems" in event.arguments:
        return call
    of_range = [_inputs(transfer) for transfer in transfers]
    inputs: Elements = issued.inputs
    if inputs is None and None not in of_range and "barrier" not in issued.op:
        inputs = tuple(count for counts in of_range for count in counts or ())
    types = first.arguments.get("Input type")
    named = [str(name) for name in types] if isinstance(types, list) else []
    dtype = issued.dtype or next((name for name in named if element_bytes(name)), "")
    size = element_bytes(dtype)
    return replace(
        call,
        dtype=dtype if inputs or issued.outputs else "",
        elements=sum(inputs or ()),
        bytes_in=size * sum(inputs or ()),
        bytes_out=-1 if issued.outputs is None else size * sum(issued.outputs),
        group_size=call.group_size or _ranks_told(issued, inputs, len(transfers)),
    )


def _ranks_told(issued: _Issued, inputs: Elements, transfers: int) -> int:
    ranks = _ratio(issued, inputs, transfers)
    return ranks if ranks <= MOST_RANKS else 0


def _ratio(issued: _Issued, inputs: Elements, transfers: int) -> int:
    op, outputs = issued.op, issued.outputs
    if op == "all_to_all":
        return len(issued.inputs or ())
    if op == "all_to_all_single":
        return max(map(len, _lists(issued.event)), default=0)
    if op == "reduce_scatter" and issued.event.name.startswith(_C10D):
        return transfers if transfers > 1 else 0
    if inputs is None or outputs is None:
        return 0
    small, large = sum(inputs), sum(outputs)
    if op.startswith("reduce_scatter"):
        small, large = large, small
    elif not op.startswith("all_gather"):
        return 0
    return large // small if small and large % small == 0 else 0


def _concrete(event: Event) -> list[str]:
    values = event.arguments.get("Concrete Inputs")
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _lists(event: Event) -> list[list[int]]:
    lists = []
    for text in _concrete(event):
        try:
            value = json.loads(text) if text.startswith("[") and len(text) < 1 << 20 else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list) and all(type(number) is int for number in value):
            lists.append(value)
    return lists


def _peer(issued: _Issued) -> dict[str, Any]:
    """Returns fields of a call: the root of a collective or the other rank of a message.

    The rank is the first whole number among the operator's arguments. The result is empty if there
    is no such number.
    """
    has_peer = issued.op in (*ROOTED, "send", "recv") and issued.event.name.startswith(_C10D)
    numbers = (text for text in _concrete(issued.event) if text.isdecimal() and len(text) < 7)
    number = next(numbers, "") if has_peer else ""
    return {"peer": int(number), "root_known": issued.op in ROOTED} if number else {}
