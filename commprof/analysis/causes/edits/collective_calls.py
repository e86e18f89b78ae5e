"""Changes a script's communication: deletes, joins or moves calls, or starts them together."""

from __future__ import annotations

import ast
import textwrap

from commprof.analysis.causes.edits.script import Script, Site, Source
from commprof.analysis.causes.edits.syntax import (
    INDENT,
    calls_in,
    indent_of,
    innermost,
    names_in,
    shares_lines,
    step_loop,
    step_name,
    stored_in,
)

#: Comment on the printed line that lets a gather run in some steps only.
_IF_UNUSED = "  # if no step in between uses the result"


def without_calls(script: Script, lines: list[str], names: tuple[str, ...]) -> str:
    """Deletes the calls on these lines."""
    sites = [script.at(line, names) for line in lines]
    if not sites or not all(site is not None and site.is_whole for site in sites):
        return ""
    wholes = [site for site in sites if site is not None]
    sources = {site.source.path: site.source for site in wholes}
    return "\n".join(
        source.deleted([site.statement for site in wholes if site.source is source])
        for source in sources.values()
    )


#: A function that calls only these functions does nothing but exchange tensors.
_EXCHANGES = frozenset(
    {
        *("all_reduce", "get_world_size", "parameters", "named_parameters", "values", "cat"),
        *("numel", "view", "view_as", "reshape", "flatten", "split", "zip", "list", "float"),
        *("div", "div_", "mul_", "copy_", "detach", "clone", "no_grad"),
    }
)


def without_exchange(script: Script, line: str, op: str) -> str:
    """Deletes the call on a line, with its loop and the division by the number of ranks.

    Returns "" if other work would be deleted too, or if the call makes a sum that is not divided.
    """
    site = script.at(line, (op,))
    if site is None:
        return ""
    source, loop = site.source, site.loop
    if op == "broadcast":  # a broadcast needs no division
        whole = loop if loop is not None and loop.body == [site.statement] else site.statement
        return source.deleted([whole]) if site.is_whole and source.is_alone(whole) else ""
    function = innermost(source, site.call)
    deleted: ast.AST | None = loop
    if isinstance(function, ast.FunctionDef):
        calls = [call for call in source.calls() if source.called(call) == function.name]
        deleted = source.statement(calls[0]) if len(calls) == 1 else None
        if not isinstance(deleted, ast.Expr):
            return ""
    if not isinstance(deleted, ast.stmt) or not source.is_alone(deleted):
        return ""
    work = function if isinstance(function, ast.FunctionDef) else deleted
    if any(source.called(call) not in _EXCHANGES for call in calls_in(work)):
        return ""
    if not _is_mean(source, work):
        return ""  # the call makes sums: without the call, gradients would be smaller
    return source.deleted([deleted])


def _is_mean(source: Source, work: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Div)
        or (isinstance(node, ast.Attribute) and node.attr == "AVG")
        or (isinstance(node, ast.Call) and source.called(node) in ("div", "div_"))
        for node in ast.walk(work)
    )


def gathered_seldom(script: Script, line: str, names: tuple[str, ...], every: int) -> str:
    """Makes the gather on a line run in one of ``every`` steps; a comment says when this is right.

    Returns "" if the rest of the step reads the gathered values.
    """
    site = script.at(line, names)
    if site is None or not isinstance(site.statement, ast.Expr):
        return ""
    if not site.source.is_alone(site.statement):
        return ""
    loop = step_loop(site)
    if loop is None or _is_read_later(site, loop):
        return ""
    source = site.source
    first, last = source.span(site.statement)
    body = textwrap.indent(source.code(first, last), INDENT)
    step = step_name(source, loop)
    if not step and site.loop is not loop:
        return ""
    if step:
        return source.edit(
            "in place of", first, last, f"if {step} % {every} == 0:{_IF_UNUSED}\n{body}"
        )
    (calls,) = source.unused("calls")
    counts = f"import itertools\n\n{calls} = itertools.count()"
    return "\n".join(
        [
            source.before(loop, counts),
            source.edit(
                "in place of", first, last, f"if next({calls}) % {every} == 0:{_IF_UNUSED}\n{body}"
            ),
        ]
    )


def _is_read_later(site: Site, loop: ast.For) -> bool:
    # The first argument of gather_object and gather is their input.
    position = 1 if site.source.called(site.call).startswith("gather") else 0
    outputs = {
        name for written in site.call.args[position : position + 1] for name in names_in(written)
    }
    for keyword in site.call.keywords:
        outputs |= names_in(keyword.value)
    return any(
        isinstance(node, ast.Name)
        and node.id in outputs
        and isinstance(node.ctx, ast.Load)
        and node.lineno > (site.statement.end_lineno or site.statement.lineno)
        for node in ast.walk(loop)
    )


def joined_in_one(script: Script, line: str, op: str) -> str:
    """Replaces a loop's calls by one call, for an operation that changes its tensor in place."""
    site = script.at(line, (op,))
    if site is None or site.loop is None or not site.is_whole or not site.call.args:
        return ""
    source, loop, call = site.source, site.loop, site.call
    listed = "" if _is_guarded(site) else _each(source, loop, call, call.args[0])
    if not listed:
        return ""
    rest = [source.segment(argument) for argument in call.args[1:]]
    rest += [
        f"{element.arg}={source.segment(element.value)}" for element in call.keywords if element.arg
    ]
    if names_in(*call.args[1:], *(element.value for element in call.keywords)) & stored_in(
        loop.target, *loop.body
    ):
        return ""
    tensors, tensor, flat, part = source.unused("tensors", "tensor", "flat", "part")
    arguments = ", ".join([flat, *rest])
    lines = [
        f"{tensors} = {listed}",
        f"{flat} = torch.cat([{tensor}.detach().reshape(-1) for {tensor} in {tensors}])",
        f"{source.segment(call.func)}({arguments})",
        f"for {tensor}, {part} in zip({tensors}, {flat}.split([t.numel() for t in {tensors}])):",
        f"    {tensor}.detach().copy_({part}.view_as({tensor}))",
    ]
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    if len(loop.body) == 1:
        return source.edit("in place of", first, last, "\n".join(lines))
    before = source.before(loop, "\n".join(lines))
    return f"{before}\n{source.deleted([site.statement])}"


def joined_gathers(script: Script, line: str) -> str:
    """Replaces a loop's calls of ``all_gather(LIST, TENSOR)`` by one gather of all tensors."""
    site = script.at(line, ("all_gather",))
    if site is None or site.loop is None or not site.is_whole or len(site.call.args) < 2:
        return ""
    source, loop, call = site.source, site.loop, site.call
    listed = (
        ""
        if _is_guarded(site)
        else _each(source, loop, call, call.args[1], source.segment(call.args[0]))
    )
    outputs, tensor = (source.segment(argument) for argument in call.args[:2])
    if not listed or not isinstance(call.args[0], ast.Name):
        return ""
    rest = [
        f"{element.arg}={source.segment(element.value)}" for element in call.keywords if element.arg
    ]
    name = source.segment(call.func)
    of_group = next((f"({text.partition('=')[2]})" for text in rest if "group=" in text), "()")
    dist = name.rpartition(".")[0]
    size = f"{dist}.get_world_size" if dist else "torch.distributed.get_world_size"
    tensors, flat, rows, parts = source.unused("tensors", "flat", "rows", "parts")
    lines = [
        f"{tensors} = {listed}",
        f"{flat} = torch.cat([t.reshape(-1) for t in {tensors}])",
        f"{rows} = [torch.empty_like({flat}) for _ in range({size}{of_group})]",
        f"{name}({', '.join([rows, flat, *rest])})",
        f"{parts} = zip(*(row.split([t.numel() for t in {tensors}]) for row in {rows}))",
    ]
    taken = f"{outputs} = [t.view_as({tensor}) for t in next({parts})]"
    return "\n".join(
        [
            source.before(loop, "\n".join(lines)),
            source.edit("in place of", *source.span(site.statement), taken),
        ]
    )


def _each(source: Source, loop: ast.For, call: ast.Call, argument: ast.expr, made: str = "") -> str:
    """Returns code for a list of an argument's values in all rounds of a loop; "" if impossible.

    It is impossible if the loop itself makes the argument. It is also impossible if statements
    before the call use the loop's variable, because they may change the argument or skip the call.
    Only statements that make the call's outputs, named ``made``, are allowed there.
    """
    targets = {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    if names_in(argument) & stored_in(*loop.body) - targets or not names_in(argument) & targets:
        return ""
    before = [
        statement
        for statement in loop.body[: loop.body.index(source.statement(call))]
        if not (isinstance(statement, ast.Assign) and source.segment(statement.targets[0]) == made)
    ]
    if names_in(*before) & targets or any(element.arg == "async_op" for element in call.keywords):
        return ""
    target, values = source.segment(loop.target), source.segment(loop.iter)
    conditional = isinstance(loop.iter, ast.IfExp)
    return f"[{source.segment(argument)} for {target} in {f'({values})' * conditional or values}]"


def _is_guarded(site: Site) -> bool:
    """True if the call is nested in a statement of its loop, or on the line of the loop's head."""
    loop = site.loop
    return loop is None or site.statement not in loop.body or shares_lines(loop)


def issued_at_once(script: Script, line: str, names: tuple[str, ...]) -> str:
    """Issues all calls of a loop before waiting for the first call."""
    site = script.at(line, names)
    if site is None or site.loop is None or not site.is_whole or _is_guarded(site):
        return ""
    source, loop = site.source, site.loop
    if loop.body[-1] is not site.statement or any(
        element.arg in ("async_op", None) for element in site.call.keywords
    ):
        return ""
    texts = [source.segment(argument) for argument in site.call.args]
    texts += [f"{element.arg}={source.segment(element.value)}" for element in site.call.keywords]
    call = f"{source.segment(site.call.func)}({', '.join([*texts, 'async_op=True'])})"
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    head = source.code(first, source.span(site.statement)[0] - 1)
    if not head:
        return ""
    works, work = source.unused("works", "work")
    code = [
        f"{works} = []",
        head,
        f"{indent_of(source, loop)}{works}.append({call})",
        f"for {work} in {works}:",
        f"{INDENT}{work}.wait()",
    ]
    return source.edit("in place of", first, last, "\n".join(code))


def moved_to_device(script: Script, line: str) -> str:
    """Adds, before a call, a line that moves the call's tensor to the GPU.

    Returns "" unless the tensor is the result of a call in the same function. Other names may refer
    to any other tensor.
    """
    site = script.at(line)
    if site is None or not site.call.args or not isinstance(site.call.args[0], ast.Name):
        return ""
    name, function = site.call.args[0].id, innermost(site.source, site.call)
    stored = [
        site.source.statement(node)
        for node in ast.walk(function or site.source.tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    if not stored or not all(
        isinstance(maker, ast.Assign) and isinstance(maker.value, ast.Call) for maker in stored
    ):
        return ""
    code = f"{name} = {name}.cuda()  # reduced on the GPU; read the result later"
    return site.source.before(site.statement, code)
