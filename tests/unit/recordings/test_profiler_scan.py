from __future__ import annotations

import io
import itertools
import json
import random
from typing import Any

import pytest

from commprof.recordings import json_events, profiler_events
from commprof.recordings.profiler_events import ProfilerEvents, read_events
from commprof.recordings.profiler_scan import TraceScanner
from tests.support.builders.profiler_traces import all_reduce, annotation, kernel, rank_events

ODD = (
    *(
        "0",
        "-0",
        "-1",
        "7",
        "1.5",
        "0.0005",
        "1e3",
        "1E-2",
        "-2.5",
        "1e999",
        "01",
        "1736408883688177.930",
        "1736408883688177.9305",
        "1.",
        "+1",
        "0x1",
    ),
    *("2300000000000000", "2299999999999999", "1700000000000000000", "9" * 18, "9" * 19, "9" * 400),
    *("4611686018427387903", "4611686018427387904", "-4611686018427387904", "-4611686018427387905"),
    *(
        "true",
        "false",
        "null",
        "truth",
        "NaN",
        "Infinity",
        "-Infinity",
        "[]",
        "{}",
        '[1, [2, {"a": 3}]]',
    ),
    *(
        '""',
        '"7"',
        '"1736408883688177.931"',
        '"7."',
        '".5"',
        '" 7"',
        '"-7"',
        '"٣"',
        '"' + "9" * 18 + '"',
        '"' + "9" * 19 + '"',
        '"stream 7"',
    ),
    *('"X"', '"B"', '"E"', '"\\u0058"', '"kernel"', '"k\\u0065rnel"', '"cpu_op"', '"cuda_runtime"'),
    *('"Memcpy PtoP"', '"Memcpy DtoD"', '"cudaGraphLaunch"', '"nccl:all_reduce"', '"nvshmem_put"'),
    *(
        '"aten::mm"',
        '"aten::wait"',
        '"c10d::allreduce_"',
        '"ProfilerStep#3"',
        '"autograd::engine::',
    ),
    *(
        '"a\\"b"',
        '"a\\\\"',
        '"a\\x"',
        '"a\\u12"',
        '"a\\ud800"',
        '"tab\there"',
        '"ünïcode – 集"',
        '"open',
    ),
    *("[1,]", '{"a": 1,}', '{"a" 1}', '{"args": 1}', "[" * 70 + "]" * 70, ""),
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGUMENTS = (
    *("correlation", "device", "stream", "Collective name", "Seq", "Input Dims", "copy kind"),
    "other",
)
CATEGORIES = ("kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "cpu_op", "ac2g", "hpu_op")
NAMES = ("ncclKernel_AllReduce", "gemm", "Memcpy HtoD", "cudaLaunchKernel", "nccl:all_reduce")


def read(text: str, scanner: TraceScanner | None) -> ProfilerEvents | str:
    try:
        return read_events(io.BytesIO(text.encode("utf-8", "surrogatepass")), scanner)
    except ValueError as error:
        return str(error)


def assert_same(text: str) -> ProfilerEvents | str:
    by_python, scanned = read(text, None), read(text, TraceScanner())
    assert scanned == by_python, text[:3000]
    return scanned


def object_of(fields: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields) + "}"


def event(draw: random.Random) -> list[tuple[str, str]]:
    arguments = [("correlation", "5"), ("device", "0"), ("stream", "7"), ("External id", "9")]
    return [
        *(("ph", '"X"'), ("cat", json.dumps(draw.choice(CATEGORIES)))),
        *(("name", json.dumps(draw.choice(NAMES))), ("pid", "1"), ("tid", "3")),
        *(("ts", str(draw.choice((12, 1000.25, 1700000000000000)))), ("dur", "2.5")),
        ("args", object_of(arguments)),
    ]


def whole(events: list[str], tail: str = "}") -> str:
    return '{"schemaVersion": 1, "traceEvents": [\n' + ",\n".join(events) + "]" + tail


@pytest.mark.parametrize("field", [*FIELDS, "PH", "a\\u0072gs"])
def test_a_field_of_any_value(field: str) -> None:
    draw = random.Random(field)
    for value in ODD:
        fields = dict(event(draw))
        fields[field] = value
        again = [*fields.items(), (field, draw.choice(ODD))]
        sound = object_of(event(draw))
        for one in (list(fields.items()), again, [e for e in fields.items() if e[0] != field]):
            assert_same(whole([sound, object_of(one), sound]))


@pytest.mark.parametrize("argument", [*ARGUMENTS, "Coll\\u0065ctive name"])
def test_an_argument_of_any_value(argument: str) -> None:
    draw = random.Random(argument)
    for category, value in itertools.product(CATEGORIES, ODD):
        fields = dict(event(draw))
        fields["cat"] = json.dumps(category)
        of_event = [("correlation", "5"), ("device", "1"), (argument, value)]
        fields["args"] = object_of(of_event)
        assert_same(whole([object_of(event(draw)), object_of(list(fields.items()))]))


def test_a_trace_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = whole([object_of(event(random.Random(seed))) for seed in range(4)], ', "b": [1, 2.5]}')
    for end in range(len(text)):
        assert_same(text[:end])


@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
def test_pieces_of_any_size(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [json.dumps(one) for one in rank_events(1, steps=6)]
    whole_at_once = read(whole(events), None)
    monkeypatch.setattr(json_events, "_PIECE_BYTES", piece)
    assert assert_same(whole(events)) == whole_at_once


@pytest.mark.parametrize(
    "between", ["", " ", ",,", " : ", "\n\t, ", "\u00a0", "3, ", "null,", '"a",']
)
def test_anything_between_events(between: str) -> None:
    events = [json.dumps(one) for one in rank_events(0, steps=2)]
    assert_same("[" + between.join(events) + "]")
    assert_same(whole([f"{one}{between}" for one in events]))


def test_texts_outside_of_ascii_move_no_event() -> None:
    events = [annotation("étape – 集合", 0, 5), *rank_events(0, steps=3)]
    events[5]["name"] = "ncclKernel_größe"
    found = assert_same(whole([json.dumps(one, ensure_ascii=False) for one in events]))
    assert isinstance(found, ProfilerEvents)
    assert "ncclKernel_größe" in [one.name for one in found.communication]


def test_events_in_two_parts_are_read_by_python() -> None:
    events: list[dict[str, Any]] = []
    for one in rank_events(0, steps=400):
        begin = {key: value for key, value in one.items() if key != "dur"}
        end = {"ph": "E", "pid": one["pid"], "tid": one["tid"], "ts": one["ts"] + one["dur"]}
        events += [{**begin, "ph": "B"}, end, one]
    found = assert_same(whole([json.dumps(each) for each in events]))
    assert isinstance(found, ProfilerEvents)
    assert len(found.communication) == 800


def test_a_scanner_serves_one_trace_after_the_other() -> None:
    scanner = TraceScanner()
    for rank in range(3):
        events = [*rank_events(rank), kernel(f"gemm_{rank}", 1, 2), all_reduce(5, 6, seq=rank)]
        text = whole([json.dumps(one) for one in events])
        assert read(text, scanner) == read(text, None)


def test_names_are_forgotten_if_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commprof.recordings.profiler_scan._MOST_TEXTS", 5)
    scanner = TraceScanner()
    for rank in range(3):
        text = whole([json.dumps(one) for one in rank_events(rank)])
        assert read(text, scanner) == read(text, None)


def test_named_events_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler_events, "_MOST_NAMED", 3)
    found = assert_same(whole([json.dumps(one) for one in rank_events(0, steps=5)]))
    assert isinstance(found, ProfilerEvents)
    assert len(found.ranges) == len(found.communication) == 3


@pytest.mark.parametrize("seed", range(12))
def test_damaged_traces(seed: int) -> None:
    draw = random.Random(seed)
    text = whole([object_of(event(draw)) for _ in range(12)], ', "baseTimeNanoseconds": 1700}')
    for _ in range(50):
        at, length = draw.randrange(len(text)), draw.choice((0, 1, 1, 5))
        put = draw.choice(['"', "\\", "{", "}", "[", "]", ",", ":", "9", "e", " ", "\x01", "é", ""])
        assert_same(text[:at] + put + text[at + length :])
