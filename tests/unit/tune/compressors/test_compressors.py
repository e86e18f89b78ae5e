from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from commprof import _native, compressors, satellites
from commprof.errors import CommprofError, UsageError
from commprof.tune.compressors import compressor
from commprof.tune.compressors.compressor import SCHEMES, Compressor
from commprof.tune.compressors.running import StateItems

native = pytest.mark.skipif(_native.native is None, reason="no native module")


def test_each_compressor_function_makes_its_own_scheme() -> None:
    for name in SCHEMES:
        assert getattr(compressors, name)().scheme == compressors.parse(name).scheme == name
    assert compressors.topk().label == "topk:ratio=0.01"
    assert compressors.powersgd(2, seed=7).label == "powersgd:rank=2,seed=7"
    assert compressors.powersgd(2, feedback=False).label == "powersgd:rank=2,feedback=0"
    assert (
        compressors.int8(start_step=3, measure_every=5).label == "int8:start_step=3,measure_every=5"
    )


def test_a_scheme_without_a_function_of_its_own_takes_its_options_by_name() -> None:
    topk = compressors.__getattr__("topk")
    assert topk().label == "topk"
    assert topk(ratio=0.5, feedback=0, measure_every=5).label == (
        "topk:ratio=0.5,feedback=0,measure_every=5"
    )
    with pytest.raises(UsageError, match="topk has no option 'rank'"):
        topk(rank=2)
    with pytest.raises(AttributeError, match="has no attribute 'zip'"):
        _ = compressors.zip


def test_predictions_get_the_exchange_of_each_scheme() -> None:
    assert satellites.tune().exchanges() == {
        **dict.fromkeys(("fp16", "bf16", "int8", "int4"), "two_phase"),
        **dict.fromkeys(("none", "powersgd"), "ring"),
        **{"topk": "gather", "hierarchical": "hierarchical"},
    }


@pytest.mark.parametrize("text", ["none", "topk:ratio=0.001,feedback=0", "powersgd:rank=8,seed=3"])
def test_a_compressor_label_parses_to_itself(text: str) -> None:
    assert compressors.parse(text).label == text
    assert compressors.parse(compressors.parse(text).label).label == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zip", "unknown compressor 'zip' (allowed: none, fp16, bf16"),
        (
            "topk:k=3",
            "topk has no option 'k' (allowed: ratio, feedback, start_step, checksum, hierarchical)",
        ),
        ("none:feedback=1", "none has no option 'feedback' (allowed: none)"),
        ("topk:ratio=2", "topk: ratio=2.0 is out of range (allowed: a number from 1e-09 to 1)"),
        ("topk:ratio=nan", "ratio=nan is out of range"),
        ("powersgd:rank=1.5", "rank=1.5 is out of range (allowed: a whole number from 1 to 16)"),
        ("topk:ratio=big", "'ratio=big' is not option=number"),
        ("topk:ratio", "'ratio' is not option=number (as in topk:ratio=0.01)"),
        ("int8:measure_every=-1", "measure_every=-1 is out of range"),
        (
            "topk:ratio=0.01,ratio=0.5",
            "topk: option 'ratio' is given twice; keep one of them",
        ),
        ("int8:seed=1,seed=1", "int8: option 'seed' is given twice"),
        ("int8:seed=0.5", "int8: seed=0.5 is not a whole number"),
    ],
)
def test_unusable_compressor_options_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        compressors.parse(text)


def test_the_help_text_has_a_line_for_each_compressor() -> None:
    lines = compressor.help_text().splitlines()
    assert [line.split()[0].partition(":")[0] for line in lines] == list(SCHEMES)


def test_making_a_compressor_does_not_import_torch() -> None:
    make = "import sys; from commprof import compressors; compressors.topk()"
    check = f"{make}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_compressor_calls_that_need_a_model_are_refused_without_one() -> None:
    with pytest.raises(CommprofError, match="is not attached to a model"):
        compressors.fp16().state_dict()
    with pytest.raises(UsageError, match="both must be above 0"):
        compressors.fp16().set_loss_scale(0, 1)


class Engine:
    step = 0

    def __init__(self) -> None:
        self.told: list[object] = []
        self.loaded: StateItems = []

    def state(self) -> StateItems:
        return self.loaded

    def load_state(self, state: StateItems) -> None:
        self.loaded = state

    def scale_residuals(self, factor: float) -> None:
        self.told.append(factor)

    def step_skipped(self) -> None:
        self.told.append("skipped")


class Model:
    def __init__(self, world_size: int = 1, rank: int = 0, hosts: int = 0) -> None:
        self.names, self.sizes = ["a"], [3]
        self.world_size, self.rank = world_size, rank
        self.compresses = True
        self.residual_ranks = hosts or world_size
        self.keeps_merged = not hosts or rank % (world_size // hosts) == 0
        self.engine = Engine()


def bound(compressor: Compressor, model: Model) -> Engine:
    compressor.bind(model)  # type: ignore[arg-type]
    return model.engine


def skip_a_step(scaler: torch.amp.GradScaler) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()


def test_a_followed_grad_scaler_still_works_after_the_compressor_is_unbound() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    first, second = compressors.topk(), compressors.topk()
    engine = bound(first, Model())
    for _ in range(2):
        first.follow_scaler(scaler)
    skip_a_step(scaler)
    assert engine.told == ["skipped", 0.5]
    first.unbind()
    skip_a_step(scaler)
    assert scaler.get_scale() == 16.0
    other = bound(second, Model())
    second.follow_scaler(scaler)
    skip_a_step(scaler)
    assert other.told == ["skipped", 0.5]
    engine_again = bound(first, Model())
    second.unbind()
    skip_a_step(scaler)
    assert engine_again.told == engine.told == other.told == ["skipped", 0.5]


def test_a_scale_that_the_script_lowers_itself_is_no_sign_of_a_skipped_step() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    compressor = compressors.topk()
    engine = bound(compressor, Model())
    compressor.follow_scaler(scaler)
    scaler.scale(torch.ones(1))
    scaler.update(16.0)
    assert engine.told == [0.25]


def states(world_size: int = 2) -> list[dict[str, object]]:
    return [
        {
            "version": 1,
            "scheme": "powersgd",
            "options": {"rank": 1.0},
            "seed": 0,
            "step": 5,
            "world_size": world_size,
            "rank": rank,
            "parameters": {
                "a": {"residual": torch.full((3,), float(rank)), "q": torch.ones(2)},
                **({"b": {"residual": torch.ones(1)}} if rank == 0 else {}),
            },
        }
        for rank in range(world_size)
    ]


def test_merged_residuals_are_means_over_the_ranks() -> None:
    merged = compressors.merge_states(list(reversed(states(4))))
    parameters = merged["parameters"]
    assert parameters["a"]["residual"].tolist() == [1.5] * 3
    assert parameters["a"]["q"].tolist() == [1.0, 1.0]
    assert parameters["b"]["residual"].tolist() == [0.25]  # the other three ranks count as zeros
    assert (merged["step"], merged["world_size"], merged["rank"]) == (5, -1, -1)


def test_states_on_different_devices_are_merged_on_that_of_the_first_rank() -> None:
    found: Any = states()
    found[0]["parameters"]["a"]["residual"] = torch.zeros(3, device="meta")  # meta stands for a GPU
    merged = compressors.merge_states(found)
    assert merged["parameters"]["a"]["residual"].device.type == "meta"
    assert merged["parameters"]["b"]["residual"].tolist() == [0.5]


def states_on_hosts(
    residuals: dict[int, float], *, world_size: int, hosts: int
) -> list[dict[str, Any]]:
    found = []
    for rank in range(world_size):
        compressor = compressors.parse("int4:hierarchical=1")
        engine = bound(compressor, Model(world_size, rank, hosts))
        if rank in residuals:
            engine.loaded = [(0, "residual", torch.full((3,), residuals[rank]))]
        found.append(compressor.state_dict())
    return found


def loaded_on_hosts(state: dict[str, Any], *, rank: int, world_size: int, hosts: int) -> list[Any]:
    compressor = compressors.parse("int4:hierarchical=1")
    engine = bound(compressor, Model(world_size, rank, hosts))
    compressor.load_state_dict(state)
    return [values.tolist() for _, _, values in engine.loaded]


def test_merged_residuals_are_means_over_the_hosts_and_kept_once_on_each() -> None:
    # Rank 1 still has a residual from before DDP changed its buckets.
    old = states_on_hosts({0: 1.0, 1: 0.5, 4: 2.0}, world_size=8, hosts=2)
    merged = compressors.merge_states(old)
    assert merged["parameters"]["a"]["residual"].tolist() == [1.75] * 3
    new = [loaded_on_hosts(merged, rank=rank, world_size=6, hosts=3) for rank in range(6)]
    assert new == [[[1.75] * 3], []] * 3
    again = compressors.merge_states(
        states_on_hosts({0: 1.75, 2: 1.75, 4: 1.75}, world_size=6, hosts=3)
    )
    assert again["parameters"]["a"]["residual"].tolist() == [1.75] * 3


def test_a_rank_s_residual_can_be_loaded_with_another_number_of_hosts() -> None:
    old = states_on_hosts({0: 1.0, 2: 1.0}, world_size=4, hosts=2)
    assert loaded_on_hosts(old[0], rank=0, world_size=4, hosts=2) == [[1.0] * 3]
    assert loaded_on_hosts(old[0], rank=0, world_size=4, hosts=0) == [[2.0] * 3]


def test_the_state_of_a_job_on_several_hosts_is_left_out_on_a_single_host() -> None:
    """On a single host the engine sums in fp32 and would never send a residual."""
    state = compressors.merge_states(states_on_hosts({0: 1.0}, world_size=4, hosts=2))
    compressor, model = compressors.parse("int4:hierarchical=1"), Model(world_size=2)
    model.compresses = False
    engine = bound(compressor, model)
    with pytest.warns(UserWarning, match="are not compressed on a single host, .* left out: a$"):
        compressor.load_state_dict(state)
    assert engine.loaded == []


def test_only_parameters_that_the_saved_model_lacked_are_named_as_new(
    recwarn: pytest.WarningsRecorder,
) -> None:
    model, compressor = Model(), compressors.topk()
    model.names, model.sizes = ["a", "frozen"], [3, 1]
    bound(compressor, model).loaded = [(0, "residual", torch.ones(3))]
    state = compressor.state_dict()
    compressor.load_state_dict(state)
    assert not recwarn.list
    model.names, model.sizes = ["a", "frozen", "new"], [3, 1, 1]
    with pytest.warns(UserWarning, match="start with an empty state: new$"):
        compressor.load_state_dict(state)


def test_states_of_missing_ranks_or_different_steps_are_not_merged() -> None:
    with pytest.raises(UsageError, match="needed: one state of each rank"):
        compressors.merge_states(states()[:1])
    with pytest.raises(UsageError, match="needed: one state of each rank"):
        compressors.merge_states([])
    first, second = states()
    with pytest.raises(UsageError, match="has step 6, but rank 0's has 5"):
        compressors.merge_states([first, {**second, "step": 6}])
