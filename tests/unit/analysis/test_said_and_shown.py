from __future__ import annotations

import math
import re

import pytest

from commprof.report import card as card_text
from tests.support.builders.random_results import Case, Size, case

WORDS = {
    "compute (forward and backward)": "compute",
    "communication": "communication",
    "loading data": "data",
    "the optimizer": "optimizer",
    "code outside forward, backward and optimizer": "other",
}
SPLIT = {
    "data transfer": "transfer",
    "waiting for the last rank": "wait",
    "not attributed": "unsplit",
}
LONGER = {**{name: name for name in (*WORDS.values(), "other")}, "waiting": "wait"}
LONGER |= {"data transfer": "transfer", "communication not attributed": "unsplit"}
PART = "|".join(map(re.escape, WORDS))
CARD_PARTS = {"d": "data", "f": "forward", "b": "backward", "W": "wait", "T": "transfer"}
CARD_PARTS |= {"X": "exposed", "o": "optimizer", ".": "other"}
#: A percentage with one decimal may be off by 0.05 from rounding, plus 0.001 from arithmetic.
TENTH = 0.051


def check(seed: int) -> None:
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
        if part in ("wait", "transfer") and not size.split_known:
            ms = 0.0
        percent = 100 * ms / size.step_ms
        assert bar.count(letter) == pytest.approx(0.8 * percent, abs=1.01), text
        shown = re.findall(
            rf"(?m)(?:^|   ){re.escape(letter)} [a-z, ]+ [\d.e+-]+ ms ([\d.]+)%", text
        )
        assert [float(x) for x in shown] == pytest.approx([percent] * len(shown), abs=TENTH), text
        assert bool(shown) or percent < TENTH, text
    exposed = size.percent("communication")
    found = re.findall(r"(?:communication: [^,]+, |saves at most )([\d.]+)% of the step", text)
    expected = [exposed] * (2 if exposed > 0 and size.ranks > 1 else 0)
    assert [float(x) for x in found] == pytest.approx(expected, abs=TENTH), text
    assert ("not separated" in text) == (bool(found) and not size.split_known), text
    late = size.world.lateness.late_rank
    assert (late is not None) == (re.search(r"Waited for: +rank \d", text) is not None), text
    if late is not None:
        assert f"rank {late.rank}" in text, text
    assert "no single rank stands out" not in text or late is None, text
    rates = {each.ranks: each.world.training.samples_per_s for each in one.sizes}
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
            expected = [size.percent("wait"), size.percent("transfer")]
            assert shares[1:3] == pytest.approx(expected, abs=TENTH), line


def nothing_is_compared_without_a_baseline(one: Case) -> None:
    rates = {size.ranks: size.world.training.samples_per_s for size in one.sizes}
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
        growth = r"From (\d+) to (\d+) ranks the throughput grew by a factor of ([\d.]+),"
        match = re.match(growth, line)
        if match is None:
            continue
        assert (int(match[1]), int(match[2])) == (base.ranks, size.ranks), line
        grown = size.world.training.samples_per_s / base.world.training.samples_per_s
        assert float(match[3]) == pytest.approx(grown, abs=0.0051), line
        ideal = 1 if one.result.context["scaling"] == "weak" else base.ranks / size.ranks
        total = size.step_ms - ideal * base.step_ms
        listed = re.findall(r"([+-][\d.e+-]+) ms ([a-z ]+)", line)
        assert bool(listed) == (total >= 0.03 * ideal * base.step_ms), line
        for ms, word in listed:
            part = LONGER[word]
            true = size.parts[part] - ideal * base.parts[part]
            assert float(ms) == pytest.approx(true, rel=0.006), line
        # Parts that are not listed are below 3 % each.
        if listed:
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
        if match := re.search(r"At (\d+) ranks? the training thread had no core for (\d+)%", line):
            expected = 100 * shares[int(match[1])]
            assert float(match[2]) == pytest.approx(expected, abs=0.51), line
        if match := re.search(r"(\d+\.?\d*)% of the exposed time, \w+ were ready", line):
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
        splits = any(
            row.kind.size_bytes[1] > 5 * 2**20 for row in size.world.communication.collectives
        )
        caps = re.findall(r"bucket-cap=(\d+)", advice.command)
        serial = ["1"] if "First try smaller buckets" in advice.advice else []
        assert caps == (["25"] if larger else ["5"] if splits else serial), advice
        assert larger == ("First try larger buckets" in advice.advice), advice
    assert size.ranks > 1 or not (advice.advice or advice.command)


def exchange_is_what_it_is(one: Case) -> None:
    size, headline = one.judged, one.verdict.headline
    if match := re.search(r"(?:Only (\d+)%|None) of the transfer time overlaps", headline):
        transfer, hidden, backward = (
            size.parts[name] for name in ("transfer", "hidden", "backward")
        )
        said = float(match[1] or 0)
        assert said == pytest.approx(100 * hidden / (transfer + hidden), abs=0.51), headline
        assert size.percent("transfer") >= 10, headline
        assert size.parts["transfer"] >= size.parts["wait"], headline
        assert hidden < 0.2 * min(backward, transfer + hidden), headline
    if match := re.search(r"Communication is cut into (\d+) small calls", headline):
        assert int(match[1]) == round(size.world.communication.collectives[1].calls_per_step), (
            headline
        )
        assert size.percent("communication") >= 10, headline
    late = size.world.lateness.late_rank
    own = r"Rank (\d+) (?:falls behind|is late).*: the other ranks spend (\d+)%"
    if match := re.search(own, headline):
        assert late is not None, headline
        assert int(match[1]) == late.rank, headline
        percent = 100 * late.wait_ns / 1e6 / size.step_ms
        assert float(match[2]) == pytest.approx(percent, abs=0.51), headline
    assert (late is None) == (re.search(r"[rR]ank \d", headline) is None), headline


def late_ranks_are_told_alike(one: Case) -> None:
    cost = r"(the other ranks spend \d+% of their step waiting for it)"
    says = rf"ank (\d+) delays the step: (?:it falls behind .*, and )?{cost}"
    held_up = re.search(says, one.verdict.headline)
    advice = one.verdict.next_step.advice
    assert bool(held_up) == bool(re.search(cost, advice)), (one.verdict.headline, advice)
    if held_up is not None:
        assert held_up[2] in advice
        assert one.judged.world.lateness.late_rank is not None
        assert int(held_up[1]) == one.judged.world.lateness.late_rank.rank
    text = " ".join((*one.verdict.sentences, one.verdict.next_step.advice))
    found = one.judged.world.lateness.late_rank
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
        assert not one.judged.world.recording.missing_ranks
        assert parts.unsplit_ms <= 0.1 * parts.exposed_ms


def what_is_left_out_is_told(one: Case) -> None:
    stalled = any("more than ten times" in x for x in one.verdict.sentences)
    assert stalled == (one.judged.stalled is not None)
    for size in one.sizes:
        name = f"At {size.ranks} rank{'' if size.ranks == 1 else 's'}"
        about = [x for x in one.result.remarks if x.startswith((f"{name} ", f"{name}, "))]
        failed = size.world.communication.collectives[0].failed
        assert any(f" {failed} collective call" in x for x in about) == (failed > 0)
        assert any("no usable trace" in x for x in about) == bool(
            size.world.recording.missing_ranks
        )
        lost = any("samples/s, speed-up and efficiency are not known" in x for x in about)
        assert lost == math.isnan(size.world.training.samples_per_s)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_sentence_of_a_random_report_contradicts_its_figures(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5_000, 500))
def test_no_sentence_of_4000_more_random_reports_contradicts_its_figures(first: int) -> None:
    for seed in range(first, first + 500):
        check(seed)
