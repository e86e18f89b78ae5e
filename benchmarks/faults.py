"""The fault matrix: each fault tried N times with commprof and without, over gloo.

    python benchmarks/faults.py                   10 tries of each
    python benchmarks/faults.py --tries 2 --only "SIGKILL,full disk"
    python benchmarks/faults.py --fuzz 500        damaged and hostile run directories instead
    python benchmarks/faults.py --events          ten million steps, killed, read again

Of each try it is asked: did training end as without commprof (same exit codes, same first errors,
same weights)? Is every step that a rank said it had done in the trace? Does the report name the
cause? What needs root, namespaces or a cgroup that this machine has not is left out, and named.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import fault_list, faults  # noqa: E402
from tests.support.faults import Fault, Verdict, try_fault  # noqa: E402
from tests.support.forks import Forks  # noqa: E402
from tests.support.netns import Hosts, unavailable  # noqa: E402

_MANY = """
import os, signal, sys
import commprof
prof = commprof.profile(sys.argv[1]).start()
for _ in range(int(sys.argv[2])):
    prof.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=10, help="of each fault (default: 10)")
    parser.add_argument("--only", metavar="NAME,...", help="these faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    parser.add_argument("--fuzz", type=int, metavar="N", help="N damaged run directories")
    parser.add_argument("--first-seed", type=int, default=1_000, help="of --fuzz (default: 1000)")
    parser.add_argument("--events", action="store_true", help="ten million steps")
    args = parser.parse_args()
    if args.fuzz:
        return fuzz(args.fuzz, args.first_seed)
    if args.events:
        return many_events(10_000_000)
    return matrix(args)


def matrix(args: argparse.Namespace) -> int:
    """Prints a row per fault; 1 if a cell is not full."""
    chosen = args.only.split(",") if args.only else None
    rows = {}
    print(f"{'fault':28} tries  unharmed  records kept  cause named")
    with Forks() as forks:
        for fault, reason in _faults():
            if chosen and fault.name not in chosen:
                continue
            if reason:
                print(f"{fault.name:28} left out: {reason}", flush=True)
                continue
            verdicts = [_one(fault, forks) for _ in range(args.tries)]
            counts = [
                sum(getattr(verdict, name) for verdict in verdicts)
                for name in ("unharmed", "records_kept", "cause_named")
            ]
            rows[fault.name] = {"tries": args.tries, "yes": counts}
            print(
                f"{fault.name:28} {args.tries:5}  {counts[0]:8}  {counts[1]:12}  {counts[2]:11}",
                flush=True,
            )
            _complain(verdicts)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    full = all(set(row["yes"]) == {row["tries"]} for row in rows.values())
    return 0 if full else 1


def _faults() -> Iterator[tuple[Fault, str]]:
    """All of them, and why one cannot be tried here."""
    yield from ((fault, "") for fault in fault_list.FAULTS)
    with faults.memory_cgroup(1 << 30) as cgroup:
        no_cgroup = "" if cgroup else "no cgroup can be made"
    yield fault_list.OUT_OF_MEMORY, no_cgroup
    no_mount = "" if faults.can_mount() else "no file system can be mounted"
    yield from ((fault, no_mount) for fault in fault_list.DISK_FAULTS)
    yield from ((fault, unavailable()) for fault in fault_list.NETWORK_FAULTS)


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


def _complain(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        if not (verdict.unharmed and verdict.records_kept and verdict.cause_named):
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


def many_events(count: int) -> int:
    """A process that records so many steps and is killed; then its trace is read."""
    from commprof.trace.reader import read_trace
    from commprof.trace.salvage import salvage

    with tempfile.TemporaryDirectory() as temporary:
        begin = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-c", _MANY, temporary, str(count)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert ended.returncode == -signal.SIGKILL
        recorded_s = time.monotonic() - begin
        path = Path(temporary) / "rank_0.trace"
        begin = time.monotonic()
        moved = salvage(path)
        trace = read_trace(path)
        read_s = time.monotonic() - begin
        found = len(trace.records)
        print(
            f"{count} steps recorded in {recorded_s:.1f} s, killed; {moved} salvaged, {found} read "
            f"in {read_s:.1f} s, {trace.dropped} counted as dropped, {path.stat().st_size} bytes"
        )
        return 0 if found + trace.dropped == count + 1 else 1


if __name__ == "__main__":
    sys.exit(main())
