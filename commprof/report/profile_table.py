"""A machine profile as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from commprof.predict.cost_model import CostCurve, HeldOut, Piece
from commprof.predict.machine_profile import LinkProfile, MachineProfile
from commprof.report.plain_text import printable
from commprof.report.tabulated import tabulated, three_digits

_LEGEND = """\
A collective takes steps x (alpha + beta x bytes per step); steps and bytes follow from the ring or
tree and the number of ranks, so one line holds for all world sizes. rate: 1 / beta. [ ]: 95 %
bootstrap interval. residual: root mean square and worst, relative. held out: mean and worst
relative error on sizes, and on world sizes, that were left out. gamma: time per byte added up."""

#: Share of the step by which a replay of the run that it was fitted to may miss.
_NOISY = 0.05
_HEADERS = (
    *("operation", "ranks", "bytes\nper step", "alpha\nµs", "rate\nGB/s", "residual"),
    *("held out:\nsizes", "\nworld sizes", "gamma\nns/byte"),
)
_HOOK_HEADERS = (
    *("hook", "ranks", "buckets\nMB", "encode\nms/MB", "reduce\nms/MB", "decode\nms/MB"),
    *("sent of\nfp32", "overhead\nms/bucket"),
)


def render(profile: MachineProfile, width: int, tables: int | None = None) -> str:
    """Tables of links and hooks, and what they mean."""
    parts = []
    for name, link in profile.links.items():
        rows = [row for curve in link.curves.values() for row in _rows(curve)]
        parts.append(f"{_link(name, link)}\n{tabulated(rows, _HEADERS, [0], tables)}")
    parts.append(textwrap.fill(_LEGEND, width))
    if profile.hooks:
        rows = [
            (
                printable(hook.label),
                str(hook.ranks),
                f"{hook.bucket_bytes[0] / 1e6:.3g}-{hook.bucket_bytes[1] / 1e6:.3g}",
                *(three_digits(line[1] * 1e9) for line in (hook.encode, hook.reduce, hook.decode)),
                f"{hook.payload_ratio:.1%}",
                three_digits(hook.overhead_s * 1e3),
            )
            for hook in profile.hooks.values()
        ]
        parts.append(tabulated(rows, _HOOK_HEADERS, [0], tables))
    noisy = [
        f"{curve.op}, class {name.replace('_', ' ')}: the replay misses the recorded "
        f"ends by {curve.residual:.0%} of the step; the run was disturbed, or its steps differ: "
        "record it again, with more steps."
        for name, link in profile.links.items()
        for curve in link.curves.values()
        if curve.source == "run" and curve.residual > _NOISY
    ]
    parts += [textwrap.fill(text, width) for text in noisy]
    return "\n\n".join(parts) + "\n\n"


def _link(name: str, link: LinkProfile) -> str:
    stated = []
    if not math.isnan(link.bytes_per_s):
        stated.append(f"{link.bytes_per_s * 8 / 1e9:.3g} Gbit/s")
    if not math.isnan(link.latency_s):
        stated.append(f"latency {link.latency_s * 1e6:.3g} µs")
    text = f" (stated: {', '.join(stated)})" if stated else ""
    return f"Links of class {name.replace('_', ' ')}{text}:"


def _rows(curve: CostCurve) -> Iterator[tuple[str, ...]]:
    """One per piece; what is of the whole curve stands in the first."""
    low, high = curve.step_bytes
    ends = [*(piece.low_bytes for piece in curve.pieces[1:]), math.inf]
    shown = [
        (max(low, piece.low_bytes), min(high, end), piece)
        for piece, end in zip(curve.pieces, ends, strict=True)
        if piece.low_bytes <= high and end >= low
    ]
    ranks = ",".join(map(str, curve.world_sizes))
    gamma = curve.gamma_s_per_byte
    whole = (
        f"{curve.residual:.1%}"
        + ("" if math.isnan(curve.worst_residual) else f", {curve.worst_residual:.1%}"),
        _held_out(curve.held_out_size),
        _held_out(curve.held_out_world_size),
        "-" if gamma is None else f"{gamma * 1e9:.3g}",
    )
    for number, (begin, end, piece) in enumerate(shown):
        first = number == 0
        yield (
            f"{curve.op} {curve.backend}" if first else "",
            ranks if first else "",
            f"{begin:.3g}-{end:.3g}",
            _alpha(piece),
            _rate(piece),
            *(whole if first else ("",) * len(whole)),
        )


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
