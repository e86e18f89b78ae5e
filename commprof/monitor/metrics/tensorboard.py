"""Writes TensorBoard's event files without TensorBoard.

A file is a series of frames. A frame holds length, masked CRC-32C of the length, data, and masked
CRC-32C of the data (``tensorflow/core/lib/io/record_writer.h``). The data is an ``Event`` of
``tensorflow/core/util/event.proto`` in protobuf's wire format.

TensorBoard's own writer (2.21) is not used: on a full disk it leaves half a frame, and readers stop
there. TensorBoard also needs 50 MB of packages.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli, reversed
_MASK_DELTA: Final = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LARGEST: Final = (2 - 2**-23) * 2.0**127


class EventFile:
    """A TensorBoard event file; every call of :meth:`add` appends one whole event."""

    def __init__(self, directory: Path, time_s: float) -> None:
        """Makes the directory and the file.

        Raises:
            OSError: the directory or the file cannot be made.
        """
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time_s)}.{socket.gethostname()}.{os.getpid()}.commprof"
        self._file = (directory / name).open("ab", buffering=0)
        self._append(_event(time_s, _text(3, "brain.Event:2")))

    def add(self, time_s: float, step: int, scalars: Mapping[str, float]) -> None:
        """Appends one event at ``step`` with all finite values of ``scalars``.

        Raises:
            OSError: the event cannot be written.
        """
        values = b"".join(
            _field(1, _BYTES, _length(_text(1, tag) + _key(2, _FIXED32) + _float(value)))
            for tag, value in scalars.items()
            if math.isfinite(value)
        )
        number = _key(2, _VARINT) + _varint(max(0, step))
        self._append(_event(time_s, number + _field(5, _BYTES, _length(values))))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, event: bytes) -> None:
        """Appends a whole frame or nothing, because readers stop at half a frame."""
        # After a frame was cut off, the position is beyond the end of the file.
        before, frame = self._file.seek(0, os.SEEK_END), _frame(event)
        try:
            if self._file.write(frame) != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._file.truncate(before)
            raise


def crc32c(data: bytes) -> int:
    """CRC-32 with Castagnoli's polynomial (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def _frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _event(time_s: float, rest: bytes) -> bytes:
    return _key(1, _FIXED64) + struct.pack("<d", time_s) + rest


def _float(value: float) -> bytes:
    """Encodes a number as fp32, clipped to the range of fp32."""
    return struct.pack("<f", max(-_LARGEST, min(value, _LARGEST)))


def _text(number: int, text: str) -> bytes:
    return _field(number, _BYTES, _length(text.encode("utf-8", "replace")))


def _field(number: int, wire_type: int, value: bytes) -> bytes:
    return _key(number, wire_type) + value


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _length(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(_entry(byte) for byte in range(256))
