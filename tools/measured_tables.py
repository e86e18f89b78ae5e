"""Tables of docs/measured.md that are shown below the tables of demands."""

from __future__ import annotations

from pathlib import Path

from tabulate import tabulate

from benchmarks import strategies
from benchmarks.judging.results_file import CONTEXT, read_json
from benchmarks.own_cost import instructions, overhead


def step_ratios(path: Path) -> str:
    """Returns a table for each measure of a step's cost, with a column for each mode."""
    results = read_json(path)
    shown = [
        f"{name} with commprof / without commprof [95 %]:\n\n{squeezed(table)}"
        for clock, name in overhead.CLOCKS.items()
        if (table := overhead.table(results, clock, "github"))
    ]
    return "\n\n".join(shown)


def instruction_counts(path: Path) -> str:
    """Returns a table of the instructions that each recording mode adds to a step."""
    counts = {name: cell for name, cell in read_json(path).items() if name != CONTEXT}
    table = squeezed(instructions.table(counts, "github"))
    return f"Instructions with commprof / without commprof (added per step):\n\n{table}"


def strategy_rows(path: Path) -> str:
    """Returns a table by strategy and ranks, with a warning if the machine was busy."""
    results = read_json(path)
    rows = [
        [
            name,
            row["world_size"],
            row["strategy"],
            f"{row['samples_per_s']:.1f}",
            f"{row['versus_first']:.2f}x",
            f"{row['exposed_share']:.0%}",
            f"{row['training_bytes'] / 1e6:.0f}",
        ]
        for name in strategies.COMMANDS
        for row in sorted(results[name]["rows"], key=lambda row: row["world_size"])
    ]
    headers = ("workload", "ranks", "strategy", "samples/s", "against", "exposed", "MB")
    spread = max(row["step_spread"] for result in results.values() for row in result["rows"])
    lines = [squeezed(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))]
    if spread > strategies.BUSY:
        lines.append(
            f"The machine was busy: the interquartile range is up to {spread:.0%} of the median "
            "step. Bytes and memory are valid; times and figures that follow from them are not."
        )
    return "\n\n".join(lines)


def squeezed(table: str) -> str:
    """Returns a Markdown table without the spaces that align its columns."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    cells = [["---"] * len(row) if set("".join(row)) == {"-"} else row for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
