"""How tables are drawn: none is wider than the terminal, and no cell is lost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tabulate

from commprof.analysis.strategies import strategy_rows
from commprof.analysis.verdict import verdict
from commprof.commands.options.terminal import prose_width, table_width
from commprof.report import strategies as strategies_table
from commprof.report import table
from commprof.report import trial as trial_table
from commprof.report.sections.collectives import collectives_grid
from commprof.report.tabulated import tabulated
from tests.support.analysed import analyse_run
from tests.support.builders.results import detail, run_result, world
from tests.unit.analysis import test_strategies
from tests.unit.analysis.align import test_summaries
from tests.unit.report import test_table, test_trial


def run_text(width: int) -> str:
    result = test_table.golden_run()
    details = [detail(world.world_size, backward=60, wait=10, wire=20) for world in result.worlds]
    return table.render(result, width, verdict(result, details), width)


def checked_text(width: int) -> str:
    checks = test_table.golden_run().worlds[1].cross_checks
    result = run_result(world(2, cross_checks=checks))
    return table.render(result, width, tables=width)


def trial_text(width: int) -> str:
    return trial_table.render(test_trial.sample(), "timed: sleeps.", width, tables=width)


def strategies_text(width: int) -> str:
    found = test_strategies.results()
    results = dict(zip([Path("run/ddp"), Path("run/fsdp")], found, strict=True))
    return strategies_table.render(results, strategy_rows(found), width, table_width=width)


@pytest.mark.parametrize("text", [run_text, checked_text, trial_text, strategies_text])
@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(text: Callable[[int], str], width: int) -> None:
    lines = [line for line in text(width).splitlines() if not line.startswith("  commprof ")]
    assert max(map(len, lines)) <= width


def test_what_always_on_mode_summarised_is_no_wider(tmp_path: Path) -> None:
    test_summaries.two_ranks(tmp_path)
    lines = table.render(analyse_run(tmp_path), 80, tables=80).splitlines()
    assert "Last to issue at 2 ranks:" in lines
    paths = [line for line in lines if str(tmp_path) in line]  # a path is not broken
    assert max(len(line) for line in lines if line not in paths) <= 80


GRIDS = {
    "trial": trial_table.candidates_grid(test_trial.sample()),
    "scaling": table.scaling_grid(test_table.golden_run()),
    "collectives": collectives_grid(test_table.golden_run().worlds[-1], 12),
}


def words(cells: Sequence[Any]) -> Counter[str]:
    return Counter(word for cell in cells for word in str(cell).split())


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("width", [50, 80])
def test_every_cell_is_there_and_none_but_the_keys_twice(name: str, width: int) -> None:
    grid = GRIDS[name]
    whole = tabulated(*grid)
    assert "\n\n" not in whole
    panels = tabulated(*grid, width=width).split("\n\n")
    assert len(panels) > 1
    # Lines with content: headers and rows, without the rule between them.
    every = words([line for panel in panels for line in panel.splitlines() if "---" not in line])
    once = words([*grid.headers, *(cell for row in grid.rows for cell in row)])
    assert not once - every
    first = words([grid.headers[0], *(row[0] for row in grid.rows)])
    for panel in panels:
        assert not first - words(panel.splitlines())
    keys = {column for column in {0, *grid.left}}
    again = [c for i in keys for c in (grid.headers[i], *(row[i] for row in grid.rows))]
    assert not (every - once).keys() - words(again).keys()


def test_panels_to_the_character() -> None:
    rows, headers = [("a", "b", 1, 22), ("c", "d", 3, 4)], ("x", "y", "one", "two")
    assert tabulated(rows, headers, [0, 1], 12) == (
        "x  y  one\n-  -  ---\na  b    1\nc  d    3\n\nx  y  two\n-  -  ---\na  b   22\nc  d    4"
    )
    assert tabulated(rows, headers, [0, 1], 14) == tabulated(rows, headers, [0, 1])


def test_a_header_that_goes_on_stays_with_its_first_half() -> None:
    headers = ("key", "first", "exposed:\nwait", "\n+ wire")
    panels = tabulated([("k", "1", "2", "3")], headers, width=24).split("\n\n")
    assert [("first" in panel, "+ wire" in panel) for panel in panels] == [
        (True, False),
        (False, True),
    ]
    assert "exposed:" in panels[1]


def test_a_column_without_room_has_a_panel_of_its_own() -> None:
    text = tabulated([("k", "x" * 40, "1")], ("key", "long", "short"), width=20)
    panels = text.split("\n\n")
    assert ["x" * 40 in panel for panel in panels] == [True, False]


@pytest.mark.parametrize(("terminal", "expected"), [(True, 72), (False, None)])
def test_a_pipe_has_no_width_for_tables(
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


def test_the_padding_of_other_tables_stays() -> None:
    before = tabulate.tabulate([("1",)], headers=("wide",))
    tabulated([("1",)], ("wide",))
    assert tabulate.tabulate([("1",)], headers=("wide",)) == before
