"""Tests that trials name the best candidate on a slow link, and no candidate if none can help.

    PYTHONPATH=. python benchmarks/predictions/trial_truth.py all --out DIR --minutes 40
    PYTHONPATH=. python benchmarks/predictions/trial_truth.py summary --out DIR
    PYTHONPATH=. python benchmarks/predictions/trial_truth.py all --sharded --out DIR

Two ranks train the `timed` workload, whose compute is sleeps of known length. `truth` runs every
candidate alone for many steps, in several passes over the candidates, each in another order. `link`
and `loopback` are trials: `link` at 1 Gbit/s between two hosts made of network namespaces (which
need root), `loopback` on this host, without a limit. `all` alternates: passes of truth before,
between and after the trials on the link.

The two kinds of trials train different jobs, see LINK_WORKLOAD and LOOPBACK_WORKLOAD. On the link a
step exchanges 12 MB during a backward pass of 12 ms; on loopback it exchanges 1 MB during one of
48 ms, which hides nearly all of it. On loopback the verdict is based on headroom alone: without any
exchange a step is less than 10 % shorter, so no candidate is recommended, whatever the candidates
did. The study does not run the link's job on loopback.

--sharded does the same with settings of FSDP2 at 300 Mbit/s. `truth` sets them with COMMPROF_FSDP.
A rank sends 8 MB per step, half of them for gradients. It sends 4 MB if parameters are gathered
only once and gradients are reduced in bf16.

Each run appends one line to DIR/results.jsonl, and is not repeated while the line is there, so the
study can be stopped at any time. A run that fails or does not end within two minutes leaves its
reason there, and has a second try. A run is repeated, up to eight times, if the hypervisor took
more than `MOST_STOLEN` of its processor time: its line is kept, but not used. With `--minutes`
nothing new is started after that time.

According to the lengths of steps and ten seconds to start each run, `all` takes half an hour on an
idle machine: 9 minutes for five passes of truth, 12 for 20 trials on the link, 10 for 20 on
loopback. `summary` prints the time of each part.

`summary` counts the trials that named the truly fastest candidate as the fastest, and the trials
that had it among the candidates that they could not tell from the fastest. (Of these candidates a
trial recommends the one that harms gradients least.) It also counts the intervals that contain the
true ratio. `none again` runs the baseline `none` a second time, so its true ratio is 1: its
intervals that contain 1 are counted over all trials. The exit code of `all` and `summary` is 1 if a
demand is not met, or trials are missing.
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

#: Each host has one rank, so "hierarchical", which uses gloo between hosts, sends over gloo only.
CANDIDATES = "fp16,int8,topk:ratio=0.01,powersgd:rank=2,hierarchical"
#: 12 MB of gradients, 96 ms on the link, during a backward of 12 ms: fewer bytes are always better.
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
#: Only two layers: on a CPU torch reduces in the training thread, so only small reductions take
#: almost no time. With four layers the exchange took 9 % of a step, and gathering only once won
#: 3.6 % (means of 20 trials).
SHARDED_LOOPBACK_WORKLOAD = "timed:layers=2,data_ms=2,forward_ms=8,backward_ms=48,gradient_mb=0.1"
#: Compute that hides the exchange of 1 MB on loopback.
LOOPBACK_WORKLOAD = "timed:layers=4,data_ms=2,forward_ms=2,backward_ms=12,gradient_mb=0.25"
PASSES = 5
#: Steps left out of the runs of one candidate, as warm-up.
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
    """One run to do, with a unique name."""

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
        """True if the run is recorded, or has failed as often as allowed."""
        tries = [one for one in self.lines() if one["name"] == name]
        disturbed = sum(map(is_disturbed, tries))
        failed = sum("failed" in one for one in tries)
        is_over = disturbed >= _TRIES_DISTURBED or failed >= _TRIES
        return is_over or len(tries) > sum("failed" in one or is_disturbed(one) for one in tries)

    def append(self, line: dict[str, Any]) -> None:
        """Adds a line atomically."""
        self._kept.append(line)


def main() -> int:
    """Runs a part, or prints the summary and the demands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=(*PARTS, "summary"))
    parser.add_argument("--out", type=Path, required=True, help="where results are kept")
    parser.add_argument("--count", type=int, default=TRIALS, help="number of trials of each kind")
    parser.add_argument("--sharded", action="store_true", help="compare settings of FSDP2")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--block", type=int, default=6, help="measured steps of a block")
    parser.add_argument("--steps", type=int, default=150, help="steps of a run of one candidate")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no run after this time"
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
    # averages gradients, as DDP does itself.
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
    """Runs two ranks on hosts joined by a link, or on this host; yields the run directory.

    ``setting`` is a setting of FSDP2, used from the third step on.
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
            # Namespaces share /dev/shm, so without a name of their own they would count as one
            # host.
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
