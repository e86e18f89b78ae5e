"""Nothing that a report says contradicts a figure beside it: random results, all their sentences.

Figures are worked out here from the steps themselves, and sentences are read as a reader would: by
their words and numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.card import Card, card
from commprof.analysis.collectives.kinds import CollectiveRow
from commprof.analysis.cost import Cost, Price, cost
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.rank_summary import StepParts
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import RunResult, scale
from commprof.analysis.step.detail import WorldDetail
from commprof.analysis.verdict import Verdict, verdict
from commprof.analysis.world import WorldResult
from commprof.report import card as card_text
from commprof.report import document, table
from commprof.report.full_report import FullReport
from commprof.report.sections import cost as cost_table
from tests.support.builders.results import collective, context, detail, run_result, summary, world

SIZES = ((1,), (2,), (4,), (1, 2), (2, 4), (4, 8), (1, 2, 4), (1, 2, 4, 8))
WORDS = {
    "compute (forward and backward)": "compute",
    "communication": "communication",
    "loading data": "data",
    "the optimizer": "optimizer",
    "code outside forward, backward and optimizer": "other",
}
SPLIT = {"data transfer": "wire", "waiting for the last rank": "wait", "not attributed": "unsplit"}
LONGER = {**{name: name for name in (*WORDS.values(), "other")}, "waiting": "wait"}
LONGER |= {"data transfer": "wire", "communication not attributed": "unsplit"}
PART = "|".join(map(re.escape, WORDS))
#: The letters of the card's bar.
CARD_PARTS = {"d": "data", "f": "forward", "b": "backward", "W": "wait", "T": "wire"}
CARD_PARTS |= {"X": "exposed", "o": "optimizer", ".": "other"}
#: Rounding of a percentage with one digit, and of its arithmetic.
TENTH = 0.051


@dataclass(frozen=True)
class Size:
    """One world size as it was made, and what is true of it."""

    ranks: int
    detail: WorldDetail
    world: WorldResult
    #: Without the step that stalled: ms per step of the five parts, and of wait, wire, unsplit.
    parts: dict[str, float]
    step_ms: float
    split_known: bool
    stalled: int | None

    def percent(self, part: str) -> float:
        return 100 * self.parts[part] / self.step_ms


@dataclass(frozen=True)
class Case:
    """A run with everything that it says."""

    cores: int
    sizes: tuple[Size, ...]
    result: RunResult
    verdict: Verdict
    paid: Cost
    card: Card
    #: All sentences of report and page.
    said: tuple[str, ...]

    @property
    def judged(self) -> Size:
        roomy = [size for size in self.sizes if 2 <= size.ranks <= self.cores]
        return max(roomy or self.sizes, key=lambda size: size.ranks)


def made(random: np.random.Generator, ranks: int) -> Size:
    steps = int(random.integers(3, 25))
    shape = (ranks, steps)
    noise = random.choice([0.01, 0.1, 0.4])

    def times(mean: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(mean * np.clip(random.normal(1, noise, shape), 0.3, 2.5))

    weights = random.dirichlet(np.full(8, random.choice([0.5, 2.0]))) * 100
    names = ("data", "forward", "backward", "optimizer", "other", "wait", "wire", "unsplit")
    ms = dict(zip(names, map(times, weights.tolist()), strict=True))
    if ranks == 1 or random.random() < 0.1:
        ms |= {name: np.zeros(shape) for name in ("wait", "wire", "unsplit")}
    if random.random() < 0.6:
        ms["unsplit"] = np.zeros(shape)
    stalled = int(random.integers(steps)) if random.random() < 0.25 else None
    if stalled is not None:
        ms[str(random.choice(["wait", "data", "backward", "other"]))][:, stalled] += 5000
    return finished(random, ranks, ms, stalled)


def finished(
    random: np.random.Generator, ranks: int, ms: dict[str, Any], stalled: int | None
) -> Size:
    ms["exposed"] = ms["wait"] + ms["wire"] + ms["unsplit"]
    ms["step"] = sum(
        ms[name] for name in ("data", "forward", "backward", "optimizer", "other", "exposed")
    )
    known = bool(random.random() < 0.8)
    if not known:
        ms["unsplit"], unknown = ms["exposed"], np.where(ms["exposed"] > 0, math.nan, 0.0)
        ms |= {"wait": unknown, "wire": unknown}
    ms["hidden"] = random.choice([0.0, 12.0]) * np.ones_like(ms["step"])
    base = detail(ranks, ms["step"].shape[1])
    shown = {name: ms[name] for name in base.parts_ms}
    slowest = ms["step"].max(axis=0)
    kept = np.arange(len(slowest)) != stalled
    parts = {name: float(np.nan_to_num(ms[name][:, kept]).mean()) for name in ms}
    parts["compute"] = parts["forward"] + parts["backward"]
    parts["communication"] = parts["exposed"]
    stalls = () if stalled is None else ((stalled, float(slowest[stalled])),)
    return Size(
        ranks,
        replace(base, parts_ms=shown, slowest_ms=slowest),
        shown_world(random, ranks, ms, stalls),
        parts,
        parts["step"],
        known or not (ms["exposed"] > 0).any(),
        stalled,
    )


def shown_world(
    random: np.random.Generator, ranks: int, ms: dict[str, Any], stalls: tuple[Any, ...]
) -> WorldResult:
    """Figures of the same steps, stalled ones included, and what else a world size can have."""
    exposed = float(ms["exposed"].mean())
    no_core = random.choice([math.nan, 0.0, exposed * random.uniform(0, 0.5)])
    split = {
        f"{name}_ms": math.nan if np.isnan(ms[name]).any() else float(ms[name].mean())
        for name in ("wait", "wire")
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
    found = world(
        ranks,
        steps=steps + 2,
        parts=parts,
        step_median_ms=median,
        step_quartiles_ms=(low, high),
        samples_per_s=float(random.uniform(50, 500)) if counted else math.nan,
        missing_ranks=missing,
        stalled_steps=stalls,
        late_rank=late(random, ranks, steps),
        collectives=(bucket, *tiny(random, exposed)),
    )
    present = tuple(rank for rank in found.ranks if rank.rank not in missing)
    return replace(found, ranks=present)


def tiny(random: np.random.Generator, exposed_ms: float) -> list[CollectiveRow]:
    """At times, many small calls that hold some of the exposed time."""
    if random.random() < 0.6:
        return []
    held = exposed_ms * float(random.uniform(0.2, 1))
    calls = {"calls": 640, "calls_per_step": 32.0, "total_bytes": 640 * 2048}
    return [collective(**calls, size_bytes=(8, 4096), exposed_ms=held)]


def late(random: np.random.Generator, ranks: int, steps: int) -> LateRank | None:
    """Nobody, or a rank of whose phase more or less is known."""
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
    sizes = tuple(made(random, ranks) for ranks in SIZES[int(random.integers(len(SIZES)))])
    cores = int(random.choice([1, 2, 4, 16]))
    about = context(
        machine={"usable_cpu_count": cores, "cpu_model": "x"},
        scaling=str(random.choice(["weak", "strong"])),
        workload="timed",
        nodes=1,
    )
    worlds = [size.world for size in sizes]
    # Modes were switched while it ran: the same world size has a summary too.
    summaries = (summary(sizes[-1].ranks),) if random.random() < 0.2 else ()
    found = remarks(about, worlds, scale(worlds), None, summaries=summaries)
    result = run_result(*worlds, context=about, remarks=found, summaries=summaries, overhead=None)
    details = [size.detail for size in sizes]
    judged = verdict(result, details)
    assert judged is not None
    paid = cost(worlds, details, Price(3.6, "rank"))
    shown = card(result, details, judged, Path("RUN"))
    assert shown is not None
    found_said = tuple(said(result, judged, details, paid, shown))
    return Case(cores, sizes, result, judged, paid, shown, found_said)


def said(
    result: RunResult, judged: Verdict, details: list[WorldDetail], paid: Cost, shown: Card
) -> Iterator[str]:
    yield from card_text.render(shown).splitlines()
    yield from (judged.headline, *judged.sentences, judged.next_step.advice)
    yield from table.notes(result)
    yield from cost_table.best(paid)
    for section in document.sections(FullReport(result, tuple(details), judged, paid)):
        yield from (section.lead, *section.paragraphs, *section.bullets)


def check(seed: int) -> None:
    """Every rule that a sentence has to keep."""
    one = case(seed)
    largest_is_the_largest(one)
    card_says_what_is(one)
    communication_is_what_it_is(one)
    nothing_is_compared_without_a_baseline(one)
    growth_is_what_it_is(one)
    cores_are_spoken_of_by_run_delay(one)
    advice_follows_from_the_figures(one)
    exchange_is_what_it_is(one)
    late_ranks_are_told_alike(one)
    what_is_left_out_is_told(one)


def largest_is_the_largest(one: Case) -> None:
    size, headline = one.judged, one.verdict.headline
    assert headline.startswith(f"At {size.ranks} rank"), headline
    named(headline, size)
    for line in one.said:
        if match := re.match(r"(\d+) ranks?: bound by (\w+), (.+)% of the mean step", line):
            other = next(x for x in one.sizes if x.ranks == int(match[1]))
            assert match[2] == ranking(other)[0], line
            assert float(match[3]) == pytest.approx(other.percent(match[2]), abs=TENTH), line


def named(headline: str, size: Size) -> None:
    """The parts of a headline are the largest, with their shares."""
    first, second = ranking(size)[:2]
    if match := re.search(rf"rank \d+ delays .* its largest part is ({PART}): ([\d.]+)%", headline):
        assert WORDS[match[1]] == first, headline
        assert float(match[2]) == pytest.approx(size.percent(first), abs=TENTH), headline
        return
    if match := re.search(rf"is bound by ({PART}): ([\d.]+)% of the mean step of", headline):
        assert WORDS[match[1]] == first, headline
        assert float(match[2]) == pytest.approx(size.percent(first), abs=TENTH), headline
        bracket = re.search(r"\((?!forward)([^()]*)\)\.(?: |$)", headline)
        assert bracket is None or (first == "communication" and size.split_known), headline
        listed = re.findall(r"([\d.]+)% ([a-z ]+)", bracket[1]) if bracket else []
        for share, word in listed:
            assert float(share) == pytest.approx(size.percent(SPLIT[word]), abs=TENTH), headline
        return
    match = re.search(rf"({PART}) \(([\d.]+)%\) and ({PART}) \(([\d.]+)%\)", headline)
    assert match is not None, headline
    assert (WORDS[match[1]], WORDS[match[3]]) == (first, second), headline
    shares = [float(match[2]), float(match[4])]
    expected = [size.percent(first), size.percent(second)]
    assert shares == pytest.approx(expected, abs=TENTH), headline
    if "about equally" in headline:
        assert expected[1] >= 0.8 * expected[0], headline


def card_says_what_is(one: Case) -> None:
    """Every figure on the card is that of the steps, and it fits on a screen."""
    size, text = one.judged, card_text.render(one.card)
    lines = text.splitlines()
    assert len(lines) <= 24, text
    assert max(map(len, lines)) <= 80, text
    flat = " ".join(text.split())
    named(one.card.verdict, size)
    assert one.card.verdict in flat, text
    bar = next(line for line in lines if re.fullmatch(r"[dfbWTXo.]{79,80}", line))
    for letter, part in CARD_PARTS.items():
        ms = size.parts[part]
        if part == "exposed":
            ms = size.parts["unsplit" if size.split_known else "exposed"]
        if part in ("wait", "wire") and not size.split_known:
            ms = 0.0
        percent = 100 * ms / size.step_ms
        assert bar.count(letter) == pytest.approx(0.8 * percent, abs=1.01), text
        shown = re.findall(
            rf"(?m)(?:^|   ){re.escape(letter)} [a-z, ]+ [\d.e+-]+ ms ([\d.]+)%", text
        )
        assert [float(x) for x in shown] == pytest.approx([percent] * len(shown), abs=TENTH), text
        assert bool(shown) or percent < TENTH, text
    exposed = size.percent("communication")
    found = re.findall(r"(?:communication: [^,]+, |gain: +)([\d.]+)% of the step", text)
    expected = [exposed] * (2 if exposed > 0 and size.ranks > 1 else 0)
    assert [float(x) for x in found] == pytest.approx(expected, abs=TENTH), text
    assert ("not separated" in text) == (bool(found) and not size.split_known), text
    late = size.world.late_rank
    assert (late is not None) == (re.search(r"Waited for: +rank \d", text) is not None), text
    if late is not None:
        assert f"rank {late.rank}" in text, text
    assert "no single rank stands out" not in text or late is None, text
    rates = {each.ranks: each.world.samples_per_s for each in one.sizes}
    for ranks, rate, percent in re.findall(r"(\d+) ranks? ([\d.]+) samples/s \((\d+)%\)", text):
        base = min(rates)
        assert len(rates) > 1, text
        assert float(rate) == pytest.approx(rates[int(ranks)], rel=1e-3), text
        efficiency = rates[int(ranks)] / rates[base] / (int(ranks) / base)
        assert float(percent) == pytest.approx(100 * efficiency, abs=0.51), text


def ranking(size: Size) -> list[str]:
    return sorted(WORDS.values(), key=lambda part: -size.parts[part])


def communication_is_what_it_is(one: Case) -> None:
    size = one.judged
    for line in one.verdict.sentences:
        if "waits for communication during" not in line:
            continue
        shares = [float(x) for x in re.findall(r"([\d.]+)%", line)]
        exposed = pytest.approx(size.percent("communication"), abs=TENTH)
        assert shares[0] == shares[-1] == exposed, line
        assert len(shares) == (4 if size.split_known else 2), line
        if size.split_known:
            expected = [size.percent("wait"), size.percent("wire")]
            assert shares[1:3] == pytest.approx(expected, abs=TENTH), line


def nothing_is_compared_without_a_baseline(one: Case) -> None:
    rates = {size.ranks: size.world.samples_per_s for size in one.sizes}
    base = min(rates)
    for found in one.result.scaling:
        if len(rates) == 1 or math.isnan(rates[base]) or math.isnan(rates[found.world_size]):
            assert math.isnan(found.speedup)
            assert math.isnan(found.efficiency)
        else:
            assert found.speedup == pytest.approx(rates[found.world_size] / rates[base])
    if len(rates) == 1:
        assert math.isnan(one.paid.rows[0].cost_efficiency)
        every = " ".join(line for line in one.said if "no usable trace" not in line).lower()
        for word in ("throughput", "speed-up", "efficien", "ideal", "cheapest", "fastest"):
            assert word not in every, every
    for line in one.said:
        if match := re.match(r"Efficiency at (\d+) ranks is ([\d.]+)%", line):
            ranks = int(match[1])
            expected = 100 * rates[ranks] / rates[base] / (ranks / base)
            assert float(match[2]) == pytest.approx(expected, abs=TENTH), line
            assert expected > 100, line


def growth_is_what_it_is(one: Case) -> None:
    base = min(one.sizes, key=lambda size: size.ranks)
    size = one.judged
    for line in one.verdict.sentences:
        match = re.match(r"From (\d+) to (\d+) ranks the throughput grew ([\d.]+) times", line)
        if match is None:
            continue
        assert (int(match[1]), int(match[2])) == (base.ranks, size.ranks), line
        grown = size.world.samples_per_s / base.world.samples_per_s
        assert float(match[3]) == pytest.approx(grown, abs=0.0051), line
        ideal = 1 if one.result.context["scaling"] == "weak" else base.ranks / size.ranks
        total = size.step_ms - ideal * base.step_ms
        listed = re.findall(r"([+-][\d.e+-]+) ms ([a-z ]+)", line)
        assert bool(listed) == (total >= 0.03 * ideal * base.step_ms), line
        for ms, word in listed:
            part = LONGER[word]
            true = size.parts[part] - ideal * base.parts[part]
            assert float(ms) == pytest.approx(true, rel=0.006), line
        if listed:  # what is not listed is less than 3 % each
            values = [float(ms) for ms, _ in listed]
            rounding = 0.006 * sum(map(abs, values))
            assert sum(values) == pytest.approx(total, abs=7 * 0.03 * total + rounding), line


def cores_are_spoken_of_by_run_delay(one: Case) -> None:
    shares = {size.ranks: no_core(size) for size in one.sizes}
    judged = shares[one.judged.ranks]
    for line in one.said:
        assert "share cores" not in line, line
        if "First give every rank a core" in line or "Ranks waited for CPU cores" in line:
            assert judged >= 0.1, line
        if "what else runs on the ranks' cores" in line:
            assert judged >= 0.1, line
            assert one.judged.ranks <= one.cores, line
        if "this run did not measure" in line:
            assert math.isnan(judged), line
        if match := re.search(r"At (\d+) ranks? the training thread was ready .* for (\d+)%", line):
            expected = 100 * shares[int(match[1])]
            assert float(match[2]) == pytest.approx(expected, abs=0.51), line
        if match := re.search(r"(\d+\.?\d*)% of the exposed time was spent ready", line):
            assert float(match[1]) == pytest.approx(100 * judged, abs=0.51), line
    larger = [size.ranks for size in one.sizes if size.ranks > one.judged.ranks]
    assert any("run more threads than" in x for x in one.verdict.sentences) == bool(larger)


def no_core(size: Size) -> float:
    parts = size.world.parts
    return parts.no_core_ms / parts.exposed_ms if parts.exposed_ms > 0 else math.nan


def advice_follows_from_the_figures(one: Case) -> None:
    size, advice = one.judged, one.verdict.next_step
    exposed = size.percent("communication")
    of_step = size.world.parts.no_core_ms / size.world.parts.step_ms
    if match := re.search(rf"First look at ({PART}): it takes (\d+)% of the step", advice.advice):
        assert WORDS[match[1]] == ranking(size)[0] != "compute", advice
        assert float(match[2]) == pytest.approx(size.percent(WORDS[match[1]]), abs=0.51), advice
        assert float(match[2]) >= 1.98 * exposed, advice
    if match := re.search(rf"not the bottleneck .* First look at ({PART})\.", advice.advice):
        assert exposed < 10, advice
        own = [part for part in ranking(size) if part != "communication"]
        assert WORDS[match[1]] == own[0], advice
        assert not one.verdict.headline.startswith(
            f"At {size.ranks} ranks the step is bound by comm"
        )
    if advice.command:
        assert exposed >= 10, advice
        small = "First try larger buckets" in advice.advice
        assert small or not (no_core(size) >= 0.1 and of_step >= 0.02), advice
        assert f"--nproc {size.ranks} " in advice.command
        larger = "try larger buckets" in " ".join(card_text.render(one.card).split())
        splits = any(row.size_bytes[1] > 5 * 2**20 for row in size.world.collectives)
        caps = re.findall(r"bucket-cap=(\d+)", advice.command)
        serial = ["1"] if "First try smaller buckets" in advice.advice else []
        assert caps == (["25"] if larger else ["5"] if splits else serial), advice
        assert larger == ("First try larger buckets" in advice.advice), advice
    assert size.ranks > 1 or not (advice.advice or advice.command)


def exchange_is_what_it_is(one: Case) -> None:
    """What the headline says of the exchange, where no rank is late."""
    size, headline = one.judged, one.verdict.headline
    if match := re.search(r"(?:Only (\d+)%|None) of the communication overlaps", headline):
        wire, hidden, backward = (size.parts[name] for name in ("wire", "hidden", "backward"))
        said = float(match[1] or 0)
        assert said == pytest.approx(100 * hidden / (wire + hidden), abs=0.51), headline
        assert size.percent("wire") >= 10, headline
        assert size.parts["wire"] >= size.parts["wait"], headline
        assert hidden < 0.2 * min(backward, wire + hidden), headline
    if match := re.search(r"Communication is cut into (\d+) small calls", headline):
        assert int(match[1]) == round(size.world.collectives[1].calls_per_step), headline
        assert size.percent("communication") >= 10, headline
    late = size.world.late_rank
    own = r"Rank (\d+) (?:falls behind|is late).*: the other ranks spend (\d+)%"
    if match := re.search(own, headline):
        assert late is not None, headline
        assert int(match[1]) == late.rank, headline
        percent = 100 * late.wait_ns / 1e6 / size.step_ms
        assert float(match[2]) == pytest.approx(percent, abs=0.51), headline
    assert (late is None) == (re.search(r"[rR]ank \d", headline) is None), headline


def late_ranks_are_told_alike(one: Case) -> None:
    """The headline names the rank that the advice is about, sentences no phase without a remark."""
    cost = r"(the other ranks spend \d+% of their step waiting for it)"
    says = rf"ank (\d+) delays the step: (?:it falls behind .*, and )?{cost}"
    held_up = re.search(says, one.verdict.headline)
    advice = one.verdict.next_step.advice
    assert bool(held_up) == bool(re.search(cost, advice)), (one.verdict.headline, advice)
    if held_up is not None:
        assert held_up[2] in advice
        assert one.judged.world.late_rank is not None
        assert int(held_up[1]) == one.judged.world.late_rank.rank
    text = " ".join((*one.verdict.sentences, one.verdict.next_step.advice))
    found = one.judged.world.late_rank
    if found is None:
        assert "delays rank" not in text
        assert "wait for rank" not in text
    else:
        assert "No single rank stands out" not in text
        assert f"wait for rank {found.rank}" in text
    where = f"is late at {one.judged.ranks} ranks"
    remark = next((x for x in one.result.remarks if where in x), "")
    assert bool(remark) == (found is not None)
    if "is not known" in remark or "spread over several phases" in remark:
        assert "falls behind" not in text
        assert "phase" not in text
    if match := re.search(r"which falls behind (in the \w+ phase|outside|because)", text):
        assert f"fell behind {match[1]}" in remark
    if "No single rank stands out" in text:
        parts = one.judged.world.parts
        assert not math.isnan(parts.wait_ms)
        assert not one.judged.world.missing_ranks
        assert parts.unsplit_ms <= 0.1 * parts.exposed_ms


def what_is_left_out_is_told(one: Case) -> None:
    stalled = any("more than ten times" in x for x in one.verdict.sentences)
    assert stalled == (one.judged.stalled is not None)
    for size in one.sizes:
        name = f"At {size.ranks} rank{'' if size.ranks == 1 else 's'} "
        about = [x for x in one.result.remarks if x.startswith(name)]
        failed = size.world.collectives[0].failed
        assert any(f" {failed} collective call" in x for x in about) == (failed > 0)
        assert any("no usable trace" in x for x in about) == bool(size.world.missing_ranks)
        lost = any("samples/s, speed-up and efficiency are not known" in x for x in about)
        assert lost == math.isnan(size.world.samples_per_s)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_sentence_contradicts_a_figure(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5_000, 500))
def test_no_sentence_contradicts_a_figure_in_four_thousand_more_results(first: int) -> None:
    for seed in range(first, first + 500):
        check(seed)
