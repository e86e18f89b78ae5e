"""``SCHEMA`` repeats schema/protobuf/et_def.proto of github.com/mlcommons/chakra (6dc63e1).

``SCHEMA`` maps a message and a field number to the field's name and type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commprof.errors import CommprofError
from commprof.forecast.scenario.rank_steps import Cycle
from commprof.forecast.what_if.chakra import encode, export, nodes
from commprof.trace.schema import FLAG_DEVICE_ASYNC, Kind, Phase
from tests.support.builders.traces import MS, world_run
from tests.unit.analysis.align.test_device_timeline import DeviceRank
from tests.unit.forecast.predict.test_schedule import STEPS, rank_of

SCHEMA: dict[str, dict[int, tuple[str, str]]] = {
    "GlobalMetadata": {1: ("version", "string"), 2: ("attr", "AttributeProto")},
    "AttributeProto": {
        1: ("name", "string"),
        2: ("doc_string", "string"),
        3: ("double_val", "double"),
        9: ("int64_val", "varint"),
        27: ("bool_val", "varint"),
        29: ("string_val", "string"),
    },
    "Node": {
        1: ("id", "varint"),
        2: ("name", "string"),
        3: ("type", "varint"),
        4: ("ctrl_deps", "packed"),
        5: ("data_deps", "packed"),
        6: ("start_time_micros", "varint"),
        7: ("duration_micros", "varint"),
        10: ("attr", "AttributeProto"),
    },
}
COMP, COLL = 4, 7
WIRE_TYPES = {"varint": 0, "double": 1}


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def decode(message: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        name, kind = SCHEMA[message][key >> 3]
        assert key & 7 == WIRE_TYPES.get(kind, 2), name
        value, at = varint(data, at)
        if kind != "varint":
            content, at = data[at : at + value], at + value
            assert len(content) == value
        if kind == "varint":
            found[name] = value
        elif kind == "string":
            found[name] = content.decode()
        elif kind == "packed":
            found[name], inner = [], 0
            while inner < len(content):
                number, inner = varint(content, inner)
                found[name].append(number)
        else:
            found.setdefault(name, []).append(decode(kind, content))
    return found


def messages(data: bytes) -> list[dict[str, Any]]:
    found, at = [], 0
    while at < len(data):
        length, at = varint(data, at)
        found.append(decode("Node" if found else "GlobalMetadata", data[at : at + length]))
        at += length
    return found


def attributes(node: dict[str, Any]) -> dict[str, Any]:
    return {
        each["name"]: next(value for key, value in each.items() if key.endswith("_val"))
        for each in node["attr"]
    }


CYCLE = Cycle(
    step=3,
    begin_ns=1_000_000,
    backward_ns=float("nan"),
    ready_ns=(11_000_500, 21_000_500),
    end_ns=(19_000_000, 61_000_000),
    bytes=(1000, 2_000_000),
    finalize_ns=(31_000_000, 62_000_000),
    blocked_ns=30_000_000,
    other_wait_ns=0.0,
    cpu_share=1.0,
)


def test_a_step_is_written_as_compute_and_collective_nodes() -> None:
    made = list(nodes([CYCLE, CYCLE]))
    assert [node.type for node in made[:5]] == [COMP, COLL, COMP, COLL, COMP]
    first, bucket, second, last_bucket, rest = made[:5]
    assert (first.start_us, first.duration_us) == (0, 10_000)
    assert (bucket.start_us, bucket.duration_us, bucket.data_deps) == (10_000, 8_000, (1,))
    assert second.data_deps == (first.id,)
    assert (last_bucket.data_deps, rest.data_deps) == ((second.id,), (second.id,))
    assert set(made[5].data_deps) == {rest.id, bucket.id, last_bucket.id}
    compute = [node for node in made[:5] if node.type == COMP]
    assert sum(node.duration_us for node in compute) == 30_000


def test_the_chakra_file_follows_the_public_schema() -> None:
    metadata, *found = messages(encode(list(nodes([CYCLE])), rank=1, world_size=2))
    assert metadata["version"] == "0.0.4"
    assert {each["name"] for each in metadata["attr"]} >= {"rank", "world_size"}
    assert [node["id"] for node in found] == [1, 2, 3, 4, 5]
    bucket = found[3]
    assert (bucket["type"], bucket["data_deps"]) == (COLL, [3])
    # ALL_REDUCE is 0 and is written, although protobuf omits zeros by default.
    assert attributes(bucket) == {"is_cpu_op": 0, "comm_type": 0, "comm_size": 2_000_000}
    assert "all-reduce of bucket 1" in bucket["name"]


def test_a_run_is_exported_to_one_chakra_file_per_rank(tmp_path: Path) -> None:
    paths = export(world_run([rank_of(0), rank_of(1)]), tmp_path / "et")
    assert [path.name for path in paths] == ["commprof.0.et", "commprof.1.et"]
    for path in paths:
        _, *found = messages(path.read_bytes())
        assert [node["type"] for node in found].count(COLL) == 2 * (STEPS - 1)
    with pytest.raises(CommprofError, match="nothing is overwritten"):
        export(world_run([rank_of(0), rank_of(1)]), tmp_path / "et")
    with pytest.raises(CommprofError, match="no trace of rank 1"):
        export(world_run([rank_of(0)], world_size=2), tmp_path / "other")
    paths[0].unlink()
    with pytest.raises(CommprofError, match="nothing is overwritten"):
        export(world_run([rank_of(0), rank_of(1)]), tmp_path / "et")
    assert [*(tmp_path / "et").iterdir()] == paths[1:]


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_gpu_s_steps_have_the_times_of_its_stream(is_attached: bool, tmp_path: Path) -> None:
    ranks = [DeviceRank(rank, 2, steps=STEPS) for rank in range(2)]
    for rank in ranks:
        for step in range(STEPS):
            # The host issues a step in 20 ms, and then waits for the GPU until 100 ms.
            host, at = 100 * MS * step + 1, 100 * MS * step + MS
            rank.device_step(host, host + 100 * MS, (at, at + 100 * MS))
            rank.device_phase(Phase.BACKWARD, host + 5 * MS, host + 18 * MS, (at, at + 90 * MS))
            done = rank.device_collective(
                step, host + 8 * MS, (at + 50 * MS, at + 88 * MS), bytes=1000, graph_task=step
            )
            if is_attached:
                ready = host + 8 * MS
                rank._add(Kind.BUCKET, ready, op_id=done, bytes_in=1000, value=ready)
            rank.device_wait(done, host + 15 * MS, (at + 65 * MS, at + 88 * MS))
            rank.device_finalize(host + 15 * MS, (at + 65 * MS, at + 90 * MS), graph_task=step)
    for path in export(world_run([*ranks]), tmp_path / "et"):
        _, *found = messages(path.read_bytes())
        # Compute takes -10 to 50 ms, the bucket 50 to 88 ms, and compute again 50 to 65 ms.
        lengths = [node["duration_micros"] for node in found[:3]]
        assert lengths == pytest.approx([60_000, 38_000, 15_000], abs=2)


def test_exporting_trials_or_runs_without_device_times_is_refused(tmp_path: Path) -> None:
    trial = [rank_of(0), rank_of(1, trial={"first_step": 1, "begin_monotonic_ns": 150 * MS})]
    with pytest.raises(CommprofError, match="a simulator needs steps of one setting: record them"):
        export(world_run(trial), tmp_path / "et")
    unseen = [rank_of(rank, no_device_times="no events") for rank in range(2)]
    for rank in unseen:
        rank.collective(99, 10 * MS, 0, flags=FLAG_DEVICE_ASYNC)
    with pytest.raises(CommprofError, match=r"\(no events\), so its steps cannot be simulated"):
        export(world_run(unseen), tmp_path / "et")
    assert not (tmp_path / "et").exists()


def test_exporting_a_run_with_a_compressor_is_refused(tmp_path: Path) -> None:
    ranks = [rank_of(rank, job={"compressor": "fp16"}) for rank in range(2)]
    with pytest.raises(CommprofError, match=r"hook fp16.*record the run without"):
        export(world_run(ranks), tmp_path / "et")
    assert not (tmp_path / "et").exists()


def test_only_steps_that_all_ranks_have_are_written(tmp_path: Path) -> None:
    lacking = rank_of(1)
    lacking.finalize(390 * MS, 392 * MS, cpu=0, graph_task=99)
    paths = export(world_run([rank_of(0), lacking]), tmp_path / "et")
    counts = []
    for path in paths:
        _, *found = messages(path.read_bytes())
        counts.append([node["name"] for node in found if node["type"] == COLL])
    assert counts[0] == counts[1]
    assert len(counts[0]) == 2 * (STEPS - 2)
    assert not any("step 3:" in name for name in counts[0])
