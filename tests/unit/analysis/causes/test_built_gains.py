"""Each job is built twice, with a mistake and without it (``fixed``), so the real gain is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from commprof.analysis.causes.registry import CAUSES
from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, mean_step_ms, saved

MB = 1_000_000
RANKS, STEPS = 4, 41
#: The predicted gain may differ from the built gain by this fraction of the step.
ERROR = 0.02

Body = Callable[[Script, int, bool], None]


def ms_of(script: Script, step: int, number: int, mean: float) -> float:
    """Draws the ms of a piece of work; ``number`` distinguishes the pieces of one step."""
    draw = np.random.default_rng([script.rank.rank, step, number])
    return float(mean * (1 + 0.05 * script.rank.rank) * draw.lognormal(0.0, 0.2))


def passed(script: Script, step: int, number: int = 0, exchange: bool = True) -> None:
    script.forward(ms_of(script, step, 10 * number, 10.0))
    buckets = {4 * MB: 2.0} if exchange else None
    script.backward(ms_of(script, step, 10 * number + 1, 20.0), buckets, copy_ms=1.5)


def updated(script: Script) -> None:
    script.work(1.0, Phase.OPTIMIZER)


def buffers(script: Script, step: int, fixed: bool) -> None:
    def sent() -> None:
        begin = script.now_ms
        script.now_ms += 1.5
        script.call("broadcast", 8 * MB, 3.0)
        script.now_ms += 1.5
        script.note("ddp_buffer_syncs", begin)

    script.forward(ms_of(script, step, 0, 10.0), *([] if fixed else [sent]))
    script.backward(ms_of(script, step, 1, 20.0), {4 * MB: 2.0})
    updated(script)


def adversarial(script: Script, step: int, fixed: bool) -> None:
    both = {2 * MB: 2.0, MB: 1.0}
    for number, sent in enumerate([{2 * MB: 2.0}, {MB: 1.0} if fixed else both]):
        script.forward(ms_of(script, step, 2 * number, 5.0))
        script.backward(ms_of(script, step, 2 * number + 1, 10.0), sent)
        updated(script)


def every_pass(script: Script, step: int, fixed: bool) -> None:
    for micro in range(4):
        passed(script, step, micro, exchange=not fixed or micro == 3)
    updated(script)


def searched(script: Script, step: int, fixed: bool) -> None:
    begun = script.now_ms

    def forward() -> None:
        script.now_ms += ms_of(script, step, 0, 10.0)
        if not fixed:
            begin = script.now_ms
            script.now_ms += 2.0
            script.note("ddp_searches", begin)

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


def shown_loss(script: Script, step: int, fixed: bool) -> None:
    for number in range(4):
        script.forward(ms_of(script, step, 10 * number, 5.0))
        if number == 3 or not fixed:
            script.call(ms=0.6)
        buckets = {4 * MB: 2.0} if number == 3 else None
        script.backward(ms_of(script, step, 10 * number + 1, 10.0), buckets)
    updated(script)


def single_numbers(script: Script, step: int, fixed: bool) -> None:
    script.forward(ms_of(script, step, 0, 10.0))
    script.backward(ms_of(script, step, 1, 20.0), {200_000: 1.5})
    updated(script)
    for _ in range(1 if fixed else 8):
        script.call(size=32 if fixed else 4, ms=1.5 if fixed else 0.6)


def metric(barrier_ms: float, done: int, script: Script, step: int, fixed: bool) -> None:
    """In the first ``done`` of every five steps, the calls are complete before the thread waits."""
    passed(script, step)
    updated(script)
    is_done = step % 5 < done
    for _ in range(0 if fixed else 3):
        script.call("barrier", 0, barrier_ms, found_done=is_done)
        script.call("all_gather", 8, 0.6, "Long", found_done=is_done)
        script.work(ms_of(script, step, 2, 0.2))
        script.call("all_gather", 4, 0.6, found_done=is_done)
        script.work(ms_of(script, step, 3, 0.2))
    if fixed:
        script.call("all_gather", 12, 0.6)


def averaged_again(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    for _ in range(0 if fixed else 6):
        script.call(size=4 * MB // 6, ms=0.7)
        script.work(ms_of(script, step, 2, 0.5))
    updated(script)


def layers(script: Script, step: int, fixed: bool) -> None:
    calls = [partial(script.call, size=512, ms=0.5)] * (0 if fixed else 6)
    script.forward(ms_of(script, step, 0, 10.0), *calls)
    script.backward(ms_of(script, step, 1, 20.0), {4 * MB: 2.0})
    updated(script)


def logging(script: Script, step: int, fixed: bool) -> None:
    script.forward(10.0 + 0.01 * step % 0.1)
    script.backward(20.0, {4 * MB: 2.0})
    updated(script)
    script.work(8.0 if script.rank.rank == 2 and not fixed else 0.1)


def objects(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    updated(script)
    if fixed:
        script.call("all_gather", 12, 1.0)
    else:
        begin = script.now_ms
        script.work(ms_of(script, step, 3, 2.0))
        script.note("object_pickles", begin)
        script.call("all_gather", 8, 1.0, "Long")
        script.work(ms_of(script, step, 2, 0.5))
        script.call("all_gather", 4096, 2.5, "Byte")
        begin = script.now_ms
        script.work(ms_of(script, step, 4, 1.0))
        script.note("object_unpickles", begin)


def barriers(ms: float, done: int, script: Script, step: int, fixed: bool) -> None:
    script.forward(ms_of(script, step, 0, 10.0))
    if not fixed:
        script.call("barrier", 0, ms, found_done=step % 5 < done)
    script.backward(ms_of(script, step, 1, 20.0), {4 * MB: 2.0})
    updated(script)


def reduced(noted_ms: float, script: Script, step: int, fixed: bool) -> None:
    for micro in range(3):
        reduce = not fixed or micro == 2
        ms = ms_of(script, step, micro, 4.0)
        script.sharded([2 * MB] * 3, ms, again=False, reduce=reduce, noted_ms=noted_ms)
        for times in script.rank.metadata.get("fsdp_reductions", {}).values():
            del times[60:]
    updated(script)


def gathered(noted_ms: float, script: Script, step: int, fixed: bool) -> None:
    script.rank.metadata["machine"]["memory_bytes"] = 8000 * MB
    options = {"noted_ms": noted_ms} if noted_ms else {"copy_ms": 0.5}
    ms = ms_of(script, step, 0, 1.0)
    script.sharded([2 * MB] * 6, ms, again=not fixed, **options)
    updated(script)


def gathered_each_pass(noted_ms: float, script: Script, step: int, fixed: bool) -> None:
    script.rank.metadata["machine"]["memory_bytes"] = 8000 * MB
    options = {"again": False, "forward_noted_ms": noted_ms, "stack": ("/job/train.py:20 train",)}
    for micro in range(3):
        anew, reduce = not fixed or micro == 0, micro == 2
        ms = ms_of(script, step, micro, 1.0)
        script.sharded([2 * MB] * 6, ms, anew=anew, reduce=reduce, **options)
    updated(script)


def garbage(script: Script, step: int, fixed: bool) -> None:
    if not fixed and step % 8 == 2 * script.rank.rank:
        begin = script.now_ms
        script.work(15.0)
        script.note("garbage", begin)
        script.rank.metadata["garbage"]["total_ns"] = 15_000_000
    passed(script, step)
    updated(script)


def loading(script: Script, step: int, fixed: bool) -> None:
    slow = script.rank.rank == 2 and not fixed
    script.work((8.0 if slow else 2.0) + 0.01 * step % 0.1, Phase.DATA)
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    updated(script)


def alone(forwards: int, script: Script, step: int, fixed: bool) -> None:
    if step % 5 == 4 and (script.rank.rank == 0 or fixed):
        whole = 60.0 / RANKS if fixed else 60.0
        for _ in range(forwards):
            script.forward(whole / forwards)
        script.work(0.0 if forwards else whole)
    passed(script, step)
    updated(script)


def objects_seldom(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    updated(script)
    if step % 4 == 0 and not fixed:
        begin = script.now_ms
        script.work(ms_of(script, step, 3, 6.0))
        script.note("object_pickles", begin)
        script.call("all_gather", 8, 1.0, "Long")
        script.call("all_gather", MB, 6.0, "Byte")
        begin = script.now_ms
        script.work(ms_of(script, step, 4, 4.0))
        script.note("object_unpickles", begin)


def in_turns(script: Script, step: int, fixed: bool) -> None:
    if step % 8 == (2 if fixed else 2 * script.rank.rank):
        script.work(60.0)
    passed(script, step)
    updated(script)


def ms_of_bytes(size: int) -> float:
    return 0.4 + size / MB


def tensors(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    updated(script)
    sizes = [MB // 10, MB // 5] * 4
    for size in [sum(sizes)] if fixed else sizes:
        script.call(size=size, ms=ms_of_bytes(size))


ZERO = (
    "/x/site-packages/torch/distributed/optim/zero_redundancy_optimizer.py:787 _sync",
    "/job/train.py:9 main",
)
TRAINED = {
    "parameter_bytes": 8 * MB,
    "sharded": False,
    "ddp_bytes": 8 * MB,
    "ignored_bytes": 0,
    "other_libraries": [],
}


def zero(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    updated(script)
    sizes = [MB // 10, MB // 5] * 3
    for root in range(2):
        for size in [sum(sizes)] if fixed else sizes:
            script.call("broadcast", size, ms_of_bytes(size), aux=root, stack=ZERO)


def outputs(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    updated(script)
    if not fixed:
        script.call("all_gather", MB // 2, 3.0, stack=("/job/train.py:9 main",))


def buckets(script: Script, step: int, fixed: bool) -> None:
    """By default, DDP's first bucket has 1 MiB; all other gradients fit into the second bucket."""
    sizes = [50_000 * (1 + number % 4) + number for number in range(16)]
    first = next(n for n in range(16) if sum(sizes[: n + 1]) >= 2**20) + 1
    joined = [sum(sizes[:first]), sum(sizes[first:])]
    script.forward(ms_of(script, step, 0, 10.0))
    made = {size: ms_of_bytes(size) for size in (joined if fixed else sizes)}
    script.backward(ms_of(script, step, 1, 20.0), made)
    updated(script)


def frozen(script: Script, step: int, fixed: bool) -> None:
    script.forward(ms_of(script, step, 0, 10.0))
    script.backward(ms_of(script, step, 1, 20.0), {2 * MB: 1.0} if fixed else {8 * MB: 4.0})
    updated(script)


def held(script: Script, step: int, fixed: bool) -> None:
    for micro in range(4):
        script.forward(ms_of(script, step, 10 * micro, 10.0))
        exchange = not fixed or micro == 3
        sent = {4 * MB: 4.0} if exchange else None
        script.backward(ms_of(script, step, 10 * micro + 1, 20.0), sent, held_ms=2.0 * exchange)
    updated(script)


LOGGED = {"gradient_as_bucket_view": 0}
SEARCHED = {
    "find_unused_parameters": 1,
    "most_unused_parameter_size": 0,
    "num_parameter_tensors": 100,
}
STATIC = {
    **SEARCHED,
    "unused_parameter_size": 1000,
    "most_unused_parameter_size": 1000,
    "least_unused_parameter_size": 1000,
    "parameter_bytes": [MB, MB, 2 * MB, 1000],
}


def uneven(script: Script, step: int, fixed: bool) -> None:
    drawn = [np.random.default_rng([7, rank, step]).uniform(2.0, 30.0) for rank in range(RANKS)]
    length = float(np.mean(drawn) if fixed else drawn[script.rank.rank])
    script.forward(length)
    script.backward(2 * length, {4 * MB: 2.0})
    updated(script)


TWO_MODELS = {
    **{"parameter_bytes": 3 * MB, "sharded": False, "flat": None},
    **{"ddp_bytes": 3 * MB, "ignored_bytes": 0, "other_libraries": []},
    **{"ddp_model_bytes": [2 * MB, MB], "updated_models": [[0], [1]] * 5},
    "kept_gradients": [[]] * 10,
}
#: 125 kB is the mean of the sizes in ``buckets``.
EACH = {"parameter_bytes": [125_000 + 7], "bucket_cap_bytes": 25 * 2**20}

FROZEN = {"least_unused_parameter_size": 6 * MB, "parameter_bytes": [6 * MB, 2 * MB]}
HEALTHY = {"bucket_cap_bytes": 25 * 2**20, "least_unused_parameter_size": 0}
SMALL = {"bucket_cap_bytes": 200_000}


def averaged(noted_ms: float, script: Script, step: int, fixed: bool) -> None:
    script.sharded([8 * MB] * 3, ms=ms_of(script, step, 0, 8.0), again=False)
    script.work(20.0, Phase.OPTIMIZER)
    script.work(ms_of(script, step, 1, 2.0))
    for _ in range(6):
        sizes = {"bytes_in": 4 * MB // RANKS, "bytes_out": 4 * MB}
        if not fixed:
            with script.copying("full_tensors", noted_ms):
                script.call("all_gather_into_tensor", 4 * MB, 1.5, **sizes)
        script.work(1.6 / RANKS if fixed else 1.6)


def clipped(script: Script, step: int, fixed: bool) -> None:
    script.sharded([8 * MB] * 3, ms=ms_of(script, step, 0, 8.0), again=False)
    script.work(ms_of(script, step, 1, 2.0))
    for _ in range(6):
        sizes = {"bytes_in": 4 * MB // RANKS, "bytes_out": 4 * MB}
        if not fixed:
            script.call("all_gather_into_tensor", 4 * MB, 1.5, **sizes)
        script.work(1.6 / RANKS if fixed else 1.6)
    script.work(20.0, Phase.OPTIMIZER)


def seldom(script: Script, step: int, fixed: bool) -> None:
    script.forward(ms_of(script, step, 0, 10.0))
    script.backward(ms_of(script, step, 1, 20.0))
    updated(script)
    averages = step % 10 == 9
    if averages or not fixed:
        script.call(ms=2.0)
    if averages:
        script.call(size=8 * MB, ms=6.0)


def restarted(script: Script, step: int, fixed: bool) -> None:
    starts = step % 5 == 0 and not fixed
    if starts:
        begin = script.now_ms
        script.work(ms_of(script, step, 2, 15.0))
        script.note("loader_worker_starts", begin)
    script.work(ms_of(script, step, 3, 2.0) + 20.0 * starts, Phase.DATA)
    passed(script, step)
    updated(script)


def compiled(script: Script, step: int, fixed: bool) -> None:
    def forward() -> None:
        if not fixed and step % RANKS == script.rank.rank:
            begin = script.now_ms
            script.now_ms += ms_of(script, step, 2, 25.0)
            script.note("compilations", begin)

    script.forward(ms_of(script, step, 0, 10.0), forward)
    script.backward(ms_of(script, step, 1, 20.0), {4 * MB: 2.0})
    updated(script)


def evaluated(script: Script, step: int, fixed: bool) -> None:
    passed(script, step)
    updated(script)
    begin = script.now_ms
    if step % 5 == 4:
        number = 12 // RANKS if fixed else 12
        for batch in range(number):
            script.forward(ms_of(script, step, 100 + batch, 6.0))
        read = 1000 * script.rank.rank if fixed else 0
        noted = {"sampler": 0, "epoch": 0, "seed": 0, "batches": number}
        noted |= {"checksum": read, "contents": 4}
        kept = script.rank.metadata.setdefault("data_passes", {key: [] for key in noted})
        for key, value in noted.items():
            kept[key].append(value)
        noted_ms = {"begin_ns": begin, "end_ns": script.now_ms}
        for key, at_ms in noted_ms.items():
            kept.setdefault(key, []).append(round(at_ms * 1e6))


SHARDS = {
    **{"parameter_bytes": 24 * MB // RANKS, "sharded": True, "flat": False},
    **{"ddp_bytes": 0, "ignored_bytes": 0, "other_libraries": []},
}

REDUCED = {
    **{"parameter_bytes": 4 * MB, "sharded": False, "flat": None},
    **{"ddp_bytes": 4 * MB, "ignored_bytes": 0, "other_libraries": []},
}

BUILT: list[tuple[str, Body, dict[str, Any]]] = [
    ("ddp-buffers", buffers, {}),
    ("ddp-every-pass", every_pass, {"log": LOGGED}),
    ("ddp-every-pass", held, {"log": {"gradient_as_bucket_view": 1}, "threads": 1}),
    ("ddp-other-model", adversarial, {"models": 2, "trained": TWO_MODELS}),
    ("ddp-unused-parameters", searched, {"log": SEARCHED}),
    ("ddp-static-graph", searched, {"log": STATIC}),
    ("ddp-frozen-gradients", frozen, {"log": FROZEN}),
    ("ddp-small-buckets", buckets, {"log": SMALL}),
    ("ddp-each-module", buckets, {"log": EACH, "models": 16}),
    ("exchanged-again", averaged_again, {"trained": REDUCED}),
    ("statistics-each-layer", layers, {}),
    ("scalars-one-by-one", scalars, {}),
    ("scalars-one-by-one", partial(metric, 0.3, 0), {}),
    ("scalars-one-by-one", partial(metric, 1.2, 0), {}),
    ("scalars-one-by-one", partial(metric, 0.3, 2), {}),
    ("scalars-one-by-one", single_numbers, {}),
    ("scalars-every-pass", shown_loss, {}),
    ("tensors-one-by-one", tensors, {}),
    ("zero-one-by-one", zero, {}),
    ("gathered-outputs", outputs, {"trained": TRAINED}),
    ("pickled-objects", objects, {}),
    ("pickled-objects", objects_seldom, {}),
    ("barrier-each-step", partial(barriers, 1.0, 0), {}),
    ("barrier-each-step", partial(barriers, 3.0, 2), {}),
    ("fsdp-every-pass", partial(reduced, 0.0), {"models": 0}),
    ("fsdp-every-pass", partial(reduced, 0.4), {"models": 0}),
    ("fsdp-gathers-twice", partial(gathered, 0.0), {"models": 0}),
    ("fsdp-gathers-twice", partial(gathered, 0.4), {"models": 0}),
    ("fsdp-gathers-each-pass", partial(gathered_each_pass, 0.0), {"models": 0}),
    ("fsdp-gathers-each-pass", partial(gathered_each_pass, 0.4), {"models": 0}),
    ("gathered-parameters", partial(averaged, 0.0), {"models": 0, "trained": SHARDS}),
    ("gathered-parameters", partial(averaged, 0.4), {"models": 0, "trained": SHARDS}),
    ("gathered-gradients", clipped, {"models": 0, "trained": SHARDS}),
    ("scalar-each-step", seldom, {"models": 0}),
    ("workers-restarted", restarted, {}),
    ("compiled-anew", compiled, {}),
    ("garbage-in-turns", garbage, {}),
    ("late-loading", loading, {}),
    ("rank-alone", partial(alone, 0), {}),
    ("rank-alone", partial(alone, 4), {}),
    ("evaluated-by-all", evaluated, {}),
    ("rank-busier", logging, {}),
    ("ranks-in-turns", in_turns, {}),
    ("uneven-batches", uneven, {}),
]


@pytest.mark.parametrize(("cause", "body", "options"), BUILT)
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
    healthy = {**options, "log": {**options.get("log", {}), **HEALTHY}}
    assert causes_of(partial(body, fixed=True), **same, **healthy) == {}


def test_every_gain_is_built_or_the_catalogue_says_why_there_is_none() -> None:
    predicted = {cause for cause, _, _ in BUILT}
    for cause in CAUSES:
        is_reason = cause.gain_note.startswith("Not predicted, because ")
        assert (cause.id in predicted) + is_reason + cause.is_wrong == 1, cause.id
        assert cause.gain_note.endswith(".") or not cause.gain_note, cause.id
