"""Reads 64-bit little-endian ELF files; elf(5) describes all formats and offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SYMTAB, _DYNSYM = 2, 11


class Section(NamedTuple):
    name: str
    kind: int
    offset: int
    bytes: int
    link: int


class Symbol(NamedTuple):
    name: str
    bytes: int
    is_defined: bool


def sections(library: Path) -> list[Section]:
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{library} is no 64-bit little-endian ELF file")
    start = struct.unpack_from("<Q", data, 40)[0]
    each_bytes, count, names_at = struct.unpack_from("<HHH", data, 58)
    headers = [
        struct.unpack_from("<IIQQQQII", data, start + each_bytes * number)
        for number in range(count)
    ]
    names = headers[names_at][4]
    return [
        Section(_text(data, names + name), kind, offset, size, link)
        for name, kind, _, _, offset, size, link, _ in headers
    ]


def symbols(library: Path) -> Iterator[Symbol]:
    data, headers = library.read_bytes(), sections(library)
    for section in headers:
        if section.kind in (_SYMTAB, _DYNSYM):
            names = headers[section.link].offset
            for at in range(section.offset, section.offset + section.bytes, 24):
                name, _, _, index, _, size = struct.unpack_from("<IBBHQQ", data, at)
                yield Symbol(_text(data, names + name), size, index != 0)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
