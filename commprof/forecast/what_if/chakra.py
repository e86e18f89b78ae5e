"""Writes a recorded run as MLCommons Chakra execution traces, one per rank, for simulators.

A rank's file is a sequence of protobuf messages, each preceded by its length. The first message is
a ``GlobalMetadata``, the others are ``Node`` messages, as defined in
``chakra/schema/protobuf/et_def.proto``. ASTRA-sim reads such files.

A step becomes a chain of compute nodes, with one collective node for each bucket. A compute node
ends when a bucket is ready, and the bucket's collective node depends on this compute node. The
first node of the next step depends on the last compute node and on the collectives of this step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commprof.errors import CommprofError
from commprof.forecast.scenario.rank_steps import Cycle, cycles
from commprof.forecast.scenario.schedule import (
    checked_name,
    hook_label,
    measured_steps,
    timed_traces,
)
from commprof.invocation import quoted
from commprof.text import named_ranks
from commprof.trace.reader import Trace
from commprof.trace.run.run_directory import WorldRun

#: Version of the schema, as Chakra's own tools write it into traces.
SCHEMA_VERSION = "0.0.4"
COMP_NODE, COMM_COLL_NODE = 4, 7  # enum NodeType
ALL_REDUCE = 0  # enum CollectiveCommType
_VARINT, _FIXED64, _BYTES = 0, 1, 2  # protobuf's wire types
_NS_PER_US = 1000

Attribute = tuple[str, bool | int | float | str]


@dataclass(frozen=True)
class Node:
    """One operation of one rank in a Chakra trace."""

    id: int
    name: str
    type: int
    start_us: int
    duration_us: int
    #: Ids of the nodes that must end before this node begins.
    data_deps: tuple[int, ...] = ()
    attributes: tuple[Attribute, ...] = field(default=())


def export(run: WorldRun, directory: Path) -> list[Path]:
    """Writes ``commprof.RANK.et`` for each rank of a recorded world size; returns the files.

    Raises:
        CommprofError: the run cannot be written as Chakra traces, a file exists already, or files
            cannot be written. Files that this call wrote are then removed again.
    """
    checked_name(run, "a simulator", "simulated")
    traces = timed_traces(run)
    hook = next((label for trace in traces if (label := hook_label(trace))), "")
    if hook:
        raise CommprofError(
            f"the run has hook {hook}, whose exchange is not an all-reduce of the gradients' "
            "bytes; only all-reduces can be written: record the run without a hook"
        )
    found_by_rank = _common(traces)
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for trace, found in zip(traces, found_by_rank, strict=True):
            path = directory / f"commprof.{trace.rank}.et"
            with path.open("xb") as file:
                written.append(path)
                file.write(encode(list(nodes(found)), trace.rank, run.world_size))
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        why = f"cannot write to {quoted(directory)}: {error.strerror}; name another directory"
        if isinstance(error, FileExistsError):
            why = (
                f"{quoted(error.filename)} exists, and nothing is overwritten; name another "
                "directory"
            )
        raise CommprofError(why) from None
    return written


def _common(traces: Sequence[Trace]) -> list[list[Cycle]]:
    """Returns for each rank the steps that all ranks measured with the same bucket sizes.

    In other steps the ranks' all-reduces do not match, and a simulator would wait forever.
    """
    measured = measured_steps(traces)
    by_rank = [{cycle.step: cycle for cycle in cycles(trace, measured)} for trace in traces]
    steps = sorted(set(by_rank[0]).intersection(*by_rank[1:]))
    steps = [step for step in steps if len({mine[step].bytes for mine in by_rank}) == 1]
    if not steps:
        lacking = [t.rank for t, mine in zip(traces, by_rank, strict=True) if not mine]
        who = named_ranks(lacking) if lacking else "all ranks together"
        have = "has" if len(lacking) == 1 else "have"
        raise CommprofError(
            f"{who} {have} no measured step that contains exactly one synchronised backward pass "
            "of DistributedDataParallel and has the same buckets on all ranks; only such steps can "
            "be written"
        )
    return [[mine[step] for step in steps] for mine in by_rank]


def nodes(cycles_of_rank: Sequence[Cycle]) -> Iterator[Node]:
    """Makes the nodes of one rank's steps, with ids from 1."""
    number = 0
    before: tuple[int, ...] = ()
    origin = cycles_of_rank[0].begin_ns
    for cycle in cycles_of_rank:
        collectives: list[int] = []
        begin_ns = cycle.begin_ns
        cuts = [*cycle.ready_ns, max(cycle.finalize_ns[0], cycle.ready_ns[-1])]
        for bucket, cut_ns in enumerate(cuts):
            number += 1
            last = bucket == len(cycle.ready_ns)
            part = "rest of backward" if last else f"until bucket {bucket} is ready"
            yield _timed(
                number, f"step {cycle.step}: {part}", COMP_NODE, begin_ns, cut_ns, origin, before
            )
            before, begin_ns = (number,), cut_ns
            if last:
                break
            number += 1
            collectives.append(number)
            yield _timed(
                number,
                f"step {cycle.step}: all-reduce of bucket {bucket}",
                COMM_COLL_NODE,
                cut_ns,
                max(cut_ns, cycle.end_ns[bucket]),
                origin,
                before,
                (("comm_type", ALL_REDUCE), ("comm_size", cycle.bytes[bucket])),
            )
        before = (*before, *collectives)


def _timed(
    number: int,
    name: str,
    kind: int,
    begin_ns: int,
    end_ns: int,
    origin_ns: int,
    before: tuple[int, ...],
    attributes: tuple[Attribute, ...] = (),
) -> Node:
    """Makes a node; rounds begin and end down to µs, so that adjacent nodes leave no gap."""
    start_us = (begin_ns - origin_ns) // _NS_PER_US
    end_us = (end_ns - origin_ns) // _NS_PER_US
    return Node(
        number, name, kind, start_us, end_us - start_us, before, (("is_cpu_op", False), *attributes)
    )


def encode(nodes_of_rank: Sequence[Node], rank: int, world_size: int) -> bytes:
    """Returns the content of one rank's file."""
    about: tuple[Attribute, ...] = (
        ("schema", "chakra"),
        ("written_by", "commprof"),
        ("rank", rank),
        ("world_size", world_size),
    )
    metadata = _text(1, SCHEMA_VERSION) + b"".join(_message(2, _attribute(a)) for a in about)
    return b"".join(_varint(len(m)) + m for m in [metadata, *map(_node, nodes_of_rank)])


def _node(node: Node) -> bytes:
    deps = b"".join(map(_varint, node.data_deps))
    times = ((6, node.start_us), (7, node.duration_us))
    parts = [
        _number(1, node.id),
        _text(2, node.name),
        _number(3, node.type),
        _message(5, deps) if deps else b"",
        *(_number(number, value) for number, value in times if value),  # 0 is the default
        *(_message(10, _attribute(attribute)) for attribute in node.attributes),
    ]
    return b"".join(parts)


def _attribute(attribute: Attribute) -> bytes:
    """Encodes an attribute; a value of 0 is written too, because its field gives the type."""
    name, value = attribute
    if isinstance(value, bool):
        return _text(1, name) + _number(27, int(value))
    if isinstance(value, int):
        return _text(1, name) + _number(9, value)
    if isinstance(value, float):
        return _text(1, name) + _key(3, _FIXED64) + struct.pack("<d", value)
    return _text(1, name) + _text(29, value)


def _number(field_number: int, value: int) -> bytes:
    return _key(field_number, _VARINT) + _varint(value)


def _text(field_number: int, value: str) -> bytes:
    return _message(field_number, value.encode())


def _message(field_number: int, content: bytes) -> bytes:
    return _key(field_number, _BYTES) + _varint(len(content)) + content


def _key(field_number: int, wire_type: int) -> bytes:
    return _varint(field_number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Encodes an integer in groups of 7 bits, lowest first; a negative one as 64 bits."""
    value &= (1 << 64) - 1
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
