from __future__ import annotations

from typing import Any

import pytest

from commprof.trace.schema import Phase
from tests.support.builders.caused import Script, causes_of, saved

MB = 1_000_000
SHARDS: dict[str, Any] = {
    **{"parameter_bytes": 12 * MB, "sharded": True, "flat": False},
    **{"ddp_bytes": 0, "ignored_bytes": 0, "other_libraries": []},
}


def averaged(
    script: Script, step: int, every: int = 1, phase: Phase = Phase.OTHER, units: int = 3
) -> None:
    """A step takes 77 ms: 51 ms for a pass of FSDP2, 20 ms to update, 6 ms for three gathers."""
    script.sharded([8 * MB] * units, ms=5.0, again=False)
    script.work(20.0, Phase.OPTIMIZER)
    if step % every == 0:
        begin = round(script.now_ms * 1e6)
        for _ in range(3):
            sizes = {"bytes_in": 4 * MB, "bytes_out": 8 * MB}
            script.call("all_gather_into_tensor_coalesced", 8 * MB, 2.0, **sizes)
        if phase != Phase.OTHER:
            script.rank.phase(phase, begin, round(script.now_ms * 1e6))


def test_parameters_that_are_gathered_for_an_average_are_named() -> None:
    found = causes_of(averaged, models=0, trained=SHARDS)
    cause = found["gathered-parameters"]
    assert "FSDP2's shards into 24 MB of parameters, in 3 calls, for 6 ms" in cause.sentence
    assert saved(cause) == pytest.approx(6 / 77, abs=1e-3)
    assert "to_local()" in cause.fix
    flat = causes_of(averaged, models=0, trained={**SHARDS, "flat": True})
    assert "summon_full_params" in flat["gathered-parameters"].fix


def clipped(script: Script, step: int, update: bool = True) -> None:
    script.sharded([8 * MB] * 3, ms=5.0, again=False)
    for _ in range(3):
        sizes = {"bytes_in": 4 * MB, "bytes_out": 8 * MB}
        script.call("all_gather_into_tensor", 8 * MB, 2.0, **sizes)
    script.work(20.0, Phase.OPTIMIZER if update else Phase.OTHER)


@pytest.mark.parametrize("body", [averaged, clipped])
def test_gathers_of_a_script_that_shards_by_itself_are_none_of_fsdp(body: Any) -> None:
    """Such parameters are not torch's shards: they have no ``full_tensor``."""
    assert causes_of(body, models=0, trained={**SHARDS, "sharded": False}) == {}


def test_gradients_that_are_gathered_for_their_norm_are_named() -> None:
    found = causes_of(clipped, models=0, trained=SHARDS)
    assert "gathered-parameters" not in found
    cause = found["gathered-gradients"]
    assert "each step gathers FSDP2's shards into 24 MB, in 3 calls, for 6 ms" in cause.sentence
    assert saved(cause) == pytest.approx(6 / 77, abs=1e-3)
    assert "clip_grad_norm_(parameters" in cause.fix
    flat = causes_of(clipped, models=0, trained={**SHARDS, "flat": True})
    assert "YOUR_MODEL.clip_grad_norm_" in flat["gathered-gradients"].fix
    assert "If the script only computes the norm of the gradients" in cause.sentence
    assert "such as Muon, must gather them" in cause.sentence
    for fix in (cause.fix, flat["gathered-gradients"].fix):
        assert fix.startswith("# if the whole gradients serve only for their norm\n")


def test_gathers_are_not_said_to_be_of_gradients_if_no_update_was_seen() -> None:
    def body(script: Script, step: int) -> None:
        clipped(script, step, update=False)

    assert "gathered-gradients" not in causes_of(body, models=0, trained=SHARDS)
    assert "gathered-gradients" not in causes_of(averaged, models=0, trained=SHARDS)


@pytest.mark.parametrize(
    "settings",
    [{"every": 10}, {"phase": Phase.OPTIMIZER}, {"phase": Phase.FORWARD}],
    ids=["for a checkpoint", "by an optimizer", "for a pass"],
)
def test_parameters_that_are_gathered_for_other_ends_are_not_named(
    settings: dict[str, Any],
) -> None:
    def body(script: Script, step: int) -> None:
        averaged(script, step, **settings)

    assert "gathered-parameters" not in causes_of(body, models=0, trained=SHARDS)


def test_units_that_the_script_gathers_in_advance_are_not_named() -> None:
    """The script gathers with FSDP2's ``unshard()``, so that forward gathers nothing."""

    def body(script: Script, step: int) -> None:
        for _ in range(3):
            sizes = {"bytes_in": 4 * MB, "bytes_out": 8 * MB}
            script.call("all_gather_into_tensor", 8 * MB, 2.0, **sizes)
        script.forward(15.0)
        script.sharded([8 * MB], ms=0.1, again=False)
        script.work(1.0, Phase.OPTIMIZER)

    assert "gathered-parameters" not in causes_of(body, models=0, trained=SHARDS)


def test_features_that_a_loss_gathers_are_no_parameters() -> None:
    """In contrastive learning the loss gathers features, between forward and backward."""

    def body(script: Script, step: int) -> None:
        def gather() -> None:
            script.call("all_gather_into_tensor", 8 * MB, 3.0, bytes_in=4 * MB, bytes_out=8 * MB)

        script.forward(5.0, gather, gather, gather)
        gather()
        gather()
        script.backward(10.0)
        script.sharded([8 * MB], ms=0.1, again=False)
        script.work(1.0, Phase.OPTIMIZER)

    assert "gathered-parameters" not in causes_of(body, models=0, trained=SHARDS)


def test_parameters_that_every_second_step_gathers_are_not_said_to_be_of_each_step() -> None:
    def body(script: Script, step: int) -> None:
        averaged(script, step, every=99)
        if step % 2:
            sizes = {"bytes_in": 12 * MB, "bytes_out": 24 * MB}
            script.call("all_gather_into_tensor", 24 * MB, 90.0, **sizes)

    found = causes_of(body, steps=21, models=0, trained=SHARDS)
    assert "gathered-parameters" not in found


def loaded(script: Script, step: int, restarts: bool = True) -> None:
    begins = step % 4 == 0
    if begins:
        begin = script.now_ms
        script.work(8.0)
        if restarts:
            script.note("loader_worker_starts", begin)
    script.work(22.0 if begins else 2.0, Phase.DATA)
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)
    if begins and restarts:
        begin = script.now_ms
        script.work(1.0)
        script.note("loader_worker_stops", begin)


def test_workers_that_every_epoch_starts_anew_are_named() -> None:
    found = causes_of(loaded, steps=17)
    assert list(found) == ["workers-restarted"]
    cause = found["workers-restarted"]
    assert "new worker processes 4 times in 16 steps" in cause.sentence
    assert "Each time, the ranks wait 29 ms" in cause.sentence
    # In four steps of 35 ms, the fix saves 8 ms of starting, 20 ms of waiting, 1 ms of ending.
    assert saved(cause) == pytest.approx(29 / (4 * 35 + 29), abs=1e-3)
    assert "persistent_workers" in cause.fix


def test_workers_that_persist_are_not_named() -> None:
    assert causes_of(lambda script, step: loaded(script, step, restarts=False), steps=17) == {}


def test_workers_that_another_thread_starts_meanwhile_are_not_named() -> None:
    def body(script: Script, step: int) -> None:
        begin = script.now_ms + 2.0
        script.forward(10.0)
        if step % 4 == 0:
            script.note("loader_worker_starts", begin)
        script.backward(20.0, {4 * MB: 2.0})
        script.work(1.0, Phase.OPTIMIZER)

    assert causes_of(body, steps=17) == {}


def test_workers_of_one_evaluation_are_not_named() -> None:
    assert causes_of(lambda script, step: loaded(script, step, step == 8), steps=17) == {}


def compiled(script: Script, step: int, until: int = 99) -> None:
    def forward() -> None:
        if step % 4 == 2 * script.rank.rank and step < until:
            begin = script.now_ms
            script.now_ms += 16.0
            script.note("compilations", begin)

    script.forward(10.0, forward)
    script.backward(18.0, {4 * MB: 1.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_compilations_that_never_end_are_named() -> None:
    found = causes_of(compiled, steps=21, meets=True)
    assert next(iter(found)) == "compiled-anew"
    cause = found["compiled-anew"]
    assert (
        "anew in 10 of 20 steps, for 16 ms each time, on ranks 0, 1; ranks that do not compile wait"
        in cause.sentence
    )
    # In every second step, all ranks wait 16 ms for one rank.
    assert saved(cause) == pytest.approx(8 / 38, abs=1e-3)
    assert "dynamic=True" in cause.fix


@pytest.mark.parametrize("ranks", [{0}, {0, 1}], ids=["one rank", "in turns"])
def test_compilations_are_no_other_work_of_the_rank(ranks: set[int]) -> None:
    def body(script: Script, step: int) -> None:
        rank = script.rank.rank
        if step % 4 == 1 and rank in ranks and (len(ranks) == 1 or step // 4 % 2 == rank):
            begin = script.now_ms
            script.work(60.0)
            script.note("compilations", begin)
        compiled(script, step, until=0)

    assert list(causes_of(body, steps=41, meets=True)) == ["compiled-anew"]


def test_compilations_of_the_first_steps_are_usual() -> None:
    def body(script: Script, step: int) -> None:
        compiled(script, step, until=9)

    assert "compiled-anew" not in causes_of(body, steps=21, meets=True)


def test_compilations_for_an_evaluation_are_usual() -> None:
    ms = {2: 400.0, 3: 400.0, 4: 400.0, 38: 9.0, 39: 9.0}

    def body(script: Script, step: int) -> None:
        begin = script.now_ms
        if step in ms:
            script.work(ms[step])
            script.note("compilations", begin)
        compiled(script, step, until=0)

    assert "compiled-anew" not in causes_of(body, steps=61, meets=True)
    ms[38] = 30.0
    del ms[39]
    assert "compiled-anew" not in causes_of(body, steps=61, meets=True)
