"""Changes how a script makes and wraps its model, and how it makes its optimizer."""

from __future__ import annotations

import ast

from commprof.analysis.causes.edits.script import Script, Site
from commprof.analysis.causes.edits.syntax import calls_in, innermost

DDP = ("DistributedDataParallel",)
FSDP1 = ("FullyShardedDataParallel",)
#: Optimizers of torch. The first argument of an optimizer, ``model.parameters()``, shows which
#: variable is the model.
_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Muon")


def with_settings(script: Script, names: tuple[str, ...], **settings: object) -> str:
    """Sets keyword arguments in the script's only call of one of these functions."""
    site = script.only(*names)
    return site.source.with_settings(site.call, settings) if site is not None else ""


def sharded_model(script: Script) -> str:
    """Returns the name of the whole sharded model; empty if it is not known.

    This is the variable to which FSDP1's wrapper, or the last ``fully_shard`` outside of loops, is
    assigned. If ``fully_shard`` is not assigned, its argument is the model, unless the argument
    contains a call.
    """
    if name := script.model(*FSDP1):
        return name
    for site in reversed(script.places("fully_shard")):
        if site.call.args and site.loop is None:
            model = site.call.args[0]
            is_made = any(isinstance(node, ast.Call) for node in ast.walk(model))
            return site.target or (site.source.segment(model) if not is_made else "")
    return ""


def after_sharding(script: Script, call: str) -> str:
    """Adds a call of a method of the sharded model after the model is sharded.

    A function that returns the sharded model makes the call before it returns.
    """
    sites = [site for site in script.places("fully_shard") if site.loop is None]
    model = sharded_model(script)
    if not sites or not model:
        return ""
    site = sites[-1]
    statement = site.statement
    if not isinstance(statement, ast.Return):
        return followed(site, f"{model}.{call}")
    if statement.value is not site.call or not site.can_be_written:
        return ""
    first, last = site.source.span(statement)
    lines = f"{site.source.segment(site.call)}\n{model}.{call}\nreturn {model}"
    return site.source.edit("in place of", first, last, lines)


def wrapped_model(script: Script) -> str:
    """Wraps the model by DDP before its optimizer is made.

    If the script has a wrapper but calls the wrapper's ``module``, the change calls the wrapper.
    """
    if name := script.model(*DDP):
        return _not_the_inner(script, name)
    makers = [
        (site, argument.func.value)
        for site in script.places(*_OPTIMIZERS)
        for argument in site.call.args[:1]
        if isinstance(argument, ast.Call)
        and isinstance(argument.func, ast.Attribute)
        and argument.func.attr == "parameters"
    ]
    if len(makers) != 1:
        return ""
    site, node = makers[0]
    model, function = site.source.segment(node), innermost(site.source, site.call)
    trains = function is None or any(
        site.source.called(call) == "backward" for call in calls_in(function)
    )
    if isinstance(node, ast.Name) and not trains:
        return ""  # outside of this function, the model may have another name
    if not site.source.is_alone(site.statement):
        return ""
    code = f"{model} = torch.nn.parallel.DistributedDataParallel({model})"
    return site.source.before(site.statement, code)


def _not_the_inner(script: Script, wrapper: str) -> str:
    """Replaces ``wrapper.module`` by the wrapper in one statement that calls or assigns it."""
    inner = f"{wrapper}.module"
    for source in script.sources:
        for node in ast.walk(source.tree):
            named = isinstance(node, ast.Assign) and inner in map(
                source.segment, _results(node.value)
            )
            if named or (isinstance(node, ast.Call) and source.segment(node.func) == inner):
                first, last = source.span(source.statement(node))
                code = source.code(first, last).replace(inner, wrapper)
                return source.edit("in place of", first, last, code) if code else ""
    return ""


def _results(value: ast.expr) -> list[ast.expr]:
    """Returns the possible results of an expression: both ``x`` and ``z`` of ``x if y else z``."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


def followed(site: Site, code: str) -> str:
    """Adds lines after the statement of a call; "" if the statement cannot be indented anew."""
    first, last = site.source.span(site.statement)
    call = site.source.code(first, last)
    return site.source.edit("in place of", first, last, f"{call}\n{code}") if call else ""
