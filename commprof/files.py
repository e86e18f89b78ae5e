"""Reads and checks untrusted files, and writes files atomically."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import math
import os
import socket
import stat
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import (
    Annotated,
    Any,
    BinaryIO,
    Final,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

#: Larger JSON files are refused. commprof's own files take a few MB for a run of 1000 ranks.
_MOST_JSON_BYTES = 256 << 20
_MEMINFO = Path("/proc/meminfo")


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    return os.fdopen(descriptor_of_regular(path), "rb")


def descriptor_of_regular(path: Path) -> int:
    """Opens a regular file for reading; refuses a pipe without waiting for its writer.

    Returns:
        The file descriptor, which the caller closes.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return fd


def read_bytes(path: Path, most_bytes: int | None = None) -> bytes:
    """Reads all of a regular file.

    Args:
        path: path of the file.
        most_bytes: largest allowed size; None for half of the machine's available memory.

    Raises:
        OSError: the file cannot be opened, is not a regular file, or is too large.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        limit = available_memory_bytes() // 2 if most_bytes is None else most_bytes
        if size > limit:
            said = f"its size of {size:,} bytes exceeds the limit of {limit:,}"
            raise OSError(errno.EFBIG, said, str(path))
        return file.read(size)


def read_json(path: Path) -> Any:
    """Reads a JSON file. Keys and types are not checked.

    Raises:
        OSError: as for ``read_bytes``.
        ValueError: the content is not JSON, or is nested too deep.
    """
    try:
        return json.loads(read_bytes(path, _MOST_JSON_BYTES))
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file atomically: a reader finds the old or the new content."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields the path of a temporary file, which replaces ``path`` when the context ends.

    Raises:
        OSError: the file cannot be written, or ``path`` is a device or pipe such as /dev/null. The
            old content then stays.
    """
    if is_a_device(path):
        raise OSError(errno.EINVAL, "it is a device or pipe", str(path))
    # Hosts may share the directory, and processes of two hosts may have the same process ID.
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def names_in(folder: Path) -> list[str]:
    """Returns the sorted names in a folder; empty if the folder cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def is_a_device(path: Path) -> bool:
    """True if the path exists and is neither a file nor a directory, such as /dev/stdout."""
    return path.exists() and not path.is_file() and not path.is_dir()


def available_memory_bytes() -> int:
    """Returns Linux's figure of available memory, in bytes; 8 GiB if it is unknown."""
    try:
        lines = _MEMINFO.read_text().splitlines()
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 8 << 30


#: An ``int`` that may be below 0.
Signed = Annotated[int, "signed"]
#: Shape that a JSON value must have, as a Python type. Objects may have further keys.
#:
#: - ``int``: a whole number from 0 to 2**63 - 1.
#: - ``float``: a number, or null, which becomes NaN.
#: - ``X | None``: an X, or null. An object may lack the value.
#: - ``Path``: a string, which becomes a path.
#: - ``dict``: any object; ``Any``: any value. The caller checks them.
#: - A dataclass: an object with the same fields, which becomes an instance. Fields with a default
#:   may be missing.
Shape: TypeAlias = "Any | dict[str, Shape]"

_TYPE_NAMES: Final = {
    int: "a whole number from 0 to 2**63 - 1",
    Signed: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}
#: A message shows at most this many characters of a wrong value.
_MOST_SHOWN = 40


def plain(value: Any) -> Any:
    """Replaces NaN and infinity by None, because JSON lacks them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def checked(value: object, shape: Shape, where: str = "") -> Any:
    """Checks a JSON value against ``shape`` and converts it; ``where`` is the value's dotted name.

    Raises:
        ValueError: a key is missing, or a value is wrong.
    """
    if _is_plain(value, shape):
        return value
    if isinstance(shape, dict):
        given: Mapping[str, Any] = _of_type(value, dict, where)
        return {**given, **_members(given, shape, where)}
    if isinstance(shape, type) and dataclasses.is_dataclass(shape):
        given = _of_type(value, dict, where)
        fields = _fields(shape)
        wanted = {name: fields[name][0] for name in fields if name in given or fields[name][1]}
        null = dict.fromkeys(wanted)
        return shape(**null | _members(given, wanted, where))
    if shape is Any:
        return value
    if shape is float and value is None:
        return math.nan
    if shape is Path:
        return Path(checked(value, str, where))
    if may_be_null(shape):
        return None if value is None else checked(value, get_args(shape)[0], where)
    return _items(value, shape, where) if _of_items(shape) else _of_type(value, shape, where)


def may_be_null(shape: Shape) -> bool:
    """True if a value of this shape may be null, or missing from an object."""
    return not isinstance(shape, dict) and _is_union(shape)


@functools.cache
def _is_union(shape: Any) -> bool:
    return get_origin(shape) in (Union, types.UnionType)


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Shape, bool]]:
    """Returns the shape of each field, and True if the field has no default."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (hints[field.name], field.default is field.default_factory)
        for field in dataclasses.fields(kind)
    }


def _is_plain(value: object, shape: Shape) -> bool:
    """Returns True if the value certainly has the shape; False means that ``checked`` decides.

    This test is fast, and most values pass it.
    """
    if shape is str or shape is list:
        return type(value) is shape
    return shape is int and type(value) is int and 0 <= value < 2**63


def _members(value: Mapping[str, Any], shape: dict[str, Shape], where: str) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, inner in shape.items():
        if key in value:
            member = value[key]
            if not _is_plain(member, inner):
                member = checked(member, inner, f"{where}.{key}" if where else key)
            members[key] = member
        elif not may_be_null(inner):
            raise ValueError(f"{where}.{key} is missing" if where else f"{key} is missing")
    return members


@functools.cache
def _of_items(shape: Any) -> tuple[Any, ...]:
    """Returns a container's type, the shapes of its items, and True for a mapping.

    Returns () if the shape is not a container.
    """
    if shape == Signed or not get_args(shape):
        return ()
    kind: Any = get_origin(shape)
    return kind, get_args(shape), issubclass(kind, Mapping)


def _items(value: object, shape: Any, where: str) -> Any:
    kind, inner, is_mapping = _of_items(shape)
    if is_mapping:
        items = _of_type(value, dict, where).items()
        if _all_plain([item for _, item in items], inner[1]):
            return dict(items)
        return {key: checked(item, inner[1], f"{where}.{key}") for key, item in items}
    items = list(value) if isinstance(value, tuple) else _of_type(value, list, where)
    each = inner if kind is tuple and inner[-1] is not ... else inner[:1] * len(items)
    if len(items) != len(each):
        raise ValueError(f"{where} has {len(items)} items, not {len(each)}")
    if len(inner) != len(each) and _all_plain(items, inner[0]):
        return items if kind is list else tuple(items)
    pairs = enumerate(zip(items, each, strict=True))
    found = [checked(item, one, f"{where}[{n}]") for n, (item, one) in pairs]
    return found if kind is list else tuple(found)


def _all_plain(items: Sequence[Any], wanted: Any) -> bool:
    """True if all items certainly have the shape ``wanted``."""
    if wanted not in (str, int) or set(map(type, items)) != {wanted}:
        return False
    return wanted is str or 0 <= min(items) <= max(items) < 2**63


def _of_type(value: object, wanted: Any, where: str) -> Any:
    if wanted is float:
        good = isinstance(value, int | float)
    else:
        good = isinstance(value, int if wanted == Signed else wanted)
    if isinstance(value, int):
        least = 0 if wanted is int else -(2**63)
        good = good and isinstance(value, bool) == (wanted is bool) and least <= value < 2**63
    if good:
        return float(value) if wanted is float else value  # type: ignore[arg-type]
    shown = repr(value)
    shown = shown if len(shown) <= _MOST_SHOWN else shown[: _MOST_SHOWN - 3] + "..."
    raise ValueError(f"{where or 'it'} is not {_TYPE_NAMES[wanted]}: {shown}")
