"""Reads pickled dumps without running code of the file.

A pickle is a program. This reader accepts only the instructions that build numbers, strings, lists,
tuples and dictionaries. Python's own unpickler is not used, because a large memo index in a damaged
file would make it allocate too much memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_STOP = ord(".")


class _Mark:
    """Marker on the stack below the items of a list, a tuple or a dictionary."""


_MARK = _Mark()


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise ValueError("it is cut off")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def pop(self) -> Any:
        if (value := self.stack.pop()) is _MARK:
            raise IndexError
        return value

    def marked(self) -> list[Any]:
        """Removes the last mark and the items above the mark; returns the items."""
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError("it is not a consistent pickle")
        return self.stack[-1]

    def put_items(self, items: list[Any]) -> None:
        """Adds alternating keys and values to the dictionary on top of the stack."""
        target = self.top(dict)
        if len(items) % 2:
            raise ValueError("it is not a consistent pickle")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):
                raise ValueError("a key is neither a string nor an integer")
            target[key] = value

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


def _pair(m: _Machine) -> list[Any]:
    value, key = m.pop(), m.pop()
    return [key, value]


def _append(m: _Machine, items: list[Any]) -> None:
    m.top(list).extend(items)


def _long(m: _Machine, form: str) -> int:
    return int.from_bytes(m.take(m.number(form)), "little", signed=True)


def _text(m: _Machine, form: str) -> str:
    return m.take(m.number(form)).decode("utf-8", "replace")


_PUSH: dict[int, Callable[[_Machine], Any]] = {
    ord("("): lambda _: _MARK,
    ord("N"): lambda _: None,
    0x88: lambda _: True,
    0x89: lambda _: False,
    ord("}"): lambda _: {},
    ord("]"): lambda _: [],
    ord(")"): lambda _: (),
    ord("J"): lambda m: m.number("<i"),
    ord("K"): lambda m: m.number("<B"),
    ord("M"): lambda m: m.number("<H"),
    0x8A: lambda m: _long(m, "<B"),
    0x8B: lambda m: _long(m, "<i"),
    ord("G"): lambda m: m.number(">d"),
    ord("X"): lambda m: _text(m, "<I"),
    0x8C: lambda m: _text(m, "<B"),
    0x8D: lambda m: _text(m, "<Q"),
    ord("t"): lambda m: tuple(m.marked()),
    ord("l"): lambda m: m.marked(),
    ord("h"): lambda m: m.memo[m.number("<B")],
    ord("j"): lambda m: m.memo[m.number("<I")],
}
_DO: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.take(1),
    0x95: lambda m: m.take(8),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("u"): lambda m: m.put_items(m.marked()),
    ord("s"): lambda m: m.put_items(_pair(m)),
    ord("e"): lambda m: _append(m, m.marked()),
    ord("a"): lambda m: _append(m, [m.pop()]),
    ord("q"): lambda m: m.remember(m.number("<B")),
    ord("r"): lambda m: m.remember(m.number("<I")),
    0x94: lambda m: m.remember(len(m.memo)),
}


def read_plain_pickle(data: bytes) -> Any:
    """Reads a pickle of plain values without running any code of the pickle.

    The C++ module (``csrc/reading/plain_pickle.cpp``) is used if it is installed.

    Raises:
        ValueError: the pickle is damaged or holds more than plain values.
    """
    try:
        from commprof import _reading
    except ImportError:
        return read_in_python(data)
    return _reading.read_plain_pickle(data)


def read_in_python(data: bytes) -> Any:
    """Like :func:`read_plain_pickle`, without C++."""
    machine = _Machine(data)
    try:
        while (code := machine.take(1)[0]) != _STOP:
            if code in _PUSH:
                machine.stack.append(_PUSH[code](machine))
            elif code in _DO:
                _DO[code](machine)
            else:
                raise ValueError(f"instruction 0x{code:02x} builds more than plain values")
        value = machine.pop()
    except (IndexError, KeyError):
        raise ValueError("it is not a consistent pickle") from None
    if machine.stack:
        raise ValueError("it is not a consistent pickle")
    return value
