from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
EMPTY = {"found", "each", "one", "at", "own", "said", "kept", "known", "place"}
#: A folder may have so many EMPTY names, other folders none. Lower a number, never raise it.
MOST = {
    "commprof": 16,
    "commprof/analysis": 107,
    "commprof/analysis/align": 33,
    "commprof/analysis/causes": 3,
    "commprof/analysis/checks": 12,
    "commprof/analysis/collectives": 82,
    "commprof/analysis/inspector": 51,
    "commprof/analysis/late": 109,
    "commprof/analysis/replay": 71,
    "commprof/analysis/step": 63,
    "commprof/analysis/sweeps": 3,
    "commprof/analysis/timeline": 5,
    "commprof/audit": 2,
    "commprof/capture": 32,
    "commprof/capture/job": 12,
    "commprof/capture/patches": 2,
    "commprof/checks": 6,
    "commprof/commands": 18,
    "commprof/commands/options": 5,
    "commprof/commands/running": 11,
    "commprof/commands/showing": 4,
    "commprof/forecast/commands": 8,
    "commprof/forecast/costs": 9,
    "commprof/forecast/fit": 30,
    "commprof/forecast/microbench": 11,
    "commprof/forecast/replay": 2,
    "commprof/forecast/scenario": 7,
    "commprof/forecast/sharded": 34,
    "commprof/forecast/what_if": 6,
    "commprof/monitor": 13,
    "commprof/monitor/figures": 1,
    "commprof/monitor/metrics": 10,
    "commprof/monitor/watchdog": 12,
    "commprof/recordings": 85,
    "commprof/report": 51,
    "commprof/report/comparison": 3,
    "commprof/report/export": 8,
    "commprof/report/html": 3,
    "commprof/report/sections": 14,
    "commprof/stats": 6,
    "commprof/trace": 35,
    "commprof/trace/run": 9,
    "commprof/tune": 30,
    "commprof/tune/compressors": 14,
    "commprof/tune/trials": 3,
    "commprof/tune/trials/live": 15,
    "commprof/workloads/models": 2,
    "commprof/workloads/strategies": 2,
}


def empty_names(text: str) -> int:
    nodes = [*ast.walk(ast.parse(text))]
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    arguments = [node.arg for node in nodes if isinstance(node, ast.arg)]
    return sum(name in EMPTY for name in (*stored, *arguments))


def test_bindings_of_empty_names_are_counted() -> None:
    assert empty_names("def f(found, rank):\n    for one in found:\n        place = one\n") == 3
    assert empty_names("print(found)") == 0


def test_names_that_say_nothing_become_no_more() -> None:
    counts: dict[str, Counter[str]] = {}
    for path in (ROOT / "commprof").rglob("*.py"):
        folder = counts.setdefault(path.parent.relative_to(ROOT).as_posix(), Counter())
        folder[path.name] = empty_names(path.read_text())
    assert set(MOST) <= set(counts), "a folder of this list is gone: remove it"
    for folder, of_files in counts.items():
        assert of_files.total() <= MOST.get(folder, 0), (folder, of_files.most_common(5))
