#!/usr/bin/env python3
"""Writes docs/measured.md from benchmarks/results: `python -m tools.make_measured`.

The page shows measured figures beside the benchmarks' demands on them. Run the tool again when a
file of results is added or changes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from benchmarks.judging.demands import Demand
from benchmarks.judging.results_file import CONTEXT, contexts, read_json
from tools.measured_studies import GROUPS, Study

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/measured.md"
NOT_YET = "not measured yet"
STUDIES = [study for group in GROUPS.values() for study in group]
#: Replaces the words of a row in which demands of one kind differ.
GAP = "..."

HEAD = """\
# What was measured

This page shows measured figures beside the demands on them. `python -m tools.make_measured` writes
the page from `benchmarks/results`. A row stands for *n* demands of one kind, and has the smallest
and the largest figure. A demand that is not met has a row of its own, unless a table below has its
figure. The files of results have every figure with its interval, and the commit that was measured.
`PYTHONPATH=. python benchmarks/SCRIPT` measures again, prints each demand, and exits with 1 if a
demand is not met.

"""


def page(results: Path) -> str:
    """Returns the whole page, from the files in a directory."""
    judged = [
        (group, [(study, _judged(study, results)) for study in studies])
        for group, studies in GROUPS.items()
    ]
    every = [one for _, studies in judged for _, demands in studies for one in demands]
    met = sum(one.met for one in every)
    missing = sum(len(study.asked) for _, pairs in judged for study, found in pairs if not found)
    counts = f"Of {len(every)} demands on measured figures, {met} are met"
    lines = "1 line is" if missing == 1 else f"{missing} lines are"
    counts += f"; {lines} {NOT_YET}." if missing else "."
    machines = sorted({_machine(one) for study in STUDIES for one in _sessions(study, results)})
    counts += f" Measured on {', '.join(machines)}.\n" if machines else "\n"
    body = "".join(_group(group, pairs, results) for group, pairs in judged)
    return HEAD + counts + body


def _judged(study: Study, results: Path) -> Sequence[Demand]:
    path = _path(study, results)
    return study.judge(path) if path.exists() else []


def _path(study: Study, results: Path) -> Path:
    """Returns the path of a study's file; a file of JSON lines may also end in .json."""
    path = results / study.file
    other = path.with_suffix(".json")
    return other if other.exists() and not path.exists() else path


def _group(group: str, judged: Sequence[tuple[Study, Sequence[Demand]]], results: Path) -> str:
    lines = [f"\n## {group}\n", "| what | n | figure | demand |", "|---|---|---|---|"]
    beside = []
    for study, demands in judged:
        days = [str(one["timestamp"])[:10] for one in _sessions(study, results)]
        when = f", {max(days)}" if days else ""
        script = study.command.partition(" --")[0]
        lines.append(_row(f"**{study.title}** (`{script}`{when})", "", "", ""))
        lines += [_row_of(alike) for alike in _alike(demands, shown=study.beside is not None)]
        if not demands:
            lines += [_row(asked, "", NOT_YET, "") for asked in study.asked]
        if demands and study.beside and (more := study.beside(_path(study, results))):
            beside += ["", more]
    return "\n".join([*lines, *beside]) + "\n"


def _row_of(alike: Sequence[Demand]) -> str:
    first, *others = alike
    what = common_words([one.what for one in alike])
    marked = what if first.met else f"**{first.verdict}**: {what}"
    figure = least_and_most(alike) if others or first.met else first.figure
    return _row(marked, str(len(alike)), figure, first.asked)


def _alike(demands: Sequence[Demand], shown: bool = False) -> list[list[Demand]]:
    """Groups demands of one kind; unless ``shown``, an unmet demand is a group of its own."""
    found: list[list[Demand]] = []
    for one in demands:
        for group in found if one.met or shown else ():
            shared = common_words([group[0].what, one.what]).split()
            known = sum(word != GAP for word in shared)
            if (
                group[0].met == one.met
                and group[0].asked == one.asked
                and 2 * known >= len(group[0].what.split())
            ):
                group.append(one)
                break
        else:
            found.append([one])
    return found


def common_words(texts: Sequence[str]) -> str:
    """Returns the words that all texts have in the same order, with ``...`` where they differ."""
    common = texts[0].split()
    for text in texts[1:]:
        other = text.split()
        kept: list[str] = []
        at, at_other = 0, 0
        for match in SequenceMatcher(a=common, b=other, autojunk=False).get_matching_blocks():
            if (match.a > at or match.b > at_other) and kept[-1:] != [GAP]:
                kept.append(GAP)
            kept += common[match.a : match.a + match.size]
            at, at_other = match.a + match.size, match.b + match.size
        common = kept
    return " ".join(common)


def least_and_most(demands: Sequence[Demand]) -> str:
    """Returns the smallest and the largest figure; empty if a figure is not a number."""
    texts = list(dict.fromkeys(one.figure.split(" [")[0] for one in demands))
    if len(texts) == 1:
        return texts[0]
    numbers = [re.match(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?", text) for text in texts]
    if not all(numbers):
        return ""
    values = [float(number[0].replace(",", "")) for number in numbers if number]
    in_order = [text for _, text in sorted(zip(values, texts, strict=True))]
    return f"{in_order[0]} to {in_order[-1]}"


def _sessions(study: Study, results: Path) -> Sequence[dict[str, Any]]:
    """Returns the context (day, commit, machine) of each session that wrote the file."""
    path = _path(study, results)
    if not path.exists():
        return ()
    document = read_json(path) if study.part else {}
    return [document[study.part][CONTEXT]] if study.part in document else contexts(path)


def _machine(session: dict[str, Any]) -> str:
    machine = session["machine"]
    return f"{machine['usable_cpu_count']} cores ({machine['cpu_model']})"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Writes the page."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PAGE.write_text(page(RESULTS))
    print(f"updated {PAGE}")


if __name__ == "__main__":
    main()
