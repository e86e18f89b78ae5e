"""Fixes in the lines and names of a script: what is written, and that it does what it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from commprof.analysis.causes import edits
from commprof.analysis.causes.script import Code, Script, Source
from tests.support.applied_fix import applied

NAME = "train.py"


def script(text: str) -> Script:
    path = Path("/job") / NAME
    return Script((Source(path, text, ast.parse(text)),), frozenset())


def changed(text: str, fix: str) -> str:
    after = applied(fix, NAME, text)
    ast.parse(after)
    return after


def at(number: int) -> str:
    return f"/job/{NAME}:{number} <module>"


def test_a_setting_is_added_to_the_call_and_replaces_an_earlier_one() -> None:
    text = "if True:\n    net = DDP(\n        inner,\n        bucket_cap_mb=1,\n    )\n"
    text = f"from torch.nn.parallel import DistributedDataParallel as DDP\n{text}"
    fix = edits.with_settings(script(text), edits.DDP, bucket_cap_mb=25)
    assert fix == "# in place of train.py:3-6\nnet = DDP(inner, bucket_cap_mb=25)"
    assert changed(text, fix).splitlines()[2:] == ["    net = DDP(inner, bucket_cap_mb=25)"]


def test_settings_that_may_be_in_a_dictionary_are_set_in_it() -> None:
    text = "net = DistributedDataParallel(inner, **given)\n"
    fix = edits.with_settings(script(text), edits.DDP, bucket_cap_mb=25, mesh=Code("grid"))
    seen = {}
    scope = {
        "DistributedDataParallel": lambda *_, **settings: seen.update(settings),
        "given": {"bucket_cap_mb": 1, "x": 2},
        "inner": None,
        "grid": "G",
    }
    exec(changed(text, fix), scope)
    assert seen == {"bucket_cap_mb": 25, "x": 2, "mesh": "G"}


def test_nothing_is_said_of_two_calls_that_might_be_meant() -> None:
    text = "a = DistributedDataParallel(x)\nb = DistributedDataParallel(y)\n"
    assert edits.with_settings(script(text), edits.DDP, bucket_cap_mb=25) == ""


@pytest.mark.parametrize(
    "text",
    [
        "for m in values:\n    dist.all_reduce(m)\n",
        "for m in values:\n    dist.all_reduce(m)\n    done.append(m.item())\n",
    ],
)
def test_calls_of_a_loop_are_joined_into_one(text: str) -> None:
    torch = pytest.importorskip("torch")
    fix = edits.joined(script(text), at(2), "all_reduce")
    calls = []

    class Dist:
        @staticmethod
        def all_reduce(tensor):  # type: ignore[no-untyped-def]
            calls.append(tensor.numel())
            tensor *= 2

    values = [torch.tensor(1.0), torch.tensor([2.0, 3.0]).sum()]
    done: list[float] = []
    exec(changed(text, fix), {"torch": torch, "dist": Dist, "values": values, "done": done})
    assert calls == [2]
    assert [value.item() for value in values] == [2.0, 10.0]
    assert done in ([], [2.0, 10.0])


@pytest.mark.parametrize(
    "text",
    [
        "for m in values:\n    m = m * 2\n    dist.all_reduce(m)\n",  # made on the way
        "for m in values:\n    if m.big:\n        dist.all_reduce(m)\n",
        "for m in values:\n    dist.all_reduce(m, group=m.group)\n",
    ],
)
def test_calls_that_cannot_be_moved_are_left_alone(text: str) -> None:
    line = 1 + text[: text.index("dist.all_reduce")].count("\n")
    fix = edits.joined(script(text), at(line), "all_reduce")
    assert fix == ""


def test_names_that_the_script_uses_are_left_to_it() -> None:
    text = "flat = grads()\nfor part in flat:\n    dist.all_reduce(part)\nflat.copy()\n"
    fix = edits.joined(script(text), at(3), "all_reduce")
    assert "flat_ = torch.cat" in fix
    assert "flat =" not in fix


@pytest.mark.parametrize("setter", [False, True])
def test_only_the_last_micro_batch_exchanges(setter: bool) -> None:
    text = (
        "net = DistributedDataParallel(inner)\n"
        "for batch in loader:\n"
        "    for part in batch:\n"
        "        net(part).backward()\n"
        "    optimizer.step()\n"
    )
    fix = edits.last_pass_only(script(text), "net", setter)
    exchanged = run_passes(changed(text, fix), [[0, 1, 2]])
    assert exchanged == [False, False, True]


@pytest.mark.parametrize("setter", [False, True])
def test_the_condition_of_the_update_tells_the_last_pass(setter: bool) -> None:
    text = (
        "net = DistributedDataParallel(inner)\n"
        "for i, part in enumerate(loader):\n"
        "    loss = net(part)\n"
        "    loss.backward()\n"
        "    if (i + 1) % 2 == 0:\n"
        "        optimizer.step()\n"
    )
    fix = edits.last_pass_only(script(text), "net", setter)
    assert run_passes(changed(text, fix), [0, 1, 2, 3]) == [False, True, False, True]


def run_passes(text: str, loader: list[object]) -> list[bool]:
    """Runs a script with a model that notes whether each backward pass exchanges gradients."""
    exchanged: list[bool] = []

    class Model:
        syncs = True

        def __call__(self, _: object) -> Model:
            return self

        def backward(self) -> None:
            exchanged.append(self.syncs)

        def set_requires_gradient_sync(self, syncs: bool) -> None:
            self.syncs = syncs

        def no_sync(self) -> Model:
            return self

        def __enter__(self) -> None:
            self.syncs = False

        def __exit__(self, *_: object) -> None:
            self.syncs = True

        def step(self) -> None:
            pass

    scope = {
        "DistributedDataParallel": lambda _: Model(),
        "inner": None,
        "loader": loader,
        "optimizer": Model(),
    }
    exec(text, scope)
    return exchanged


def test_a_call_is_made_in_few_steps() -> None:
    text = "for batch in loader:\n    dist.all_gather_object(out, batch)\n"
    fix = edits.seldom(script(text), at(2), ("all_gather_object",), every=3)
    made = []

    class Dist:
        @staticmethod
        def all_gather_object(_, batch):  # type: ignore[no-untyped-def]
            made.append(batch)

    exec(changed(text, fix), {"dist": Dist, "out": None, "loader": range(7)})
    assert made == [0, 3, 6]


def test_a_deleted_statement_leaves_no_empty_body() -> None:
    text = (
        "for x in y:\n    if x:\n        dist.barrier()\n        dist.barrier()\n"
        "    dist.barrier()\n    train(x)\n"
    )
    fix = edits.deleted(script(text), [at(3), at(4), at(5)], ("barrier",))
    after = "for x in y:\n    if x:\n        pass\n    train(x)\n"
    assert changed(text, fix) == after


def test_calls_of_groups_are_issued_at_once() -> None:
    text = "for v, g in pairs:\n    dist.all_reduce(v, group=g)\n"
    fix = edits.at_once(script(text), at(2), ("all_reduce",))
    assert "works.append(dist.all_reduce(v, group=g, async_op=True))" in changed(text, fix)


def test_a_model_is_wrapped_before_its_optimizer_is_made() -> None:
    text = "net = Net()\nopt = torch.optim.Adam(net.parameters(), 1e-3)\n"
    fix = edits.wrapped(script(text))
    wrapped = "net = torch.nn.parallel.DistributedDataParallel(net)"
    assert changed(text, fix).splitlines()[1] == wrapped
