#!/usr/bin/env python3
"""Writes docs/measured.md from benchmarks/results: `python -m tools.make_measured`.

Each benchmark knows what is asked of its figures; this page sets both side by side, and says where
nothing is measured yet. Run it again when a file of results comes or changes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.judging.demands import Demand
from benchmarks.judging.results_file import CONTEXT, contexts, read_json
from tools.measured_studies import GROUPS, Study

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/measured.md"
NOT_YET = "not measured yet"

HEAD = """\
# What was measured

What the benchmarks are asked to show, and what they showed on the machine at hand. Written by
`python -m tools.make_measured` from the files in `benchmarks/results`; a test holds the page
against them. The script that makes a file prints the same lines at its end, and exits with 1 where
one is not met. Figures in brackets are 95 % intervals, or quartiles where the line says so.

"""


def page(results: Path) -> str:
    """The whole page, of the files in a directory."""
    judged = [
        (group, [(study, _judged(study, results)) for study in studies])
        for group, studies in GROUPS.items()
    ]
    every = [one for _, studies in judged for _, demands in studies for one in demands]
    met = sum(one.met for one in every)
    missing = sum(len(study.asked) for _, pairs in judged for study, found in pairs if not found)
    counts = f"Of {len(every)} demands on what was measured {met} are met"
    lines = "1 line is" if missing == 1 else f"{missing} lines are"
    counts += f"; {lines} {NOT_YET}.\n" if missing else ".\n"
    body = [
        line
        for group, studies in judged
        for line in (f"\n## {group}\n", *(_section(*pair, results) for pair in studies))
    ]
    return HEAD + counts + "".join(body)


def _judged(study: Study, results: Path) -> Sequence[Demand]:
    path = _path(study, results)
    return study.judge(path) if path.exists() else []


def _path(study: Study, results: Path) -> Path:
    """Of the study's file; JSON lines may be called .json as well."""
    path = results / study.file
    other = path.with_suffix(".json")
    return other if other.exists() and not path.exists() else path


def _section(study: Study, demands: Sequence[Demand], results: Path) -> str:
    lines = [f"\n### {study.title}\n", f"`PYTHONPATH=. python benchmarks/{study.command}`"]
    if demands:
        lines[-1] += f"{_when(study, _path(study, results))}:"
    lines += ["", "| | what | figure | demand |", "|---|---|---|---|"]
    lines += [
        _row(f"**{one.verdict}**" if not one.met else "met", one.what, one.figure, one.asked)
        for one in demands
    ]
    if not demands:
        lines += [_row("-", study.title, NOT_YET, asked) for asked in study.asked]
    if demands and study.beside and (more := study.beside(_path(study, results))):
        lines += ["", more]
    return "\n".join(lines) + "\n"


def _when(study: Study, path: Path) -> str:
    """Day and commit of the last of the sessions that the file tells of."""
    document = read_json(path) if study.part else {}
    found = [document[study.part][CONTEXT]] if study.part in document else contexts(path)
    if not found:
        return ", on a day that the file does not tell"
    last = max(found, key=lambda one: str(one["timestamp"]))
    machine = last["machine"]
    words = [last["timestamp"][:10]]
    if commit := last.get("git_commit"):
        changed = "-dirty" if commit.endswith("-dirty") else ""
        words.append(f"commit {commit.removesuffix('-dirty')[:10]}{changed}")
    words.append(f"{machine['usable_cpu_count']} cores ({machine['cpu_model']})")
    return f", {', '.join(words)}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """See the module."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    PAGE.write_text(page(RESULTS))
    print(f"updated {PAGE}")


if __name__ == "__main__":
    main()
