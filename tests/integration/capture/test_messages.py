"""Waiting for a message is split into waiting for its sender and wire."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from commprof.analysis.run import analyse_run
from commprof.analysis.world import WorldResult
from tests.support.machines.ranks import run_module
from tests.support.ranks.messages import LATE_S


def result(name: str, directory: Path) -> WorldResult:
    run_module("tests.support.ranks.messages", [name, str(directory)], 2)
    (world,) = analyse_run(directory).worlds
    return world


@pytest.mark.measures
def test_a_receiver_waits_for_its_late_sender(tmp_path: Path) -> None:
    world = result("known", tmp_path)
    receiver = world.ranks[1].parts
    assert receiver.wait_ms == pytest.approx(LATE_S * 1e3, rel=0.3)
    assert receiver.wire_ms < receiver.wait_ms / 2
    assert receiver.unsplit_ms == 0.0
    assert receiver.wait_ms + receiver.wire_ms == pytest.approx(receiver.exposed_ms)
    by_op = {row.op: row for row in world.collectives}
    assert by_op["recv"].wait.median_ms == pytest.approx(LATE_S * 1e3, rel=0.3)
    assert by_op["recv"].queue.median_ms == 0.0
    assert by_op["recv"].size_bytes == (4000, 4000)


def test_what_came_from_any_source_is_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    world = result("any_source", tmp_path)
    receiver = world.ranks[1].parts
    # Only messages before the first recv from any source have a number: none of a measured step.
    assert receiver.unsplit_ms == pytest.approx(receiver.exposed_ms)
    assert receiver.exposed_ms > 0.9 * 2 * LATE_S * 1e3
    assert math.isnan(receiver.wait_ms)
