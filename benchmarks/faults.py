"""The fault matrix: each fault tried N times with commprof and without, over gloo.

    python benchmarks/faults.py                   10 tries of each
    python benchmarks/faults.py --tries 2 --only "SIGKILL,full disk"
    python benchmarks/faults.py --fuzz 500        damaged and hostile run directories instead
    python benchmarks/faults.py --events          ten million steps, killed, read again

Of each try it is asked: did training end as without commprof (same exit codes, same first errors,
same weights)? Is every step that a rank said it had done in the trace? Does the report name the
cause? Faults of the launcher ask the same of the whole job, and that no process, traceback or
shared memory is left. What needs root, namespaces or a cgroup that this machine has not is left
out, and named.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.demands import Demand, judged  # noqa: E402
from benchmarks.results_file import write_json  # noqa: E402
from tests.support import fault_list, faults  # noqa: E402
from tests.support.faults import Fault, Verdict, try_fault  # noqa: E402
from tests.support.forks import Forks  # noqa: E402
from tests.support.launcher_faults import LAUNCHER_FAULTS, LauncherFault, Outcome  # noqa: E402
from tests.support.many_events import many_events  # noqa: E402
from tests.support.netns import Hosts, unavailable  # noqa: E402

_ASKED = ("unharmed", "records_kept", "cause_named")


@dataclass(frozen=True)
class Row:
    """One fault of the matrix."""

    name: str
    #: Why it cannot be tried here; empty if it can. Asked only of what is tried.
    unavailable: Callable[[], str]
    #: Tries it once; the number tells the tries apart.
    try_once: Callable[[Forks, int], Verdict | Outcome]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=10, help="of each fault (default: 10)")
    parser.add_argument("--only", metavar="NAME,...", help="these faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    parser.add_argument("--fuzz", type=int, metavar="N", help="N damaged run directories")
    parser.add_argument(
        "--first-seed", type=int, default=1_000, help="of --fuzz and random moments (default: 1000)"
    )
    parser.add_argument("--events", action="store_true", help="ten million steps")
    args = parser.parse_args()
    if args.fuzz:
        return fuzz(args.fuzz, args.first_seed)
    if args.events:
        found = many_events(10_000_000)
        print(found)
        return 0 if found.all_accounted_for else 1
    return matrix(chosen(parser, args.only), args.tries, args.first_seed, args.json)


def chosen(parser: argparse.ArgumentParser, only: str | None) -> list[Row]:
    """The rows of these names; ends the program with the list of all where one is unknown."""
    known = {row.name: row for row in rows()}
    if only is None:
        return list(known.values())
    found, left = [], f"{only},"
    while left:
        # Some names have commas themselves.
        name = max((name for name in known if left.startswith(f"{name},")), key=len, default=None)
        if name is None:
            parser.error(f"--only: no fault {left[:-1]!r}; allowed, by commas: {'; '.join(known)}")
        found.append(known[name])
        left = left[len(name) + 1 :].lstrip()
    return found


def matrix(chosen: Sequence[Row], tries: int, first_seed: int, json_file: Path | None) -> int:
    """Prints a row per fault; 1 if a cell is not full."""
    counted: dict[str, dict[str, Any]] = {}
    print(f"{'fault':32} tries  unharmed  records kept  cause named")
    with Forks() as forks:
        for row in chosen:
            if reason := row.unavailable():
                print(f"{row.name:32} left out: {reason}", flush=True)
                continue
            verdicts = [row.try_once(forks, first_seed + number) for number in range(tries)]
            yes = [sum(getattr(verdict, name) for verdict in verdicts) for name in _ASKED]
            counted[row.name] = {"tries": tries, "yes": yes}
            print(f"{row.name:32} {tries:5}  {yes[0]:8}  {yes[1]:12}  {yes[2]:11}", flush=True)
            _complain(verdicts)
    write_json(json_file, counted)
    return judged(demands(counted))


def demands(counted: dict[str, dict[str, Any]]) -> list[Demand]:
    """Of each fault, all tries in all three respects; ``counted`` is what --json writes."""
    found = []
    for name, row in counted.items():
        unharmed, kept, named = row["yes"]
        figure = f"{unharmed}, {kept} and {named} of {row['tries']}"
        met = {unharmed, kept, named} == {row["tries"]}
        what = f"{name}: training unharmed, records kept, cause named"
        found.append(Demand(what, figure, "all", met))
    return found


def rows() -> list[Row]:
    """The whole matrix."""
    no_mount = "no file system can be mounted"
    return [
        *(_in_a_job(fault, str) for fault in fault_list.FAULTS),
        _in_a_job(fault_list.OUT_OF_MEMORY, _no_cgroup),
        *(
            _in_a_job(fault, lambda: "" if faults.can_mount() else no_mount)
            for fault in fault_list.DISK_FAULTS
        ),
        *(_in_a_job(fault, unavailable) for fault in fault_list.NETWORK_FAULTS),
        *(_of_a_launcher(fault) for fault in LAUNCHER_FAULTS),
    ]


def _no_cgroup() -> str:
    with faults.memory_cgroup(1 << 30) as cgroup:
        return "" if cgroup else "no cgroup can be made"


def _in_a_job(fault: Fault, unavailable: Callable[[], str]) -> Row:
    """Ranks that are forked from one warm Python, without a launcher."""
    return Row(fault.name, unavailable, lambda forks, _: _one(fault, forks))


def _of_a_launcher(fault: LauncherFault) -> Row:
    def try_once(_: Forks, number: int) -> Outcome:
        with tempfile.TemporaryDirectory() as directory:
            return fault.try_once(Path(directory), random.Random(f"{fault.name} {number}"))

    return Row(fault.name, fault.unavailable, try_once)


def _one(fault: Fault, forks: Forks) -> Verdict:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o755)
        hosts = []
        if fault in fault_list.NETWORK_FAULTS:
            hosts = stack.enter_context(Hosts(2, "1gbit")).names
        cgroup = ""
        if fault is fault_list.OUT_OF_MEMORY:
            cgroup = stack.enter_context(faults.memory_cgroup(1 << 30))
        return try_fault(fault, forks, directory, hosts, cgroup)


def _complain(verdicts: Sequence[Verdict | Outcome]) -> None:
    for verdict in verdicts:
        if not all(getattr(verdict, name) for name in _ASKED):
            print(verdict.complaint(), file=sys.stderr)
            return


def fuzz(count: int, first_seed: int) -> int:
    """Every command on damaged run directories; prints the seeds that crashed one."""
    from commprof.commands import main as command
    from tests.support.hostile import damage, little_memory, sound_run

    crashed = []
    with tempfile.TemporaryDirectory() as temporary:
        sound = sound_run(Path(temporary) / "sound")
        for seed in range(first_seed, first_seed + count):
            chance = random.Random(seed)
            run = Path(temporary) / "run"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(sound, run)
            said = [damage(run, chance) for _ in range(chance.randint(1, 3))]
            form = ("table", "json", "markdown", "html", "csv")[seed % 5]
            try:
                with little_memory(1 << 30), _silent():
                    command(["report", str(run), "--format", form, "-o", "-"])
                    command(["trace", str(run), "-o", f"{temporary}/{seed}.json"])
            except BaseException:  # whatever it is, it is a crash
                crashed.append(seed)
                print(f"seed {seed}, {form}: {said}\n{traceback.format_exc()}", flush=True)
            Path(temporary, f"{seed}.json").unlink(missing_ok=True)
    print(f"{count} damaged run directories, {len(crashed)} crashes {crashed}")
    return 1 if crashed else 0


@contextmanager
def _silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


if __name__ == "__main__":
    sys.exit(main())
