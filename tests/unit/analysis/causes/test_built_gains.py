"""What a fix is said to win is what it wins, in jobs whose every time is known.

Each job is built twice, with a mistake and without it: the same ranks work as long in the same
steps, and every collective begins when the last of them has come. What the ranks wait for at the
mistake they wait for elsewhere without it, unless the mistake alone makes them wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, mean_step_ms, saved

MB = 1_000_000
RANKS, STEPS = 4, 41
#: Largest difference of the gain said and the one that was built, as a fraction of the step.
ERROR = 0.02

Body = Callable[[Script, int, bool], None]


def ms_of(script: Script, step: int, number: int, mean: float) -> float:
    """Work of a rank in a step, in ms: its own at each time, and more for higher ranks."""
    draw = np.random.default_rng([script.rank.rank, step, number])
    return float(mean * (1 + 0.05 * script.rank.rank) * draw.lognormal(0.0, 0.2))


def noted(script: Script, key: str, begin_ms: float) -> None:
    """Notes work of DDP from a time until now."""
    times = script.rank.metadata.setdefault(key, {"begin_ns": [], "end_ns": []})
    times["begin_ns"].append(int(begin_ms * 1e6))
    times["end_ns"].append(int(script.now_ms * 1e6))


def passed(script: Script, step: int, number: int = 0, exchange: bool = True) -> None:
    """Forward, and backward with 2 ms of gradients."""
    script.forward(ms_of(script, step, 10 * number, 10.0))
    buckets = {4 * MB: 2.0} if exchange else None
    script.backward(ms_of(script, step, 10 * number + 1, 20.0), buckets, copy_ms=1.5)


def updated(script: Script) -> None:
    script.work(1.0, Phase.OPTIMIZER)


def buffers(script: Script, step: int, fixed: bool) -> None:
    """3 ms of broadcasts, and 1.5 ms each for the copies before and after them."""

    def sent() -> None:
        begin = script.now_ms
        script.now_ms += 1.5
        script.call("broadcast", 8 * MB, 3.0)
        script.now_ms += 1.5
        noted(script, "ddp_buffer_syncs", begin)

    script.forward(ms_of(script, step, 0, 10.0), *([] if fixed else [sent]))
    script.backward(ms_of(script, step, 1, 20.0), {4 * MB: 2.0})
    updated(script)


def every_pass(script: Script, step: int, fixed: bool) -> None:
    for micro in range(4):
        passed(script, step, micro, exchange=not fixed or micro == 3)
    updated(script)


def searched(script: Script, step: int, fixed: bool) -> None:
    """2 ms of search, and 1 ms for the marks of 100 parameters."""
    begun = script.now_ms

    def forward() -> None:
        script.now_ms += ms_of(script, step, 0, 10.0)
        if not fixed:
            begin = script.now_ms
            script.now_ms += 2.0
            noted(script, "ddp_searches", begin)

    script.forward(0.0, forward)
    marks = None if fixed else {400: 1.0}
    script.backward(ms_of(script, step, 1, 20.0), {4 * MB: 2.0}, marks=marks)
    assert script.now_ms > begun
    updated(script)


def scalars(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    updated(script)
    script.work(ms_of(script, step, 2, 1.0))
    for number in range(1 if fixed else 8):
        script.call(ms=0.6)
        script.work(ms_of(script, step, 3 + number, 0.3))


def objects(script: Script, step: int, fixed: bool) -> None:
    """The sizes and the bytes of pickled objects; a tensor takes as long as the sizes."""
    passed(script, step)
    updated(script)
    if fixed:
        script.call("all_gather", 12, 1.0)
    else:
        script.call("all_gather", 8, 1.0, "Long")
        script.work(ms_of(script, step, 2, 0.5))
        script.call("all_gather", 4096, 2.5, "Byte")


def barriers(script: Script, step: int, fixed: bool) -> None:
    """A barrier after forward makes the ranks wait for the slowest one once more."""
    script.forward(ms_of(script, step, 0, 10.0))
    if not fixed:
        script.call("barrier", 0, 1.0)
    script.backward(ms_of(script, step, 1, 20.0), {4 * MB: 2.0})
    updated(script)


def reduced(script: Script, step: int, fixed: bool) -> None:
    for micro in range(3):
        reduce = not fixed or micro == 2
        script.sharded([2 * MB] * 3, ms_of(script, step, micro, 4.0), reduce=reduce)
    updated(script)


def garbage(script: Script, step: int, fixed: bool) -> None:
    if not fixed and step % 8 == 2 * script.rank.rank:
        begin = script.now_ms
        script.work(15.0)
        noted(script, "garbage", begin)
        script.rank.metadata["garbage"]["total_ns"] = 15_000_000
    passed(script, step)
    updated(script)


def loading(script: Script, step: int, fixed: bool) -> None:
    """Rank 2 loads for 8 ms, the others, and it in the twin, for 2 ms."""
    slow = script.rank.rank == 2 and not fixed
    script.work((8.0 if slow else 2.0) + 0.01 * step % 0.1, Phase.DATA)
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    updated(script)


def alone(script: Script, step: int, fixed: bool) -> None:
    """Rank 0 works alone for 60 ms in every fifth step."""
    if script.rank.rank == 0 and step % 5 == 4 and not fixed:
        script.work(60.0)
    passed(script, step)
    updated(script)


def in_turns(script: Script, step: int, fixed: bool) -> None:
    """Each rank works for 60 ms in every eighth step, at a step of its own or at the same."""
    if step % 8 == (2 if fixed else 2 * script.rank.rank):
        script.work(60.0)
    passed(script, step)
    updated(script)


LOGGED = {"gradient_as_bucket_view": 0}
SEARCHED = {
    "find_unused_parameters": 1,
    "most_unused_parameter_size": 0,
    "num_parameter_tensors": 100,
}


@pytest.mark.parametrize(
    ("cause", "body", "options"),
    [
        ("ddp-buffers", buffers, {}),
        ("ddp-every-pass", every_pass, {"log": LOGGED}),
        ("ddp-unused-parameters", searched, {"log": SEARCHED}),
        ("scalars-one-by-one", scalars, {}),
        ("pickled-objects", objects, {}),
        ("barrier-each-step", barriers, {}),
        ("fsdp-every-pass", reduced, {"models": 0}),
        ("garbage-in-turns", garbage, {}),
        ("late-loading", loading, {}),
        ("rank-alone", alone, {}),
        ("ranks-in-turns", in_turns, {}),
    ],
)
def test_a_fix_wins_what_is_said(cause: str, body: Body, options: dict[str, Any]) -> None:
    same = {"ranks": RANKS, "steps": STEPS, "meets": True}
    found = causes_of(partial(body, fixed=False), **same, **options)
    assert cause in found, list(found)
    before, after = (mean_step_ms(partial(body, fixed=fixed), **same) for fixed in (False, True))
    won = 1 - after / before
    assert won > 0.03
    assert saved(found[cause]) == pytest.approx(won, abs=ERROR)
    interval = found[cause].saving
    assert interval is not None
    assert interval.saved.low - ERROR <= won <= interval.saved.high + ERROR
    assert causes_of(partial(body, fixed=True), **same, **options) == {}
