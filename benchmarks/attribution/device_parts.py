"""Compares how commprof, HolisticTraceAnalysis and TraceLens divide a GPU's time into parts.

    PYTHONPATH=. python benchmarks/attribution/device_parts.py ../shared/data/profiler_traces
    ... --others ENV/bin/python --results benchmarks/results/device_parts.json

The folder contains recordings of torch.profiler: traces, and archives of a job's traces. It also
contains tables ``gpu_timeline.csv`` that TraceLens wrote. ENV is an environment with
HolisticTraceAnalysis 0.5.0, pandas 2 and TraceLens (github.com/AMD-AGI/TraceLens). A tool that is
not installed in ENV is marked as missing. The time begins with the first kernel or copy of a rank's
GPU, and ends with the last kernel or copy.

The other tools divide the time by other rules:

- TraceLens counts fills of memory as compute. It counts communication as exposed while a copy
  within the GPU runs. Only kernels of NCCL, RCCL and parts of vLLM are communication.
- For HolisticTraceAnalysis, only kernels whose names begin with "nccl" are communication. It does
  not separate exposed communication from copies. It leaves out kernels whose launch was not
  recorded.

So each figure is computed twice, by commprof's rules and by the tool's rules. The exit code is 1 if
both results differ from the tool's figure by more than 0.1 % of the time.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.results_file import read_json, write_json
from commprof.recordings.profiler import read_recording
from commprof.recordings.profiler_rank import rank_in_name
from commprof.trace.device_activity import union
from commprof.trace.stretches import Stretches, outside, stretches

HELPER = Path(__file__).parent / "other_device_parts.py"
#: Largest allowed difference, in percent of the time from a GPU's first kernel or copy to its last.
MOST_PERCENT = 0.1
#: Categories of a GPU's events, and endings of the categories of launches.
_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("_runtime", "_driver")
#: The other tools' patterns for names of kernels.
_TRACELENS = re.compile("rccl|nccl", re.IGNORECASE)
_HTA_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_HTA_NO_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")

Parts = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--others", help="Python interpreter with the other tools")
    parser.add_argument("--results", type=Path, help="JSON file for the figures")
    args = parser.parse_args()
    rows = []
    timelines = [_timeline(path) for path in sorted(args.folder.glob("*gpu_timeline.csv"))]
    with tempfile.TemporaryDirectory(prefix="commprof-parts-") as directory:
        for path in sorted(args.folder.glob("*.gz")):
            for name, trace in _traces(path, Path(directory)):
                rows.append(_row(name, trace, args.others, timelines))
                print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    write_json(args.results, {"rows": rows})
    return judged(demands({"rows": rows}))


def _timeline(path: Path) -> Parts:
    """Returns TraceLens' totals in ms, without the rows of recomputed kernels."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("is_recompute", "False") == "False"]
    ms = {row["type"]: float(row["time ms"]) for row in rows}
    names = {
        "span": "total_time",
        "communication": "total_comm_time",
        "memcpy": "total_memcpy_time",
    }
    return {name: ms[of] for name, of in names.items()}


def _traces(path: Path, room: Path) -> Iterator[tuple[str, Path]]:
    if not path.name.endswith(".tar.gz"):
        yield path.name.removesuffix(".json.gz"), path
        return
    with tarfile.open(path) as archive:
        members = [each for each in archive.getmembers() if each.isfile()]
        for member in sorted(members, key=lambda each: each.name):
            stream = archive.extractfile(member)
            if stream is None or "json" not in member.name:
                continue
            data = stream.read()
            packed = data if data[:2] == b"\x1f\x8b" else gzip.compress(data, 1)
            file = room / f"{Path(member.name).name.removesuffix('.gz')}.gz"
            file.write_bytes(packed)
            rank = rank_in_name(member.name)
            yield f"{path.name.removesuffix('.tar.gz')}, rank {rank}", file


def _row(name: str, path: Path, python: str | None, timelines: list[Parts]) -> dict[str, Any]:
    row: dict[str, Any] = {"recording": name[:60], "commprof": ours(path)}
    row["by_rules"] = by_their_rules(path)
    for timeline in timelines:
        if abs(timeline["span"] / row["by_rules"]["csv"]["span"] - 1) < MOST_PERCENT / 100:
            row["csv"] = timeline
    if python is not None:
        done = subprocess.run(
            [python, str(HELPER), str(path)], check=True, capture_output=True, text=True
        )
        row |= json.loads(done.stdout)
    return row


def ours(path: Path) -> Parts:
    """Returns commprof's parts of a GPU's time, in ms."""
    found = read_recording(path)
    assert found is not None
    (trace,) = found.traces.values()
    activity = trace.device_activity
    assert activity is not None
    copies = union(activity.copies_within, activity.other_copies)
    whole = union(activity.kernels, copies)
    span_ms = (int(whole.end_ns[-1]) - int(whole.begin_ns[0])) / 1e6
    parts = {
        "compute": _ms(activity.compute),
        "exposed": _ms(activity.exposed),
        "copies": _ms(activity.copies),
    }
    return {**parts, "idle": span_ms - sum(parts.values()), "span": span_ms}


def by_their_rules(path: Path) -> dict[str, Parts]:
    """Returns the parts of a GPU's time by the rules of each tool, in ms."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    whole = [e for e in events if e.get("ph") == "X"]
    launched = {_correlation(e) for e in whole if str(e.get("cat")).endswith(_LAUNCHES)}
    kernels = [e for e in whole if e.get("cat") in _CATEGORIES]
    known = [e for e in kernels if _correlation(e) in launched]
    found = {"tracelens": _by_rules(kernels, _TRACELENS.search), "hta": {}, "csv": {}}
    named = _by_rules(known, _HTA_COMMUNICATION.match)
    busy = named["span"] - named["idle"]
    # For HTA, events whose names match ``_HTA_NO_COMPUTE`` are not compute.
    found["hta"] = {
        **{"compute": named["kernels"], "other": busy - named["kernels"]},
        **{name: named[name] for name in ("idle", "span")},
    }
    timeline = _by_rules(known, _TRACELENS.search)
    found["csv"] = {name: timeline[name] for name in ("span", "communication", "memcpy")}
    return found


def _correlation(event: Mapping[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", -1))


def _by_rules(kept: list[dict[str, Any]], is_communication: Callable[[str], Any]) -> Parts:
    begin_us = np.array([float(e["ts"]) for e in kept])
    begin_ns = np.rint((begin_us - begin_us.min()) * 1000).astype(np.int64)
    end_ns = begin_ns + np.rint([1000 * float(e["dur"]) for e in kept]).astype(np.int64)
    names, category = [str(e["name"]) for e in kept], np.array([e["cat"] for e in kept])

    def of(chosen: Any) -> Stretches:
        rows = np.flatnonzero(chosen)
        return stretches(begin_ns[rows], end_ns[rows])

    sends = np.array([is_communication(name) is not None for name in names])
    sends &= category == "kernel"
    no_compute = np.array([_HTA_NO_COMPUTE.match(name) is not None for name in names])
    communication, copies = of(sends), of(category == "gpu_memcpy")
    computing, everything = of(~sends & (category != "gpu_memcpy")), of(category != "")
    span_ms = (int(everything.end_ns[-1]) - int(everything.begin_ns[0])) / 1e6
    return {
        "compute": _ms(computing),
        "exposed": _ms(outside(communication, computing)),
        "copies": _ms(outside(copies, union(computing, communication))),
        "idle": span_ms - _ms(everything),
        "span": span_ms,
        "communication": _ms(communication),
        "memcpy": _ms(copies),
        "kernels": _ms(of(~no_compute)),
    }


def _ms(some: Stretches) -> float:
    return float(some.length_ns.sum()) / 1e6


def _theirs(row: Mapping[str, Any]) -> dict[str, Parts]:
    """Returns the figures of the other tools, by tool."""
    found: dict[str, Parts] = {}
    if (lens := row.get("tracelens")) is not None:
        names = ("computation", "exposed_comm", "exposed_memcpy", "idle")
        values = [lens[f"{name}_ms"] for name in names]
        found["tracelens"] = dict(zip(_PARTS, values, strict=True))
    if (hta := row.get("hta")) is not None:
        names = ("compute", "non_compute", "idle")
        values = [hta[f"{name}_ms"] for name in names]
        found["hta"] = dict(zip(("compute", "other", "idle"), values, strict=True))
    if (lines := row.get("csv")) is not None:
        found["csv"] = lines
    return found


def _worst(ours: Parts, theirs: Parts, span_ms: float) -> float:
    """Returns the largest difference of a part, in % of the span; NaN if ``ours`` lacks a part."""
    if not theirs.keys() <= ours.keys():
        return math.nan
    return max(100 * abs(ours[name] - ms) / span_ms for name, ms in theirs.items())


def _differences(row: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yields a tool, its difference by commprof's rules, and its difference by the tool's rules."""
    own = dict(row["commprof"])
    own["other"] = own["exposed"] + own["copies"]
    for tool, parts in _theirs(row).items():
        by_rules = row["by_rules"][tool]
        yield tool, _worst(own, parts, own["span"]), _worst(by_rules, parts, own["span"])


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a Markdown table with the parts of commprof and of the other tools, in ms."""
    lines = [
        "| recording | time | compute | exposed | copies | idle | TraceLens | HTA | differ |",
        "| --- " * 9 + "|",
    ]
    for row in rows:
        own, theirs = row["commprof"], _theirs(row)
        shown = [f"{own[name]:.3f}" for name in ("span", *_PARTS)]
        for tool in ("tracelens", "hta"):
            figures = theirs.get(tool, {}).values()
            shown.append(" / ".join(f"{ms:.3f}" for ms in figures) or "not installed")
        differ = [
            f"{_NAMES[tool]} "
            + (
                f"{ours:.2f} %"
                if ours <= MOST_PERCENT
                else f"{ours:.2f} %, by the tool's rules {by:.2f} %"
            )
            for tool, ours, by in _differences(row)
            if tool != "csv"
        ]
        lines.append(f"| {' | '.join([row['recording'], *shown, '; '.join(differ)])} |")
    return "\n".join(lines)


_PARTS = ("compute", "exposed", "copies", "idle")
_NAMES = {"tracelens": "TraceLens", "hta": "HTA", "csv": "gpu_timeline.csv"}


def demands(figures: Mapping[str, Any]) -> list[Demand]:
    """Checks that commprof and the other tools agree on the parts of each recording."""
    found = []
    for row in figures["rows"]:
        for tool, ours, by_rules in _differences(row):
            by_own = ours <= MOST_PERCENT
            what = f"parts of {row['recording']} beside those of {_NAMES[tool]}"
            what += ", by commprof's rules" if by_own else ", by the tool's rules"
            value = ours if by_own else by_rules
            found.append(at_most(what, value, MOST_PERCENT, " % of the time", form=".4f"))
    return found


def beside(path: Path) -> str:
    """Returns the table of a results file, with its legend."""
    legend = (
        "All times are in ms. A GPU's time goes from the first kernel or copy to the last. The "
        "column TraceLens shows computation, exposed communication, exposed copies and idle time. "
        "The column HTA shows compute, all other work, and idle time. The last column shows the "
        "largest difference of a part, in percent of the time. If the difference is above 0.1 %, "
        "the column also shows the largest difference by the tool's rules. TraceLens counts fills "
        "of memory as compute, counts communication as exposed while a copy runs, and does not "
        "know all kernels of vLLM. HTA leaves out kernels whose launch was not recorded, and "
        "counts only NCCL's kernels as communication."
    )
    return f"{legend}\n\n{table(read_json(path)['rows'])}"


if __name__ == "__main__":
    sys.exit(main())
