from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from commprof.capture import boot
from commprof.capture.settings import RankSettings
from commprof.capture.sync_check import SyncCheck, parameters_digest
from commprof.commands import main
from commprof.errors import UsageError


def model(nudge: float = 0.0) -> nn.Module:
    torch.manual_seed(3)
    made = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    with torch.no_grad():
        made[0].weight[2, 1] += nudge
    return made


class CountedStore:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._store = dist.HashStore()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._store, name)


def checks(models: list[nn.Module], every: int = 2, store: Any = None) -> list[SyncCheck]:
    store = store or dist.HashStore()
    made = []
    for rank, each in enumerate(models):
        made.append(SyncCheck(every, store, rank, len(models)))
        made[-1].add(each)
    return made


def train(ranks: list[SyncCheck], steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        for rank in ranks:
            rank.step_ended(step)


def test_equal_models_pass_the_sync_check_though_buffers_differ(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ranks = checks(models := [model(), model(), model()])
    models[1][1](torch.ones(3, 8))
    train(ranks, 6)
    assert ranks[0].checks == 2  # A snapshot is compared when the next snapshot is taken.
    ranks[0].capture_ends()
    assert (ranks[0].checks, ranks[0].different) == (3, ())
    assert capfd.readouterr().err == ""


def test_the_sync_check_names_the_rank_whose_model_differs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ranks = checks(models := [model(), model(), model()])
    train(ranks, 4)
    with torch.no_grad():
        weight = models[2][0].weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    train(ranks, 6, first=4)
    assert ranks[0].different == (2,)
    assert ranks[0].first_step == 5
    said = capfd.readouterr().err
    assert said == (
        "commprof: after step 5 the model of rank 2 is not bit-identical to that of the 2 other "
        "ranks\n"
    )


def test_the_sync_check_does_not_wait_for_a_rank_that_never_answers() -> None:
    ranks = checks(models := [model(), model()])
    train(ranks[: len(models) - 1], 400)
    ranks[0].capture_ends()
    assert ranks[0].checks == 0


def test_a_comparison_takes_two_calls_of_the_store_and_keys_do_not_pile_up() -> None:
    store = CountedStore()
    ranks = checks(models := [model(), model(), model()], every=1, store=store)
    train(ranks, 200)
    assert ranks[0].checks == 199
    assert store.calls == {"set": 600, "check": 199, "multi_get": 199}
    assert store.num_keys() == len(models) * 64


def test_hashes_that_a_rank_far_ahead_has_replaced_are_not_compared() -> None:
    ranks = checks(models := [model(), model()], every=1)
    for rank in reversed(range(len(models))):
        train([ranks[rank]], 70)
    ranks[0].capture_ends()
    assert (ranks[0].checks, ranks[0].different) == (64, ())


def test_comparing_models_in_a_trial_with_noop_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--dry-run", "--nproc", "2", "--output", str(tmp_path / "run")]
    words += ["--workload", "mlp", "--check-sync", "5", "--trial"]
    assert main([*words, "int8"]) == 2
    assert "--check-sync 5 (or COMMPROF_CHECK_SYNC) would" in capsys.readouterr().err
    assert main([*words, "int8,headroom=0"]) == 0
    with pytest.raises(UsageError, match="give headroom=0 in the trial"):
        boot._refuse_nonsense(RankSettings(trial="int8", check_sync_every=5))


def test_the_digest_of_parameters_depends_on_their_exact_bits() -> None:
    assert parameters_digest([model()]) == parameters_digest([model()])
    assert parameters_digest([model()]) != parameters_digest([model(1e-7)])
    zero, negative = nn.Linear(1, 1), nn.Linear(1, 1)
    for made, value in ((zero, 0.0), (negative, -0.0)):
        nn.init.constant_(made.weight, value)
        nn.init.zeros_(made.bias)
    assert parameters_digest([zero]) != parameters_digest([negative])


def test_a_model_that_cannot_be_hashed_ends_the_check_with_a_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ranks = checks([model(), model()], every=1)
    broken = nn.Module()
    broken.values = nn.Parameter(torch.ones(2).to_sparse())
    ranks[1].add(broken)
    train(ranks, 3)
    ranks[0].capture_ends()
    assert (ranks[0].checks, ranks[0].different) == (0, ())
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("commprof: rank 1 no longer compares its model")
