"""Edits the training loop of a script."""

from __future__ import annotations

import ast
import textwrap

from commprof.analysis.causes.edits.script import Script, Site, Source
from commprof.analysis.causes.edits.syntax import (
    INDENT,
    indent_of,
    innermost,
    is_defined_at,
    names_in,
    step_loop,
    step_name,
    stored_in,
    updates,
)


def last_pass_only(script: Script, model: str, setter: str = "") -> str:
    """Edits the loop over micro batches so that only the last pass exchanges gradients.

    Args:
        script: the script.
        model: name of the wrapped model.
        setter: method of an FSDP2 model to call before each pass: with True before the last pass,
            else with False. "" to run all other passes in ``no_sync``.
    """
    site = script.only("backward")
    if not model or site is None or (loop := site.loop) is None:
        return ""
    source = site.source
    if not is_defined_at(source, loop, model):
        return ""
    optimizer_steps = updates(source)
    inside = [call for call in optimizer_steps if any(node is loop for node in source.around(call))]
    after = [
        call
        for call in optimizer_steps
        if innermost(source, call) is innermost(source, loop)
        and call.lineno > (loop.end_lineno or loop.lineno)
    ]
    if not inside:
        return _of_inner_loop(source, loop, model, setter) if after else ""
    if any(
        source.segment(late.func) == source.segment(call.func) for late in after for call in inside
    ):
        # This optimizer also updates after the loop, for the last micro batches. After the edit,
        # the passes of those micro batches would not exchange gradients.
        return ""
    guard = next((node for node in loop.body if isinstance(node, ast.If)), None)
    holds = guard is not None and all(
        any(node is guard for node in source.around(call)) for call in inside
    )
    if guard is None or not holds or guard.orelse:
        return ""
    return _until_update(source, loop, guard, site, model, setter)


def _of_inner_loop(source: Source, loop: ast.For, model: str, setter: str) -> str:
    target, values = source.segment(loop.target), source.segment(loop.iter)
    if isinstance(loop.target, ast.Tuple) and not target.startswith("("):
        target = f"({target})"
    first, last = source.span(loop)
    if last < first:
        return ""
    number, passes, last_pass = source.unused("pass_number", "passes", "last_pass")
    head = f"for {number}, {target} in enumerate({passes} := list({values})):"
    is_last = f"{number} == len({passes}) - 1"
    if setter:
        sync = f"{indent_of(source, loop)}{model}.{setter}({is_last})"
        return source.edit("in place of", first, last, f"{head}\n{sync}")
    indent = indent_of(source, loop)
    head = f"{_contextlib(source)}{head}\n{indent}{last_pass} = {is_last}"
    wrapped = f"with contextlib.nullcontext() if {last_pass} else {model}.no_sync():"
    syncing = [
        node for node in ast.walk(loop) if isinstance(node, ast.With) and _names_sync(node, source)
    ]
    if syncing:
        begin, end = source.span(syncing[0])
        if len(syncing) > 1 or len(syncing[0].items) > 1 or end < begin:
            return ""
        header = source.edit("in place of", first, last, head)
        return f"{header}\n{source.edit('in place of', begin, end, wrapped)}"
    end = loop.end_lineno or loop.lineno
    body = textwrap.indent(source.code(loop.body[0].lineno, end), 2 * indent)
    if not body:
        return ""
    return source.edit("in place of", first, end, f"{head}\n{indent}{wrapped}\n{body}")


def _contextlib(source: Source) -> str:
    imported = any(
        isinstance(node, ast.Import) and any(name.name == "contextlib" for name in node.names)
        for node in ast.walk(source.tree)
    )
    return "" if imported else "import contextlib\n\n"


def _names_sync(node: ast.With, source: Source) -> bool:
    return any(
        isinstance(element, ast.Call) and source.called(element) == "no_sync"
        for item in node.items
        for element in ast.walk(item.context_expr)
    )


def _until_update(
    source: Source, loop: ast.For, guard: ast.If, site: Site, model: str, setter: str
) -> str:
    """Edits a loop in which the ``if`` statement ``guard`` contains the update."""
    row = loop.body.index(guard)
    before = loop.body[:row]
    passed = any(node is site.statement for element in before for node in ast.walk(element))
    counted = {
        node.target.attr
        for node in ast.walk(source.tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)
    }
    asked = {node.attr for node in ast.walk(guard.test) if isinstance(node, ast.Attribute)}
    if not passed or names_in(guard.test) & stored_in(*before) or asked & counted:
        return ""
    test = source.segment(guard.test)
    first, last = before[0].lineno, before[-1].end_lineno or before[-1].lineno
    if setter:
        sync = f"{model}.{setter}(bool({test}))"
        return source.before(before[0], sync)
    if any(isinstance(node, ast.With) and _names_sync(node, source) for node in ast.walk(loop)):
        return ""
    body = textwrap.indent(source.code(first, last), INDENT)
    if not body:
        return ""
    wrapped = f"with contextlib.nullcontext() if {test} else {model}.no_sync():"
    return source.edit("in place of", first, last, f"{_contextlib(source)}{wrapped}\n{body}")


def before_training(script: Script, code: str, model: str) -> str:
    """Adds lines before the outermost training loop; "" if ``model`` is not defined there."""
    site = script.only("backward")
    if site is None:
        return ""
    loops = [node for node in site.source.around(site.call) if isinstance(node, ast.For)]
    if not loops or not is_defined_at(site.source, loops[-1], model):
        return ""
    return site.source.before(loops[-1], code)


def in_training(script: Script, before: str, inside: str) -> str:
    """Adds lines before the outermost training loop and at the start of each step.

    Args:
        script: the script.
        before: lines to add before the loop.
        inside: lines to add at the start of each step. STEP in these lines stands for the step's
            number.
    """
    site = script.only("backward")
    if site is None:
        return ""
    source = site.source
    loops = [node for node in source.around(site.call) if isinstance(node, ast.For)]
    loop = step_loop(site)
    if not loops or loop is None:
        return ""
    step = step_name(source, loop)
    if not step:
        before, step = (
            f"import itertools\n\n{before}\nsteps_made = itertools.count()",
            "next(steps_made)",
        )
    first = source.before(loops[-1], before)
    return f"{first}\n{source.before(loop.body[0], inside.replace('STEP', step))}"


def around_training(script: Script, head: str, model: str) -> str:
    """Puts the loop over steps into a ``with`` statement.

    A loop over epochs stays outside of the statement, because an epoch may do more than train.
    """
    site = script.only("backward")
    loop = step_loop(site) if site is not None else None
    if site is None or loop is None or not is_defined_at(site.source, loop, model):
        return ""
    source = site.source
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    body = textwrap.indent(source.code(first, last), INDENT)
    return source.edit("in place of", first, last, f"{head}\n{body}") if body else ""
