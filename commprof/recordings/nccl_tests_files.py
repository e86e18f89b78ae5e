"""Reads the result files of nccl-tests (``-J``) and rccl-tests (``-Z json`` and ``-Z csv``).

nccl-tests writes its file from version 2.17.7 on, in ``util.cu``. The file lists the first device
of each process, with the group of the device.

rccl-tests writes one record per result (``Reporter`` in ``common.cu``). Field ``ranks`` is the
number of processes of the job. Field ``ranksPerNode`` is the number of processes of the
communicator, even if the processes are on several hosts. In the CSV file, the line of names lacks
``nodes``, but the rows have this field.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from commprof.recordings.nccl_tests_ranks import settled_ranks
from commprof.recordings.nccl_tests_rows import (
    NcclTestsLog,
    NcclTestsRow,
    TestedFigure,
    about_operation,
    about_roots,
    element_bytes,
    in_rounds,
    number,
    operation,
    without_contradictions,
)
from commprof.trace.operations import OF_PARTS

#: Half a unit of the last digit that ``%lf`` and ``std::to_string`` write.
_HALF_DIGIT = 5e-7


def is_json(head: bytes) -> bool:
    """True if a file with these first bytes was written by nccl-tests with option ``-J``."""
    return head.lstrip().startswith(b"{") and all(
        name in head for name in (b'"args"', b'"env"', b'"start_time"')
    )


def is_records(head: bytes) -> bool:
    """True if a file with these first bytes was written by rccl-tests with option ``-Z``."""
    begin = head.lstrip()[:2000].lower()
    if begin.startswith((b"[", b"{")):
        return b'"numcycle"' in begin and b'"algbw"' in begin
    names = begin.partition(b"\n")[0]
    return b"numcycle" in names and b"algbw" in names and b"," in names


def read_json(text: str, stem: str) -> NcclTestsLog:
    """Reads the JSON file that nccl-tests writes with option ``-J``.

    Raises:
        ValueError: the file lacks the operation, contradicts itself, or has CPU times.
    """
    value = json.loads(text)
    config, args, results = (value.get(key) for key in ("config", "args", "results"))
    if not (isinstance(config, dict) and isinstance(args, list) and isinstance(results, list)):
        raise ValueError("it lacks config, args or results")
    devices = [device for device in config.get("devices", []) if isinstance(device, dict)]
    groups = {device.get("group") for device in devices}
    first = min(devices, key=lambda device: number(device.get("rank")), default={})
    members = [device for device in devices if device.get("group") == first.get("group")]
    # The file lists only the first device of each process.
    per_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    rows = in_rounds(row for size in results if isinstance(size, dict) for row in _json_rows(size))
    program = str(args[0]).rsplit("/", 1)[-1] if args else ""
    op = operation(program, stem, ())
    stated = [max(1, len(members)) * per_process]
    ranks, contradicted = settled_ranks(op, stated, "devices", rows)
    remarks = [*about_operation(program), *about_roots(rows)]
    if len(groups) > 1:
        remarks.append(
            f"{len(groups)} groups were measured at the same time; the numbers of ranks and hosts "
            "are those of the first group"
        )
    hosts = len({str(device.get("hostname")) for device in members}) or None
    if ranks > stated[0] and hosts == 1:
        hosts = None
    rows, of_rows = without_contradictions(rows, ranks)
    return NcclTestsLog(op, ranks, hosts, tuple(rows), (*remarks, *of_rows, *contradicted))


def _json_rows(line: Mapping[str, Any]) -> Iterator[NcclTestsRow]:
    for placement in ("out_of_place", "in_place"):
        measured = line.get(placement)
        if not isinstance(measured, dict) or not line.get("size"):
            continue
        if "time" not in measured and "cpu_time" in measured:
            raise ValueError("its times are CPU times (-C); measure without -C")
        time_us = number(measured.get("time"))
        if not 0 < time_us < math.inf:
            continue
        single = line.get(f"{placement}_per_iter")
        redop, wrong = str(line.get("redop", "none")), number(measured.get("nwrong"))
        yield NcclTestsRow(
            size_bytes=int(line["size"]),
            count=int(line.get("count", 0)),
            dtype=str(line.get("type", "")),
            redop="" if redop == "none" else redop,
            root=int(number(line.get("root", -1))),
            placement=placement,
            time_us=time_us,
            wrong=None if math.isnan(wrong) else int(wrong),
            samples_us=_samples_us(single) if isinstance(single, dict) else (),
            half_digit_us=_HALF_DIGIT,
            algbw=_figure(measured.get("alg_bw")),
            busbw=_figure(measured.get("bus_bw")),
        )


def _samples_us(single: Mapping[str, Any]) -> tuple[float, ...]:
    """Returns the times of the iterations, without those that option ``-K`` skips."""
    times = [float(sample) for sample in single.get("times_us", ())]
    return tuple(times[int(single.get("skipped_iterations", 0)) :])


def read_records(text: str, stem: str) -> tuple[NcclTestsLog, ...]:
    """Reads the file that rccl-tests writes with option ``-Z json`` or ``-Z csv``.

    Returns one log per operation and number of ranks.

    Raises:
        ValueError: the file lacks the operation, or contradicts itself.
    """
    begin = text.lstrip()
    if begin.startswith(("[", "{")):
        value = json.loads(text)
        records = [_plain(record) for record in (value if isinstance(value, list) else [value])]
    else:
        records = list(_of_csv(begin))
    by_op: dict[tuple[str, int, int], list[Mapping[str, str]]] = {}
    for record in records:
        op = operation(record.get("name", record.get("collective", "")), stem, ())
        groups = [_processes(record, name) for name in ("rankspernode", "ranks")]
        by_op.setdefault((op, groups[0], groups[1]), []).append(record)
    return tuple(_of_records(op, stated, of_op) for (op, *stated), of_op in by_op.items())


def _of_records(
    op: str, stated: Sequence[int], records: Sequence[Mapping[str, str]]
) -> NcclTestsLog:
    rows = [row for record in records if (row := _record_row(record)) is not None]
    numbers = [ranks for ranks in dict.fromkeys(stated) if ranks > 0]
    if not numbers and not rows:
        raise ValueError("it has no column with the number of ranks or gpus")
    ranks, contradicted = settled_ranks(op, numbers, "columns", rows)
    rows = [replace(row, count=_count(op, row, ranks)) for row in rows]
    rows, of_rows = without_contradictions(rows, ranks)
    first = records[0]
    remarks = [*about_operation(first.get("name", first.get("collective", ""))), *of_rows]
    hosts = _hosts(first, ranks)
    if hosts == 1 and "gpus" not in first:
        remarks.append(
            "rccl-tests' column 'nodes' counts communicators, not hosts; all ranks are taken to be "
            "on one host"
        )
    return NcclTestsLog(op, ranks, hosts, tuple(rows), (*remarks, *contradicted))


def _hosts(record: Mapping[str, str], ranks: int) -> int | None:
    """Returns the number of hosts; None if not known.

    Field ``nodes`` counts communicators, not hosts. It is ignored if the job has several
    communicators.
    """
    if "gpus" in record:
        return 1
    nodes = number(record.get("nodes"))
    if math.isnan(nodes) or _processes(record, "ranks") != ranks:
        return None
    return max(1, int(nodes))


def _processes(record: Mapping[str, str], name: str) -> int:
    """Returns the number of ranks that field ``name`` shows; 0 if the field is missing.

    The field counts processes. A build without MPI has one process, with ``gpus`` GPUs.
    """
    if "gpus" in record:
        return int(record["gpus"])
    if name not in record:
        return 0
    return int(record[name]) * int(record.get("gpusperrank", 1))


def _plain(record: Any) -> dict[str, str]:
    if not isinstance(record, dict):
        raise ValueError("a record is not an object")
    return {str(name).lower(): str(value) for name, value in record.items()}


def _of_csv(text: str) -> Iterator[dict[str, str]]:
    lines = csv.reader(io.StringIO(text), skipinitialspace=True)
    names = [name.strip().lower() for name in next(lines)]
    for cells in lines:
        if not cells:
            continue
        aligned = names
        if len(cells) == len(names) + 1 and "nodes" not in names:
            aligned = [*names[:2], "nodes", *names[2:]]
        if len(cells) == len(aligned):  # otherwise the line was cut off
            yield dict(zip(aligned, (cell.strip() for cell in cells), strict=True))


def _record_row(record: Mapping[str, str]) -> NcclTestsRow | None:
    time_us, size = number(record.get("time")), number(record.get("size"))
    if not (0 < time_us < math.inf and size > 0):
        return None
    redop = record.get("redop", "none")
    wrong = number(record.get("wrong", record.get("#wrong")))
    return NcclTestsRow(
        size_bytes=int(size),
        count=0,
        dtype=record.get("type", ""),
        redop="" if redop == "none" else redop,
        root=-1,
        placement="in_place" if int(record["inplace"]) else "out_of_place",
        time_us=time_us,
        wrong=None if math.isnan(wrong) else int(wrong),
        round=int(record.get("numcycle", 0)),
        half_digit_us=_HALF_DIGIT,
        algbw=_figure(record.get("algbw")),
        busbw=_figure(record.get("busbw")),
    )


def _count(op: str, row: NcclTestsRow, ranks: int) -> int:
    width = element_bytes(row.dtype)
    parts = ranks if op in OF_PARTS else 1  # a call counts the elements of one part
    return row.size_bytes // (width * parts) if width else 0


def _figure(value: object) -> TestedFigure | None:
    shown = number(value)
    return TestedFigure(shown, _HALF_DIGIT) if math.isfinite(shown) else None
