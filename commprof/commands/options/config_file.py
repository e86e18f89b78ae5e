"""``--config FILE``: options of a command from a YAML file; the command line overrides them.

A key is an option's name without its leading dashes. The text of a value is converted as on the
command line, so `mode: off` is the word `off`, not False. No YAML tag can construct a Python
object.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commprof.errors import UsageError
from commprof.files import read_bytes
from commprof.invocation import quoted
from commprof.workloads.spec import allowed

if TYPE_CHECKING:
    from yaml import MappingNode, Node

_MOST_BYTES = 1 << 20
#: Options that take a comma-separated list. A file may give a YAML list instead.
_LISTS = ("world_sizes", "strategy", "trial")
#: Options that take NAME:key=value,... A file may give {NAME: {key: value}} instead.
_SPECS = ("workload", "hook", "strategy", "trial")
#: Pairs of options that exclude or replace each other. If the command line has one of them, its
#: rival in the file is ignored.
RIVALS = (
    *(("steps", "epochs"), ("nproc", "world_sizes")),
    *(("hook", "trial"), ("bucket_cap_mb", "trial"), ("fsdp", "trial")),
    *(("price_per_hour", "trial"), ("price_per", "trial")),
)
_NOT_IN_FILES = ("help", "help_all", "config")

_TAG = "tag:yaml.org,2002:"
_TRUTH = {"true": True, "false": False}


def read_config(path: Path, actions: list[argparse.Action]) -> dict[str, Any]:
    """Returns the options in a file, by argument name.

    Args:
        path: the file.
        actions: actions of the command's parser.

    Raises:
        UsageError: the file cannot be read, or has an unknown key or a wrong value.
    """
    root = _composed(path)
    by_key = _keys(actions)
    found: dict[str, Any] = {}
    for key_node, node in _entries(path, root):
        where = f"{quoted(path)}, line {key_node.start_mark.line + 1}"
        key = str(key_node.value).replace("_", "-")
        if key not in by_key:
            names = sorted({key_of(action) for action in by_key.values()})
            raise UsageError(f"{where}: unknown key {key_node.value!r}{allowed(key, names)}")
        action = by_key[key]
        if action.dest in found:
            raise UsageError(f"{where}: {key} is given twice; keep one of them")
        value = _value(f"{where}: {key}", action, node)
        if value is not None:
            found[action.dest] = value
    return found


def key_of(action: argparse.Action) -> str:
    """Returns the key that sets an option in a file."""
    long = [name[2:] for name in action.option_strings if name.startswith("--")]
    return long[0] if long else _dest_key(action)


def _dest_key(action: argparse.Action) -> str:
    return action.dest.replace("_", "-")


def _keys(actions: list[argparse.Action]) -> dict[str, argparse.Action]:
    taken = [action for action in actions if action.dest not in _NOT_IN_FILES]
    return {_dest_key(a): a for a in taken} | {key_of(a): a for a in taken}


def _composed(path: Path) -> Node | None:
    """Returns the root node of the file's YAML; None if the file is empty."""
    import yaml

    try:
        text = read_bytes(path, _MOST_BYTES).decode()
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(
            f"cannot read --config {quoted(path)}: {error.strerror}; name another file"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UsageError(
            f"{quoted(path)}{line}: not YAML: {error.problem or error.context}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{quoted(path)}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError(f"{quoted(path)}: nested too deeply; give `option: value` lines") from None


def _entries(path: Path, root: Node | None) -> Iterator[tuple[Node, Node]]:
    if root is None:
        return
    if root.id != "mapping":
        line = root.start_mark.line + 1
        raise UsageError(f"{quoted(path)}, line {line}: {_kind(root)}, not `option: value` lines")
    yield from _pairs(root)


def _pairs(node: Node) -> list[tuple[Node, Node]]:
    mapping: MappingNode = node
    return list(mapping.value)


def _value(where: str, action: argparse.Action, node: Node) -> Any:
    """Returns a value as the command line would parse it; None for YAML's null."""
    _check_plain(where, node)
    if node.tag == f"{_TAG}null":
        return None
    if _is_switch(action):
        if node.tag != f"{_TAG}bool" or str(node.value).lower() not in _TRUTH:
            raise UsageError(f"{where}: {_kind(node)} (allowed: true, false)")
        return _TRUTH[node.value.lower()]
    if _takes_several(action):
        if node.id != "sequence":
            raise UsageError(f"{where}: {_kind(node)} (allowed: a list)")
        return [_converted(where, action, item) for item in node.value]
    if action.dest in _SPECS and node.id != "scalar":
        return _converted_text(where, action, _spec(where, node))
    if action.dest in _LISTS and node.id == "sequence":
        return _converted_text(where, action, ",".join(_text(where, n) for n in node.value))
    return _converted(where, action, node)


def _is_switch(action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction) or (
        action.nargs == 0 and isinstance(action.const, bool)
    )


def _takes_several(action: argparse.Action) -> bool:
    appends = isinstance(action, argparse._AppendAction)
    return appends or action.nargs in ("*", "+", argparse.REMAINDER)


def _converted(where: str, action: argparse.Action, node: Node) -> Any:
    quoted = getattr(node, "style", None) in ("'", '"')
    if action.type in (int, float) and (node.id != "scalar" or quoted):
        raise UsageError(f"{where}: {_kind(node)} (allowed: {_noun(action)})")
    return _converted_text(where, action, _text(where, node))


def _converted_text(where: str, action: argparse.Action, text: str) -> Any:
    convert = action.type if callable(action.type) else str
    try:
        value = convert(text)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        raise UsageError(f"{where}: {text!r} is not {_noun(action)}") from None
    if action.choices is not None and value not in action.choices:
        names = [str(choice) for choice in action.choices]
        raise UsageError(f"{where}: unknown value {text!r}{allowed(text, names)}")
    return value


def _noun(action: argparse.Action) -> str:
    if action.choices is not None:
        return "one of " + ", ".join(map(str, action.choices))
    if action.type is int:
        return "a whole number"
    return "a number" if action.type is float else "text"


def _spec(where: str, node: Node) -> str:
    """Returns ``{timed: {backward_ms: [10, 5]}}`` as ``timed:backward_ms=10/5``.

    If ``node`` is a list, its items are joined by commas.
    """
    if node.id == "sequence":
        # A list within a list is refused, because a YAML alias can make a list contain itself.
        items = [item if item.id == "mapping" else _text(where, item) for item in node.value]
        return ",".join(item if isinstance(item, str) else _spec(where, item) for item in items)
    words = []
    for key_node, value in _pairs(node):
        name = _text(where, key_node)
        if value.id == "mapping":
            options = [f"{_text(where, k)}={_option(where, v)}" for k, v in _pairs(value)]
            words.append(f"{name}:{','.join(options)}" if options else name)
        else:
            words.append(f"{name}={_option(where, value)}" if value.value else name)
    return ",".join(words)


def _option(where: str, node: Node) -> str:
    """Returns the text of a value. A list such as ``[10, 5]`` becomes ``10/5``."""
    if node.id == "sequence":
        return "/".join(_text(where, item) for item in node.value)
    return _text(where, node)


def _text(where: str, node: Node) -> str:
    _check_plain(where, node)
    if node.id != "scalar":
        raise UsageError(f"{where}: {_kind(node)} (allowed: one value)")
    return str(node.value)


def _check_plain(where: str, node: Node) -> None:
    plain = ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")
    if node.tag.removeprefix(_TAG) not in plain:
        raise UsageError(f"{where}: YAML tag {node.tag!r} given (allowed: plain values)")


def _kind(node: Node) -> str:
    if node.id == "scalar":
        quoted = node.style in ("'", '"')
        return f"{node.value!r} is text" if quoted else f"{str(node.value)!r} given"
    return "a list given" if node.id == "sequence" else "a mapping given"


def merged(
    given: argparse.Namespace, values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the options that the file sets, and the script's arguments.

    An option of the file is left out if its rival is on the command line. A script or workload on
    the command line replaces the file's script, module and script arguments. A script also replaces
    the file's options for built-in workloads.

    Args:
        given: arguments of the command line alone; None for options not given.
        values: options in the file.
    """
    kept = dict(values)
    for pair in RIVALS:
        for one, other in (pair, pair[::-1]):
            if getattr(given, one, None) is not None:
                kept.pop(other, None)
    arguments = kept.pop("script_args", [])
    names = _replaced(given)
    for name in names:
        kept.pop(name, None)
    return kept, given.script_args if names else arguments


def _replaced(given: argparse.Namespace) -> tuple[str, ...]:
    if getattr(given, "script", None) is not None:
        # imported here because reports do not need it
        from commprof.launch.target import WORKLOAD_OPTIONS

        return ("script", "module", *WORKLOAD_OPTIONS)
    return ("script", "module") if getattr(given, "workload", None) is not None else ()
