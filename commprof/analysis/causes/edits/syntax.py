"""Finds loops, functions, names and calls in the syntax tree of a training script."""

from __future__ import annotations

import ast

from commprof.analysis.causes.edits.script import Site, Source

INDENT = "    "
_STEP_NAMES = {
    *("step", "i", "it", "iteration", "batch_idx", "batch_index", "idx", "index", "global_step"),
}


def names_in(*nodes: ast.AST) -> set[str]:
    """Returns the names of all variables in these nodes."""
    return {
        element.id for node in nodes for element in ast.walk(node) if isinstance(element, ast.Name)
    }


def stored_in(*nodes: ast.AST) -> set[str]:
    """Returns the names of all variables to which these nodes assign."""
    return {
        element.id
        for node in nodes
        for element in ast.walk(node)
        if isinstance(element, ast.Name) and isinstance(element.ctx, ast.Store)
    }


def calls_in(node: ast.AST) -> list[ast.Call]:
    """Returns all calls within a node."""
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def innermost(source: Source, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
    """Returns the innermost node of ``kinds`` around a node; None if there is none.

    Without ``kinds``, looks for a function.
    """
    outer = source.parents.get(node)
    while outer is not None and not isinstance(
        outer, kinds or (ast.FunctionDef, ast.AsyncFunctionDef)
    ):
        outer = source.parents.get(outer)
    return outer


def is_defined_at(source: Source, node: ast.AST, model: str) -> bool:
    """True if the variable ``model`` is defined where the node stands.

    The variable must be assigned at module level or in the node's function, or be a parameter of
    that function. ``self.NAME`` must be assigned in the node's class.
    """
    made = [
        target
        for node_of_file in ast.walk(source.tree)
        if isinstance(node_of_file, ast.Assign)
        for target in node_of_file.targets
        if source.segment(target) == model
    ]
    if model.startswith("self."):
        of_class = innermost(source, node, ast.ClassDef)
        return any(innermost(source, target, ast.ClassDef) is of_class for target in made)
    here = innermost(source, node)
    return any(innermost(source, target) in (None, here) for target in made) or any(
        isinstance(node_of_file, ast.arg)
        and node_of_file.arg == model
        and source.parents[source.parents[node_of_file]] is here
        for node_of_file in ast.walk(source.tree)
    )


def shares_lines(loop: ast.For) -> bool:
    """True for a loop in one line, such as ``for x in y: f(x)``."""
    return loop.body[0].lineno <= (loop.iter.end_lineno or loop.lineno)


def indent_of(source: Source, loop: ast.For) -> str:
    """Returns the indentation of a loop's body, relative to the loop."""
    line = source.lines[loop.body[0].lineno - 1]
    return line[loop.col_offset : len(line) - len(line.lstrip())]


def updates(source: Source) -> list[ast.Call]:
    """Returns the calls of ``step``, except those of learning-rate schedulers."""
    return [
        call
        for call in source.calls()
        if source.called(call) == "step" and "sched" not in source.segment(call.func).lower()
    ]


def step_loop(site: Site) -> ast.For | None:
    """Returns the loop over training steps around a call.

    This is the innermost loop that contains an optimizer's update. If no loop contains an update,
    it is the only loop around the call. Returns None if there are several loops, or if the loop is
    not a ``for`` loop.
    """
    source = site.source
    optimizer_steps = updates(source)
    loops = [
        node
        for node in source.around(site.call)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
    ]
    holding = [
        loop
        for loop in loops
        if any(node is loop for call in optimizer_steps for node in source.around(call))
    ]
    loop = holding[0] if holding else loops[0] if len(loops) == 1 else None
    return loop if isinstance(loop, ast.For) and not shares_lines(loop) else None


def step_name(source: Source, loop: ast.For) -> str:
    """Returns the variable that counts the rounds of a loop; empty if there is none."""
    target, numbered = loop.target, loop.iter
    called = source.called(numbered) if isinstance(numbered, ast.Call) else ""
    if called == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    numbers = called in ("range", "enumerate")
    if isinstance(target, ast.Name) and (numbers or target.id in _STEP_NAMES):
        return target.id
    return ""
