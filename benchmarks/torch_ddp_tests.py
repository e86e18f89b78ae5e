"""Runs PyTorch's own tests of DistributedDataParallel over gloo, with commprof and without.

    python benchmarks/torch_ddp_tests.py                     all tests, with commprof and without
    python benchmarks/torch_ddp_tests.py --only NAME,NAME    only these tests
    python benchmarks/torch_ddp_tests.py --resume FILE       the tests that FILE lacks
    python benchmarks/torch_ddp_tests.py --counts            write results/torch_ddp_tests.json

An installed torch ships some of its tests, in ``torch.testing._internal.distributed``. This
benchmark runs the tests of ``distributed_test`` and ``ddp_under_dist_autograd_test``, and the one
test of ``rpc.rpc_test`` with a DDP model. The tests of ``ddp_under_dist_autograd_test`` use RPC and
choose a world size of 4 or 6. In the last two modules, names of tests begin with their class. Tests
that are not installed with torch, such as ``test_c10d_gloo.py``, are not run.

Each test runs in its own processes, once without commprof and once with commprof. With commprof,
capture runs from ``init_process_group`` on, and every new DDP model is given to ``commprof.attach``
before the test sees the model. The outcome is the same if both runs pass, both fail or both are
skipped. A test that fails in both runs shows nothing about commprof, and is listed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks/results/torch_ddp_tests.json"
_RUNNER = "tests.support.ranks.capture.torch_ddp_runner"
_MODULES = "torch.testing._internal.distributed"
#: For each class of tests, its module. Tests without a class are in ``distributed_test``.
_OF_CLASS = {
    "DdpUnderDistAutogradTest": "ddp_under_dist_autograd_test",
    "DdpComparisonTest": "ddp_under_dist_autograd_test",
    "CudaDdpComparisonTest": "ddp_under_dist_autograd_test",
    "RpcTest": "rpc.rpc_test",
}
_TIMEOUT_S = 150


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME,...", help="only these tests (default: all)")
    parser.add_argument(
        "--world-size", type=int, default=2, help="for tests that choose no size (default: 2)"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="results; the tests in FILE are not run again"
    )
    parser.add_argument("--counts", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no test after this many seconds"
    )
    args = parser.parse_args()
    done = json.loads(args.resume.read_text()) if args.resume and args.resume.exists() else {}
    every = listed(args.world_size)
    names = args.only.split(",") if args.only else every
    if unknown := sorted({*names, *done} - {*every}):
        parser.error(f"this torch has no test {', '.join(unknown)}; it has {', '.join(every)}")
    begin = time.monotonic()
    for name in names:
        if name in done or time.monotonic() - begin > args.seconds:
            continue
        done[name] = [run(name, args.world_size, attached) for attached in (False, True)]
        print(f"{name:70} without: {done[name][0]:8} with: {done[name][1]}", flush=True)
        if args.resume:
            args.resume.write_text(json.dumps(done, indent=1) + "\n")
    if args.counts:
        RESULT.write_text(json.dumps(counts(done, every, args.world_size), indent=1) + "\n")
    return summarise(done, len({*names, *done}))


def counts(done: dict[str, list[str]], every: list[str], world_size: int) -> dict[str, Any]:
    """Counts the outcomes without and with commprof, for each of PyTorch's modules."""
    modules = sorted({module_of(name) for name in every})
    return {
        "torch": version("torch"),
        "python": platform.python_version(),
        "backend": "gloo",
        "world_size": world_size,
        "modules": {
            module: _counts(
                {name: pair for name, pair in done.items() if module_of(name) == module},
                sum(module_of(name) == module for name in every),
            )
            for module in modules
        },
    }


def _counts(done: dict[str, list[str]], listed: int) -> dict[str, Any]:
    plain, attached = zip(*done.values(), strict=True) if done else ((), ())
    return {
        "listed": listed,
        "run": len(done),
        "passed_without": plain.count("passed"),
        "passed_with": attached.count("passed"),
        "skipped": [*done.values()].count(["skipped", "skipped"]),
        "alike": {
            outcome: sorted(name for name, pair in done.items() if pair == [outcome, outcome])
            for outcome in sorted({plain for plain, attached in done.values() if plain == attached})
        },
        "different": {name: pair for name, pair in sorted(done.items()) if pair[0] != pair[1]},
    }


def module_of(name: str) -> str:
    """Returns the name of PyTorch's module that contains a test."""
    tests = name.rpartition(".")[0]
    return f"{_MODULES}.{_OF_CLASS[tests] if tests else 'distributed_test'}"


def listed(world_size: int) -> list[str]:
    """Returns the names of all tests of DDP models that this torch ships."""
    return _runner(world_size, False, "--list").stdout.split()


def run(name: str, world_size: int, attached: bool) -> str:
    """Runs one test; returns passed, skipped, failed or timeout."""
    try:
        outcome = _runner(world_size, attached, name).stdout.split()
    except subprocess.TimeoutExpired:
        return "timeout"
    return outcome[-1] if outcome else "failed"


def _runner(world_size: int, attached: bool, argument: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as temporary:
        environment = {
            **os.environ,
            **{"BACKEND": "gloo", "WORLD_SIZE": str(world_size), "TEMP_DIR": temporary},
            **{"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            **({"COMMPROF_TEST_TRACES": f"{temporary}/traces"} if attached else {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", _RUNNER, argument],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def summarise(done: dict[str, list[str]], wanted: int) -> int:
    """Prints the counts; returns 1 if a test ends differently with commprof, else 0."""
    different = {name: pair for name, pair in done.items() if pair[0] != pair[1]}
    print(f"\n{len(done)} of {wanted} tests, by how they ended without and with commprof:")
    for (plain, attached), count in sorted(Counter(map(tuple, done.values())).items()):
        print(f"  {count:4} {plain} / {attached}")
    for name, (plain, attached) in different.items():
        print(f"different: {name}: {plain} without, {attached} with commprof")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
