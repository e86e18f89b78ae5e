"""Reads the events of a Chrome trace in pieces, with limited memory.

The file may be damaged, or may not be a trace.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

_PIECE_BYTES = 1 << 20
#: Largest number of characters of an event or a top-level value. Longer values count as damaged.
_MOST_VALUE_CHARS = 16 << 20
_SHORT_CHARS = 1 << 16

_SPACE = re.compile(r"[\s,:]*")
#: The first key of an event that torch writes.
_EVENT_BEGINS = '"ph"'
_DAMAGED = "it is cut off or damaged"
_KEPT = ("distributedInfo", "baseTimeNanoseconds", "host_name", "deviceProperties")
#: Finds the next event in a file that torch wrote.
_NEXT_EVENT = re.compile(r'\n\s*(?=\{\s*"ph")')
#: Finds the next known top-level value in a file that torch wrote.
_NEXT_MEMBER = re.compile(rf'\n\s*(?="(?:traceEvents|{"|".join(_KEPT)})":)')
#: Errors of :mod:`json` that may vanish when more text is read.
_MAY_CONTINUE = ("Unterminated string", "Invalid \\")
#: Any error within this many characters of the end of the text may vanish too.
_MAY_BE_CUT_CHARS = 64


#: Function that reads events, beginning at a position in the text. It returns the position at which
#: Python continues, or None if the function reads no further events.
Scan = Callable[[str, int], int | None]


class Digits(str):
    """Text of a number with a point or an exponent. A double cannot hold times in ns since 1970."""

    __slots__ = ()


_DECODER: Final = json.JSONDecoder(parse_float=Digits)


def with_floats(value: Any) -> Any:
    """Returns a decoded value with floats in place of ``Digits``."""
    if type(value) is Digits:
        return float(value)
    if type(value) is list:
        return [with_floats(part) for part in value]
    if type(value) is dict:
        return {key: with_floats(part) for key, part in value.items()}
    return value


class DamagedError(ValueError):
    """The file is not JSON, or its JSON ends early; the message gives the reason."""


@dataclass
class EventReader:
    """Reads the events of one trace.

    ``head`` is complete when all events have been read.
    """

    stream: BinaryIO
    #: Reads some of the events itself. :meth:`events` yields the other events.
    scan: Scan | None = None
    #: Top-level values with the keys in ``_KEPT``.
    head: dict[str, Any] = field(default_factory=dict)
    found_events: bool = False
    #: Why reading stopped early; empty if the whole trace was read.
    problem: str = ""
    #: Number of events that were skipped because they are not JSON. torch's profiler does not
    #: escape some double quotes (``findings/profiler_quotes_break_json.sh``).
    passed_over: int = 0
    #: Number of top-level values that were skipped for the same reason.
    passed_over_in_head: int = 0
    _text: str = ""
    _at: int = 0
    _ended: bool = False
    _decode: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def events(self) -> Iterator[list[Any]]:
        """Yields lists of events. Where the text is damaged, sets ``problem`` and stops.

        Raises:
            DamagedError: the file is not a trace.
        """
        self._skip()
        if self._peek() not in ("{", "["):
            raise DamagedError("it is not a JSON object or array")
        try:
            if self._peek() == "[":
                yield from self._array()
            else:
                self._at += 1
                yield from self._members()
        except DamagedError as error:
            if not self.found_events:
                raise
            self.problem = str(error)

    def _members(self) -> Iterator[list[Any]]:
        while True:
            self._skip()
            if self._peek() == "}":
                return
            if self._peek() != '"':  # rest of a value that an unescaped quote ended early
                self._pass_over(_NEXT_MEMBER, _DAMAGED)
                self.passed_over_in_head += 1
                continue
            key = self._value()
            self._skip()
            if key == "traceEvents" and self._peek() == "[":
                yield from self._array()
                continue
            value = self._value_or_pass_over(_NEXT_MEMBER)
            if key in _KEPT and value:
                self.head[key] = value[0]
            self.passed_over_in_head += not value

    def _array(self) -> Iterator[list[Any]]:
        self.found_events = True
        self._at += 1
        while True:
            whole = self._scanned() if self.scan is not None else self._whole_events()
            if whole:
                yield whole
                continue
            self._skip()
            if self._peek() == "]":
                self._at += 1
                return
            event = self._value_or_pass_over(_NEXT_EVENT)
            self.passed_over += not event
            yield event

    def _scanned(self) -> list[Any]:
        """Lets ``scan`` read events. When ``scan`` has stopped, reads the next events in Python."""
        at = self.scan(self._text, self._at) if self.scan is not None else None
        if at is None:
            self.scan = None
            return self._whole_events()
        self._at = at
        return []

    def _whole_events(self) -> list[Any]:
        """Returns the complete events at the current position; empty if there are none."""
        found = self._many_events()
        text, at, decode, skip = self._text, self._at, _DECODER.raw_decode, _SPACE.match
        try:
            while True:
                match = skip(text, at)
                at = match.end() if match else at
                if at >= len(text) or text[at] == "]":
                    break
                value, end = decode(text, at)
                if end == len(text):
                    break  # a number may continue in the next piece
                found.append(value)
                at = end
        except (ValueError, RecursionError):
            pass  # incomplete or damaged: ``_value`` finds out which
        self._at = at
        return found

    def _many_events(self) -> list[Any]:
        """Returns the events of the text except the last event, which may be incomplete.

        A single call decodes all events, in half the time that a call per event needs. The result
        is empty if the text is damaged or contains the end of the array.
        """
        match = _SPACE.match(self._text, self._at)
        begin = match.end() if match else self._at
        last = self._text.rfind("{", begin, max(begin, self._text.rfind(_EVENT_BEGINS, begin)))
        if last <= begin:
            return []
        try:
            found = _DECODER.decode(f"[{self._text[begin:last].rstrip().removesuffix(',')}]")
        except (ValueError, RecursionError):
            return []
        self._at = last
        return list(found)

    def _value_or_pass_over(self, following: re.Pattern[str]) -> list[Any]:
        """Returns the next value in a list.

        A value that is not JSON is skipped. The list is then empty.

        Raises:
            DamagedError: the value is not JSON, and its end is not found.
        """
        try:
            return [self._value()]
        except DamagedError as error:
            self._pass_over(following, str(error))
            return []

    def _pass_over(self, following: re.Pattern[str], reason: str) -> None:
        """Skips a value that is not JSON.

        Raises:
            DamagedError: the end of the value is not found.
        """
        begin = following.search(self._text, self._at)
        if begin is None:
            raise DamagedError(reason)
        self._at = begin.end()

    def _value(self) -> Any:
        while True:
            if 0 < len(self._text) - self._at < _SHORT_CHARS < self._at:
                # The cut-off event of each piece causes an error, and Python counts all lines
                # before an error. Decoded text is dropped, so that counting is fast.
                self._text, self._at = self._text[self._at :], 0
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise DamagedError("it is nested too deeply") from None
            except ValueError as error:
                if self._ended or not self._may_continue(error):
                    raise DamagedError(_DAMAGED) from None
                if len(self._text) - self._at > _MOST_VALUE_CHARS:
                    raise DamagedError(
                        f"one of its values is not JSON or has more than {_MOST_VALUE_CHARS:,} "
                        "characters"
                    ) from None
                self._fill()
                continue
            if end == len(self._text) and not self._ended:
                self._fill()  # a number may continue in the next piece
                continue
            self._at = end
            return value

    def _may_continue(self, error: ValueError) -> bool:
        # An error of another type means that an integer has too many digits for Python.
        if not isinstance(error, json.JSONDecodeError):
            return False
        cut = len(self._text) - error.pos < _MAY_BE_CUT_CHARS
        return cut or error.msg.startswith(_MAY_CONTINUE)

    def _skip(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or self._ended:
                return
            self._fill()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _fill(self) -> None:
        """Drops the decoded text and reads further text.

        Each call about doubles the text that is left, so that few calls complete a long value.
        """
        if self._ended:
            return
        left = self._text[self._at :]
        data = self.stream.read(max(_PIECE_BYTES, len(left)))
        self._ended = not data
        self._text = left + self._decode.decode(data, final=self._ended)
        self._at = 0
