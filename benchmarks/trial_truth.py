"""Whether trials tell the truth: the best candidate on a slow link, "no" where nothing can be won.

    PYTHONPATH=. python benchmarks/trial_truth.py truth --out DIR     # long fixed runs, one each
    PYTHONPATH=. python benchmarks/trial_truth.py link --out DIR      # 20 trials at 1 Gbit/s
    PYTHONPATH=. python benchmarks/trial_truth.py loopback --out DIR  # 20 trials without a limit
    PYTHONPATH=. python benchmarks/trial_truth.py summary --out DIR

Two ranks train the `timed` workload, whose compute is sleeps of known length. `truth` runs every
candidate alone for many steps, in three passes of other order; `summary` counts the trials that
named the truly fastest, and the intervals that hold the true ratio. Each run leaves one file
in DIR and is not repeated while that is there: stop and start again at will, or give
--count to do a part. `truth` and `link` make two hosts of network namespaces, which takes root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from commprof.launch.job import Job
from commprof.trace import columns
from commprof.trace.run_directory import read_world, world_directory
from commprof.trials.analyse import analyse_trial
from commprof.trials.candidates import BASELINE
from commprof.trials.plan import parse_trial
from tests.support import netns

#: Without "hierarchical": namespaces share /dev/shm, so it would take them for one host.
CANDIDATES = "fp16,int8,topk:ratio=0.01,powersgd:rank=2"
#: 12 MB of gradients, 96 ms on the link, beside a backward of 12 ms: the fewer bytes the better.
LINK_WORKLOAD = "timed:layers=4,data_ms=2,forward_ms=2,backward_ms=3,gradient_mb=3,bucket_cap_mb=1"
#: Compute that hides what loopback takes for 1 MB.
LOOPBACK_WORKLOAD = "timed:layers=4,data_ms=2,forward_ms=2,backward_ms=12,gradient_mb=0.25"
#: Left out of fixed runs, as warm-up.
_FIRST = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--out", type=Path, required=True, help="where results are kept")
    parser.add_argument("--count", type=int, default=20, help="of trials")
    parser.add_argument("--candidates", default=CANDIDATES)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150, help="of a fixed run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    PARTS[args.part](args)


def _truth(args: argparse.Namespace) -> None:
    labels = [BASELINE, *(one.label for one in parse_trial(args.candidates).candidates)]
    for turn in range(3):
        for label in random.Random(turn).sample(labels, len(labels)):
            path = args.out / f"truth-{turn}-{label.replace(':', '_').replace('/', '_')}.json"
            if not path.exists():
                step_ms = _fixed(label, args.steps)
                path.write_text(json.dumps({"label": label, "step_ms": step_ms}))
                print(f"{label}: {step_ms:.2f} ms", flush=True)


def _fixed(label: str, steps: int) -> float:
    """Median step of a run with one candidate alone, on the slowest rank."""
    # The hook is there for all, as in a trial: "none" is DDP's mean inside it.
    compressor = "" if label == BASELINE else label
    directory = _run(
        "1gbit", LINK_WORKLOAD, steps=steps, hook=not compressor, compressor=compressor
    )
    try:
        medians = []
        for trace in read_world(directory, 2).traces.values():
            table = columns.steps(trace)
            walls = (table.end_ns - table.begin_ns)[_FIRST:]
            medians.append(statistics.median(walls.tolist()) / 1e6)
        return max(medians)
    finally:
        shutil.rmtree(directory)


def _trials(rate: str, workload: str, name: str, args: argparse.Namespace) -> None:
    for number in range(args.count):
        path = args.out / f"{name}-{number:02d}.json"
        if path.exists():
            continue
        plan = parse_trial(f"{args.candidates},rounds={args.rounds},shuffle={number}")
        directory = _run(rate, workload, steps=plan.steps, trial=plan.text, hook=False)
        try:
            result = analyse_trial(world_directory(directory, 2))
            assert result is not None
            ratios = {
                one.label: [one.ratio.value, one.ratio.low, one.ratio.high]
                for one in result.candidates
                if one.ratio is not None
            }
            found = {
                "answer": result.verdict.answer,
                "choice": result.verdict.choice,
                "ratios": ratios,
            }
            path.write_text(json.dumps(found))
            print(f"{number}: {found['answer']} {found['choice']}", flush=True)
        finally:
            shutil.rmtree(directory)


def _link(args: argparse.Namespace) -> None:
    _trials("1gbit", LINK_WORKLOAD, "link", args)


def _loopback(args: argparse.Namespace) -> None:
    _trials("", LOOPBACK_WORKLOAD, "loopback", args)


def _run(rate: str, workload: str, **job: Any) -> Path:
    """Two ranks on hosts joined by such a link, or on this one; returns the run directory."""
    directory = Path(tempfile.mkdtemp(prefix="trial_truth"))
    world = world_directory(directory, 2)
    world.mkdir()
    made = Job(workload, 2, world, **job)
    if not rate:
        from commprof.launch.elastic import launch

        launch(made, world / "logs")
        return directory
    if reason := netns.unavailable():
        raise SystemExit(f"no network namespaces here: {reason}")
    made.save(world / "job.json")
    command = [sys.executable, "-m", "commprof.launch.worker", str(world / "job.json")]
    with netns.Hosts(2, rate) as hosts:
        common = {
            **{"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29500", "WORLD_SIZE": "2"},
            **{"GLOO_SOCKET_IFNAME": "eth0", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"},
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        ranks = [hosts.popen(i, command, {**common, "RANK": str(i)}) for i in range(2)]
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit("a rank failed:\n" + "\n".join(outputs))
    return directory


def _summary(args: argparse.Namespace) -> None:
    truths: dict[str, list[float]] = {}
    for path in sorted(args.out.glob("truth-*.json")):
        one = json.loads(path.read_text())
        truths.setdefault(one["label"], []).append(one["step_ms"])
    steps = {label: statistics.median(values) for label, values in truths.items()}
    for label, step_ms in sorted(steps.items(), key=lambda item: item[1]):
        spread = max(truths[label]) / min(truths[label]) - 1
        print(f"  {label:24} {step_ms:8.2f} ms, passes differ by {spread:.1%}")
    link = [json.loads(path.read_text()) for path in sorted(args.out.glob("link-*.json"))]
    if steps and link:
        best = min(steps, key=lambda label: steps[label])
        right = sum((one["choice"] or BASELINE) == best for one in link)
        print(f"1 Gbit/s: {right} of {len(link)} trials named {best}")
        for label in steps:
            if label != BASELINE:
                truth = steps[label] / steps[BASELINE]
                held = sum(
                    one["ratios"][label][1] <= truth <= one["ratios"][label][2] for one in link
                )
                print(f"  {label:24} true ratio {truth:.4f}, in {held} of {len(link)} intervals")
    trials = [json.loads(path.read_text()) for path in sorted(args.out.glob("loopback-*.json"))]
    if trials:
        said_no = sum(one["answer"] in ("none", "not-the-bottleneck") for one in trials)
        print(f"loopback: {said_no} of {len(trials)} trials said no")


PARTS = {"truth": _truth, "link": _link, "loopback": _loopback, "summary": _summary}

if __name__ == "__main__":
    main()
