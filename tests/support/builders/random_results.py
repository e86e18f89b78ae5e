from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from commprof.analysis.card import Card, card
from commprof.analysis.collectives.kinds import CollectiveRow
from commprof.analysis.cost import Cost, Price, cost
from commprof.analysis.detail import WorldDetail
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.rank_summary import StepParts
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import RunResult, scale
from commprof.analysis.verdict import Verdict, verdict
from commprof.analysis.world import WorldResult
from commprof.report import card as card_text
from commprof.report.full_report import FullReport
from commprof.report.section import PAGE
from commprof.report.sections import cost as cost_table
from commprof.report.sections.caveats import caveats
from commprof.report.sections.order import sections
from tests.support.builders.results import collective, context, detail, run_result, summary, world

SIZES = ((1,), (2,), (4,), (1, 2), (2, 4), (4, 8), (1, 2, 4), (1, 2, 4, 8))


@dataclass(frozen=True)
class Size:
    ranks: int
    detail: WorldDetail
    world: WorldResult
    #: The figures leave out the stalled step. ``parts`` has ms per step.
    parts: dict[str, float]
    step_ms: float
    split_known: bool
    stalled: int | None

    def percent(self, part: str) -> float:
        return 100 * self.parts[part] / self.step_ms


@dataclass(frozen=True)
class Case:
    cores: int
    sizes: tuple[Size, ...]
    result: RunResult
    verdict: Verdict
    paid: Cost
    card: Card
    said: tuple[str, ...]

    @property
    def judged(self) -> Size:
        roomy = [size for size in self.sizes if 2 <= size.ranks <= self.cores]
        return max(roomy or self.sizes, key=lambda size: size.ranks)


def _made(random: np.random.Generator, ranks: int) -> Size:
    steps = int(random.integers(3, 25))
    shape = (ranks, steps)
    noise = random.choice([0.01, 0.1, 0.4])

    def times(mean: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(mean * np.clip(random.normal(1, noise, shape), 0.3, 2.5))

    weights = random.dirichlet(np.full(8, random.choice([0.5, 2.0]))) * 100
    names = ("data", "forward", "backward", "optimizer", "other", "wait", "transfer", "unsplit")
    ms = dict(zip(names, map(times, weights.tolist()), strict=True))
    if ranks == 1 or random.random() < 0.1:
        ms |= {name: np.zeros(shape) for name in ("wait", "transfer", "unsplit")}
    if random.random() < 0.6:
        ms["unsplit"] = np.zeros(shape)
    stalled = int(random.integers(steps)) if random.random() < 0.25 else None
    if stalled is not None:
        ms[str(random.choice(["wait", "data", "backward", "other"]))][:, stalled] += 5000
    return _finished(random, ranks, ms, stalled)


def _finished(
    random: np.random.Generator, ranks: int, ms: dict[str, Any], stalled: int | None
) -> Size:
    ms["exposed"] = ms["wait"] + ms["transfer"] + ms["unsplit"]
    ms["step"] = sum(
        ms[name] for name in ("data", "forward", "backward", "optimizer", "other", "exposed")
    )
    known = bool(random.random() < 0.8)
    if not known:
        ms["unsplit"], unknown = ms["exposed"], np.where(ms["exposed"] > 0, math.nan, 0.0)
        ms |= {"wait": unknown, "transfer": unknown}
    ms["hidden"] = random.choice([0.0, 12.0]) * np.ones_like(ms["step"])
    base = detail(ranks, ms["step"].shape[1])
    shown = {name: ms.get(name, of_host) for name, of_host in base.parts_ms.items()}
    slowest = ms["step"].max(axis=0)
    kept = np.arange(len(slowest)) != stalled
    parts = {name: float(np.nan_to_num(ms[name][:, kept]).mean()) for name in ms}
    parts["compute"] = parts["forward"] + parts["backward"]
    parts["communication"] = parts["exposed"]
    stalls = () if stalled is None else ((stalled, float(slowest[stalled])),)
    return Size(
        ranks,
        replace(base, parts_ms=shown, slowest_ms=slowest),
        _shown_world(random, ranks, ms, stalls),
        parts,
        parts["step"],
        known or not (ms["exposed"] > 0).any(),
        stalled,
    )


def _shown_world(
    random: np.random.Generator, ranks: int, ms: dict[str, Any], stalls: tuple[Any, ...]
) -> WorldResult:
    """As in a report, the means include stalled steps."""
    exposed = float(ms["exposed"].mean())
    no_core = random.choice([math.nan, 0.0, exposed * random.uniform(0, 0.5)])
    split = {
        f"{name}_ms": math.nan if np.isnan(ms[name]).any() else float(ms[name].mean())
        for name in ("wait", "transfer")
    }
    rest = ("data", "forward", "backward", "exposed", "optimizer", "other", "step", "unsplit")
    means = {f"{name}_ms": float(ms[name].mean()) for name in rest}
    parts = StepParts(**means, **split, no_core_ms=float(no_core), hidden_ms=12.0)
    low, median, high = np.percentile(ms["step"].max(axis=0), [25, 50, 75]).tolist()
    missing = (ranks - 1,) if ranks > 1 and random.random() < 0.15 else ()
    counted = not missing or random.random() < 0.5
    failed = int(random.integers(1, 5)) if random.random() < 0.2 else 0
    bucket = collective(failed=failed, size_bytes=(4, int(random.choice([4_000_000, 25_000_000]))))
    steps = ms["step"].shape[1]
    rank_steps = (ranks - len(missing)) * steps
    found = world(
        ranks,
        steps=steps + 2,
        parts=parts,
        step_median_ms=median,
        step_quartiles_ms=(low, high),
        samples_per_s=float(random.uniform(50, 500)) if counted else math.nan,
        missing_ranks=missing,
        stalled_steps=stalls,
        late_rank=_late(random, ranks, steps),
        collectives=(bucket, *_tiny(random, exposed, rank_steps)),
    )
    present = tuple(rank for rank in found.ranks if rank.rank not in missing)
    return replace(found, ranks=present)


def _tiny(random: np.random.Generator, exposed_ms: float, rank_steps: int) -> list[CollectiveRow]:
    if random.random() < 0.6:
        return []
    held = exposed_ms * float(random.uniform(0.2, 1))
    number = 32 * rank_steps
    calls = {"calls": number, "calls_per_step": 32.0, "total_bytes": number * 2048}
    return [collective(**calls, size_bytes=(8, 4096), exposed_ms=held)]


def _late(random: np.random.Generator, ranks: int, steps: int) -> LateRank | None:
    kinds: list[dict[str, Any]] = [
        {"phase": "data", "phase_share": 0.8},
        {"phase": "host pause", "phase_share": 0.9},
        {"phase": "other", "slower_ms": 3.0},
        {"phase": None},
        {"phase": None, "phase_share": 0.3},
    ]
    if ranks < 2 or random.random() < 0.6:
        return None
    wait_ns = float(random.uniform(0, 30e6))
    kind = kinds[int(random.integers(len(kinds)))]
    return LateRank(int(random.integers(ranks)), wait_ns, 0.9, 0.001, steps, steps, 0.1, **kind)


def case(seed: int) -> Case:
    random = np.random.default_rng(seed)
    sizes = tuple(_made(random, ranks) for ranks in SIZES[int(random.integers(len(SIZES)))])
    cores = int(random.choice([1, 2, 4, 16]))
    about = context(
        machine={"usable_cpu_count": cores, "cpu_model": "x"},
        scaling=str(random.choice(["weak", "strong"])),
        workload="timed",
        nodes=1,
    )
    worlds = [size.world for size in sizes]
    # A run whose mode was switched has a summary of the same world size, too.
    summaries = (summary(sizes[-1].ranks),) if random.random() < 0.2 else ()
    found = remarks(about, worlds, scale(worlds), None, summaries=summaries)
    result = run_result(*worlds, context=about, remarks=found, summaries=summaries, overhead=None)
    details = [size.detail for size in sizes]
    judged = verdict(result, details)
    assert judged is not None
    paid = cost(worlds, details, Price(3.6, "rank"))
    shown = card(result, details, judged, Path("RUN"))
    assert shown is not None
    found_said = tuple(_said(result, judged, details, paid, shown))
    return Case(cores, sizes, result, judged, paid, shown, found_said)


def _said(
    result: RunResult, judged: Verdict, details: list[WorldDetail], paid: Cost, shown: Card
) -> Iterator[str]:
    yield from card_text.render(shown).splitlines()
    yield from (judged.headline, *judged.sentences, judged.next_step.advice)
    yield from caveats(result)
    yield from cost_table.best(paid)
    for section in sections(FullReport(result, tuple(details), judged, paid), PAGE):
        yield from (section.lead, *section.paragraphs, *section.bullets)
