"""Runs the fault matrix: tries each fault N times over gloo, with commprof and without commprof.

    python benchmarks/faults.py                   10 tries of each fault
    python benchmarks/faults.py --tries 2 --only "SIGKILL,full disk"
    python benchmarks/faults.py --json FILE       add to FILE; with --fresh, try all again
    python benchmarks/faults.py --fuzz 500        only read damaged and hostile run directories
    python benchmarks/faults.py --events          only kill a run of ten million steps

A try answers three questions. Did training end in the same way as without commprof (same exit
codes, first errors and weights)? Does the trace have every step that a rank reported as done? Does
the report name the cause? In always-on mode the steps of the last second may be missing. For faults
of the launcher, the questions are about the whole job. Such a job must also leave behind no
process, traceback or shared memory.

If a fault is in a rank, every second try runs with the watchdog and live metrics, except for ranks
of another user. The column "watched" counts the tries in which watchdog and live metrics worked
before the fault. Their processes must end soon after the ranks.

FILE is written after each row. A fault that has enough tries in FILE is not tried again. Faults
that need root, namespaces or a cgroup are left out if this machine lacks them. FILE lists these
faults with the reason, and they count as not tried.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.judging.demands import Demand, judged, of_all  # noqa: E402
from benchmarks.judging.fault_rows import ASKED, EVENTS, Row, Try, rows  # noqa: E402
from benchmarks.judging.results_file import CONTEXT, about, read_json, write_json  # noqa: E402
from tests.support.builders.hostile import damaged_runs  # noqa: E402
from tests.support.machines.faults.faults import Verdict  # noqa: E402
from tests.support.machines.forks import Forks  # noqa: E402
from tests.support.ranks.capture.many_events import many_events  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=10, help="tries of each fault (default: 10)")
    parser.add_argument("--only", metavar="NAME,...", help="only these faults")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="results; faults in FILE are not tried again"
    )
    parser.add_argument("--fresh", action="store_true", help="also try faults in FILE again")
    parser.add_argument(
        "--fuzz",
        type=int,
        metavar="N",
        help="only run every command on N damaged run directories",
    )
    parser.add_argument(
        "--first-seed",
        type=int,
        default=1_000,
        help="first seed of --fuzz and of the moments of faults (default: 1000)",
    )
    parser.add_argument(
        "--events",
        action="store_true",
        help="only kill a run of ten million steps, and read its trace",
    )
    args = parser.parse_args()
    if args.fuzz:
        return fuzz(args.fuzz, args.first_seed)
    if args.events:
        found = many_events(EVENTS)
        print(found)
        return 0 if found.all_accounted_for else 1
    return matrix(chosen(parser, args.only), args.tries, args.first_seed, args.json, args.fresh)


def chosen(parser: argparse.ArgumentParser, only: str | None) -> list[Row]:
    """Returns the rows with these names; if a name is unknown, exits with the list of all names."""
    known = {row.name: row for row in rows()}
    if only is None:
        return list(known.values())
    found, left = [], f"{only},"
    while left:
        # Some names contain commas.
        name = max((name for name in known if left.startswith(f"{name},")), key=len, default=None)
        if name is None:
            parser.error(
                f"--only: no fault is named {left[:-1]!r}; join these names with commas: "
                f"{'; '.join(known)}"
            )
        found.append(known[name])
        left = left[len(name) + 1 :].lstrip()
    return found


def matrix(
    chosen: Sequence[Row], tries: int, first_seed: int, file: Path | None, fresh: bool
) -> int:
    """Prints a row per fault; returns 1 if a try failed or a fault was not tried, else 0."""
    counted = {name: row for name, row in read_json(file).items() if name != CONTEXT}
    print(f"{'fault':36} tries  watched  unharmed  records kept  cause named")
    with Forks() as forks:
        for row in chosen:
            had = counted.get(row.name, {"tries": 0})
            wanted = row.tries or tries
            if had["tries"] >= wanted and not fresh:
                print(f"{_line(row.name, had)}  (tried before, at {had.get('git_commit')})")
                continue
            if reason := row.unavailable():
                print(f"{row.name:36} left out: {reason}", flush=True)
                if had["tries"] == 0:
                    counted[row.name] = {"tries": 0, "yes": [0] * len(row.asked), "why": reason}
            else:
                counted[row.name] = _tried(row, forks, wanted, first_seed)
                print(_line(row.name, counted[row.name]), flush=True)
            _save(file, counted)
    return judged(demands(counted))


def _tried(row: Row, forks: Forks, tries: int, first_seed: int) -> dict[str, Any]:
    """Tries a row's fault; returns the row's figures for the file."""
    found = list(row.try_all(forks, tries, first_seed))
    _complain(row, found)
    counted: dict[str, Any] = {
        "tries": len(found),
        "yes": [sum(getattr(one, name) for one in found) for name in row.asked.values()],
        "git_commit": about()["git_commit"],
    }
    if row.asked != ASKED:
        counted["asked"] = list(row.asked)
    if any(isinstance(one, Verdict) for one in found):
        counted["watched"] = sum(isinstance(one, Verdict) and one.at_work for one in found)
    return counted


def _line(name: str, row: Mapping[str, Any]) -> str:
    yes, watched = row["yes"], row.get("watched", "-")
    if "asked" in row:
        cells = "; ".join(f"{what}: {count}" for what, count in zip(row["asked"], yes, strict=True))
    else:
        cells = f"{yes[0]:8}  {yes[1]:12}  {yes[2]:11}"
    return f"{name:36} {row['tries']:5}  {watched:>7}  {cells}"


def _save(file: Path | None, counted: dict[str, Any]) -> None:
    if file is not None:
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        write_json(partial, counted)
        os.replace(partial, file)


def demands(counted: dict[str, dict[str, Any]]) -> list[Demand]:
    """Checks that every fault was tried, and that all tries succeeded.

    Args:
        counted: the figures that --json writes, without their context.
    """
    found = [_demand(name, row) for name, row in counted.items()]
    known = rows()
    tried = sum(counted.get(row.name, {"tries": 0})["tries"] > 0 for row in known)
    found.append(of_all("rows tried", tried, len(known), len(known)))
    watched = [counted.get(row.name, {"tries": 0}) for row in known if row.watched]
    what = "faults in ranks: half of the tries had watchdog and live metrics"
    half = sum(_half_watched(row) for row in watched)
    found.append(of_all(what, half, len(watched), len(watched)))
    return found


def _demand(name: str, row: Mapping[str, Any]) -> Demand:
    what = f"{name}: {', '.join(row.get('asked', ASKED))}"
    if row["tries"] == 0:
        return Demand(what, f"not tried: {row.get('why', 'no reason given')}", "all", False)
    *first, last = map(str, row["yes"])
    counts = f"{', '.join(first)} and {last}" if first else last
    figure = f"{counts} of {row['tries']}"
    return Demand(what, figure, "all", set(row["yes"]) == {row["tries"]})


def _half_watched(row: Mapping[str, Any]) -> bool:
    return row.get("watched", 0) >= row["tries"] // 2 > 0


def _complain(row: Row, found: Sequence[Try]) -> None:
    for one in found:
        if not all(getattr(one, name) for name in row.asked.values()):
            print(one.complaint(), file=sys.stderr)
            return


def fuzz(count: int, first_seed: int) -> int:
    """Runs every command on damaged run directories; prints the seeds of crashes."""
    crashed = []
    for read in damaged_runs(count, first_seed):
        if read.crashed:
            crashed.append(read.seed)
            print(read.said, flush=True)
    print(f"{count} damaged run directories, {len(crashed)} crashes {crashed}")
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
