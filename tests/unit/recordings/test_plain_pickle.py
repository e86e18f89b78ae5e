from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from commprof import _reading
from commprof.recordings.flight_recorder_pickle import read_in_python, read_plain_pickle

VALUES: tuple[Any, ...] = (
    {"a": [1, 2.5, (3, 4, 5, 6), "x" * 300, None, True], 5: {"b": ()}, "c": ["a", "a", {}]},
    [[], [()], -1, 255, 65535, 70_000, 2**31, -(2**40), 2**70, -(2**70), 0.0, False],
    ({"entries": [{"state": "completed", "frames": []}] * 3}, "é", (1,), (1, 2), (1, 2, 3)),
)
CODES = b"(NtleasuhjqrX}]).JKMG\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x94\x95c"


def outcome(read: Any, data: bytes) -> str:
    try:
        return repr(read(data))
    except ValueError as error:
        return f"ValueError: {error}"


@pytest.mark.parametrize("value", VALUES, ids=["dictionary", "numbers", "tuples"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_whole_pickles(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    assert read_plain_pickle(data) == read_in_python(data) == value


@pytest.mark.parametrize("seed", range(6))
def test_damaged_pickles(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(400):
        data = bytearray(pickle.dumps(draw.choice(VALUES), protocol=draw.choice((2, 4))))
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data))
            kind = draw.randrange(4)
            if kind == 0:
                data[at] = draw.randrange(256)
            elif kind == 1:
                data[at] = draw.choice(CODES)
            elif kind == 2:
                data[at:at] = bytes([draw.choice(CODES)])
            else:
                del data[at : at + draw.randrange(1, 5)]
            data = data or bytearray(b".")
        assert outcome(_reading.read_plain_pickle, bytes(data)) == outcome(
            read_in_python, bytes(data)
        )


@pytest.mark.parametrize(
    "data",
    [
        b"]r\xff\xff\xff\x7f0.",  # a memo with 2**31 places would take 16 GB
        b"]r\xff\xff\xff\x7fj\xff\xff\xff\x7f\x86.",
        b"]r\xff\x0f\x00\x00q\x00j\xff\x0f\x00\x00h\x00\x87.",
        b"(r\x05\x00\x00\x00j\x05\x00\x00\x00t.",
        b"(\x85.",
        b"](a.",
        b"}(K\x01s.",
        b"}\x88K\x01s.",
        b"\x8b\xff\xff\xff\xff.",
        b"cposix\nsystem\n.",
        b"",
        b"K",
        b"K\x01K\x02.",
        b"}]K\x01s.",
    ],
)
def test_hostile_pickles(data: bytes) -> None:
    assert outcome(_reading.read_plain_pickle, data) == outcome(read_in_python, data)
