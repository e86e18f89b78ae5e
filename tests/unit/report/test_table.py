from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tabulate

from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.collectives.kinds import Spread
from commprof.analysis.late.costs import WaitCost
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import RunResult, scale
from commprof.analysis.step.overhead import Overhead, OwnCost
from commprof.analysis.strategies import strategy_rows
from commprof.analysis.summary_result import LastRow
from commprof.analysis.verdict import verdict
from commprof.analysis.world import WorldResult
from commprof.commands.options.terminal import prose_width, table_width
from commprof.report import markdown, table
from commprof.report import strategies as strategies_table
from commprof.report.full_report import FullReport
from commprof.report.sections import collectives as collectives_table
from commprof.report.sections.always_on import last_ranks
from commprof.report.sections.caveats import caveats
from commprof.report.sections.collectives import collectives_grid
from commprof.report.sections.scaling import scaling_grid
from commprof.report.table import render
from commprof.report.tabulated import tabulated
from commprof.stats.intervals import Interval
from commprof.text import printable, rank_list
from commprof.tune import report as trial_table
from tests.support.analysed import analyse_run
from tests.support.builders.results import (
    OVERHEAD,
    collective,
    compression,
    context,
    detail,
    parts,
    run_result,
    summary,
    world,
)
from tests.support.section_text import table_text, tables_text
from tests.unit.analysis import test_strategies, test_summaries
from tests.unit.report import test_table
from tests.unit.tune.trials import test_trial_report

GOLDEN = Path(__file__).parents[2] / "golden" / "run_table.txt"


UNKNOWN = Spread(math.nan, math.nan)
KINDS = (
    collective(
        group_size=4,
        group_ranks=(0, 1, 2, 3),
        callers=(("/home/me/train.py:12 train", 19), ("/home/me/train.py:7 warm_up", 1)),
        phases=(("backward", 19), ("other", 1)),
    ),
    collective(
        op="all_gather_into_tensor",
        reduce_op="",
        dtype="BFloat16",
        size_bytes=(1_000, 2_000_000),
        calls_per_step=12.0,
        phases=(("forward", 240),),
        calls=240,
        queue=UNKNOWN,
        wait=UNKNOWN,
        transfer=UNKNOWN,
        exposed_ms=0.0004,
        algbw_gb_per_s=math.nan,
        busbw_gb_per_s=math.nan,
    ),
    collective(
        op="barrier",
        group="3",
        group_description="mesh_tp",
        dtype="",
        reduce_op="",
        size_bytes=(0, 0),
        phases=(("other", 20),),
        exposed_ms=0.0,
        duration=Spread(1234.5, 2345.6),
        algbw_gb_per_s=math.nan,
        busbw_gb_per_s=math.nan,
    ),
)


def golden_run() -> RunResult:
    worlds = (
        world(1, parts=parts(exposed_ms=0.12, wait_ms=0.0, transfer_ms=0.12, hidden_ms=0.0)),
        world(
            2,
            samples_per_s=1234.5,
            overhead=None,
            imbalance=0.0514,
            cross_checks=(
                CrossCheck("a", "step against the sum of its parts", "ms", 100, 100, True, ""),
                CrossCheck("b", "bytes sent by lo, 1 host", "MB", 25, 26, None, "counts headers"),
                CrossCheck("c", "backward by DDP's log", "ms", math.nan, math.nan, None, "no log"),
            ),
        ),
        world(
            4,
            samples_per_s=99.96,
            parts=parts(wait_ms=math.nan, transfer_ms=math.nan, step_ms=1234.5),
            overhead=Overhead(
                None, OwnCost(Interval(0.9, 0.8, 1.2), Interval(1.0, 0.9, 1.1), 8, 8)
            ),
            average_loss=math.nan,
            missing_ranks=(3,),
            collectives=KINDS,
        ),
    )
    about = context(
        description="transformer: 2,137,600 parameters (vocab 2048, d_model 256, 4 heads, "
        "2 layers, feedforward 512, sequence 128), 320 samples of random tokens."
    )
    return RunResult(
        context=about,
        worlds=worlds,
        scaling=scale(worlds),
        overhead=OVERHEAD,
        failures=((8, "rank 5 failed: ValueError: no; see /runs/a-b/world_8/logs/rank_5.err"),),
        remarks=remarks(about, worlds, scale(worlds), OVERHEAD),
    )


def test_the_terminal_report_equals_the_golden_file() -> None:
    # To update the file: python -m tests.unit.report.test_table > tests/golden/run_table.txt
    assert rendered() == GOLDEN.read_text()


def rendered() -> str:
    result = golden_run()
    details = [
        detail(world.world_size, backward=60, wait=10, transfer=20) for world in result.worlds
    ]
    return render(result, 100, verdict(result, details))


def test_waiting_by_rank_and_cause_adds_up() -> None:
    costs = (
        WaitCost(3, "backward", 6.0, 0.6),
        WaitCost(0, "transfer", 2.5, 0.25),
        WaitCost(3, "no core", 1.5, 0.15),
    )
    result = run_result(world(4, parts=parts(wait_ms=10.0), wait_costs=costs))
    lines = [line.split() for line in render(result, 100).splitlines()]
    head = lines.index(["began", "at", "backward", "no", "core", "transfer", "=", "wait"])
    assert lines[head + 2 : head + 5] == [
        ["rank", "0", "2.5", "2.5"],
        ["rank", "3", "6", "1.5", "7.5"],
        ["all", "6", "1.5", "2.5", "10"],
    ]
    page = markdown.render(FullReport(result, (), None, None))
    assert "| all 6 1.5 2.5 10 |" in " ".join(page.replace(" | ", " ").split())


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_prose_is_wrapped_to_the_width(width: int) -> None:
    lines = render(run_result(remarks=("word " * 60,)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert max(map(len, lines)) > width - 5


@pytest.mark.parametrize("width", [80, 100])
def test_a_long_path_is_not_wrapped(width: int) -> None:
    path = "/a-very-long-directory" * 6 + "/rank_1.err"
    text = render(run_result(failures=((2, f"rank 1 failed: see {path}"),)), width)
    assert path in text.splitlines()[-1]


def test_unknown_figures_are_dashes() -> None:
    unknown = world(
        1,
        samples_per_s=math.nan,
        average_loss=math.nan,
        imbalance=math.nan,
        overhead=None,
        step_median_ms=math.nan,
        step_p95_ms=math.nan,
        parts=parts(**dict.fromkeys(vars(parts()), math.nan)),
    )
    text = render(run_result(unknown), 100)
    assert "nan" not in text
    rows = [line.split() for line in text.splitlines() if line.split()[:1] == ["1"]]
    memory = ["1", "800", "800", "300"]
    assert rows == [["1", *["-"] * 10], ["1", "10+2", *["-"] * 8], memory]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00"),
        (0.004, "0.00"),
        (9.994, "9.99"),
        (10.0, "10.0"),
        (999.94, "999.9"),
        (1000.0, "1000"),
        (123456.7, "123457"),
        (-0.5, "-0.50"),
    ],
)
def test_numbers_have_fewer_decimals_the_larger_they_are(value: float, shown: str) -> None:
    text = render(run_result(world(1, parts=parts(data_ms=value))), 100)
    rows = [line.split() for line in text.splitlines() if line.split()[:1] == ["1"]]
    assert rows[0][1] == shown


def collectives_text(found: WorldResult) -> str:
    return tables_text(collectives_table.sections, run_result(found))


def test_kinds_of_call_not_shown_in_the_table_are_counted() -> None:
    kinds = tuple(collective(size_bytes=(size, size)) for size in range(1, 15))
    section = collectives_text(world(2, collectives=kinds))
    assert section.splitlines()[-1] == "Not shown: 2 more kinds of call (see the JSON result)."
    assert len([line for line in section.splitlines() if line.startswith("all_reduce")]) == 12
    section = collectives_text(world(1, collectives=kinds[:13]))
    assert section.splitlines()[-1] == "Not shown: 1 more kind of call (see the JSON result)."
    assert section.splitlines()[0] == "Collectives of 1 rank, sorted by exposed time:"


def test_a_page_counts_the_rows_that_it_leaves_out() -> None:
    kinds = tuple(collective(size_bytes=(size, size)) for size in range(1, 53))
    buckets = tuple(compression(bucket=number) for number in range(25))
    result = run_result(world(2, collectives=kinds, compression=buckets))
    text = markdown.render(FullReport(result, (detail(2),), None, None))
    assert "- Not shown: 28 more kinds of call (see the JSON result)." in text
    assert "- Not shown: 1 more bucket (see the JSON result)." in text


def test_ranks_that_issued_last_are_counted_beyond_eight() -> None:
    ranks = tuple(LastRow(rank, 0.1, 2.5) for rank in range(10))
    (section,) = last_ranks([summary(10, last=ranks)])
    note = "\nNot shown: 2 more ranks at 10 ranks (see the JSON result)."
    assert table_text(section).endswith(note)


def test_a_size_in_gigabytes_is_written_without_an_exponent() -> None:
    section = collectives_text(world(2, collectives=(collective(size_bytes=(2**31, 2**31)),)))
    assert " 2147 " in section


def test_group_and_failed_columns_are_shown_only_if_needed() -> None:
    one = collectives_text(world(2, collectives=(collective(), collective(op="reduce"))))
    assert "group" not in one
    assert "failed" not in one
    failing = collectives_text(world(2, collectives=(collective(), collective(failed=3))))
    assert "failed" in failing
    two = collectives_text(world(2, collectives=(collective(), collective(group="7"))))
    assert "7 (2)" in two


def test_without_any_figures_the_failures_are_shown() -> None:
    text = render(run_result(failures=((1, "rank 0 failed"), (2, "did not run"))), 100)
    assert text.splitlines()[-2:] == ["* 1 rank: rank 0 failed", "* 2 ranks: did not run"]
    assert "Mean step" not in text


def test_the_report_of_a_user_s_own_loop_names_no_scaling() -> None:
    about = context()
    del about["scaling"]
    text = render(run_result(world(2), context=about), 100)
    assert text.splitlines()[1].startswith("backend gloo, torch 2.13.0+cpu")


HOSTILE = "a\x1b[2Jb\x9b31mc\nd\re\x07f\u202eg\x00h\u2028i\udc80j"


@pytest.mark.parametrize("field", ["description", "backend", "torch", "scaling", "capture"])
def test_no_control_character_of_the_context_reaches_the_terminal(field: str) -> None:
    check_lines(render(run_result(world(1), context=context(**{field: HOSTILE})), 100), 1000)


def test_no_control_character_of_a_message_reaches_the_terminal() -> None:
    about = context(machine={"usable_cpu_count": 8, "cpu_model": HOSTILE})
    text = render(
        run_result(world(1), context=about, failures=((2, HOSTILE),), remarks=(HOSTILE,)), 100
    )
    check_lines(text, 1000)
    assert text.splitlines()[-1].startswith(r"* a\x1b[2Jb\x9b31mc d e\x07f\u202eg\x00h i\udc80j")


def check_lines(text: str, most: int) -> None:
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.isascii()
    assert len(text.split("\n")) < most


def test_printable_leaves_printable_text_unchanged() -> None:
    assert printable("Größe: 3 µs, 数") == "Größe: 3 µs, 数"


def test_ranks_of_a_group_are_listed_as_ranges() -> None:
    listed = ((0, 2), (0, 1, 2, 3), (1, 5, 9, 13), (0, 1, 4))
    assert [rank_list(ranks) for ranks in listed] == ["0,2", "0-3", "1-13:4", "0,1,4"]


def test_groups_of_a_mesh_are_named_by_dimension_and_ranks() -> None:
    rows = [
        collective(group=str(n), group_description=f"mesh_{name}", group_ranks=ranks)
        for n, (name, ranks) in enumerate(
            [("dp", (0, 2)), ("dp", (1, 3)), ("tp", (0, 1)), ("tp", (2, 3))]
        )
    ]
    shown = collectives_text(world(4, collectives=tuple(rows)))
    for group in ("mesh dp {0,2}", "mesh dp {1,3}", "mesh tp {0,1}", "mesh tp {2,3}"):
        assert group in shown
    assert "with the ranks in braces" in shown


def run_text(width: int) -> str:
    result = test_table.golden_run()
    details = [
        detail(world.world_size, backward=60, wait=10, transfer=20) for world in result.worlds
    ]
    return table.render(result, width, verdict(result, details), width)


def checked_text(width: int) -> str:
    checks = test_table.golden_run().worlds[1].cross_checks
    result = run_result(world(2, cross_checks=checks))
    return table.render(result, width, tables=width)


def trial_text(width: int) -> str:
    return trial_table.render(test_trial_report.sample(), "timed: sleeps.", width, tables=width)


def strategies_text(width: int) -> str:
    found = test_strategies.results()
    results = dict(zip([Path("run/ddp"), Path("run/fsdp")], found, strict=True))
    return strategies_table.render(results, strategy_rows(found), width, table_width=width)


@pytest.mark.parametrize("text", [run_text, checked_text, trial_text, strategies_text])
@pytest.mark.parametrize("width", [80, 100])
def test_no_line_of_a_report_is_wider_than_the_terminal(
    text: Callable[[int], str], width: int
) -> None:
    lines = [line for line in text(width).splitlines() if not line.startswith("  commprof ")]
    assert max(map(len, lines)) <= width


def test_the_report_of_summaries_is_no_wider_than_the_terminal(tmp_path: Path) -> None:
    test_summaries.two_ranks(tmp_path)
    lines = table.render(analyse_run(tmp_path), 80, tables=80).splitlines()
    assert "Ranks that issued last, at 2 ranks:" in lines
    paths = [line for line in lines if str(tmp_path) in line]
    assert max(len(line) for line in lines if line not in paths) <= 80


GRIDS = {
    "trial": trial_table.candidates_grid(test_trial_report.sample()),
    "scaling": scaling_grid(test_table.golden_run()),
    "collectives": collectives_grid(test_table.golden_run().worlds[-1], 12),
}


def words(cells: Sequence[Any]) -> Counter[str]:
    return Counter(word for cell in cells for word in str(cell).split())


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("width", [50, 80])
def test_panels_of_a_wide_table_hold_every_cell_and_repeat_only_key_columns(
    name: str, width: int
) -> None:
    grid = GRIDS[name]
    whole = tabulated(*grid)
    assert "\n\n" not in whole
    panels = tabulated(*grid, width=width).split("\n\n")
    assert len(panels) > 1
    every = words([line for panel in panels for line in panel.splitlines() if "---" not in line])
    once = words([*grid.headers, *(cell for row in grid.rows for cell in row)])
    assert not once - every
    first = words([grid.headers[0], *(row[0] for row in grid.rows)])
    for panel in panels:
        assert not first - words(panel.splitlines())
    keys = {column for column in {0, *grid.left}}
    again = [c for i in keys for c in (grid.headers[i], *(row[i] for row in grid.rows))]
    assert not (every - once).keys() - words(again).keys()


def test_a_table_wider_than_its_limit_is_divided_into_panels() -> None:
    rows, headers = [("a", "b", 1, 22), ("c", "d", 3, 4)], ("x", "y", "one", "two")
    assert tabulated(rows, headers, [0, 1], 12) == (
        "x  y  one\n-  -  ---\na  b    1\nc  d    3\n\nx  y  two\n-  -  ---\na  b   22\nc  d    4"
    )
    assert tabulated(rows, headers, [0, 1], 14) == tabulated(rows, headers, [0, 1])


def test_a_header_continued_in_the_next_column_stays_in_the_same_panel() -> None:
    headers = ("key", "first", "exposed:\nwait", "\n+ wire")
    panels = tabulated([("k", "1", "2", "3")], headers, width=24).split("\n\n")
    assert [("first" in panel, "+ wire" in panel) for panel in panels] == [
        (True, False),
        (False, True),
    ]
    assert "exposed:" in panels[1]


def test_a_column_that_is_too_wide_has_its_own_panel() -> None:
    text = tabulated([("k", "x" * 40, "1")], ("key", "long", "short"), width=20)
    panels = text.split("\n\n")
    assert ["x" * 40 in panel for panel in panels] == [True, False]


@pytest.mark.parametrize(("terminal", "expected"), [(True, 72), (False, None)])
def test_tables_are_limited_in_width_only_on_a_terminal(
    terminal: bool, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert (prose_width(), table_width()) == (72, expected)


def test_columns_are_no_wider_than_their_cells() -> None:
    rows = [("all_reduce", "1.5", 12), ("two\nlines", "<0.001", None)]
    assert tabulated(rows, ("", "step ms\nmedian", "\np95"), left=[0]).splitlines() == [
        "            step ms",
        "             median  p95",
        "----------  -------  ---",
        "all_reduce      1.5   12",
        "two          <0.001",
        "lines",
    ]


def test_tabulated_does_not_change_the_padding_of_other_tables() -> None:
    before = tabulate.tabulate([("1",)], headers=("wide",))
    tabulated([("1",)], ("wide",))
    assert tabulate.tabulate([("1",)], headers=("wide",)) == before


if __name__ == "__main__":
    print(rendered(), end="")


def test_a_problem_of_a_trace_is_told_once_in_always_on_mode_too() -> None:
    problem = "rank 1: the trace cannot be read"
    damaged = summary(2, problems=(problem,))
    for failures, told in (
        ((), f"Always-on, 2 ranks: {problem}"),
        (((2, f"a rank was killed. {problem}"),), f"2 ranks: a rank was killed. {problem}"),
    ):
        found = caveats(run_result(summaries=(damaged,), failures=failures))
        assert [note for note in found if problem in note] == [told]
