from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest

from commprof.analysis.causes import compiled_anew, workers_restarted
from commprof.analysis.causes.edits.collective_calls import (
    gathered_seldom,
    issued_at_once,
    joined_in_one,
    moved_to_device,
    without_calls,
    without_exchange,
)
from commprof.analysis.causes.edits.model_settings import (
    DDP,
    after_sharding,
    with_settings,
    wrapped_model,
)
from commprof.analysis.causes.edits.script import Code, Script, Source, script_of
from commprof.analysis.causes.edits.training_loop import (
    around_training,
    in_training,
    last_pass_only,
)
from commprof.trace import reader
from tests.support.applied_fix import applied
from tests.support.builders.traces import Rank

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
    fix = with_settings(script(text), DDP, bucket_cap_mb=25)
    assert fix == "# in place of train.py:3-6\nnet = DDP(inner, bucket_cap_mb=25)"
    assert changed(text, fix).splitlines()[2:] == ["    net = DDP(inner, bucket_cap_mb=25)"]


def test_settings_that_may_be_in_a_dictionary_are_set_in_it() -> None:
    text = "net = DistributedDataParallel(inner, **given)\n"
    fix = with_settings(script(text), DDP, bucket_cap_mb=25, mesh=Code("grid"))
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
    assert with_settings(script(text), DDP, bucket_cap_mb=25) == ""


@pytest.mark.parametrize(
    "text",
    [
        "for m in values:\n    dist.all_reduce(m)\n",
        "for m in values:\n    dist.all_reduce(m)\n    done.append(m.item())\n",
        "for m in values:\n    dist.all_reduce(m)\n    m = m * 1\n    done.append(m.item())\n",
        "for m in values:\n    dist.all_reduce(m)\n    m *= 1\n",
    ],
)
def test_calls_of_a_loop_are_joined_into_one(text: str) -> None:
    torch = pytest.importorskip("torch")
    fix = joined_in_one(script(text), at(2), "all_reduce")
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
        "for m in values:\n    m = m * 2\n    dist.all_reduce(m)\n",  # m is a new tensor
        "for m in values:\n    if m.big:\n        dist.all_reduce(m)\n",
        "for m in values:\n    dist.all_reduce(m, group=m.group)\n",
        "for m in values:\n    if m is None:\n        continue\n    dist.all_reduce(m)\n",
        "for m in values:\n    m.fill_(mean())\n    dist.all_reduce(m)\n",
        "for m in values: dist.all_reduce(m)\n",
    ],
)
def test_calls_that_cannot_be_moved_are_left_alone(text: str) -> None:
    line = 1 + text[: text.index("dist.all_reduce")].count("\n")
    fix = joined_in_one(script(text), at(line), "all_reduce")
    assert fix == ""


def test_names_that_the_script_uses_are_left_to_it() -> None:
    text = "flat = grads()\nfor part in flat:\n    dist.all_reduce(part)\nflat.copy()\n"
    fix = joined_in_one(script(text), at(3), "all_reduce")
    assert "flat_ = torch.cat" in fix
    assert "flat =" not in fix


SETTER = "set_requires_gradient_sync"


@pytest.mark.parametrize("setter", ["", SETTER])
def test_only_the_last_micro_batch_exchanges(setter: str) -> None:
    text = (
        "net = DistributedDataParallel(inner)\n"
        "for batch in loader:\n"
        "    for part in batch:\n"
        "        net(part).backward()\n"
        "    optimizer.step()\n"
    )
    fix = last_pass_only(script(text), "net", setter)
    exchanged = run_passes(changed(text, fix), [[0, 1, 2]])
    assert exchanged == [False, False, True]


@pytest.mark.parametrize("setter", ["", SETTER])
def test_the_condition_of_the_update_tells_the_last_pass(setter: str) -> None:
    text = (
        "net = DistributedDataParallel(inner)\n"
        "for i, part in enumerate(loader):\n"
        "    loss = net(part)\n"
        "    loss.backward()\n"
        "    if (i + 1) % 2 == 0:\n"
        "        optimizer.step()\n"
    )
    fix = last_pass_only(script(text), "net", setter)
    assert run_passes(changed(text, fix), [0, 1, 2, 3]) == [False, True, False, True]


def run_passes(text: str, loader: list[object]) -> list[bool]:
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
    fix = gathered_seldom(script(text), at(2), ("all_gather_object",), every=3)
    made = []

    class Dist:
        @staticmethod
        def all_gather_object(_, batch):  # type: ignore[no-untyped-def]
            made.append(batch)

    exec(changed(text, fix), {"dist": Dist, "out": None, "loader": range(7)})
    assert made == [0, 3, 6]


@pytest.mark.parametrize(
    ("call", "read"),
    [("all_gather_object(out, b)", "out"), ("gather_object(b, out)", "out")],
)
def test_a_gather_that_the_step_reads_is_left_in_every_step(call: str, read: str) -> None:
    text = f"for i, b in enumerate(loader):\n    dist.{call}\n    print({read})\n"
    names = (call.partition("(")[0],)
    assert gathered_seldom(script(text), at(2), names, every=3) == ""
    unread = text.replace(f"print({read})", "print(b)")
    assert "if i % 3 == 0:" in gathered_seldom(script(unread), at(2), names, every=3)


def test_a_deleted_statement_leaves_no_empty_body() -> None:
    text = (
        "for x in y:\n    if x:\n        dist.barrier()\n        dist.barrier()\n"
        "    dist.barrier()\n    train(x)\n"
    )
    fix = without_calls(script(text), [at(3), at(4), at(5)], ("barrier",))
    after = "for x in y:\n    if x:\n        pass\n    train(x)\n"
    assert changed(text, fix) == after


def test_an_exchange_is_deleted_with_its_division() -> None:
    average = (
        "def average(m):\n    size = float(dist.get_world_size())\n    for p in m.parameters():\n"
        "        dist.all_reduce(p.grad)\n        p.grad /= size\n"
    )
    text = f"{average}for x in y:\n    m(x).backward()\n    average(m)\n    step()\n"
    fix = without_exchange(script(text), at(4), "all_reduce")
    assert changed(text, fix) == text.replace("    average(m)\n", "")
    loop = (
        "for x in y:\n    for p in m.parameters():\n        dist.broadcast(p, src=0)\n    step()\n"
    )
    fix = without_exchange(script(loop), at(3), "broadcast")
    assert changed(loop, fix) == "for x in y:\n    step()\n"


def test_work_beside_an_exchange_is_not_deleted() -> None:
    text = "for p in m.parameters():\n    clip(p)\n    dist.all_reduce(p.grad)\n"
    assert without_exchange(script(text), at(3), "all_reduce") == ""
    text = "for e, p in z:\n    e.lerp_(p, 0.1)\n    dist.broadcast(e, src=0)\n"
    fix = without_exchange(script(text), at(3), "broadcast")
    assert changed(text, fix) == "for e, p in z:\n    e.lerp_(p, 0.1)\n"


def test_calls_of_groups_are_issued_at_once() -> None:
    text = "for v, g in pairs:\n    dist.all_reduce(v, group=g)\n"
    fix = issued_at_once(script(text), at(2), ("all_reduce",))
    assert "works.append(dist.all_reduce(v, group=g, async_op=True))" in changed(text, fix)


def test_a_model_is_wrapped_before_its_optimizer_is_made() -> None:
    text = "net = Net()\nopt = torch.optim.Adam(net.parameters(), 1e-3)\n"
    fix = wrapped_model(script(text))
    wrapped = "net = torch.nn.parallel.DistributedDataParallel(net)"
    assert changed(text, fix).splitlines()[1] == wrapped


@pytest.mark.parametrize("epochs", ["range(90)", "schedule"])
def test_steps_are_those_of_the_loop_that_updates(epochs: str) -> None:
    text = (
        f"for epoch in {epochs}:\n"
        "    for i, batch in enumerate(loader):\n"
        "        net(batch).backward()\n"
        "        optimizer.step()\n"
        "        dist.all_gather_object(out, batch)\n"
        "    scheduler.step()\n"
    )
    fix = gathered_seldom(script(text), at(5), ("all_gather_object",), every=100)
    assert "if i % 100 == 0:" in fix
    fix = in_training(script(text), "gc.disable()", "if STEP % 9 == 0:\n    gc.collect(1)")
    after = changed(text, fix).splitlines()
    assert after[:2] == ["gc.disable()", f"for epoch in {epochs}:"]
    assert after[3] == "        if i % 9 == 0:"


@pytest.mark.parametrize(
    "text",
    [
        # A function makes the update, so the loop may be over the steps.
        "for b in l:\n    net(b).backward()\n    if b.last:\n        update()\nscheduler.step()\n",
        # An update after the loop uses the remaining micro batches.
        "for i, b in l:\n    net(b).backward()\n    if i % 4 == 3:\n        o.step()\no.step()\n",
        # The script changes the count before the condition.
        "for b in l:\n    net(b).backward()\n    s.n += 1\n    if s.n == 4:\n        o.step()\n",
        # The function has another name for the model.
        "def f(m):\n    for b in l:\n        m(b).backward()\n    o.step()\n",
    ],
)
def test_passes_are_left_alone_where_the_last_one_is_not_told(text: str) -> None:
    made = "def main():\n    net = DistributedDataParallel(inner)\n"
    top = "" if text.startswith("def") else "net = DistributedDataParallel(inner)\n"
    whole = (top or made) + text
    assert last_pass_only(script(whole), "net") == ""


@pytest.mark.parametrize("indent", ["  ", "\t"])
def test_changed_loops_have_the_indentation_of_the_script(indent: str) -> None:
    text = (
        "net = fully_shard(inner)\nfor batch in loader:\n    for part in batch:\n"
        "        net(part).backward()\n    optimizer.step()\n"
    ).replace("    ", indent)
    changed(text, last_pass_only(script(text), "net", setter=SETTER))


@pytest.mark.parametrize("word", ["else", "finally"])
def test_a_deleted_statement_leaves_no_empty_branch(word: str) -> None:
    head = {"else": "if first:", "finally": "try:"}[word]
    text = f"{head}\n    save()\n{word}:\n    dist.barrier()\n"
    fix = without_calls(script(text), [at(4)], ("barrier",))
    assert changed(text, fix) == text.replace("dist.barrier()", "pass")


@pytest.mark.parametrize("text", ["dist.barrier(); t = 1\n", "for x in y: go(x); dist.barrier()\n"])
def test_a_line_with_other_statements_is_not_deleted(text: str) -> None:
    assert without_calls(script(text), [at(1)], ("barrier",)) == ""


def test_a_saved_model_is_not_wrapped() -> None:
    text = "net = DistributedDataParallel(m)\nstate = net.module.state_dict()\n"
    assert wrapped_model(script(text)) == ""


def test_a_tensor_that_others_hold_is_not_replaced() -> None:
    text = "for p in stats:\n    dist.all_reduce(p)\n"
    assert moved_to_device(script(text), at(2)) == ""


_MADE = "net = DistributedDataParallel(inner)\n"
_TEXT = '    net.note = """\n  two\nlines"""\n'


@pytest.mark.parametrize("text", [_TEXT, _TEXT.replace('"', "'"), _TEXT.replace(' """', ' f"""')])
@pytest.mark.parametrize(
    "loop",
    [
        "for step in steps:\n    net(step).backward()\n{}    optimizer.step()\n",
        "for i, b in data:\n{}    net(b).backward()\n    if i % 2:\n        optimizer.step()\n",
        "for step in steps:\n{}    net(step).backward()\noptimizer.step()\n",
    ],
)
def test_lines_of_a_string_are_not_indented_anew(loop: str, text: str) -> None:
    """To indent a line inside a string would change the string. So the script is not edited."""

    def fixes(code: str) -> list[str]:
        return [
            around_training(script(code), "with Join([net]):", "net"),
            last_pass_only(script(code), "net"),
        ]

    assert any(fixes(_MADE + loop.format("")))
    assert not any(fixes(_MADE + loop.format(text)))
    assert any(fixes(_MADE + loop.format('    net.note = ("""one"""\n      "two")\n')))


def test_a_call_with_a_string_of_several_lines_is_left_alone() -> None:
    text = 'if True:\n    dist.barrier(group(""" a\n    b"""))\n'
    assert without_calls(script(text), [at(2)], ("barrier",)) == ""


def test_what_stands_left_of_a_loop_does_not_move_the_loop() -> None:
    text = (
        "def main():\n    net = DistributedDataParallel(inner)\n    for x in steps:\n"
        "# a remark\n        net(x).backward()\n        optimizer.step()\nmain()\n"
    )
    after = changed(text, around_training(script(text), "with Join([net]):", "net"))
    assert "    with Join([net]):\n        for x in steps:\n" in after


def test_files_are_read_if_they_are_the_users_and_as_they_ran(tmp_path: Path) -> None:
    folder = tmp_path / "commprof_jobs"
    folder.mkdir()
    train, changed_later = folder / "train.py", folder / "model.py"
    for file in (train, changed_later):
        file.write_text("net = 1\n")
    rank = Rank()
    begin_ns = rank.metadata["clock"]["realtime_ns"] = time.time_ns() + 10**9
    os.utime(changed_later, ns=(begin_ns + 1, begin_ns + 1))
    rank.metadata["script_path"] = str(train)
    rank.stacks = {1: (f"{changed_later}:1 forward", f"{reader.__file__}:1 read")}
    assert [source.path for source in script_of(rank.trace()).sources] == [train]


@pytest.mark.parametrize(
    "text",
    [
        "loader = DataLoader(data, batch_size=8)\n",
        "loader = DataLoader(data, num_workers=0)\n",
        "for epoch in range(3):\n    loader = DataLoader(data, num_workers=2)\n",
        "def train():\n    for batch in DataLoader(data, num_workers=2):\n        net(batch)\n",
    ],
    ids=["no workers", "0 workers", "a loader per epoch", "a loader per loop"],
)
def test_workers_persist_only_in_a_loader_that_has_some_and_lasts(text: str) -> None:
    """``persistent_workers`` without workers is an error, and a new loader starts new workers."""
    assert workers_restarted._edit(script(text)) == ""


def test_workers_persist_by_a_setting_of_their_loader() -> None:
    text = "def main():\n    loader = DataLoader(data, num_workers=args.workers)\n"
    after = changed(text, workers_restarted._edit(script(text)))
    assert "DataLoader(data, num_workers=args.workers, persistent_workers=True)" in after


@pytest.mark.parametrize(
    "text",
    [
        "@torch.compile(fullgraph=True)\ndef f(x):\n    return x\n",
        "f = torch.compile(f, dynamic=True)\n",
    ],
    ids=["decorator", "dynamic already"],
)
def test_compilation_is_left_alone_where_a_setting_cannot_be_written(text: str) -> None:
    assert compiled_anew._edit(script(text)) == ""


def test_a_function_that_returns_the_sharded_model_sets_it_before() -> None:
    text = "def sharded(net):\n    return fully_shard(net)\n"
    fix = after_sharding(script(text), "set_reshard_after_forward(False)")
    lines = ["fully_shard(net)", "net.set_reshard_after_forward(False)", "return net"]
    assert fix.splitlines() == ["# in place of train.py:2", *lines]
    for other in ("one(fully_shard(net))", "fully_shard(made(net))"):
        changed = text.replace("fully_shard(net)", other)
        assert after_sharding(script(changed), "set_reshard_after_forward(False)") == ""


def test_a_sharded_model_without_a_name_is_not_made_a_second_time() -> None:
    assert after_sharding(script("fully_shard(made())\n"), "f()") == ""
    assert after_sharding(script("net = fully_shard(made())\n"), "f()").endswith("\nnet.f()")
    assert after_sharding(script("fully_shard(self.net)\n"), "f()").endswith("\nself.net.f()")
