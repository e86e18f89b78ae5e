"""Makes report cards of real runs, each with one known cause, for readers new to the tool.

    PYTHONPATH=. python benchmarks/attribution/blind_cards.py --output cards

Each run trains the workload ``timed``, which sleeps in place of compute. The run's cause is one of
``CAUSES``. Sizes are random, and script and arguments do not reveal the cause. OUTPUT/NN.txt is a
card, and OUTPUT/key.json has the causes. Give the cards and the list of causes to readers. Write
the readers' answers to a file, as {"01": "slow rank", ...}, and compare this file with the key:

    PYTHONPATH=. python benchmarks/attribution/blind_cards.py --output cards --answers answers.json

Hosts are network namespaces, which need root. A run takes ten seconds. Failed runs are reported and
left out. A run that has a card is not repeated. ``--again`` makes the cards of recorded runs again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CAUSES = (
    *("late in data", "slow rank", "slow link", "tiny buckets"),
    *("no overlap", "paused host", "wrong interface", "nothing wrong"),
)
#: Least share of right answers. No answer may name a fault in a run with nothing wrong.
RIGHT = 0.9
_STEPS = 24
_FAST = "20gbit"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--each", type=int, default=5, help="runs of each cause (default: 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="only make the cards again")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="JSON with readers' answers")
    args = parser.parse_args()
    if args.answers is not None:
        return _judge(args.output, json.loads(args.answers.read_text()))
    chance = random.Random(args.seed)
    plans = [_plan(cause, chance) for cause in CAUSES for _ in range(args.each)]
    chance.shuffle(plans)
    args.output.mkdir(parents=True, exist_ok=True)
    key = {f"{i + 1:02}": plan["cause"] for i, plan in enumerate(plans)}
    for number, plan in zip(key, plans, strict=True):
        _card(args.output, number, plan, args.again)
    (args.output / "key.json").write_text(json.dumps(key, indent=1) + "\n")
    return 0


def _judge(output: Path, answers: dict[str, str]) -> int:
    key = json.loads((output / "key.json").read_text())
    wrong = {number: (key[number], said) for number, said in answers.items() if said != key[number]}
    for number, (cause, said) in sorted(wrong.items()):
        print(f"{number}: the cause is {cause}, but the answer is {said}")
    accused = sum(cause == "nothing wrong" for cause, _ in wrong.values())
    right = len(answers) - len(wrong)
    print(f"{right} of {len(answers)} right; {accused} runs accused although nothing was wrong")
    return int(right < RIGHT * len(answers) or accused > 0)


def _plan(cause: str, chance: random.Random) -> dict[str, Any]:
    """Returns the plan of a run: ranks or hosts, the workload's options, and the fault."""
    layers = chance.choice([4, 5, 6])
    options: dict[str, Any] = {
        "layers": layers,
        "data_ms": chance.choice([2, 3, 5]),
        "forward_ms": [chance.choice([3, 4, 6])],
        "backward_ms": [chance.choice([6, 8, 10])],
        "gradient_mb": [chance.choice([0.25, 0.5])],
        "bucket_cap_mb": 0.1,
    }
    plan = {"cause": cause, "ranks": chance.choice([2, 3, 4]), "options": options, "slow": {}}
    step = 3 + layers * (options["forward_ms"][0] + options["backward_ms"][0])
    change: Callable[..., None] = _CHANGES[cause]
    change(plan, options, step, chance)
    return plan


def _late(plan: dict[str, Any], options: dict[str, Any], step: float, chance: Any) -> None:
    late_ms = round(step * chance.uniform(0.3, 0.6))
    phase = "data" if plan["cause"] == "late in data" else "pause"
    every = 1 if phase == "data" else chance.choice([1, 2])
    rank = chance.randrange(plan["ranks"])
    options |= {"late_rank": rank, "late_ms": late_ms * every}
    options |= {"late_phase": phase, "late_every": every}


def _slow(plan: dict[str, Any], options: dict[str, Any], step: float, chance: Any) -> None:
    plan["slow"] = {str(chance.randrange(plan["ranks"])): chance.uniform(1.3, 1.7)}


def _link(plan: dict[str, Any], options: dict[str, Any], step: float, chance: Any) -> None:
    plan |= {"hosts": chance.choice([2, 3]), "rate": chance.choice(["60mbit", "100mbit"])}


def _interface(plan: dict[str, Any], options: dict[str, Any], step: float, chance: Any) -> None:
    slow = chance.choice(["60mbit", "100mbit"])
    plan |= {"hosts": chance.choice([2, 3]), "rate": _FAST, "second": slow, "interface": "eth1"}


def _tiny(plan: dict[str, Any], options: dict[str, Any], step: float, chance: Any) -> None:
    plan["ranks"] = 2
    options |= {"layers": chance.choice([150, 250]), "gradient_mb": [chance.choice([0.004, 0.02])]}
    options |= {"bucket_cap_mb": 0.001, "forward_ms": [0.05], "backward_ms": [0.05]}


def _together(plan: dict[str, Any], options: dict[str, Any], step: float, chance: Any) -> None:
    plan["ranks"] = 2
    options |= {"bucket_cap_mb": 1000}
    options |= {"gradient_mb": [chance.choice([40, 60]) / options["layers"]]}


def _nothing(plan: dict[str, Any], options: dict[str, Any], step: float, chance: Any) -> None:
    if chance.random() < 0.4:
        plan |= {"hosts": 2, "rate": _FAST, "second": chance.choice(["", "100mbit"])}


_CHANGES = {
    "late in data": _late,
    "slow rank": _slow,
    "slow link": _link,
    "tiny buckets": _tiny,
    "no overlap": _together,
    "paused host": _late,
    "wrong interface": _interface,
    "nothing wrong": _nothing,
}


def _card(output: Path, number: str, plan: dict[str, Any], again: bool) -> None:
    """Writes the card of a plan; first runs the plan if no run is recorded."""
    run, card = output / "runs" / number, output / f"{number}.txt"
    if card.exists() and not again:
        return
    if not (run / "result.json").exists():
        said = _run(run, plan)
        if not (run / "result.json").exists():
            print(f"{number} {plan['cause']}: no run:\n{said}", file=sys.stderr)
            return
    shown = subprocess.run(
        [sys.executable, "-m", "commprof", "report", str(run)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    shown = shown.replace(str(run), "RUN").replace(_SCRIPT, "train.py")
    card.write_text(re.sub(r"(\S*/)?commprof (?=run|report)", "commprof ", shown))
    print(f"{number} written", flush=True)


_SCRIPT = str(Path(__file__).parents[1] / "ranks" / "blind_rank.py")


def _run(run: Path, plan: dict[str, Any]) -> str:
    from tests.support.machines.netns import Hosts

    told = {name: plan[name] for name in ("options", "slow")} | {"steps": _STEPS}
    env = {"BLIND_RUN": json.dumps(told), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "commprof.run", "--output", str(run)]
    if "hosts" not in plan:
        own = [*command, "--nproc", str(plan["ranks"]), _SCRIPT]
        done = subprocess.run(own, env={**os.environ, **env}, capture_output=True, text=True)
        return done.stdout + done.stderr
    with Hosts(plan["hosts"], plan["rate"], second=plan.get("second", "")) as hosts:
        interface = plan.get("interface", "eth0")
        env["GLOO_SOCKET_IFNAME"] = interface
        command += ["--nproc", "1", "--nnodes", str(plan["hosts"])]
        command += ["--rdzv-endpoint", f"{hosts.address(0, interface)}:29500"]
        started = [
            hosts.popen(host, [*command, "--node-rank", str(host), _SCRIPT], env)
            for host in range(plan["hosts"])
        ]
        return "\n".join(process.communicate(timeout=120)[0] for process in started)


if __name__ == "__main__":
    sys.exit(main())
