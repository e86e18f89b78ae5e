"""Reads the training script, so that a fix can show the script's own lines and names.

The files are read when a report is made. A file that was changed after the recording began is left
out, because other lines may have run.
"""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from commprof.trace.reader import Trace

#: Paths with one of these parts belong to installed packages or to Python.
_OF_OTHERS = ("/site-packages/", "/dist-packages/", "/lib/python3")
_COMMPROF = Path(__file__).parents[3]
_WIDTH = 78
#: A call with more positional arguments is not changed, because the others may be settings.
_POSITIONAL = 2
_MOST_BYTES = 2**20


class Code(str):
    """An expression that is the value of a setting."""

    __slots__ = ()


def _code(value: object) -> str:
    return str(value) if isinstance(value, Code) else repr(value)


@dataclass(frozen=True)
class Source:
    """One file of the script."""

    path: Path
    text: str
    tree: ast.Module

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file."""
        return self.text.split("\n")  # as ast counts lines: a form feed does not end a line

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def original_names(self) -> dict[str, str]:
        """For each imported name, its name in its own module."""
        return {
            alias.asname or alias.name: alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def unused(self, *names: str) -> tuple[str, ...]:
        """Returns the given names, with underscores added to names that the file uses."""
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        free = []
        for name in names:
            while name in used:
                name += "_"
            free.append(name)
        return tuple(free)

    def imported_files(self) -> Iterator[Path]:
        """Yields the files that this file imports from its own folder or a folder around it."""
        folders = self.path.parents
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                named = [(0, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = f"{node.module}." if node.module else ""
                named = [(node.level, f"{module}{alias.name}") for alias in node.names]
                named += [(node.level, node.module)] if node.module else []
            else:
                continue
            for level, name in named:
                for folder in folders[level - 1 : level] if level else folders:
                    module_path = folder.joinpath(*name.split("."))
                    files = module_path.with_suffix(".py"), module_path / "__init__.py"
                    yield from (file for file in files if file.is_file())

    def calls(self) -> Iterator[ast.Call]:
        """Yields all calls in the file."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def called(self, call: ast.Call) -> str:
        """Returns the last part of the called name: "all_reduce" for ``dist.all_reduce(x)``."""
        if isinstance(call.func, ast.Attribute):
            return call.func.attr
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        return self.original_names.get(name, name)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around a node, innermost first, up to the node's function."""
        outer = self.parents.get(node)
        while outer is not None and not isinstance(outer, ast.FunctionDef | ast.Lambda):
            yield outer
            outer = self.parents.get(outer)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Returns the innermost statement that holds a node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def segment(self, node: ast.AST) -> str:
        """Returns the text of a node.

        Unlike ``ast.get_source_segment``, it does not split the whole file into lines each time.
        """
        if not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None:
            return ""
        lines = [line.encode() for line in self.lines[node.lineno - 1 : node.end_lineno]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode()

    def body(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list that holds a statement: a body, or what follows ``else`` or ``finally``."""
        fields = ast.iter_fields(self.parents[statement])
        return next(value for _, value in fields if isinstance(value, list) and statement in value)

    def is_alone(self, statement: ast.stmt) -> bool:
        """True if nothing else stands on the lines of a statement."""
        first, last = self.span(statement)
        text = b"\n".join(line.encode() for line in self.lines[first - 1 : last])
        before = text[: statement.col_offset]
        after = self.lines[last - 1].encode()[statement.end_col_offset :].strip()
        return not before.strip() and (not after or after.startswith(b"#"))

    def span(self, statement: ast.stmt) -> tuple[int, int]:
        """First and last line of a statement, or of its head if it has a body."""
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if body else (statement.end_lineno or statement.lineno)
        return statement.lineno, last

    @cached_property
    def lines_of_text(self) -> frozenset[int]:
        """Lines that begin inside a string, so that their indentation is part of the string."""
        begins: list[int] = []
        inside: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            kind = tokenize.tok_name[token.type]
            if kind.endswith("STRING_START"):
                begins.append(token.start[0])
            elif kind.endswith("STRING_END"):
                inside.update(range(begins.pop() + 1, token.end[0] + 1))
            elif kind == "STRING":
                inside.update(range(token.start[0] + 1, token.end[0] + 1))
        return frozenset(inside)

    def can_be_indented(self, first: int, last: int) -> bool:
        """True if these lines can be indented differently without changing a string."""
        return self.lines_of_text.isdisjoint(range(first, last + 1))

    def code(self, first: int, last: int) -> str:
        """Returns these lines without the indentation of the first line.

        Returns "" if their indentation cannot be changed.
        """
        if not self.can_be_indented(first, last):
            return ""
        lines = self.lines[first - 1 : last]
        # Comments and the inside of brackets may begin further left than the statement.
        depth = len(lines[0]) - len(lines[0].lstrip())
        return "\n".join(line[min(depth, len(line) - len(line.lstrip())) :] for line in lines)

    def edit(self, verb: str, first: int, last: int, code: str = "") -> str:
        """Returns a change: a comment that names the place, then the lines to write.

        Args:
            verb: "in place of", "before" or "delete".
            first: number of the first line that is replaced, deleted or preceded.
            last: number of the last such line.
            code: lines to write, without indentation.
        """
        where = f"{first}-{last}" if last > first else str(first)
        return f"# {verb} {self.path.name}:{where}" + f"\n{code}" * bool(code)

    def before(self, statement: ast.stmt, code: str) -> str:
        """Returns the change that writes lines before a statement."""
        return self.edit("before", statement.lineno, statement.lineno, code)

    def deleted(self, statements: Sequence[ast.stmt]) -> str:
        """Returns the change that deletes statements; an empty body gets ``pass``."""
        changes = []
        for statement in statements:
            body = self.body(statement)
            is_all = set(body) <= set(statements) and statement is body[0]
            first, last = statement.lineno, statement.end_lineno or statement.lineno
            stays = is_all and not isinstance(self.parents[statement], ast.Module)
            verb, code = ("in place of", "pass") if stays else ("delete", "")
            changes.append(self.edit(verb, first, last, code))
        return "\n".join(changes)

    def with_first(self, call: ast.Call, first: str) -> str:
        """Returns the text of a call with another first argument."""
        texts = [first, *(self.segment(argument) for argument in call.args[1:])]
        for keyword in call.keywords:
            name = f"{keyword.arg}=" if keyword.arg else "**"
            texts.append(f"{name}{self.segment(keyword.value)}")
        return f"{self.segment(call.func)}({', '.join(texts)})"

    def with_settings(self, call: ast.Call, settings: Mapping[str, object]) -> str:
        """Returns the change that gives a call these keyword arguments; "" if impossible.

        Other arguments of the call stay.
        """
        if len(call.args) > _POSITIONAL:
            return ""
        texts = [self.segment(argument) for argument in call.args]
        new = {name: _code(value) for name, value in settings.items()}
        for keyword in call.keywords:
            text = self.segment(keyword.value)
            if keyword.arg is None:
                merged = ", ".join(f'"{name}": {value}' for name, value in new.items())
                texts.append(f"**{{**{text}, {merged}}}")
                new = {}
            elif keyword.arg not in settings:
                texts.append(f"{keyword.arg}={text}")
        texts += [f"{name}={value}" for name, value in new.items()]
        statement = self.statement(call)
        first, last = self.span(statement)
        name, was = self.segment(call.func), self.segment(call)
        before = "\n".join(self.lines[first - 1 : last])
        if was not in before:  # for example, the call is in a decorator
            return ""
        line = textwrap.dedent(before.replace(was, f"{name}({', '.join(texts)})", 1))
        if max(map(len, line.split("\n"))) > _WIDTH:
            indent = " " * (len(self.lines[first - 1]) - len(self.lines[first - 1].lstrip()))
            rows = "".join(f"\n{indent}    {text}," for text in texts)
            line = textwrap.dedent(before.replace(was, f"{name}({rows}\n{indent})", 1))
        return self.edit("in place of", first, last, line)


@dataclass(frozen=True)
class Site:
    """A call of the script."""

    source: Source
    call: ast.Call

    @property
    def statement(self) -> ast.stmt:
        """The statement that holds the call."""
        return self.source.statement(self.call)

    @property
    def can_be_written(self) -> bool:
        """True if the statement's lines can be written at another indentation."""
        return self.source.can_be_indented(*self.source.span(self.statement))

    @property
    def is_whole(self) -> bool:
        """True if the statement is only this call, on lines of its own."""
        statement = self.statement
        is_call = isinstance(statement, ast.Expr) and statement.value is self.call
        return is_call and self.source.is_alone(statement)

    def values(self, setting: str) -> list[str]:
        """The text of a keyword argument's value; empty if the call lacks the argument."""
        keywords = self.call.keywords
        return [self.source.segment(word.value) for word in keywords if word.arg == setting]

    @property
    def loop(self) -> ast.For | None:
        """The innermost ``for`` loop around the call, in its function."""
        around = self.source.around(self.call)
        return next((node for node in around if isinstance(node, ast.For)), None)

    @property
    def target(self) -> str:
        """The variable to which the call is assigned; empty if there is not exactly one."""
        statement = self.statement
        if not isinstance(statement, ast.Assign) or statement.value is not self.call:
            return ""
        return self.source.segment(statement.targets[0]) if len(statement.targets) == 1 else ""


@dataclass(frozen=True)
class Script:
    """The files of the training script that could be read."""

    sources: tuple[Source, ...]
    #: Lines of the recorded stacks, as path and line number.
    ran: frozenset[tuple[str, int]]

    @cached_property
    def has_unread_imports(self) -> bool:
        """True if these files import other files of the user's, which are not in ``sources``."""
        read = {source.path for source in self.sources}
        imported = (file for source in self.sources for file in source.imported_files())
        return any(file not in read and _is_of_user(file) for file in imported)

    def places(self, *names: str) -> list[Site]:
        """Returns all calls of a function or class with one of these names."""
        return [
            Site(source, call)
            for source in self.sources
            for call in source.calls()
            if source.called(call) in names
        ]

    def sets(self, argument: str) -> bool:
        """True if a call passes a keyword argument of this name, with another value than False."""
        calls = (call for source in self.sources for call in source.calls())
        return any(
            keyword.arg == argument and getattr(keyword.value, "value", True) is not False
            for call in calls
            for keyword in call.keywords
        )

    def only(self, *names: str) -> Site | None:
        """Returns the only call of a function or class with one of these names; else None.

        Of several calls, only those in recorded stacks count. If none is in a recorded stack, only
        those in the first file count. None too if the lines of the call cannot be indented anew.
        """
        sites = self.places(*names)
        if len(sites) > 1:
            ran = [site for site in sites if self._ran(site)]
            in_first = [site for site in sites if site.source is self.sources[0]]
            sites = ran or in_first
        return sites[0] if len(sites) == 1 and sites[0].can_be_written else None

    def _ran(self, site: Site) -> bool:
        call, path = site.call, str(site.source.path)
        lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
        return any((path, number) in self.ran for number in lines)

    def at(self, line: str, names: Sequence[str] = ()) -> Site | None:
        """Returns the only call, on the line "FILE:LINE NAME", of a function with one of ``names``.

        If ``names`` is empty, the function may have any name. None if there is not exactly one such
        call, or if its lines cannot be indented anew.
        """
        path, _, number = line.partition(" ")[0].rpartition(":")
        source = next((source for source in self.sources if str(source.path) == path), None)
        if source is None or not number.isdecimal():
            return None
        calls = [
            call
            for call in source.calls()
            if call.lineno <= int(number) <= (call.end_lineno or call.lineno)
            and (not names or source.called(call) in names)
        ]
        sites = [Site(source, call) for call in calls]
        return sites[0] if len(sites) == 1 and sites[0].can_be_written else None

    def model(self, *wrappers: str) -> str:
        """Returns the variable to which the only call of these wrappers is assigned; else ""."""
        site = self.only(*wrappers)
        return site.target if site is not None else ""


def script_of(trace: Trace) -> Script:
    """Reads the files of a recording's script: the file that was run, and files in its stacks."""
    ran = set()
    for frame in {frame for frames in trace.stacks.values() for frame in frames}:
        file, _, number = frame.partition(" ")[0].rpartition(":")
        if number.isdecimal():
            ran.add((file, int(number)))
    files = sorted({file for file, _ in ran})
    script = str(trace.metadata.get("script_path") or "")
    begin_ns = int((trace.metadata.get("clock") or {}).get("realtime_ns", 0))
    sources: dict[Path, Source] = {}
    for name in (script, *files):
        path = Path(name)
        if not path.is_absolute() or path in sources:
            continue
        if (source := _source(path, begin_ns)) is not None:
            sources[path] = source
    return Script(tuple(sources.values()), frozenset(ran))


def _source(path: Path, begin_ns: int) -> Source | None:
    """Reads a file of the script; None if the file is not the user's or cannot be read.

    None too if the file was changed after ``begin_ns``, the begin of the recording in ns since the
    epoch.
    """
    if path.suffix != ".py" or not _is_of_user(path):
        return None
    try:
        state = path.stat()
        if state.st_size > _MOST_BYTES or state.st_mtime_ns > begin_ns:
            return None
        code = path.read_text(encoding="utf-8")
        return Source(path, code, ast.parse(code))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_of_user(path: Path) -> bool:
    text = str(path)
    is_installed = any(part in text for part in _OF_OTHERS)
    return not is_installed and not path.is_relative_to(_COMMPROF)
