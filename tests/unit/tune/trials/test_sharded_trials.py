from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from commprof.tune.trials.candidates import parse_candidate
from commprof.tune.trials.live.controller import Trial
from commprof.tune.trials.live.sharded import (
    GatherOrder,
    ShardedModel,
    _groups_of,
    _owners_of_policy,
    _OwnGather,
    _OwnScatter,
    set_every_model,
)
from commprof.tune.trials.plan import SETTLE_STEPS, parse_trial
from tests.unit.tune.trials.test_live_trials import TIME_OUT, Steps, model, one_rank, train

__all__ = ["one_rank"]

BLOCKS = 3
#: If FSDP2 gathers parameters in bf16, this is the default type of sent gradients.
REDUCED_UNLESS_SAID = "fp32" if torch.__version__ >= (2, 15) else "bf16"
BLOCK_BYTES = 4 * (16 * 16 + 16)


def sharded(**options: Any) -> Any:
    blocks = [nn.Linear(16, 16) for _ in range(BLOCKS)]
    root = nn.Sequential(*blocks, nn.Linear(16, 16))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(root, mesh=mesh, **options)


def step(root: Any) -> None:
    root(torch.ones(2, 16)).sum().backward()


def whole_parameters(group: Any) -> list[torch.Tensor]:
    return [one._unsharded_param for one in group.fsdp_params if hasattr(one, "_unsharded_param")]


def settings(root: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in root.named_modules():
        if not hasattr(module, "_get_fsdp_state"):
            continue
        state = module._get_fsdp_state()
        (group,) = _groups_of(state)
        found[name] = {
            "mesh": (group.post_forward_mesh_info, group.mesh_info),
            "prefetch": (state._states_to_forward_prefetch, state._states_to_backward_prefetch),
            "async": group.unshard_async_op,
            "dtypes": (
                [owner.mp_policy for owner in _owners_of_policy(group)],
                *(group._reduce_dtype, group.fsdp_params[0].reduce_dtype),
                *(whole.grad_dtype for whole in whole_parameters(group)),
            ),
            "exchange": (group._all_gather_comm, group._reduce_scatter_comm),
            "scatter group": getattr(group.mesh_info, "reduce_scatter_process_group", None),
        }
    return found


PLAN = "reshard-after-forward=false,prefetch=2,reduce-dtype=bf16,rounds=3,block=1"


def seen(root: Any) -> str:
    found = settings(root)["0"]
    if isinstance(found["exchange"][0], _OwnGather):
        return "noop"
    if found["dtypes"][1] is torch.bfloat16:
        return "reduce-dtype=bf16"
    if found["mesh"][0] is None:
        return "reshard-after-forward=false"
    return "prefetch=2" if any(found["prefetch"]) else "none"


def test_each_block_uses_its_fsdp_setting_and_settings_are_restored_at_the_end() -> None:
    root, steps, plan = sharded(), Steps(), parse_trial(PLAN)
    trial = Trial(plan, steps)  # type: ignore[arg-type]
    trial.add(root)
    labels, before = [], None
    for number in range(plan.steps):
        if number == SETTLE_STEPS - 1:
            before = settings(root)
        step(root)
        if number >= SETTLE_STEPS:
            labels.append(seen(root))
        with torch.no_grad():
            for parameter in root.parameters():
                parameter.add_(1.0)
        steps.step()
    wanted = [plan.everyone[block.candidate].label for block in plan.schedule().blocks]
    wanted = ["none" if label == "none again" else label for label in wanted]
    assert labels == [label for label in wanted for _ in range(3)]
    assert trial.done
    assert settings(root) == before


def test_prefetching_follows_the_order_of_gathering() -> None:
    """Both passes gather the root first. Backward gathers the blocks in reverse order."""
    root, order = sharded(), GatherOrder()
    setting = ShardedModel(root, order)
    order.watch()
    step(root)
    order.stop()
    setting.use(parse_candidate("prefetch=2").sharding)
    states = {id(module._get_fsdp_state()): name for name, module in root.named_modules()
              if hasattr(module, "_get_fsdp_state")}  # fmt: skip
    passes = [
        {name: [states[id(one)] for one in module["prefetch"][way]]
         for name, module in settings(root).items()}
        for way in (0, 1)
    ]  # fmt: skip
    assert passes[0] == {"": ["0", "1"], "0": ["1", "2"], "1": ["2"], "2": []}
    assert passes[1] == {"": ["2", "1"], "2": ["1", "0"], "1": ["0"], "0": []}
    setting.leave()
    assert not any(any(one["prefetch"]) or one["async"] for one in settings(root).values())


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="torch reduces in the gathers' group")
def test_reductions_get_a_group_of_their_own_which_is_made_once() -> None:
    root = sharded()
    setting, own = ShardedModel(root, GatherOrder()), parse_candidate("scatter-group=own")
    step(root)
    before = settings(root)
    made = []
    for _ in range(2):
        setting.use(own.sharding)
        made += [one["scatter group"] for one in settings(root).values()]
        assert "already" in setting.impossible(own)
        step(root)
        setting.leave()
        assert settings(root) == before
    assert made[0] is not None
    assert made[0] is not root._get_fsdp_state()._fsdp_param_groups[0].mesh_info.shard_process_group
    assert all(group is made[0] for group in made)
    assert made[0]._get_backend(torch.device("cpu")).options._timeout == TIME_OUT
    assert setting.impossible(own) == ""


def test_an_exception_in_a_step_restores_the_model_s_settings_and_weights() -> None:
    root, steps, plan = sharded(), Steps(), parse_trial(PLAN)
    trial = Trial(plan, steps)  # type: ignore[arg-type]
    trial.add(root)
    step(root)
    before = settings(root)
    weight = root[0].weight.full_tensor().clone()
    steps.step()
    while seen(root) != "noop":
        step(root)
        steps.step()
    with torch.no_grad():
        root[0].weight.to_local().add_(1.0)
    with pytest.raises(RuntimeError):
        root(torch.ones(2, 15))
    trial.capture_ends()
    # torch asks scripts that continue after an error to call ``reset_iter_state``.
    # With older versions of torch, scripts can only reshard.
    if hasattr(root, "reset_iter_state"):
        root.reset_iter_state()
    else:
        for module in (*root[:BLOCKS], root):
            module.reshard()
    assert settings(root) == before
    assert torch.equal(root[0].weight.full_tensor(), weight)


@pytest.mark.parametrize(
    ("label", "options", "why"),
    [
        ("reshard-after-forward=false", {}, ""),
        ("reshard-after-forward=true", {}, ""),  # by default the root is not resharded
        (
            "reshard-after-forward=false",
            {"reshard_after_forward": False},
            "the whole model has reshard-after-forward=false already",
        ),
        ("prefetch=3", {}, ""),
        ("prefetch=4", {}, "at most 3 groups of parameters can be prefetched"),
        ("reduce-dtype=fp32", {}, "the model has reduce-dtype=fp32 already"),
        (
            f"reduce-dtype={REDUCED_UNLESS_SAID}",
            {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
            f"the model has reduce-dtype={REDUCED_UNLESS_SAID} already",
        ),
        ("int8", {}, "sharded by FSDP2 and has neither buckets nor hooks"),
    ],
)
def test_candidates_impossible_for_a_sharded_model_are_refused_with_the_reason(
    label: str, options: dict[str, Any], why: str
) -> None:
    root, order = sharded(**options), GatherOrder()
    order.watch()
    step(root)
    order.stop()
    found = ShardedModel(root, order).impossible(parse_candidate(label))
    assert why in found
    assert bool(found) == bool(why)


def test_an_fsdp_candidate_takes_no_part_in_a_trial_of_a_ddp_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = Steps()
    trial = Trial(parse_trial("prefetch=2,rounds=3,block=1"), steps)  # type: ignore[arg-type]
    from commprof.capture.attachment import attach

    attachment = attach(model())
    trial.add(attachment)
    for _ in range(SETTLE_STEPS + 1):
        train(attachment.ddp)
        steps.step()
    assert "prefetch=2 takes no part in the trial: it is a setting of FSDP2" in (
        capsys.readouterr().err
    )


def test_held_bytes_are_those_of_parameters_that_stay_gathered() -> None:
    root = sharded()
    step(root)
    found = ShardedModel(root, GatherOrder())
    labels = ("reshard-after-forward=false", "prefetch=2", "reduce-dtype=bf16")
    held = {label: found.held_bytes(parse_candidate(label).sharding) for label in labels}
    # The root's parameters stay gathered anyway.
    assert held["reshard-after-forward=false"] == BLOCKS * BLOCK_BYTES
    assert held["prefetch=2"] == 2 * BLOCK_BYTES
    assert held["reduce-dtype=bf16"] == 0


def test_a_trial_finds_sharded_models_of_unchanged_scripts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps, plan = Steps(), parse_trial("reshard-after-forward=false,rounds=3,block=1")
    trial = Trial(plan, steps)  # type: ignore[arg-type]
    trial.find_sharded()
    left_over = sharded()
    step(left_over)
    before = settings(left_over)
    steps.step()
    root = sharded()
    for _ in range(plan.steps):
        step(root)
        steps.step()
        assert settings(left_over) == before
    assert trial.done
    assert "a trial of 4 candidates begins" in capsys.readouterr().err


def test_noop_gather_and_scatter_exchange_nothing_and_keep_buffer_sizes() -> None:
    gathered = torch.zeros(4)
    _OwnGather(None)(gathered, torch.tensor([1.0, 2.0]), async_op=True)
    assert gathered.tolist() == [1, 2, 1, 2]
    part = torch.zeros(3)
    assert dist.group.WORLD is not None
    _OwnScatter(None)(part, torch.arange(3.0), dist.group.WORLD, dist.ReduceOp.AVG)
    assert part.tolist() == [0, 1, 2]


@pytest.mark.parametrize("setting", ["prefetch=1", "reshard-after-forward=false", "prefetch=9"])
def test_a_permanent_fsdp_setting_is_applied_after_the_first_step_if_possible(
    setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root, steps = sharded(), Steps()
    set_every_model(setting, steps)  # type: ignore[arg-type]
    labels = []
    for _ in range(4):
        step(root)
        steps.step()
        found = settings(root)["0"]
        labels.append(found["mesh"][0] is None or any(found["prefetch"]))
    possible = setting != "prefetch=9"
    assert labels == [False, possible, possible, possible]
    assert ("prefetch=9 was not applied: at most 3 groups" in capsys.readouterr().err) != possible
