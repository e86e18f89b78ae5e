"""Rendering of a machine profile as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from commprof.forecast.costs.cost_model import CostCurve, HeldOut, Piece
from commprof.forecast.costs.hook_costs import HookCost, HookFigures
from commprof.forecast.costs.machine_profile import LinkProfile, MachineProfile
from commprof.report.tabulated import tabulated, three_digits
from commprof.text import listed, printable

_LEGEND = """\
A collective takes steps x (alpha + beta x bytes per step). The number of steps and the bytes per
step follow from the ring or tree and the number of ranks, so one line applies to all world sizes.
rate: 1 / beta. [ ]: 95 % bootstrap interval. residual: relative error of the fit, root mean square
and worst; if costs were fitted to steps of DDP: mean error of the times at which exchanges of
buckets end, divided by the step time. held out: mean and worst relative error on sizes, and on
world sizes, that were left out of the fit. gamma: time to add up one byte."""

_BETWEEN = """\
{}: times between two measured sizes are interpolated if the larger is at most 5 times the smaller,
and read from lines elsewhere. Where times are interpolated, lines are not used, because on
sizes left out of the fit, the errors of interpolation are smaller than the errors of lines, or
hardly larger. The columns residual and held out show the errors of interpolation."""

_NOT_KNOWN = (math.nan, math.nan)
_UNKNOWN = HookFigures(_NOT_KNOWN, _NOT_KNOWN, _NOT_KNOWN, math.nan)
#: A replay of the fitted run causes a warning if its error is above this fraction of the step.
_NOISY = 0.05
_MOST_NAME = 60
_HEADERS = (
    *("operation", "ranks", "bytes\nper step", "alpha\nµs", "rate\nGB/s", "residual"),
    *("held out:\nsizes", "\nworld sizes", "gamma\nns/byte"),
)
_HOOK_HEADERS = (
    *("hook", "ranks", "buckets\nMB", "encode\nms/MB", "reduce\nms/MB", "decode\nms/MB"),
    *("sent of\nfp32", "overhead\nms/bucket", "residual:\nwork", "\nstep"),
)
_HOOK_LEGEND = """\
encode, reduce, decode: processor time. overhead: additional time per bucket. [ ]: 95 % bootstrap
interval, if enough buckets were recorded. residual, work: relative root mean square error of the
fitted processor time of a bucket. residual, step: mean error of the times at which the exchanges of
buckets end in a replay of the recorded steps, divided by the step time."""


def render(profile: MachineProfile, width: int, tables: int | None = None) -> str:
    """Renders tables of links and hooks with their legends.

    Args:
        profile: the machine profile.
        width: largest number of characters in a line of text.
        tables: largest number of characters in a line of a table; None for no limit.
    """
    parts = []
    for name, link in profile.links.items():
        rows = [row for curve in link.curves.values() for row in _rows(curve)]
        parts.append(f"{_link(name, link)}\n{tabulated(rows, _HEADERS, [0], tables)}")
    parts.append(textwrap.fill(_LEGEND, width))
    between = [
        _name(curve)
        for link in profile.links.values()
        for curve in link.curves.values()
        if curve.knots
    ]
    if between:
        parts.append(textwrap.fill(_BETWEEN.format(listed(sorted(set(between)))), width))
    if profile.hooks:
        rows = [_hook(hook) for hook in profile.hooks.values()]
        parts.append(tabulated(rows, _HOOK_HEADERS, [0], tables))
        parts.append(textwrap.fill(_HOOK_LEGEND, width))
    noisy = [
        f"{_name(curve)}, class {name.replace('_', ' ')}: in a replay of the run, exchanges of "
        f"buckets end early or late by {curve.residual:.0%} of the step time on average, because "
        "the run was disturbed or its steps differ; record the run again with more steps."
        for name, link in profile.links.items()
        for curve in link.curves.values()
        if curve.source == "run" and curve.residual > _NOISY
    ]
    parts += [textwrap.fill(text, width) for text in noisy]
    return "\n\n".join(parts) + "\n\n"


def _hook(hook: HookCost) -> tuple[str, ...]:
    low, high = hook.low or _UNKNOWN, hook.high or _UNKNOWN
    stages = (
        (hook.encode, low.encode, high.encode),
        (hook.reduce, low.reduce, high.reduce),
        (hook.decode, low.decode, high.decode),
    )
    return (
        printable(hook.label)[:_MOST_NAME],
        str(hook.ranks),
        f"{hook.bucket_bytes[0] / 1e6:.3g}-{hook.bucket_bytes[1] / 1e6:.3g}",
        *(_within(line[1], least[1], most[1], 1e9) for line, least, most in stages),
        f"{hook.payload_ratio:.1%}",
        _within(hook.overhead_s, low.overhead_s, high.overhead_s, 1e3),
        *("-" if math.isnan(x) else f"{x:.1%}" for x in (hook.work_residual, hook.residual)),
    )


def _within(value: float, low: float, high: float, factor: float) -> str:
    text = three_digits(value * factor)
    if not low < high:
        return text
    return f"{text} [{three_digits(low * factor)}, {three_digits(high * factor)}]"


def _link(name: str, link: LinkProfile) -> str:
    stated = []
    if not math.isnan(link.bytes_per_s):
        stated.append(f"{link.bytes_per_s * 8 / 1e9:.3g} Gbit/s")
    if not math.isnan(link.latency_s):
        stated.append(f"latency {link.latency_s * 1e6:.3g} µs")
    text = f" (stated: {', '.join(stated)})" if stated else ""
    return f"Links of class {name.replace('_', ' ')}{text}:"


def _rows(curve: CostCurve) -> Iterator[tuple[str, ...]]:
    low, high = curve.step_bytes
    ends = [*(piece.low_bytes for piece in curve.pieces[1:]), math.inf]
    shown = [
        (max(low, piece.low_bytes), min(high, end), piece)
        for piece, end in zip(curve.pieces, ends, strict=True)
        if piece.low_bytes <= high and end >= low
    ]
    ranks = ",".join(map(str, curve.world_sizes))
    gamma, (least, most) = curve.gamma_s_per_byte, curve.gamma_interval_s_per_byte
    whole = (
        f"{curve.residual:.1%}"
        + ("" if math.isnan(curve.worst_residual) else f", {curve.worst_residual:.1%}"),
        _held_out(curve.held_out_size),
        _held_out(curve.held_out_world_size),
        "-" if gamma is None else _within(gamma, least, most, 1e9),
    )
    for number, (begin, end, piece) in enumerate(shown):
        first = number == 0
        yield (
            _name(curve) if first else "",
            ranks if first else "",
            f"{begin:.3g}-{end:.3g}",
            _alpha(piece),
            _rate(piece),
            *(whole if first else ("",) * len(whole)),
        )


def _name(curve: CostCurve) -> str:
    """Returns a curve's name, shortened and with escapes for control characters.

    The name comes from a trace or file, so it may hold any characters.
    """
    return printable(f"{curve.op} {curve.backend}")[:_MOST_NAME]


def _alpha(piece: Piece) -> str:
    low, high = (bound * 1e6 for bound in piece.alpha_interval_s)
    interval = "" if math.isnan(low) else f" [{low:.3g}, {high:.3g}]"
    return f"{piece.alpha_s * 1e6:.3g}{interval}"


def _rate(piece: Piece) -> str:
    if piece.beta_s_per_byte <= 0:
        return "-"
    slow, fast = piece.beta_interval_s_per_byte[1], piece.beta_interval_s_per_byte[0]
    interval = f" [{1e-9 / slow:.3g}, {1e-9 / fast:.3g}]" if slow > 0 and fast > 0 else ""
    return f"{1e-9 / piece.beta_s_per_byte:.3g}{interval}"


def _held_out(error: HeldOut | None) -> str:
    return "-" if error is None else f"{error.mean:.1%}, {error.worst:.1%}"
