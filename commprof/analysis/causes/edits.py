"""Changes of a training script in its own lines and names, as fixes print them.

Each returns "" if the script does not tell; the fix is then the cause's own, with names in capitals
that the user replaces. A change is a comment, "# in place of train.py:12", "# before train.py:12"
or "# delete train.py:12", and the lines to write.
"""

from __future__ import annotations

import ast
import textwrap

from commprof.analysis.causes.script import Script, Site, Source

DDP = ("DistributedDataParallel",)
FSDP1 = ("FullyShardedDataParallel",)
#: Optimizers of torch, whose first argument tells the model.
_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Muon")
_INDENT = "    "
_IF_UNUSED = "  # if no step between uses the result"
#: Names that scripts give to the number of a step.
_STEP_NAMES = {
    *("step", "i", "it", "iteration", "batch_idx", "batch_index", "idx", "index", "global_step"),
}


def with_settings(script: Script, names: tuple[str, ...], **settings: object) -> str:
    """The only call of these names with other keyword arguments."""
    site = script.only(*names)
    return site.source.with_settings(site.call, settings) if site is not None else ""


def sharded_model(script: Script) -> str:
    """Name of the whole model that FSDP shards: what the last ``fully_shard`` is given."""
    if name := script.model(*FSDP1):
        return name
    for site in reversed(script.places("fully_shard")):
        if site.call.args and site.loop is None:
            return site.target or site.source.segment(site.call.args[0])
    return ""


def after_sharding(script: Script, call: str) -> str:
    """A method of the sharded model, called once it is sharded."""
    sites = [site for site in script.places("fully_shard") if site.loop is None]
    model = sharded_model(script)
    return followed(sites[-1], f"{model}.{call}") if sites and model else ""


def wrapped(script: Script) -> str:
    """The model given to DDP before its optimizer is made; or the wrapper called, if there is one.

    A wrapper that is not called is one whose ``module`` the script calls.
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
    model, function = site.source.segment(node), _function(site.source, site.call)
    trains = function is None or any(
        site.source.called(call) == "backward" for call in _calls(function)
    )
    if isinstance(node, ast.Name) and not trains:
        return ""  # a name of this function alone
    if not site.source.is_alone(site.statement):
        return ""
    code = f"{model} = torch.nn.parallel.DistributedDataParallel({model})"
    return site.source.before(site.statement, code)


def _not_the_inner(script: Script, wrapper: str) -> str:
    """The statements that give the wrapper's ``module`` a name to call, with the wrapper itself."""
    inner = f"{wrapper}.module"
    for source in script.sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Assign) and inner in map(source.segment, _results(node.value)):
                first, last = source.span(node)
                code = source.code(first, last).replace(inner, wrapper)
                return source.edit("in place of", first, last, code)
            if isinstance(node, ast.Call) and source.segment(node.func) == inner:
                first, last = source.span(source.statement(node))
                code = source.code(first, last).replace(inner, wrapper)
                return source.edit("in place of", first, last, code)
    return ""


def _calls(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _results(value: ast.expr) -> list[ast.expr]:
    """What a value may be: of ``x if y else z`` both."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


def deleted(script: Script, lines: list[str], names: tuple[str, ...]) -> str:
    """The calls on these lines, deleted."""
    sites = [script.at(line, names) for line in lines]
    if not sites or not all(site is not None and site.is_whole for site in sites):
        return ""
    wholes = [site for site in sites if site is not None]
    sources = {site.source.path: site.source for site in wholes}
    return "\n".join(
        source.deleted([site.statement for site in wholes if site.source is source])
        for source in sources.values()
    )


def seldom(script: Script, line: str, names: tuple[str, ...], every: int) -> str:
    """A gather on a line, in few steps only, with the condition under which this is right.

    Empty if the step goes on to read what is gathered.
    """
    site = script.at(line, names)
    if site is None or not isinstance(site.statement, ast.Expr):
        return ""
    if not site.source.is_alone(site.statement):
        return ""
    loop = _step_loop(site)
    if loop is None or _is_read_later(site, loop):
        return ""
    source = site.source
    first, last = source.span(site.statement)
    body = textwrap.indent(source.code(first, last), _INDENT)
    step = _step_name(source, loop)
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
    """True if the loop reads what a gather writes into after the call."""
    # gather_object and gather name their input first.
    place = 1 if site.source.called(site.call).startswith("gather") else 0
    outputs = {name for written in site.call.args[place : place + 1] for name in _names(written)}
    for keyword in site.call.keywords:
        outputs |= _names(keyword.value)
    return any(
        isinstance(node, ast.Name)
        and node.id in outputs
        and isinstance(node.ctx, ast.Load)
        and node.lineno > (site.statement.end_lineno or site.statement.lineno)
        for node in ast.walk(loop)
    )


def _step_loop(site: Site) -> ast.For | None:
    """The innermost loop around a call that updates: one round of it is a step, not an epoch.

    None if that is no ``for`` loop, or if no loop around updates and there are several.
    """
    source = site.source
    updates = _updates(source)
    loops = [
        n for n in source.around(site.call) if isinstance(n, ast.For | ast.AsyncFor | ast.While)
    ]
    holding = [
        loop
        for loop in loops
        if any(node is loop for call in updates for node in source.around(call))
    ]
    loop = holding[0] if holding else loops[0] if len(loops) == 1 else None
    return loop if isinstance(loop, ast.For) and not _shares_lines(loop) else None


def _updates(source: Source) -> list[ast.Call]:
    """Calls of ``step``, except those of a learning rate's scheduler."""
    return [
        call
        for call in source.calls()
        if source.called(call) == "step" and "sched" not in source.segment(call.func).lower()
    ]


def _step_name(source: Source, loop: ast.For) -> str:
    """The variable of a loop that numbers its rounds; empty if there is none."""
    target, numbered = loop.target, loop.iter
    called = source.called(numbered) if isinstance(numbered, ast.Call) else ""
    if called == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    numbers = called in ("range", "enumerate")
    if isinstance(target, ast.Name) and (numbers or target.id in _STEP_NAMES):
        return target.id
    return ""


def joined(script: Script, line: str, op: str) -> str:
    """One call in place of a loop's calls of an operation that works in site."""
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
    if _names(*call.args[1:], *(element.value for element in call.keywords)) & _stored(
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
    """One gather of all tensors in place of a loop's ``all_gather(LIST, TENSOR)``."""
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
    """List of what a call in a loop is given; empty if the loop makes it only on the way.

    ``made``: name of the call's outputs, which the loop may make from it before.

    What the loop does with it before the call may change it, or pass over it with ``continue``.
    """
    targets = {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    if _names(argument) & _stored(*loop.body) or not _names(argument) & targets:
        return ""
    before = [
        statement
        for statement in loop.body[: loop.body.index(source.statement(call))]
        if not (isinstance(statement, ast.Assign) and source.segment(statement.targets[0]) == made)
    ]
    if _names(*before) & targets or any(element.arg == "async_op" for element in call.keywords):
        return ""
    target, values = source.segment(loop.target), source.segment(loop.iter)
    conditional = isinstance(loop.iter, ast.IfExp)
    return f"[{source.segment(argument)} for {target} in {f'({values})' * conditional or values}]"


def _is_guarded(site: Site) -> bool:
    """True if the loop makes the call on a condition, or not in the line after its head."""
    loop = site.loop
    return loop is None or site.statement not in loop.body or _shares_lines(loop)


def _shares_lines(loop: ast.For) -> bool:
    """True if a loop's body stands on the line of its head."""
    return loop.body[0].lineno <= (loop.iter.end_lineno or loop.lineno)


def _names(*nodes: ast.AST) -> set[str]:
    return {
        element.id for node in nodes for element in ast.walk(node) if isinstance(element, ast.Name)
    }


def _stored(*nodes: ast.AST) -> set[str]:
    """Names to which these nodes assign."""
    return {
        element.id
        for node in nodes
        for element in ast.walk(node)
        if isinstance(element, ast.Name) and isinstance(element.ctx, ast.Store)
    }


def at_once(script: Script, line: str, names: tuple[str, ...]) -> str:
    """A loop's calls, all issued before the first is waited for."""
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
    works, work = source.unused("works", "work")
    code = [
        f"{works} = []",
        head,
        f"{_indent(source, loop)}{works}.append({call})",
        f"for {work} in {works}:",
        f"{_INDENT}{work}.wait()",
    ]
    return source.edit("in place of", first, last, "\n".join(code))


def _indent(source: Source, loop: ast.For) -> str:
    """What a loop's body is indented by, as the script has it."""
    line = source.lines[loop.body[0].lineno - 1]
    return line[loop.col_offset : len(line) - len(line.lstrip())]


def on_device(script: Script, line: str) -> str:
    """The tensor that a call is given, moved to the GPU before.

    Only one that its function makes by a call: others may hold another name of it.
    """
    site = script.at(line)
    if site is None or not site.call.args or not isinstance(site.call.args[0], ast.Name):
        return ""
    name, function = site.call.args[0].id, _function(site.source, site.call)
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


def last_pass_only(script: Script, model: str, setter: bool = False) -> str:
    """The loop over micro batches, of which only the last one exchanges gradients.

    Args:
        script: the script.
        model: name of the wrapped model.
        setter: True for FSDP2's ``set_requires_gradient_sync``, False for ``no_sync``.
    """
    site = script.only("backward")
    if not model or site is None or (loop := site.loop) is None:
        return ""
    source = site.source
    if not _is_known(source, loop, model):
        return ""
    updates = _updates(source)
    inside = [call for call in updates if any(node is loop for node in source.around(call))]
    after = [
        call
        for call in updates
        if _function(source, call) is _function(source, loop)
        and call.lineno > (loop.end_lineno or loop.lineno)
    ]
    if not inside:  # the update may be in a function that the loop calls
        return _of_inner_loop(source, loop, model, setter) if after else ""
    if any(
        source.segment(late.func) == source.segment(call.func) for late in after for call in inside
    ):
        return (
            ""  # of what remains: its passes exchange nothing if only each update's last one does
        )
    guard = next((node for node in loop.body if isinstance(node, ast.If)), None)
    holds = guard is not None and all(
        any(node is guard for node in source.around(call)) for call in inside
    )
    if guard is None or not holds or guard.orelse:
        return ""
    return _until_update(source, loop, guard, site, model, setter)


def _function(source: Source, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
    """The innermost function around a node, or node of one of these kinds; None at the top."""
    outer = source.parents.get(node)
    while outer is not None and not isinstance(
        outer, kinds or (ast.FunctionDef, ast.AsyncFunctionDef)
    ):
        outer = source.parents.get(outer)
    return outer


def _is_known(source: Source, node: ast.AST, model: str) -> bool:
    """True if a variable that a file assigns to has this name at the node, too."""
    made = [
        target
        for node_of_file in ast.walk(source.tree)
        if isinstance(node_of_file, ast.Assign)
        for target in node_of_file.targets
        if source.segment(target) == model
    ]
    if model.startswith("self."):
        of_class = _function(source, node, ast.ClassDef)
        return any(_function(source, target, ast.ClassDef) is of_class for target in made)
    here = _function(source, node)
    return any(_function(source, target) in (None, here) for target in made) or any(
        isinstance(node_of_file, ast.arg)
        and node_of_file.arg == model
        and source.parents[source.parents[node_of_file]] is here
        for node_of_file in ast.walk(source.tree)
    )


def _of_inner_loop(source: Source, loop: ast.For, model: str, setter: bool) -> str:
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
        sync = f"{_indent(source, loop)}{model}.set_requires_gradient_sync({is_last})"
        return source.edit("in place of", first, last, f"{head}\n{sync}")
    indent = _indent(source, loop)
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
    return source.edit("in place of", first, end, f"{head}\n{indent}{wrapped}\n{body}")


def _contextlib(source: Source) -> str:
    """Imports contextlib if a file does not."""
    imported = any(
        isinstance(node, ast.Import) and any(name.name == "contextlib" for name in node.names)
        for node in ast.walk(source.tree)
    )
    return "" if imported else "import contextlib\n\n"


def _names_sync(node: ast.With, source: Source) -> bool:
    """True for a ``with`` statement that calls ``no_sync``."""
    return any(
        isinstance(element, ast.Call) and source.called(element) == "no_sync"
        for item in node.items
        for element in ast.walk(item.context_expr)
    )


def _until_update(
    source: Source, loop: ast.For, guard: ast.If, site: Site, model: str, setter: bool
) -> str:
    """A loop that updates every few passes: the update's own condition tells the last pass."""
    row = loop.body.index(guard)
    before = loop.body[:row]
    passed = any(node is site.statement for element in before for node in ast.walk(element))
    body_names = {
        element.id
        for statement in before
        for element in ast.walk(statement)
        if isinstance(element, ast.Name) and isinstance(element.ctx, ast.Store)
    }
    counted = {
        node.target.attr
        for node in ast.walk(source.tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)
    }
    asked = {node.attr for node in ast.walk(guard.test) if isinstance(node, ast.Attribute)}
    if not passed or _names(guard.test) & body_names or asked & counted:
        return ""
    test = source.segment(guard.test)
    first, last = before[0].lineno, before[-1].end_lineno or before[-1].lineno
    if setter:
        sync = f"{model}.set_requires_gradient_sync(bool({test}))"
        return source.before(before[0], sync)
    if any(isinstance(node, ast.With) and _names_sync(node, source) for node in ast.walk(loop)):
        return ""
    body = textwrap.indent(source.code(first, last), _INDENT)
    wrapped = f"with contextlib.nullcontext() if {test} else {model}.no_sync():"
    return source.edit("in place of", first, last, f"{_contextlib(source)}{wrapped}\n{body}")


def before_training(script: Script, code: str, model: str) -> str:
    """Lines about a model before the outermost loop that trains."""
    site = script.only("backward")
    if site is None:
        return ""
    loops = [node for node in site.source.around(site.call) if isinstance(node, ast.For)]
    if not loops or not _is_known(site.source, loops[-1], model):
        return ""
    return site.source.before(loops[-1], code)


def in_training(script: Script, before: str, inside: str) -> str:
    """Lines before the outermost loop that trains, and others that each step begins with.

    Args:
        script: the script.
        before: lines before the loop.
        inside: lines in it, with STEP for the number of the step.
    """
    site = script.only("backward")
    if site is None:
        return ""
    source = site.source
    loops = [node for node in source.around(site.call) if isinstance(node, ast.For)]
    loop = _step_loop(site)
    if not loops or loop is None:
        return ""
    step = _step_name(source, loop)
    if not step:
        before, step = (
            f"import itertools\n\n{before}\nsteps_made = itertools.count()",
            "next(steps_made)",
        )
    first = source.before(loops[-1], before)
    return f"{first}\n{source.before(loop.body[0], inside.replace('STEP', step))}"


def around_training(script: Script, head: str, model: str) -> str:
    """The loop over steps, in a ``with`` statement: an epoch may do more than train."""
    site = script.only("backward")
    loop = _step_loop(site) if site is not None else None
    if site is None or loop is None or not _is_known(site.source, loop, model):
        return ""
    source = site.source
    first, last = loop.lineno, loop.end_lineno or loop.lineno
    code = f"{head}\n{textwrap.indent(source.code(first, last), _INDENT)}"
    return source.edit("in place of", first, last, code)


def followed(site: Site, code: str) -> str:
    """The statement of a call, and lines after it."""
    first, last = site.source.span(site.statement)
    return site.source.edit("in place of", first, last, f"{site.source.code(first, last)}\n{code}")
