"""Recordings with parts removed at random, and rules for what may be said about the rest.

A figure must stay equal or become unknown. A statement about a rank, an incident or a bottleneck
must also be made about the whole recording.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from commprof.analysis.card import Card, card
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.verdict import Verdict, verdict
from commprof.analysis.world import WorldResult
from commprof.errors import CommprofError
from commprof.report.card import render
from commprof.trace.schema import FLAG_DEVICE_ASYNC, Kind, Phase
from tests.support.builders.traces import Rank

Event = dict[str, Any]
US = 1_000
_STEPS = 12
#: A removal may move time from these parts to "not attributed" and "other", but never back.
_NAMED = ("data_ms", "forward_ms", "backward_ms", "optimizer_ms")


@dataclass
class Drawn:
    seed: int
    #: "own" is a trace of commprof; "device" and "host" are recordings of torch.profiler.
    kind: str
    removed: list[str] = field(default_factory=list)
    #: The removal hides which steps there were, so figures per step are not compared.
    other_steps: bool = False
    #: Records of these ranks are missing, so some of their figures may be smaller.
    thinned: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Shown:
    result: RunResult
    world: WorldResult | None
    verdict: Verdict | None
    card: Card | None

    @property
    def text(self) -> str:
        if self.verdict is None or self.card is None:
            return ""
        parts = (self.verdict.headline, *self.verdict.sentences, self.verdict.next_step.advice)
        return " ".join(" ".join((*parts, render(self.card))).split())


def shown(folder: Path) -> Shown:
    result, details = analyse_in_detail(folder)
    found = verdict(result, details)
    made = card(result, details, found, folder)
    return Shown(result, result.worlds[0] if result.worlds else None, found, made)


@dataclass(frozen=True)
class _Times:
    """Times in µs by rank and step; every step begins on all ranks together."""

    ranks: int
    forward: list[list[int]]
    backward: list[list[int]]
    wire: list[int]
    period: int


def _times(draw: random.Random) -> _Times:
    ranks = draw.choice((2, 2, 3, 4))
    base_forward, base_backward = draw.randint(500, 3000), draw.randint(1000, 6000)
    wire, late = draw.randint(200, 8000), draw.choice((None, None, draw.randrange(ranks)))
    lateness = draw.randint(1000, 5000)

    def noisy(base: int, rank: int | None = None) -> int:
        return int(base * draw.uniform(0.97, 1.03)) + (lateness if rank == late else 0)

    return _Times(
        ranks,
        [[noisy(base_forward, r) for _ in range(_STEPS)] for r in range(ranks)],
        [[noisy(base_backward) for _ in range(_STEPS)] for r in range(ranks)],
        [noisy(wire, ranks) for _ in range(_STEPS)],
        base_forward + base_backward + 2 * wire + lateness + 4000,
    )


def _schedule(job: _Times, rank: int, step: int) -> dict[str, int]:
    ready = [500 + job.forward[r][step] + job.backward[r][step] for r in range(job.ranks)]
    middle = [500 + job.forward[r][step] + job.backward[r][step] // 2 for r in range(job.ranks)]
    first_end = max(middle) + job.wire[step]
    return {
        "forward": 500,
        "backward": 500 + job.forward[rank][step],
        "middle": middle[rank],
        "ready": ready[rank],
        "first_end": first_end,
        "end": max(*ready, first_end) + job.wire[step],
    }


def own_ranks(job: _Times) -> list[Rank]:
    found = [Rank(rank, job.ranks) for rank in range(job.ranks)]
    for rank in found:
        for step in range(_STEPS):
            at = (step * job.period + 1000) * US
            when = {k: at + v * US for k, v in _schedule(job, rank.rank, step).items()}
            rank.phase(Phase.DATA, at, when["forward"])
            rank.phase(Phase.FORWARD, when["forward"], when["backward"])
            done = when["end"]
            rank.phase(Phase.BACKWARD, when["backward"], done)
            size = {"bytes": 4_000_000, "graph_task": step}
            rank.collective(2 * step, when["middle"], when["first_end"], **size)
            rank.collective(2 * step + 1, when["ready"], done, **size)
            rank.finalize(when["ready"], done, 0, graph_task=step)
            rank.phase(Phase.OPTIMIZER, done, done + 300 * US)
            rank.step(at, at + job.period * US)
    return found


def _event(cat: str, name: str, begin: float, end: float, tid: int, **args: Any) -> Event:
    span = {"ts": 5e9 + begin, "dur": end - begin}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **span, "args": args}


def _backward_operator(begin: float, end: float) -> Event:
    name = "autograd::engine::evaluate_function: MmBackward0"
    return _event("cpu_op", name, begin, end, 1, **{"Fwd thread id": 1, "Sequence number": 1})


def device_events(job: _Times, rank: int) -> list[Event]:
    events: list[Event] = []
    number = 0

    def kernel(name: str, begin: int, end: int, launch: int, stream: int, **args: Any) -> None:
        nonlocal number
        number += 1
        same = {"correlation": number}
        events.append(_event("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, 1, **same))
        about = {"device": 0, "stream": stream, **same, **args}
        events.append({**_event("kernel", name, begin, end, stream, **about), "pid": 0})

    for step in range(_STEPS):
        at = step * job.period
        when = {k: at + v for k, v in _schedule(job, rank, step).items()}
        events.append(_event("user_annotation", f"ProfilerStep#{step}", at, at + job.period, 1))
        events.append(_event("cpu_op", "aten::mm", at + 10, at + 60, 1))
        events.append(_backward_operator(at + 100, at + 200))
        kernel("gemm_forward", when["forward"], when["backward"], at + 20, 7)
        kernel("gemm_backward", when["backward"], when["ready"], at + 110, 7)
        for place, (begin, end) in enumerate(
            ((when["middle"], when["first_end"]), (when["ready"], when["end"]))
        ):
            begin = max(begin, events_end(events, 20))
            kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
                *(begin, end, at + 120 + 20 * place, 20),
                **{"Collective name": "allreduce", "Process Group Name": "0"},
                **{"Group size": job.ranks, "Seq": 2 * step + place, "dtype": "Float"},
                **{"In msg nelems": 1_000_000, "Out msg nelems": 1_000_000},
                **{"Process Group Ranks": str(list(range(job.ranks)))},
            )
    return events


def events_end(events: list[Event], stream: int) -> float:
    return max(
        (e["ts"] + e["dur"] - 5e9 for e in events if e["cat"] == "kernel" and e["tid"] == stream),
        default=0,
    )


def host_events(job: _Times, rank: int) -> list[Event]:
    events: list[Event] = []
    dims = {"Input Dims": [[1_000_000]], "Input type": ["float"]}
    for step in range(_STEPS):
        at = step * job.period
        when = {k: at + v for k, v in _schedule(job, rank, step).items()}
        events.append(_event("user_annotation", f"ProfilerStep#{step}", at, at + job.period, 1))
        events.append(_event("cpu_op", "aten::mm", when["forward"], when["backward"], 1))
        events.append(_backward_operator(when["backward"], when["ready"]))
        ends = (when["first_end"], when["end"])
        for begin, end in zip((when["middle"], when["ready"]), ends, strict=True):
            args = {**dims, "Input Dims": [[[1_000_000]]]}
            events.append(_event("cpu_op", "c10d::allreduce_", begin, begin + 5, 1, **args))
            run = _event("user_annotation", "gloo:all_reduce", begin + 6, end, 3, **dims)
            events.append(run)
        events.append(_event("cpu_op", "aten::add_", when["end"], when["end"] + 300, 1))
    return events


Removal = Callable[[random.Random, Drawn, Any], None]


def _without(
    events: dict[int, list[Event]], ranks: list[int], keep: Callable[[Event], bool]
) -> None:
    for rank in ranks:
        if rank in events:
            events[rank] = [event for event in events[rank] if keep(event)]


def _some(draw: random.Random, known: Any) -> list[int]:
    ranks = sorted(known)
    return ranks if draw.random() < 0.5 else [draw.choice(ranks)]


def _remove_rank(draw: random.Random, of: Drawn, known: dict[int, Any]) -> None:
    if len(known) > 1:
        rank = draw.choice(sorted(known))
        del known[rank]
        of.removed.append(f"rank {rank}")


def _events_removal(name: str, keep: Callable[[Event], bool], from_all: bool = True) -> Removal:
    def remove(draw: random.Random, of: Drawn, known: dict[int, list[Event]]) -> None:
        ranks = _some(draw, known) if from_all else [draw.choice(sorted(known))]
        if not from_all and len(known) == 1:
            return
        _without(known, ranks, keep)
        of.removed.append(f"{name} of ranks {ranks}")

    return remove


def _is_communication(event: Event) -> bool:
    return event["name"].startswith("nccl")


def _remove_steps(draw: random.Random, of: Drawn, known: dict[int, list[Event]]) -> None:
    _without(known, sorted(known), lambda e: not e["name"].startswith("ProfilerStep"))
    of.removed.append("marks of steps")
    of.other_steps = True


def _remove_one_kernel(draw: random.Random, of: Drawn, known: dict[int, list[Event]]) -> None:
    rank = draw.choice(sorted(known))
    at = [i for i, e in enumerate(known[rank]) if _is_communication(e)]
    if at:
        del known[rank][draw.choice(at)]
        of.removed.append(f"one kernel of rank {rank}")
        of.thinned.add(rank)


def _arguments_removal(*names: str) -> Removal:
    def remove(draw: random.Random, of: Drawn, known: dict[int, list[Event]]) -> None:
        for rank in _some(draw, known):
            for event in known[rank]:
                event["args"] = {k: v for k, v in event["args"].items() if k not in names}
        of.removed.append(f"arguments {', '.join(names)}")

    return remove


_OF_DEVICE: tuple[Removal, ...] = (
    _remove_rank,
    _events_removal("all kernels", lambda e: e["cat"] != "kernel"),
    _events_removal(
        "kernels of work", lambda e: e["cat"] != "kernel" or _is_communication(e), False
    ),
    _events_removal("launches", lambda e: e["cat"] != "cuda_runtime"),
    _events_removal("operators", lambda e: e["cat"] != "cpu_op"),
    _remove_steps,
    _remove_one_kernel,
    _arguments_removal("Seq"),
    _arguments_removal("Process Group Ranks"),
    _arguments_removal("Process Group Name", "Process Group Ranks", "Group size"),
    _arguments_removal("In msg nelems", "Out msg nelems", "dtype"),
    _arguments_removal("Collective name"),
)
_OF_HOST: tuple[Removal, ...] = (
    _remove_rank,
    _events_removal("operators", lambda e: e["cat"] != "cpu_op"),
    _events_removal("ranges of gloo", lambda e: not e["name"].startswith("gloo:")),
    _remove_steps,
    _arguments_removal("Input Dims", "Input type"),
)


def _filtered(rank: Rank, keep: Callable[[dict[str, int]], bool]) -> None:
    rank._records = [values for values in rank._records if keep(values)]


def _remove_ends(draw: random.Random, of: Drawn, known: dict[int, Rank]) -> None:
    ranks = _some(draw, known)
    for rank in ranks:
        _filtered(known[rank], lambda values: values["kind"] != Kind.END)
    of.removed.append(f"ends of collectives of ranks {ranks}")


def _remove_clock(draw: random.Random, of: Drawn, known: dict[int, Rank]) -> None:
    for rank in known.values():
        rank.metadata["machine"]["boot_id"] = f"host {rank.rank}"
    of.removed.append("the common clock")


def _remove_phases(draw: random.Random, of: Drawn, known: dict[int, Rank]) -> None:
    chosen = draw.sample(list(Phase), draw.randint(1, len(Phase)))
    for rank in known.values():
        _filtered(rank, lambda v: v["kind"] != Kind.PHASE or v["aux"] not in chosen)
    of.removed.append(f"phases {[phase.name for phase in chosen]}")


def _remove_device_times(draw: random.Random, of: Drawn, known: dict[int, Rank]) -> None:
    gone = (Kind.END, Kind.WAIT, Kind.FINALIZE_BEGIN, Kind.FINALIZE_END)
    for rank in known.values():
        _filtered(rank, lambda values: values["kind"] not in gone)
        for values in rank._records:
            if values["kind"] == Kind.ISSUE:
                values["flags"] = values.get("flags", 0) | FLAG_DEVICE_ASYNC
    of.removed.append("times of the device")
    of.thinned |= set(known)


def _remove_module(draw: random.Random, of: Drawn, known: dict[int, Rank]) -> None:
    """Without the native module, capture sees at most the buckets of DDP; removes these too."""
    gone = (Kind.ISSUE, Kind.END, Kind.WAIT, Kind.FINALIZE_BEGIN, Kind.FINALIZE_END)
    for rank in known.values():
        _filtered(rank, lambda values: values["kind"] not in gone)
        rank.metadata["capture"] = "python"
    of.removed.append("the C++ module")
    of.thinned |= set(known)


def _remove_records(draw: random.Random, of: Drawn, known: dict[int, Rank]) -> None:
    rank, share = known[draw.choice(sorted(known))], draw.uniform(0.1, 0.9)
    before = len(rank._records)
    _filtered(rank, lambda values: values["kind"] == Kind.STEP or draw.random() > share)
    rank.dropped = before - len(rank._records)
    of.removed.append(f"{rank.dropped} of {before} records of rank {rank.rank}")
    of.thinned.add(rank.rank)


_OF_OWN: tuple[Removal, ...] = (
    *(_remove_rank, _remove_ends, _remove_clock, _remove_phases),
    *(_remove_device_times, _remove_module, _remove_records),
)


#: The whole recording of a job is analysed once for this number of seeds.
_OF_A_JOB = 8


class Cases:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._job = -1
        self._whole: Shown | None = None

    def complaints(self, seed: int) -> tuple[Drawn, list[str]]:
        job = _times(random.Random(seed // _OF_A_JOB))
        kind = random.Random(seed // _OF_A_JOB).choice(("own", "device", "host"))
        case, draw = Drawn(seed, kind), random.Random(seed)
        rest = self._folder / "rest"
        shutil.rmtree(rest, ignore_errors=True)
        if self._job != seed // _OF_A_JOB or self._whole is None:
            whole = self._folder / "whole"
            shutil.rmtree(whole, ignore_errors=True)
            _write(whole, _recordings(job, kind), job.ranks, kind)
            self._job, self._whole = seed // _OF_A_JOB, shown(whole)
        known = _recordings(job, kind)
        removals = {"own": _OF_OWN, "device": _OF_DEVICE, "host": _OF_HOST}[kind]
        for removal in draw.sample(removals, draw.choice((1, 1, 2))):
            removal(draw, case, known)
        _write(rest, known, job.ranks, kind)
        try:
            after = shown(rest)
        except CommprofError:  # a refusal claims nothing
            return case, []
        except Exception as error:
            return case, [f"{type(error).__name__}: {error}"]
        return case, list(complaints(case, self._whole, after))


def _recordings(job: _Times, kind: str) -> dict[int, Any]:
    if kind == "own":
        return {rank.rank: rank for rank in own_ranks(job)}
    events = device_events if kind == "device" else host_events
    return {rank: events(job, rank) for rank in range(job.ranks)}


def _write(folder: Path, known: dict[int, Any], ranks: int, kind: str) -> None:
    folder.mkdir(parents=True)
    if kind == "own":
        for rank in known.values():
            rank.write(folder / f"rank_{rank.rank}.trace")
        return
    backend = "nccl" if kind == "device" else "gloo"
    config = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": ranks}
    about = {"backend": backend, "world_size": ranks, "pg_count": 1}
    for rank, events in known.items():
        listed = [{**config, "ranks": list(range(ranks)), "backend_config": f"cuda:{backend}"}]
        head = {"schemaVersion": 1, "distributedInfo": {**about, "rank": rank, "pg_config": listed}}
        document = {**head, "traceEvents": events}
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(document))


def complaints(case: Drawn, whole: Shown, rest: Shown) -> Iterator[str]:
    if rest.world is None or whole.world is None:
        return
    yield from _claims(whole, rest)
    if not case.other_steps:
        yield from _figures(case, whole.world, rest.world)
        yield from _shares(case, whole, rest)


def _claims(whole: Shown, rest: Shown) -> Iterator[str]:
    of, before = rest.world, whole.world
    assert of is not None
    assert before is not None
    if rest.result.incidents:
        yield "an incident"
    late, known = of.lateness.late_rank, before.lateness.late_rank
    if late is not None and (known is None or known.rank != late.rank):
        yield f"rank {late.rank} is accused"
    if late is None and known is not None:
        for said in ("No single rank", "no single rank stands out"):
            if said in rest.text:
                yield f"{said!r} is said of a job in which rank {known.rank} is late"
    if "needs no change" in rest.text and "needs no change" not in whole.text:
        yield "communication 'needs no change'"
    if "train apart" in rest.text:
        yield "ranks 'train apart'"
    if getattr(of, "gains", None) is not None and before.gains is None:
        yield "gains"


def _figures(case: Drawn, whole: WorldResult, rest: WorldResult) -> Iterator[str]:
    before = {rank.rank: rank.parts for rank in whole.ranks}
    for rank in rest.ranks:
        now, then = rank.parts, before[rank.rank]
        if not _same(now.step_ms, then.step_ms):
            yield f"rank {rank.rank}: step {now.step_ms} for {then.step_ms}"
        if math.isnan(now.exposed_ms):
            continue
        if not _same(now.exposed_ms, then.exposed_ms):
            if rank.rank in case.thinned and now.exposed_ms < then.exposed_ms * 1.001:
                few = now.exposed_ms > (1 - 1.5 / _STEPS) * then.exposed_ms
                if few or rest.recording.dropped_records:
                    continue
            yield f"rank {rank.rank}: exposed {now.exposed_ms} for {then.exposed_ms}"
        for name in ("wait_ms", "transfer_ms", *_NAMED):
            value, most = getattr(now, name), getattr(then, name)
            if value > most + 1e-3 + 1e-3 * most:
                yield f"rank {rank.rank}: {name} {value} for {most}"
    rows = {(row.kind.op, row.kind.size_bytes): row for row in whole.communication.collectives}
    for row in rest.communication.collectives:
        earlier = rows.get((row.kind.op, row.kind.size_bytes))
        if (
            earlier is None
            or rest.recording.missing_ranks
            or case.thinned
            or row.calls != earlier.calls
        ):
            continue
        for name in ("algbw_gb_per_s", "busbw_gb_per_s"):
            value, then_value = getattr(row.times, name), getattr(earlier.times, name)
            if not math.isnan(value) and not _close(value, then_value):
                yield f"{row.kind.op}: {name} {value} for {then_value}"
        ended = not any(name.startswith("ends") for name in case.removed)
        median_ms, then_ms = (each.times.duration.median_ms for each in (row, earlier))
        if ended and not (math.isnan(median_ms) or _close(median_ms, then_ms)):
            yield f"{row.kind.op}: duration {median_ms} for {then_ms}"


def _shares(case: Drawn, whole: Shown, rest: Shown) -> Iterator[str]:
    """Shares of the step must be those of the whole recording.

    The parts "other" and "compute" may grow if phases, launches or operators were removed.
    """
    assert rest.verdict is not None
    assert whole.verdict is not None
    assert rest.world is not None
    if rest.world.recording.missing_ranks:
        return
    for binding, known in zip(rest.verdict.bindings, whole.verdict.bindings, strict=True):
        before = dict(known.largest)
        for part, share in binding.largest:
            lost = [name for name in case.removed if name.startswith(("phases", "launches"))]
            lost += [name for name in case.removed if name.startswith("operators")]
            if lost and part in ("other", "compute"):
                if (
                    part == "other"
                    and "code outside forward" in rest.text
                    and "FORWARD" in str(lost)
                ):
                    yield "time without a recorded phase is 'code outside forward'"
                continue
            few = 1.5 / _STEPS if case.thinned else 1e-3
            if part in before and abs(share - before[part]) > few:
                yield f"{part} takes {share:.3f} for {before[part]:.3f} of the step"


def _same(value: float, other: float) -> bool:
    return bool(np.isclose(value, other, rtol=1e-3, atol=2e-3, equal_nan=True))


def _close(value: float, other: float) -> bool:
    return abs(value - other) <= 0.05 * other + 0.02
