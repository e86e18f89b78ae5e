"""Tests that trials find the fastest candidate on a slow link, and recommend none on loopback.

    PYTHONPATH=. python benchmarks/predictions/trial_truth.py all --out DIR --minutes 40
    PYTHONPATH=. python benchmarks/predictions/trial_truth.py summary --out DIR
    PYTHONPATH=. python benchmarks/predictions/trial_truth.py all --sharded --out DIR

Two ranks train the `timed` workload, which sleeps instead of computing. The parts are:

- `truth` runs each candidate alone for many steps, several times.
- `link` runs trials at 1 Gbit/s between two hosts. The hosts are network namespaces, which need
  root.
- `loopback` runs trials on this host.
- `all` runs the other parts. Some runs of `truth` are before the trials on the link, some between
  them, and some after them.

On the link, a step exchanges 12 MB during a backward pass of 12 ms. On loopback, a step exchanges 1
MB during a backward pass of 48 ms, which hides nearly all of the exchange. So no candidate can help
much on loopback, and trials must recommend none.

--sharded does the same with settings of FSDP2 at 300 Mbit/s. A rank then sends 8 MB per step. With
parameters that are gathered only once, and gradients in bf16, a rank sends 4 MB.

Each run adds a line to DIR/results.jsonl. A run in this file is not repeated, so the study can be
stopped at any time. A run that fails or takes more than two minutes is tried once more. A run
counts only if the hypervisor took at most `MOST_STOLEN` of its processor time; otherwise the run is
repeated, with at most eight runs in all. No run starts after `--minutes`.

On an idle machine, `all` takes half an hour: 9 minutes for `truth`, 12 for `link` and 10 for
`loopback`.

`summary` counts the trials on the link that name the fastest candidate, and the intervals that
contain the true ratio. The candidate `none again` is a second baseline, so its true ratio is 1. The
exit code of `all` and `summary` is 1 if a demand is not met, or if trials are missing.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.judging.demands import judged
from benchmarks.judging.medians import Stolen
from benchmarks.judging.results_file import Lines, read_rows
from benchmarks.judging.trial_truth_demands import TRIALS, demands, is_disturbed, summary
from commprof import variables
from commprof.launch.job import Job
from commprof.trace import columns
from commprof.trace.run.run_directory import read_world, world_directory
from commprof.tune.trials.candidates import BASELINE
from commprof.tune.trials.found import analyse_trial
from commprof.tune.trials.plan import parse_trial
from tests.support.machines import netns

#: "hierarchical" sends everything over gloo here, because each host has only one rank.
CANDIDATES = "fp16,int8,topk:ratio=0.01,powersgd:rank=2,hierarchical"
#: The 12 MB of gradients take 96 ms on the link. The backward pass takes only 12 ms, so fewer bytes
#: are always better.
LINK_WORKLOAD = (
    "timed:layers=4,data_ms=2,forward_ms=2,backward_ms=3,gradient_mb=3,bucket_cap_mb=1,"
    "gradients=normal"
)
RATE = "1gbit"
#: The model has 4 MB of parameters, which are gathered twice in each step.
SHARDED_LINK_WORKLOAD = (
    "timed:layers=4,data_ms=2,forward_ms=2,backward_ms=3,gradient_mb=1,gradients=normal"
)
SHARDED_CANDIDATES = (
    "reshard-after-forward=false,prefetch=2,reshard-after-forward=false+reduce-dtype=bf16"
)
#: The model has only two layers. On a CPU, torch reduces in the training thread, so only small
#: reductions take almost no time. With four layers, gathering only once saved 3.6 % of a step.
SHARDED_LOOPBACK_WORKLOAD = "timed:layers=2,data_ms=2,forward_ms=8,backward_ms=48,gradient_mb=0.1"
#: The compute hides the exchange of 1 MB on loopback.
LOOPBACK_WORKLOAD = "timed:layers=4,data_ms=2,forward_ms=2,backward_ms=12,gradient_mb=0.25"
PASSES = 5
#: Number of first steps that are left out of a run of `truth`, as warm-up.
_FIRST = 10
_LIMIT_S = 120
_TRIES = 2
_TRIES_DISTURBED = 8


@dataclass(frozen=True)
class Study:
    """Candidates that are compared, and the jobs that run them."""

    candidates: str
    link: str
    loopback: str
    strategy: str = "ddp"
    #: Rate of the link.
    rate: str = RATE

    @property
    def is_sharded(self) -> bool:
        """True if the candidates are settings of FSDP2."""
        return self.strategy == "fsdp"


REPLICATED = Study(CANDIDATES, LINK_WORKLOAD, LOOPBACK_WORKLOAD)
SHARDED = Study(
    SHARDED_CANDIDATES, SHARDED_LINK_WORKLOAD, SHARDED_LOOPBACK_WORKLOAD, "fsdp", "300mbit"
)


@dataclass(frozen=True)
class Row:
    """A run to do, with a unique name."""

    part: str
    name: str
    measure: Callable[[], dict[str, Any]]


class Results:
    """The lines of DIR/results.jsonl."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "results.jsonl"
        self._kept = Lines(self._path)

    def lines(self) -> list[dict[str, Any]]:
        """Returns all lines so far."""
        return read_rows(self._path)

    def is_done(self, name: str) -> bool:
        """True if the run has succeeded, or may not be tried again."""
        tries = [one for one in self.lines() if one["name"] == name]
        disturbed = sum(map(is_disturbed, tries))
        failed = sum("failed" in one for one in tries)
        is_over = disturbed >= _TRIES_DISTURBED or failed >= _TRIES
        return is_over or len(tries) > sum("failed" in one or is_disturbed(one) for one in tries)

    def append(self, line: dict[str, Any]) -> None:
        """Adds a line atomically."""
        self._kept.append(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=(*PARTS, "summary"))
    parser.add_argument("--out", type=Path, required=True, help="where results are kept")
    parser.add_argument("--count", type=int, default=TRIALS, help="number of trials of each kind")
    parser.add_argument("--sharded", action="store_true", help="compare settings of FSDP2")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--block", type=int, default=6, help="measured steps of a block")
    parser.add_argument("--steps", type=int, default=150, help="steps of a run of one candidate")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no run after MINUTES"
    )
    args = parser.parse_args()
    args.study = SHARDED if args.sharded else REPLICATED
    results = Results(args.out)
    end = time.monotonic() + 60 * args.minutes
    for row in PARTS[args.part](args) if args.part in PARTS else ():
        while not results.is_done(row.name) and time.monotonic() < end:
            _do(row, results)
    if args.part not in ("all", "summary"):
        return 0
    print("\n".join(summary(results.lines())))
    return judged(demands(results.lines()))


def _do(row: Row, results: Results) -> None:
    begin, stolen = time.monotonic(), Stolen()
    line: dict[str, Any] = {"part": row.part, "name": row.name}
    try:
        with _time_limit():
            line.update(row.measure())
    except KeyboardInterrupt:
        raise
    except Exception as error:  # a failed run is a result, and the other runs continue
        line["failed"] = f"{type(error).__name__}: {error}"[:2000]
    line["seconds"] = round(time.monotonic() - begin, 1)
    line["load"] = round(os.getloadavg()[0], 2)
    line["stolen"] = round(stolen.share(), 4)
    results.append(line)
    print(json.dumps({key: value for key, value in line.items() if key != "ratios"}), flush=True)


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {_LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _truth(args: argparse.Namespace, passes: Sequence[int] = range(PASSES)) -> Iterator[Row]:
    labels = [BASELINE, *(one.label for one in parse_trial(args.study.candidates).candidates)]
    for turn in passes:
        for label in random.Random(turn).sample(labels, len(labels)):
            yield Row("truth", f"truth {turn} {label}", lambda label=label: _fixed(label, args))


def _fixed(label: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs one candidate alone; returns the median step of the slowest rank."""
    # Under DDP all candidates run in commprof's hook, as in a trial. With "none" the hook only
    # averages gradients.
    study, compressor = args.study, "" if label == BASELINE or args.sharded else label
    setting = label if args.sharded and label != BASELINE else ""
    how: dict[str, Any] = {"hook": not (compressor or study.is_sharded), "compressor": compressor}
    with _run(study, study.rate, study.link, setting, steps=args.steps, **how) as directory:
        medians = []
        for trace in read_world(directory, 2).traces.values():
            table = columns.steps(trace)
            walls = (table.end_ns - table.begin_ns)[_FIRST:]
            medians.append(statistics.median(walls.tolist()) / 1e6)
    return {"label": label, "step_ms": max(medians)}


def _trials(part: str, rate: str, numbers: range, args: Any) -> Iterator[Row]:
    study: Study = args.study
    for number in numbers:
        text = f"{study.candidates},rounds={args.rounds},block={args.block},shuffle={number}"
        yield Row(part, f"{part} {number}", functools.partial(_trial, study, rate, text))


def _trial(study: Study, rate: str, text: str) -> dict[str, Any]:
    plan, workload = parse_trial(text), study.link if rate else study.loopback
    job: dict[str, Any] = {"steps": plan.steps, "trial": plan.text, "hook": False}
    with _run(study, rate, workload, **job) as directory:
        result = analyse_trial(world_directory(directory, 2))
    assert result is not None
    return {
        "answer": result.verdict.answer,
        "choice": result.verdict.choice,
        "fastest": result.verdict.fastest,
        "equals": list(result.verdict.equals),
        "rounds": result.rounds,
        "steps_ms": {one.label: one.step_ms for one in result.candidates},
        "ratios": {
            one.label: [one.ratio.value, one.ratio.low, one.ratio.high]
            for one in result.candidates
            if one.ratio is not None
        },
    }


def _link(args: argparse.Namespace) -> Iterator[Row]:
    return _trials("link", args.study.rate, range(args.count), args)


def _loopback(args: argparse.Namespace) -> Iterator[Row]:
    return _trials("loopback", "", range(args.count), args)


def _all(args: argparse.Namespace) -> Iterator[Row]:
    ends = [args.count * turn // (PASSES - 1) for turn in range(PASSES)]
    for turn, begin in enumerate(ends):
        yield from _truth(args, [turn])
        numbers = range(begin, ends[turn + 1] if turn + 1 < PASSES else begin)
        yield from _trials("link", args.study.rate, numbers, args)
    yield from _loopback(args)


@contextmanager
def _run(study: Study, rate: str, workload: str, setting: str = "", **job: Any) -> Iterator[Path]:
    """Runs two ranks; yields the run directory.

    The ranks are on two hosts joined by a link, or on this host if ``rate`` is empty. ``setting``
    is a setting of FSDP2.
    """
    directory = Path(tempfile.mkdtemp(prefix="trial_truth"))
    try:
        world = world_directory(directory, 2)
        world.mkdir()
        made = Job(workload, 2, world, strategy=study.strategy, **job)
        if rate:
            _run_on_hosts(made, rate, setting)
        else:
            from commprof.launch.elastic import launch

            launch(made, world / "logs")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_on_hosts(job: Job, rate: str, setting: str) -> None:
    if reason := netns.unavailable():
        raise SystemExit(f"no network namespaces here: {reason}")
    job.save(job.directory / "job.json")
    command = [sys.executable, "-m", "commprof.launch.worker", str(job.directory / "job.json")]
    with netns.Hosts(2, rate) as hosts:
        common = {
            **{"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29500", "WORLD_SIZE": "2"},
            **{"GLOO_SOCKET_IFNAME": "eth0", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"},
            **{"PYTHONPATH": os.environ.get("PYTHONPATH", ""), variables.FSDP: setting},
        }
        ranks = [
            # Namespaces share /dev/shm, so they count as one host unless their names differ.
            hosts.popen(i, command, {**common, "RANK": str(i), "COMMPROF_HOST": f"host{i}"})
            for i in range(2)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise RuntimeError("a rank failed:\n" + "\n".join(text[-900:] for text in outputs))


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "all": _all,
    "truth": _truth,
    "link": _link,
    "loopback": _loopback,
}

if __name__ == "__main__":
    sys.exit(main())
