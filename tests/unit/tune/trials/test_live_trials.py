from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import attach
from commprof.capture.recorder import recorder
from commprof.errors import CommprofError, UsageError
from commprof.tune.trials import live
from commprof.tune.trials.candidates import OWN_BUCKETS, BucketSetting, parse_candidate
from commprof.tune.trials.live import switches
from commprof.tune.trials.live.controller import Trial
from commprof.tune.trials.live.switches import Bucketings, ReplicatedModel, obstacle
from commprof.tune.trials.plan import SETTLE_STEPS, parse_trial

#: torch gives groups that are made later another time-out by default.
TIME_OUT = timedelta(minutes=7)


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=TIME_OUT)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


class Steps:
    mode = "full"
    of_whole_job = True
    trace_path: Path | None = None

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self._step = 0

    def listen(self, listener: Any) -> None:
        self.listeners.append(listener)

    def step(self) -> None:
        for listener in self.listeners:
            listener.step_ended(self._step)
        self._step += 1


def model(layers: int = 4, **options: Any) -> DistributedDataParallel:
    made = [torch.nn.Linear(16, 16, bias=False) for _ in range(layers)]
    return DistributedDataParallel(torch.nn.Sequential(*made), **options)


def train(ddp: DistributedDataParallel) -> None:
    ddp.zero_grad()
    ddp(torch.ones(2, 16)).sum().backward()


def test_each_block_uses_its_candidate_and_the_model_is_restored_at_the_end() -> None:
    ddp = model()
    reducer = ddp.reducer
    for parameter in ddp.parameters():
        torch.nn.init.zeros_(parameter)
    steps, plan = Steps(), parse_trial("fp16,bucket-cap=0.001,rounds=3,block=1,warmup=2")
    trial = Trial(plan, steps)  # type: ignore[arg-type]
    attachment = attach(ddp)
    trial.add(attachment)
    seen = []
    for number in range(plan.steps):
        train(ddp)
        if number >= SETTLE_STEPS:
            label = attachment.compressor.label if attachment.compressor else ""
            seen.append((label, ddp.reducer is reducer))
        with torch.no_grad():
            for parameter in ddp.parameters():
                parameter.add_(1.0)
        steps.step()
    wanted = []
    for block in plan.schedule().blocks:
        one = plan.everyone[block.candidate]
        compressor = "fp16:measure_every=3" if one.compressor else ""
        wanted += [(compressor, not one.buckets.recuts)] * 3
    assert seen == wanted
    assert trial.done
    assert ddp.reducer is reducer
    assert attachment.compressor is None
    kept = SETTLE_STEPS + 3 * 3 * 3  # 3 rounds of 3 steps for none, none again and bucket-cap
    assert all((parameter == kept).all() for parameter in ddp.parameters())


def test_a_trial_s_bucket_cap_gives_the_buckets_of_ddp_with_that_cap() -> None:
    buckets: list[list[int]] = []
    for cap in (None, 0.001):
        ddp = model() if cap is None else model(bucket_cap_mb=cap)
        sizes: list[int] = []
        attachment = attach(ddp, lambda _, bucket, s=sizes: _noted(bucket, s))
        if cap is None:
            attachment.set_hook(None)
            train(ddp)
            train(ddp)
            Bucketings(attachment).use(BucketSetting(cap_mb=0.001))
            attachment.set_hook(lambda _, bucket, s=sizes: _noted(bucket, s))
        for _ in range(3):
            train(ddp)
        buckets.append(sizes)
    # A layer has 256 elements or 1,024 bytes, so two layers exceed the cap of 1,048 bytes.
    assert buckets[0] == buckets[1] == [1024] + [512] * 4


def test_first_bucket_changes_only_the_cap_of_the_first_bucket() -> None:
    ddp, sizes, candidate = model(layers=6), list[int](), parse_candidate("first-bucket=0.001")
    attachment = attach(ddp)
    train(ddp)
    why = ReplicatedModel(attachment).impossible(candidate)
    if not hasattr(ddp, "_bucket_config"):  # torch has this attribute from version 2.12 on
        assert why == "this version of torch cannot change the cap of the first bucket"
        return
    assert why == ""
    bucketings = Bucketings(attachment)
    bucketings.use(candidate.buckets)
    attachment.set_hook(lambda _, bucket: _noted(bucket, sizes))
    for _ in range(2):
        train(ddp)
    assert sizes == [6 * 256, 2 * 256, 4 * 256]
    bucketings.close()


def test_gradients_are_bucket_views_only_while_that_candidate_is_tried() -> None:
    ddp = model()
    train(ddp)
    bucketings = Bucketings(attach(ddp))

    def places() -> int:
        grads = [one.grad for one in ddp.parameters()]
        return len({grad.untyped_storage().data_ptr() for grad in grads if grad is not None})

    for _ in range(2):
        bucketings.use(parse_candidate("gradient-as-bucket-view=true").buckets)
        train(ddp)
        train(ddp)
        assert places() == 1
        bucketings.use(OWN_BUCKETS)
        assert places() == 4
        train(ddp)
        assert places() == 4
    assert not ddp.gradient_as_bucket_view
    bucketings.close()


@pytest.mark.parametrize("label", ["first-bucket=1", "gradient-as-bucket-view=false", "prefetch=1"])
def test_candidates_impossible_for_a_ddp_model_are_refused_with_the_reason(label: str) -> None:
    replicated = ReplicatedModel(attach(model(find_unused_parameters=label == "first-bucket=1")))
    why = {
        "first-bucket=1": "DDP's buckets cannot be rebuilt: the model searches for unused",
        "gradient-as-bucket-view=false": "the model has gradient-as-bucket-view=false already",
        "prefetch=1": "it is a setting of FSDP2, but the model uses DDP",
    }
    assert replicated.impossible(parse_candidate(label)).startswith(why[label])


@pytest.mark.parametrize("more", ["bucket-cap=5", "fp16"])
def test_a_setting_the_model_already_has_may_be_combined_with_another(more: str) -> None:
    replicated = ReplicatedModel(attach(model()))
    assert replicated.impossible(parse_candidate(f"{more}+gradient-as-bucket-view=false")) == ""


def _noted(bucket: Any, sizes: list[int]) -> Any:
    sizes.append(bucket.buffer().numel())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"find_unused_parameters": True}, "find_unused_parameters"),
        ({"static_graph": True}, "static_graph"),
    ],
)
def test_models_with_unused_parameters_or_static_graph_cannot_change_buckets(
    options: dict[str, Any], why: str
) -> None:
    found = obstacle(model(**options))
    assert why in found
    assert bool(found) == bool(why)


@pytest.mark.parametrize("is_native", [True, False])
def test_a_compressor_with_buckets_is_refused_where_buckets_cannot_change(
    monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    monkeypatch.setattr(switches, "compresses_natively", lambda _: is_native)
    replicated = ReplicatedModel(attach(model(find_unused_parameters=True)))
    assert replicated.impossible(parse_candidate("fp16")) == ""
    why = replicated.impossible(parse_candidate("fp16+bucket-cap=5"))
    assert why.startswith("DDP's buckets cannot be rebuilt")


def test_buckets_cannot_change_if_the_script_finalizes_backward_passes() -> None:
    ddp = model()
    ddp.require_manual_backward_finalization = True  # torch 2.15 has this attribute
    assert "require_manual_backward_finalization" in obstacle(ddp)


def test_a_model_with_its_own_hook_takes_no_part_in_a_trial(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ddp = model()
    steps = Steps()
    trial = Trial(parse_trial("fp16"), steps)  # type: ignore[arg-type]
    attachment = attach(ddp)
    trial.add(attachment)
    ddp.register_comm_hook(None, lambda _, bucket: _noted(bucket, []))
    for _ in range(SETTLE_STEPS + 1):
        train(ddp)
        steps.step()
    assert trial.done
    assert attachment.has_own_hook
    assert "has a communication hook of its own" in capsys.readouterr().err


class Unreadable:
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("the state is on another host")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ([], "every DDP model has a communication hook of its own"),
        (
            [Unreadable()],
            "the training state cannot be saved and restored: rank 0: the state is on another host",
        ),
    ],
)
def test_the_reason_for_no_trial_is_what_stopped_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: list[Any], reason: str
) -> None:
    steps = Steps()
    steps.trace_path = tmp_path / "rank_0.trace"
    trial = Trial(parse_trial("int8"), steps, state)  # type: ignore[arg-type]
    for hooked in [True] + [False] * len(state):
        ddp = model()
        trial.add(attach(ddp))
        if hooked:
            ddp.register_comm_hook(None, lambda _, bucket: _noted(bucket, []))
    for _ in range(SETTLE_STEPS):
        steps.step()
    assert trial.done
    trial.capture_ends()
    assert f"no trial took place: {reason}" in capsys.readouterr().err


def test_a_hook_registered_during_a_trial_ends_it_and_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ddp, sizes = model(), list[int]()
    reducer, steps = ddp.reducer, Steps()
    trial = Trial(parse_trial("bucket-cap=0.001"), steps)  # type: ignore[arg-type]
    trial.add(attach(ddp))
    for _ in range(SETTLE_STEPS + 40):
        train(ddp)
        steps.step()
        if ddp.reducer is not reducer:
            break
    ddp.register_comm_hook(None, lambda _, bucket: _noted(bucket, sizes))
    train(ddp)
    steps.step()
    assert trial.done
    assert ddp.reducer is reducer
    sizes.clear()
    train(ddp)
    assert sizes == [1024]
    assert "so the trial ends" in capsys.readouterr().err


def test_a_compressor_that_needs_the_native_module_takes_no_part_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "compresses_natively", lambda _: False)
    steps, plan = Steps(), parse_trial("fp16,powersgd:rank=2+bucket-cap=1,rounds=3,block=1")
    trial = Trial(plan, steps)  # type: ignore[arg-type]
    attachment = attach(model())
    trial.add(attachment)
    seen = set()
    for _ in range(plan.steps):
        train(attachment.ddp)
        steps.step()
        seen |= {attachment.compressor.scheme} if attachment.compressor else set()
    assert trial.done
    assert seen == {"fp16"}
    assert (
        "powersgd:rank=2+bucket-cap=1 takes no part in the trial: the compressor 'powersgd' needs "
        "the native module"
    ) in capsys.readouterr().err


def test_a_compressor_option_that_needs_the_native_module_is_refused_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switches, "compresses_natively", lambda _: False)
    replicated = ReplicatedModel(attach(model()))
    assert replicated.impossible(parse_candidate("int8")) == ""
    replicated.enter(parse_candidate("int8"), 8)
    assert replicated.attachment.compressor is not None
    assert replicated.attachment.compressor.label == "int8"
    replicated.leave()
    why = replicated.impossible(parse_candidate("int8:hierarchical=1"))
    assert why.startswith("the option 'hierarchical' of the compressor 'int8:hierarchical=1' needs")


def test_a_candidate_with_a_start_step_compresses_from_the_first_step_of_its_block() -> None:
    replicated = ReplicatedModel(attachment := attach(model()))
    replicated.enter(parse_candidate("fp16:feedback=1,start_step=100"), 8)
    assert attachment.compressor is not None
    assert attachment.compressor.label == "fp16:feedback=1,measure_every=8"
    replicated.leave()


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_no_overlap_uses_futures_of_the_bucket_s_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other futures, DDP's stream would not wait for the all-reduces."""
    futures: list[Any] = []

    def future(devices: list[torch.device]) -> torch.futures.Future[torch.Tensor]:
        futures.append(devices)
        return torch.futures.Future()

    class Buffer:
        def __init__(self) -> None:
            self.device = torch.device(device)

    class Bucket:
        def buffer(self) -> Any:
            return Buffer()

        def is_last(self) -> bool:
            return False

    monkeypatch.setattr(switches, "Future", future)
    hook = switches.no_overlap(model())
    for _ in range(2):
        assert not hook(None, Bucket()).done()
    assert futures == [[] if device == "cpu" else [torch.device(device)]] * 2


def test_a_model_added_after_a_trial_began_takes_no_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps, plan = Steps(), parse_trial("none,rounds=3,block=1")
    trial = Trial(plan, steps)  # type: ignore[arg-type]
    trial.add(attach(model()))
    late = model()
    for number in range(plan.steps):
        steps.step()
        if number == SETTLE_STEPS:
            trial.add(attach(late))
    assert trial.done
    assert "after the trial began" in capsys.readouterr().err


def test_a_trial_with_always_on_capture_is_refused() -> None:
    steps = Steps()
    steps.mode = "always-on"
    with pytest.raises(CommprofError, match="capture is in mode 'always-on'"):
        Trial(parse_trial("fp16"), steps)  # type: ignore[arg-type]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}
    monkeypatch.setattr(recorder(), "add_metadata", lambda text: found.update(json.loads(text)))
    return found


def test_a_script_s_trial_with_noop_is_refused_while_the_launcher_compares_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = Steps()
    monkeypatch.setattr(live, "active", lambda: capture)
    monkeypatch.setenv("COMMPROF_CHECK_SYNC", "5")
    with pytest.raises(UsageError, match="give headroom=0 in the trial"):
        live.trial(ddp := model(), "fp16")
    assert capture.listeners == [live.trial(ddp, "fp16,headroom=0")]
    capture.of_whole_job = False
    assert not live.trial(model(), "fp16").done


@pytest.mark.parametrize(("place", "is_said"), [("traces", True), ("run/world_2", False)])
def test_a_trial_that_cannot_begin_says_why_unless_commprof_run_does(
    place: str,
    is_said: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    noted: dict[str, Any],
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    steps = Steps()
    steps.trace_path = tmp_path / place / "rank_0.trace"
    trial = Trial(parse_trial("fp16"), steps)  # type: ignore[arg-type]
    steps.step()
    trial.capture_ends()
    reason = noted["no_trial"]["reason"]
    assert reason.startswith("the script made neither a DDP model")
    said = capsys.readouterr().err
    assert said == (f"commprof: no trial took place: {reason}\n" if is_said else "")


def test_a_trial_cut_short_by_the_end_of_the_script_reports_its_complete_rounds(
    capsys: pytest.CaptureFixture[str], noted: dict[str, Any]
) -> None:
    ddp, steps = model(), Steps()
    trial = Trial(parse_trial("fp16,rounds=3,block=1"), steps)  # type: ignore[arg-type]
    attachment = attach(ddp)
    trial.add(attachment)
    for _ in range(SETTLE_STEPS + 14):
        train(ddp)
        steps.step()
    dist.destroy_process_group()
    trial.capture_ends()
    assert trial.done
    assert attachment.compressor is None
    assert len(noted["trial_losses"]["values"]) == 14
    assert (
        "commprof: the script ended after 14 of the trial's 36 steps; the report uses the "
        "complete rounds: 1 of 3"
    ) in capsys.readouterr().err


def test_a_trial_ends_when_the_script_destroys_the_process_group(
    capsys: pytest.CaptureFixture[str], noted: dict[str, Any]
) -> None:
    """The blocks of a trial begin with collectives in the model's process group."""
    ddp, steps = model(), Steps()
    trial = Trial(parse_trial("fp16,rounds=3,block=1"), steps)  # type: ignore[arg-type]
    trial.add(attach(ddp))
    for _ in range(SETTLE_STEPS + 1):
        train(ddp)
        steps.step()
    dist.destroy_process_group()
    for _ in range(36):
        steps.step()
    assert trial.done
    assert "trial_losses" in noted
    said = capsys.readouterr().err
    assert "the process group of a model was destroyed after 2 of the trial's 36 steps" in said


class Unkept:
    def state_dict(self) -> dict[str, int]:
        raise RuntimeError("this state is on other ranks")

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_a_state_that_cannot_be_copied_is_found_before_the_trial(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ddp, steps = model(), Steps()
    trial = Trial(parse_trial("fp16,rounds=3,block=1"), steps, [Unkept()])  # type: ignore[arg-type]
    trial.add(attach(ddp))
    for _ in range(SETTLE_STEPS + 2):
        train(ddp)
        steps.step()
    assert trial.done
    trial.capture_ends()
    assert "trial begins" not in capfd.readouterr().err


def test_a_trial_that_fails_ends_and_leaves_the_models_own_settings(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ddp, steps = model(), Steps()
    reducer = ddp.reducer
    trial = Trial(parse_trial("fp16,bucket-cap=0.001,rounds=3,block=1"), steps)  # type: ignore[arg-type]
    attachment = attach(ddp)
    trial.add(attachment)

    def fail(*_: object) -> None:
        raise RuntimeError("no memory\nwith more lines")

    monkeypatch.setattr(switches, "_compressor", fail)
    for _ in range(60):
        train(ddp)
        steps.step()
    assert trial.done
    assert attachment.compressor is None
    assert ddp.reducer is reducer
    assert "commprof: rank 0: the trial ends: no memory\n" in capfd.readouterr().err
