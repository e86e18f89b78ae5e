"""Builds commprof for every supported PyTorch, runs commprof's tests and times one collective.

Each version of PyTorch gets a directory with a virtual environment and a clone of this checkout,
including changes of tracked files. The directory is deleted afterwards. A version takes about 6 GB
on disk and, on two cores, a quarter of an hour. The environments get the Python that runs this
script, or the one in --python.

    PYTHONPATH=. python benchmarks/torch_versions.py [MINOR ...] [--python python3.13] [--json FILE]

The tests of the C++ core (tests/test_cpp.py) are left out, because they do not use torch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from tabulate import tabulate

from benchmarks.judging.demands import Demand, at_most, judged, of_all
from benchmarks.judging.medians import median_interval
from benchmarks.judging.results_file import read_parts, write_part

ROOT = Path(__file__).resolve().parent.parent
MINORS = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
BUILD_TOOLS = ("setuptools>=77", "cmake>=3.24", "ninja")
#: The two passes of `make test`, without the core's own tests.
PASSES = (
    ("not measures and not slow", "-n", "3", "--dist", "loadfile"),
    ("measures and not slow",),
)
ROUNDS = 20
#: An environment with a CUDA build of torch, a build tree and the traces of tests fit into this.
NEEDED_BYTES = 12 * 2**30


def main() -> int:
    """Measures one version after another, and writes each version's figures when it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "minors", nargs="*", default=MINORS, help="versions of torch, such as 2.15 (default: all)"
    )
    parser.add_argument("--python", default=sys.executable, help="Python of the environments")
    parser.add_argument(
        "--directory", type=Path, help="folder for the environments (default: a temporary one)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--json", type=Path, help="add each version's figures to this file")
    args = parser.parse_args()
    if unknown := sorted({*args.minors} - {*MINORS}):
        parser.error(f"not among the supported versions {', '.join(MINORS)}: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as temporary:
        directory = (args.directory or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        done = {}
        for minor in args.minors:
            environment = Environment(directory / f"torch-{minor}", minor)
            done[minor] = environment.measured(args.python)
            write_part(args.json, name(done[minor]), done[minor], git_commit=environment.commit)
            if not args.keep:
                shutil.rmtree(directory / f"torch-{minor}")
    parts = {name(figures): figures for figures in done.values()}
    print(f"\n{table(parts)}")
    return judged(demands(parts))


class Environment:
    """The virtual environment and the clone for one version of torch."""

    def __init__(self, directory: Path, minor: str) -> None:
        """Sets paths only; ``measured`` creates the files."""
        self.minor = minor
        #: Commit of the clone. This checkout may be at another commit when the tests end.
        self.commit = ""
        self._directory = directory
        self._source = directory / "commprof"
        self._python = directory / "venv/bin/python"
        self._environ = {**os.environ, "COMMPROF_REQUIRE_NATIVE": "1"}
        self._environ["PATH"] = os.pathsep.join([str(self._python.parent), os.environ["PATH"]])
        self._environ.pop("PYTHONPATH", None)

    def measured(self, python: str) -> dict[str, Any]:
        """Installs, builds, tests and times; returns all figures of the version."""
        free = shutil.disk_usage(self._directory.parent).free
        if free < NEEDED_BYTES:
            sys.exit(f"{free / 1e9:.0f} GB are free in {self._directory.parent}; 13 GB are needed")
        self._say("installs torch")
        if not self._python.exists():
            self._run([python, "-m", "venv", str(self._directory / "venv")])
        self._pip(f"torch=={self.minor}.*", *BUILD_TOOLS)
        self._clone()
        self._say("builds")
        begin = time.monotonic()
        self._pip("--no-build-isolation", "--no-deps", "-e", ".")
        build_s = time.monotonic() - begin
        self._pip("--no-build-isolation", "-e", ".[dev]")
        figures = {
            **self._about(),
            "build_s": round(build_s, 1),
            "module_bytes": next((self._source / "commprof").glob("_torch*.so")).stat().st_size,
        }
        self._say("runs the tests")
        figures["tests"] = self._tested()
        self._say("times a collective")
        figures["collective_us"] = self._collective()
        return figures

    def _clone(self) -> None:
        from commprof.forecast.microbench.context import git_commit  # it imports torch

        shutil.rmtree(self._source, ignore_errors=True)
        self.commit = git_commit()
        self._run(["git", "clone", "--quiet", "--shared", str(ROOT), str(self._source)])
        listed = ["git", "-C", str(ROOT), "diff", "--name-only", "-z", "HEAD"]
        for name in subprocess.check_output(listed, text=True).split("\0"):
            if (ROOT / name).is_file():
                (self._source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._source / name)
            elif name:
                (self._source / name).unlink(missing_ok=True)

    def _about(self) -> dict[str, str]:
        ask = "import json, platform, torch; print(json.dumps(dict("
        ask += "torch=torch.__version__, python=platform.python_version())))"
        found: dict[str, str] = json.loads(self._output(["-c", ask]))
        return found

    def _tested(self) -> dict[str, Any]:
        counts: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        failed: list[str] = []
        for number, (marks, *options) in enumerate(PASSES):
            report = self._directory / f"tests-{number}.xml"
            command = [str(self._python), "-m", "pytest", "-q", "-m", marks, *options]
            command += ["--ignore", "tests/test_cpp.py", f"--junitxml={report}"]
            with (self._directory / f"tests-{number}.log").open("w") as log:
                subprocess.run(command, cwd=self._source, env=self._environ, stdout=log, stderr=log)
            for case in ElementTree.parse(report).iter("testcase"):
                reason = case.find("skipped")
                if reason is not None:
                    skipped[reason.get("message", "")] += 1
                elif case.find("failure") is not None or case.find("error") is not None:
                    failed.append(f"{case.get('classname')}.{case.get('name')}")
                else:
                    counts["passed"] += 1
        return {"passed": counts["passed"], "failed": failed, "skipped": dict(skipped)}

    def _collective(self) -> dict[str, list[float]]:
        """Returns the time in us that recording adds to a call on the fake backend, per round."""
        output = self._output(
            ["-W", "ignore", "benchmarks/ranks/overhead_rank.py", "collectives", str(ROUNDS)],
            {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"},
        )
        times = json.loads(output.strip().splitlines()[-1])
        return {
            call: np.round(np.array(by_mode["observed"]) - by_mode["plain"], 4).tolist()
            for call, by_mode in times.items()
        }

    def _output(self, arguments: list[str], more: Mapping[str, str] | None = None) -> str:
        return subprocess.run(
            [str(self._python), *arguments],
            cwd=self._source,
            env={**self._environ, "OMP_NUM_THREADS": "1", **(more or {})},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    def _pip(self, *arguments: str) -> None:
        where = self._source if self._source.exists() else self._directory
        pip = [str(self._python), "-m", "pip", "install", "--quiet"]
        self._run([*pip, "--disable-pip-version-check", *arguments], where)

    def _run(self, command: list[str], where: Path | None = None) -> None:
        subprocess.run(command, cwd=where, env=self._environ, check=True)

    def _say(self, what: str) -> None:
        print(f"torch {self.minor}: {what}", flush=True)


Parts = Mapping[str, Mapping[str, Any]]


def name(figures: Mapping[str, Any]) -> str:
    """Returns the key of these figures, such as `torch 2.15, Python 3.11`."""
    torch, python = (figures[which].rsplit(".", 1)[0] for which in ("torch", "python"))
    return f"torch {torch}, Python {python}"


def demands(parts: Parts) -> list[Demand]:
    """Checks that commprof builds for every version, and that no test fails."""
    built = {figures["torch"].rsplit(".", 1)[0] for figures in parts.values()}
    found = [
        of_all("PyTorch minors for which commprof builds", len(built), len(MINORS), len(MINORS))
    ]
    for name, figures in _ordered(parts):
        failed = figures["tests"]["failed"]
        what = ": ".join([f"{name}, tests that fail", *failed])
        found.append(at_most(what, len(failed), 0, form="d"))
    return found


def table(parts: Parts) -> str:
    """Returns a table with a row per version, and below it the reasons for skipped tests."""
    rows = []
    reasons: dict[str, list[str]] = {}
    for _, figures in _ordered(parts):
        tests = figures["tests"]
        for reason, count in tests["skipped"].items():
            reasons.setdefault(reason, []).append(f"{count} with {figures['torch']}")
        rows.append(
            (
                *(figures["torch"], figures["python"], f"{figures['build_s']:.0f}"),
                *(tests["passed"], len(tests["failed"]), sum(tests["skipped"].values())),
                *map(_with_interval, figures["collective_us"].values()),
                f"{figures['module_bytes'] / 1e6:.2f}",
            )
        )
    calls = next(iter(parts.values()))["collective_us"] if parts else ()
    headers = ("torch", "Python", "build s", "passed", "failed", "skipped")
    headers += (*(f"recording of {call}, us" for call in calls), "module MB")
    text = tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)
    for reason, where in sorted(reasons.items()):
        text += f"\n\nSkipped: {reason} ({', '.join(where)})"
    return text


def beside(path: Path) -> str:
    """Returns the table of a file of results."""
    parts = read_parts(path)
    return table(parts) if parts else ""


def _ordered(parts: Parts) -> list[tuple[str, Mapping[str, Any]]]:
    """Sorts by torch's version, then Python's: 2.9 before 2.10."""
    return sorted(parts.items(), key=lambda item: [int(n) for n in re.findall(r"\d+", item[0])])


def _with_interval(times: list[float]) -> str:
    low, high = median_interval(np.array(times))
    return f"{np.median(times):.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
