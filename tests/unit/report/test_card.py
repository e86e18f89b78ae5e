from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.card import Card, card
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.named_cause import NamedCause
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import scale
from commprof.analysis.verdict import verdict
from commprof.commands import main
from commprof.commands.showing.opened_run import OpenedRun
from commprof.commands.showing.rendered_report import shown as shown_report
from commprof.report.card import render
from tests.support.builders.results import (
    collective,
    context,
    detail,
    incidents,
    parts,
    run_result,
    with_fields,
    world,
)
from tests.support.builders.run_directories import ranks_of, write_run, write_strategies


def card_of(
    about: dict[str, Any] | None = None,
    sizes: tuple[int, ...] = (1, 4),
    late: LateRank | None = None,
    collectives: tuple[Any, ...] = (),
    links: HostLinks | None = None,
    **ms: float,
) -> Card:
    exposed = ms.get("wait", 0.0) + ms.get("transfer", 0.0)
    times = {f"{name}_ms": value for name, value in {"wait": 0.0, "transfer": 0.0, **ms}.items()}
    own = parts(exposed_ms=exposed, no_core_ms=0.0, **times)
    worlds = [world(n, parts=own) for n in sizes]
    worlds[-1] = with_fields(worlds[-1], late_rank=late, collectives=collectives, host_links=links)
    details = [detail(n, **{k: v for k, v in ms.items() if n > 1 or k != "wait"}) for n in sizes]
    run_context = {"workload": "timed", "nodes": 1, **(about or {})}
    found_context = context(**run_context)
    found = run_result(
        *worlds,
        context=found_context,
        remarks=remarks(found_context, worlds, scale(worlds), None),
    )
    made = card(found, details, verdict(found, details), Path("RUN"))
    assert made is not None
    return made


@dataclass(frozen=True)
class Kind:
    card: Card
    says: tuple[str, ...]
    never: tuple[str, ...]


@pytest.mark.parametrize(
    ("about", "first_line"),
    [
        ({}, "timed: a workload. [gloo, torch 2.13.0+cpu]"),
        ({"torch": "unknown", "backend": "nccl"}, "timed: a workload. [nccl]"),
        ({"torch": "", "backend": ""}, "timed: a workload."),
        (
            {"description": "Recorded by commprof: " + "train.py --some-option 1 " * 9},
            "Recorded by commprof: train.py --some-option 1 ... [gloo, torch 2.13.0+cpu]",
        ),
    ],
)
def test_the_first_line_names_backend_and_torch(about: dict[str, Any], first_line: str) -> None:
    assert render(card_of(about, forward=60, backward=40)).splitlines()[0] == first_line


LATE = LateRank(2, 30e6, 0.95, 0.0005, 10, 10, 0.9, "backward", 0.9)
SLOW = HostLinks(2, ("eth1",), 6e6, 0.1, 0.08, 2e8, 2e8, "", 0.007)
LARGE = collective(size_bytes=(4, 25_000_000))
TINY = collective(size_bytes=(8, 4096), calls=6400, calls_per_step=160, total_bytes=6400 * 2048)
ACCUSED = ("rank 2", "Small messages", "loading data", "bound by communication")
KINDS = {
    "compute-bound": Kind(
        card_of(forward=30, backward=60, optimizer=4, transfer=4),
        ("bound by compute (forward and backward): 90.0%", "Communication is not the bottleneck"),
        ACCUSED,
    ),
    "transfer-bound": Kind(
        card_of(forward=15, backward=25, transfer=52, wait=3, collectives=(LARGE,)),
        ("bound by communication: 55.0%", "(52.0% data transfer", "bucket-cap=5", "no single rank"),
        ("rank 2", "Small messages", "loading data", "larger buckets"),
    ),
    "one late rank": Kind(
        card_of(forward=25, backward=38, wait=30, transfer=4, late=LATE),
        (
            "At 4 ranks, rank 2 delays the step: it falls behind in the backward phase, and ",
            "and the other ranks spend 30% of their step waiting for it. The",
            "its largest part is compute (forward and backward): 63.0%.",
            "rank 2 falls behind in the backward phase: 30 ms",
            "First find out what delays rank 2",
        ),
        ("bound by", "no single rank", "Small messages", "loading data", "--trial"),
    ),
    "slow data loading": Kind(
        card_of(data=60, forward=10, backward=20, transfer=5),
        ("bound by loading data: 60.0%", "First look at loading data"),
        ("rank 2", "Small messages", "bound by communication"),
    ),
    "tiny buckets": Kind(
        card_of(
            forward=15,
            backward=25,
            transfer=52,
            wait=3,
            collectives=(with_fields(TINY, exposed_ms=50.0),),
        ),
        (
            "bound by communication: 55.0%",
            "Communication is cut into 160 small calls per step.",
            "160 calls per step, 2.05 kB on average:",
            "try larger buckets",
            "cap=25",
        ),
        ("rank 2", "loading data", "bucket-cap=5"),
    ),
    "no overlap": Kind(
        card_of(forward=15, backward=45, transfer=40, hidden=1, collectives=(LARGE,)),
        (
            "Only 2% of the transfer time overlaps the ranks' work.",
            "40 ms, 40.0% of the step; hidden by work: 1 ms",
            "First try smaller buckets, which can be sent sooner.",
            "bucket-cap=5",
        ),
        ("rank 2", "Small messages", "larger buckets"),
    ),
    "slow link": Kind(
        card_of(forward=10, backward=20, transfer=70, hidden=15, links=SLOW),
        (
            "Communication between the hosts goes over eth1 at 0.1 Gbit/s.",
            "6 MB per step and host over eth1, 0.1 Gbit/s while sending",
            "The link between the hosts is slow for the data of a step: eth1 at 0.1 Gbit/s.",
        ),
        ("rank 2", "Small messages", "idle", "overlaps"),
    ),
    "wrong interface": Kind(
        card_of(
            forward=10, backward=20, transfer=70, hidden=15, links=replace(SLOW, idle=("eth0",))
        ),
        (
            "Communication between the hosts goes over eth1 at 0.1 Gbit/s, while eth0 is idle.",
            "The hosts communicate over eth1, while eth0 is idle and not rated slower.",
        ),
        ("rank 2", "Small messages", "overlaps", "--trial"),
    ),
    "a little late": Kind(
        card_of(forward=30, backward=60, wait=6, late=replace(LATE, wait_ns=6e6)),
        (
            "bound by compute (forward and backward): 90.0%",
            "Rank 2 falls behind in the backward phase: the other ranks spend 6% of their step "
            "waiting for it.",
        ),
        ("delays", "Small messages"),
    ),
    "nothing wrong": Kind(
        card_of(data=1, forward=30, backward=60, optimizer=5, transfer=2, wait=0.5),
        (
            "no single rank stands out",
            "4 ranks 400 samples/s (100%)",
            "saves at most 2.5% of the step",
        ),
        (*ACCUSED, "!"),
    ),
}


def fits(text: str) -> None:
    lines = text.splitlines()
    assert len(lines) <= 24, text
    assert max(map(len, lines)) <= 80, text


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_card_names_the_cause_on_one_screen(kind: Kind) -> None:
    text = render(kind.card)
    fits(text)
    assert text.isascii(), text
    flat = " ".join(text.split())
    for words in kind.says:
        assert words in flat, text
    for words in kind.never:
        assert words not in flat, text


def test_a_terminal_gets_the_same_card_in_colours() -> None:
    shown = KINDS["transfer-bound"].card
    coloured = render(shown, colour=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render(shown)
    assert "\x1b[30;45m" + "T" * 41 in coloured


def test_the_bar_s_letters_are_proportional_to_the_shares() -> None:
    shown = card_of(data=10, forward=20, backward=30, wait=5, transfer=15, optimizer=10)
    bar = next(line for line in render(shown).splitlines() if line.startswith("ddd"))
    counts = {letter: bar.count(letter) for letter in "dfbWTo."}
    assert counts == {"d": 8, "f": 16, "b": 24, "W": 4, "T": 12, "o": 8, ".": 8}


def test_a_card_of_a_single_world_size_shows_no_speedup() -> None:
    text = render(card_of(sizes=(4,), transfer=50, backward=50)).lower()
    assert "400 samples/s at 4 ranks; there is no other world size" in text
    assert not re.search(r"speed-up|efficien|\(100%\)", text)


def test_a_single_rank_s_exposed_communication_is_shown_on_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(write_run(tmp_path / "r", ranks_of(1, 12)))]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "T transfer 20 ms 19.7%" in text
    assert "Exposed communication: 20 ms, 19.7% of the step" in text
    assert "Exposed communication: none." in " ".join(
        render(card_of(sizes=(1,), backward=90)).split()
    )


def test_large_figures_on_a_card_are_written_without_an_exponent() -> None:
    shown = KINDS["slow link"].card
    fast = tuple(replace(size, samples_per_s=12_345.6) for size in shown.scaling)
    assert shown.link is not None
    large = replace(shown, scaling=fast, link=replace(shown.link, step_bytes=1.2346e9))
    text = render(large)
    assert "4 ranks 12346 samples/s" in " ".join(text.split())
    assert "1235 MB per step and host" in " ".join(text.split())


def test_a_card_of_many_caveats_and_a_long_command_fits() -> None:
    shown = KINDS["one late rank"].card
    long = replace(
        shown,
        description="a model " * 40,
        caveats=tuple(f"Caveat {i}: " + "words " * 30 for i in range(20)),
        following=replace(
            shown.following,
            advice="One more word of advice. " * 30,
            command="commprof run --nproc 4 " + "--trial 'a b c' " * 40,
        ),
        scaling=tuple(replace(shown.scaling[0], world_size=2**i) for i in range(12)),
        small_calls=KINDS["tiny buckets"].card.small_calls,
    )
    text = render(long)
    fits(text)
    assert "more caveats: see --all" in text
    assert "One more word of advice. (more with --all)\n" in text
    assert text.endswith(f"  {shown.following.all_command}\n")


def with_command(shown: Card, command: str) -> Card:
    return replace(shown, following=replace(shown.following, command=command))


def words_in_a_shell(text: str, lines: int = 0) -> list[str]:
    typed = text[text.index("  commprof run") :]
    assert not lines or typed.count("\\\n") == lines - 1
    return subprocess.run(
        ["bash", "-c", typed.replace("commprof", "printf '%s\\n'", 1)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def test_a_command_wrapped_over_several_lines_is_unchanged_for_a_shell() -> None:
    command = "commprof run --nproc 4 --trial fp16,int8 'my train.py' --name 'it'\"'\"'s' " + (
        "--an-option with-a-value " * 3
    )
    text = render(with_command(KINDS["transfer-bound"].card, command))
    fits(text)
    assert words_in_a_shell(text, lines=2) == shlex.split(command)[1:]


def test_a_wrapped_command_with_a_long_word_is_unchanged_for_a_shell() -> None:
    word = "timed:layers=200,data_ms=1,forward_ms=0.05,backward_ms=0.05,gradient_mb=0.02,cap=0.001"
    command = f"commprof run --nproc 2 --workload {word} --seed 3 train.py"
    text = render(with_command(KINDS["transfer-bound"].card, command))
    fits(text)
    assert words_in_a_shell(text) == shlex.split(command)[1:]


def test_caveats_name_too_few_cores_only_where_ranks_may_have_waited_for_them() -> None:
    crowded = {"machine": {"usable_cpu_count": 2, "cpu_model": "x"}}
    sending = card_of(crowded, sizes=(1, 4), transfer=40, backward=50)
    said = "More threads than cores: gloo's threads may have waited for cores."
    assert [each for each in sending.caveats if "core" in each] == [said]
    on_device = card_of({**crowded, "backend": "nccl"}, sizes=(1, 4), transfer=40, backward=50)
    assert "core" not in " ".join(on_device.caveats)
    judged = render(card_of(crowded, sizes=(1, 2, 4), transfer=40, backward=50))
    assert "At 2 ranks" in judged
    healthy = render(card_of(crowded, sizes=(4,), transfer=4, backward=90))
    said = "! More threads than cores: ranks may have waited for cores while they computed."
    assert said in " ".join(healthy.split())
    assert "! Runs of 4 ranks are not judged: they need more than the 2 usable cores." in judged


def test_the_card_leaves_out_a_stalled_step() -> None:
    steps = np.full(20, 100.0)
    steps[7] = 9000.0
    worlds = [world(2, stalled_steps=((7, 9000.0),), parts=parts(wait_ms=450, exposed_ms=460))]
    details = [detail(2, step=steps, backward=80, wait=steps - 90)]
    found = run_result(*worlds)
    made = card(found, details, verdict(found, details), Path("RUN"))
    assert made is not None
    assert made.steps == 19
    assert made.communication.exposed_ms == pytest.approx(10.0)
    text = render(made)
    assert "bound by compute" in text
    assert "! Left out of the verdict: stalled step 7 (9 s)." in text


def test_incidents_come_before_any_advice_on_the_card() -> None:
    found = run_result(world(2), incidents=(incidents(world_size=2),))
    details = [detail(2, backward=50, transfer=50)]
    made = card(found, details, verdict(found, details), Path("RUN"))
    assert made is not None
    assert made.following.command == made.following.all_command
    text = render(made)
    said = " ".join(text.split())
    assert " The job hung. Collective 3 of group '0' is not the same on all ranks: rank 1 " in said
    assert "! Rank 1's own work rose from 20 to 30 ms (+50%) at step 120" in text
    assert "Next: Make all ranks of the group issue the same calls in the same order:" in text


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ("hangs", "The job hung: "),
        ("mismatches", "Collective 3 of group '0' is not the same on all ranks"),
        ("last_wait", "The job hung: ranks 0, 2 had waited for rank 1"),
    ],
)
def test_a_hang_or_mismatch_alone_is_the_first_sentence_of_the_card(kept: str, words: str) -> None:
    empty: dict[str, Any] = dict.fromkeys(("hangs", "mismatches", "anomalies", "events"), ())
    empty["last_wait"] = None
    empty.pop(kept)
    found = run_result(world(2), incidents=(incidents(world_size=2, **empty),))
    details = [detail(2, backward=50, transfer=50)]
    made = card(found, details, verdict(found, details), Path("RUN"))
    assert made is not None
    assert made.incident.startswith(words)
    assert render(made).splitlines()[1].startswith(words[:40])


WRONG = NamedCause(
    id="ddp-wrong-pass",
    title="The wrong micro batch is exchanged",
    sentence="DDP exchanges the first of four micro batches, so that the weights drift apart.",
    line="",
    fix="last = i == 3",
    share=math.nan,
    saving=None,
    source="",
    is_wrong=True,
)


def test_a_mistake_that_makes_the_result_wrong_is_the_first_sentence() -> None:
    details = [detail(2, backward=50, transfer=50)]
    for named, is_first in ((WRONG, True), (replace(WRONG, is_wrong=False), False)):
        figures = run_result(world(2, named_causes=(named,)))
        made = card(figures, details, verdict(figures, details), Path("RUN"))
        assert made is not None
        text = " ".join(render(made).split())
        assert text.count(named.sentence) == 1
        first = f"torch 2.13.0+cpu] Training gives a wrong result. {named.sentence}"
        assert (first in text) == is_first
        assert "Fix: last = i == 3" in text


def test_a_named_cause_is_not_preceded_by_whom_nobody_is_sure_to_wait_for() -> None:
    details = [detail(2, backward=50, transfer=50)]
    figures = run_result(world(2, named_causes=(replace(WRONG, is_wrong=False),)))
    made = card(figures, details, verdict(figures, details), Path("RUN"))
    assert made is not None
    unknown = replace(made.lateness, late=None, nobody_late=False, nobody_late_lacks="why")
    assert "Waited for" not in render(replace(made, lateness=unknown))
    alone = replace(made, lateness=unknown, following=replace(made.following, cause=""))
    assert "Waited for:            not known: why" in render(alone)


@pytest.mark.parametrize(("cause", "is_named"), [("late-loading", True), ("ddp-buffers", False)])
def test_the_reason_of_a_late_rank_is_named_though_it_wins_a_little_less(
    cause: str, is_named: bool
) -> None:
    named = replace(WRONG, id=cause, is_wrong=False, share=0.29)
    worlds = (world(4, late_rank=LATE, named_causes=(named,)),)
    details = [detail(4, forward=25, backward=38, wait=30, transfer=4, other=3)]
    figures = run_result(*worlds)
    made = card(figures, details, verdict(figures, details), Path("RUN"))
    assert made is not None
    assert (made.following.cause == cause) == is_named


def test_a_change_of_speed_does_not_hide_a_cause() -> None:
    empty: dict[str, Any] = dict.fromkeys(("hangs", "mismatches", "events"), ())
    changed = incidents(world_size=2, **empty, last_wait=None)
    details = [detail(2, backward=50, transfer=50)]
    named = replace(WRONG, is_wrong=False)
    figures = run_result(world(2, named_causes=(named,)), incidents=(changed,))
    made = card(figures, details, verdict(figures, details), Path("RUN"))
    assert made is not None
    text = render(made)
    assert "Fix:\n  last = i == 3" in text
    assert "! Rank 1's own work rose from 20 to 30 ms (+50%) at step 120" in text


def test_a_change_of_speed_alone_is_a_caveat_of_the_card() -> None:
    empty: dict[str, Any] = dict.fromkeys(("hangs", "mismatches", "events"), ())
    empty["last_wait"] = None
    found = run_result(world(2), incidents=(incidents(world_size=2, **empty),))
    details = [detail(2, backward=50, transfer=50)]
    made = card(found, details, verdict(found, details), Path("RUN"))
    assert made is not None
    assert made.incident == ""
    assert "Next: First see what went wrong during the run:" in render(made)


def test_report_shows_the_card_of_a_recorded_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(Path("my run"), ranks_of(1, 20), ranks_of(4, 20, late_ms=15))
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    fits(text)
    assert "rank 3 falls behind in the backward phase" in " ".join(text.split())
    typed = shlex.split(text.splitlines()[-1])
    assert main(typed[typed.index("report") :]) == 0
    assert (run / "report.html").is_file()
    capsys.readouterr()
    assert main(["report", str(run), "--all"]) == 0
    everything = capsys.readouterr().out
    assert everything.startswith(text)
    assert "Caveats:" in everything or "Collectives" in everything
    assert main(["report", str(run), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["card"]["late"]["rank"] == 3
    assert document["card"]["verdict"] == document["verdict"]["headline"]


def test_each_strategy_has_a_card_in_json_and_all_share_one_screen(tmp_path: Path) -> None:
    shown = shown_report(OpenedRun(write_strategies(tmp_path / "r")))
    text = shown.card()
    fits(text)
    assert "ddp: At 2 ranks" in text
    assert text.endswith("--all\n")
    document = json.loads(shown.json())
    assert [each["card"]["world_size"] for each in document["results"]] == [2, 2]
