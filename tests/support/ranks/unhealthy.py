from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from commprof.analysis.checks.outcome import PASS, Outcome
from commprof.checks import all_reduce, gradients, ring
from commprof.checks.ranks import Ranks
from commprof.checks.run import run_checks


def wrong() -> None:
    _wrong_sums()
    _own_updates()


def _wrong_sums() -> None:
    original = dist.all_reduce

    def faulty(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        work = original(tensor, *args, **options)
        if tensor.numel() > 1:
            tensor[1] += 1
        return work

    all_reduce.dist.all_reduce = faulty  # type: ignore[attr-defined]


def _own_updates() -> None:
    original = torch.optim.SGD.step

    def faulty(self: torch.optim.SGD, *args: Any) -> Any:
        result = original(self, *args)
        with torch.no_grad():
            self.param_groups[0]["params"][0][0, 0] += 1e-6
        return result

    torch.optim.SGD.step = faulty  # type: ignore[method-assign]


def dies() -> None:
    def measure(ranks: Ranks) -> Any:
        os._exit(0)

    all_reduce.measure = measure


class Copies:
    NAME = "copies"

    def measure(self, ranks: Ranks) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        before = gradients.out_of_sync(model)
        with torch.no_grad():
            model.bias += 1e-6 * ranks.rank
        return before, gradients.out_of_sync(model)

    def judge(self, values: Sequence[Any]) -> Outcome:
        return Outcome(self.NAME, PASS, str(values))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if os.environ["RANK"] == "1":
        {"wrong": wrong, "dies": dies}[sys.argv[1]]()
    outcomes = run_checks((ring, all_reduce, gradients, Copies()))
    if os.environ["RANK"] == "0":
        print(json.dumps([(each.check, each.status, each.figure) for each in outcomes]))
