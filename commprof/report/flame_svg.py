"""A flame graph as SVG: one box per frame, as wide as its time, over the frames that it called.

After Brendan Gregg, "The Flame Graph" (Communications of the ACM 59, 2016). No scripts: a browser
shows each box's full name and time when the pointer rests on it.
"""

from __future__ import annotations

import html
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from commprof.report.plain_text import printable

_WIDTH = 1200
_ROW = 17
_MARGIN = 10
_HEAD = 52
#: Of a character of the box's font.
_CHARACTER = 6.6
#: Narrower boxes cannot be seen.
_NARROWEST = 0.3
_MOST_ROWS = 200


@dataclass
class _Box:
    name: str
    time_ns: int = 0
    inner: dict[str, _Box] = field(default_factory=dict)


def render(time_ns: Mapping[tuple[str, ...], int], title: str, subtitle: str) -> str:
    """The picture.

    Args:
        time_ns: nanoseconds by frames, outermost first.
        title: heading.
        subtitle: what the reader must know; one line.
    """
    root = _Box("all")
    for frames, spent in time_ns.items():
        box = root
        box.time_ns += spent
        for frame in frames[:_MOST_ROWS]:
            box = box.inner.setdefault(frame, _Box(frame))
            box.time_ns += spent
    rows = _depth(root)
    height = _HEAD + rows * _ROW + _MARGIN
    scale = (_WIDTH - 2 * _MARGIN) / root.time_ns if root.time_ns else 0.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{_MARGIN}" y="20" font-size="15">{_text(title)}</text>',
        f'<text x="{_MARGIN}" y="38" fill="#555">{_text(subtitle)}</text>',
    ]
    _draw(root, _MARGIN, 0, scale, root.time_ns, parts)
    return "\n".join([*parts, "</svg>", ""])


def _depth(box: _Box) -> int:
    return 1 + max((_depth(inner) for inner in box.inner.values()), default=0)


def _draw(box: _Box, x: float, row: int, scale: float, whole_ns: int, parts: list[str]) -> None:
    width = box.time_ns * scale
    if width < _NARROWEST:
        return
    y = _HEAD + row * _ROW
    share = box.time_ns / whole_ns
    label = f"{box.name}: {box.time_ns / 1e6:.0f} ms, {share:.1%}"
    room = int((width - 4) / _CHARACTER)
    shown = box.name if len(box.name) <= room else box.name[: max(room - 2, 0)] + ".."
    parts.append(
        f'<g><title>{_text(label)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{_ROW - 1}" fill="{_colour(box.name, row)}" rx="1"/>'
        + (f'<text x="{x + 3:.1f}" y="{y + 12}">{_text(shown)}</text>' if room > 3 else "")
        + "</g>"
    )
    for inner in sorted(box.inner.values(), key=lambda one: -one.time_ns):
        _draw(inner, x, row + 1, scale, whole_ns, parts)
        x += inner.time_ns * scale


def _colour(name: str, row: int) -> str:
    """The same for the same name; phases, the second row, in another range."""
    spread = zlib.crc32(name.encode(errors="replace")) % 40
    return f"hsl({200 + spread},45%,75%)" if row <= 1 else f"hsl({15 + spread},80%,72%)"


def _text(text: str) -> str:
    return html.escape(printable(text))
