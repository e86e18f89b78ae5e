"""Reads the rows of a report that is written in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from commprof.audit.document import Row
from commprof.audit.figure import StatedFigure, parse_figure
from commprof.audit.quantities import COUNTS, Quantity, bare, classify, ranks_column
from commprof.audit.tables import with_shares

#: Keys of inner objects whose figures belong to the same row as the enclosing object.
_OWN = re.compile(r"aggregated|metrics|config|training|settings|summary|results?$")
_NUMBERED = re.compile(r"(epoch|rank)[ _]?\d+$")
_LISTED = re.compile(r"(epoch|rank)(s|_results)?$")


def load(text: str) -> Any:
    """Reads JSON; numbers become strings, as they were printed.

    Raises:
        ValueError: the text is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_float=str, parse_int=str, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_rows(value: Any, where: str = "") -> list[Row]:
    """Makes a row from every innermost object that has a world size and figures.

    where: place of the JSON in its file, for messages.
    """
    return with_shares(_rows(value, where))


def json_facts(value: Any) -> Row | None:
    """Returns a row with the figures that belong to no world size; None without such figures."""
    if not isinstance(value, dict) or _ranks(value):
        return None
    figures, quantities = _figures(value, "")
    return Row(0, figures, quantities) if figures else None


def _rows(value: Any, path: str) -> list[Row]:
    """Makes a row from every innermost object that has a world size and figures.

    Parts of an object, see ``_is_part``, do not count as inner objects.
    """
    if isinstance(value, list):
        return [row for index, item in enumerate(value) for row in _rows(item, f"{path}[{index}]")]
    if not isinstance(value, dict):
        return []
    inner = [
        (_is_part(key, item), row)
        for key, item in value.items()
        for row in _rows(item, _under(path, key))
    ]
    if _ranks(value) and all(is_part for is_part, _ in inner):
        own_row = _row(value, path)
        if own_row is not None:
            return [own_row]
    return [row for _, row in inner]


def _is_part(key: str, item: Any) -> bool:
    """True if ``item`` belongs to the same row as the object that contains it.

    Such items are for example settings, metrics, results, epochs and ranks.
    """
    if isinstance(item, list):
        return _LISTED.match(key) is not None
    return _OWN.search(bare(key)) is not None or _NUMBERED.match(key) is not None


def _under(path: str, key: str) -> str:
    return f"{path}{key}" if not path or path.endswith(" ") else f"{path}.{key}"


def _ranks(value: Mapping[str, Any]) -> int:
    keys = [key for key, item in value.items() if isinstance(item, str) and item.isdecimal()]
    column = ranks_column([key.replace("_", " ") for key in keys])
    text = value[keys[column]] if column is not None else ""
    return int(text) if 0 < len(text) <= 7 else 0


def _row(value: Mapping[str, Any], path: str) -> Row | None:
    figures, quantities = _figures(value, path)
    epochs = _listed(value, path, "epoch")
    ranks = _listed(value, path, "rank")
    times = [
        f for document, where in epochs for f in [_one(document, where, "duration", "epoch_s")] if f
    ]
    if "epochs" not in figures:
        given = [f for document, where in ranks for f in [_one(document, where, "epochs")] if f]
        count = (
            parse_figure(str(len(times)), _under(path, "epoch_*"), count=True)
            if len(times) > 1
            else None
        )
        if given or count:
            figures["epochs"] = given[0] if given else count  # type: ignore[assignment]
    if not figures:
        return None
    return Row(
        ranks=_ranks(value),
        figures=figures,
        quantities=quantities,
        epoch_times=tuple(times),
        rank_times=_of_all(ranks, "duration"),
        rank_samples=_of_all(ranks, "samples"),
        parts=_parts(value, path),
    )


def _figures(
    value: Mapping[str, Any], path: str
) -> tuple[dict[str, StatedFigure], dict[str, Quantity]]:
    """Returns the figures of an object and their quantities, both by the name of the quantity.

    Figures of inner objects such as ``metrics`` are included.
    """
    figures: dict[str, StatedFigure] = {}
    quantities: dict[str, Quantity] = {}
    inner = []
    for key, item in value.items():
        where = _under(path, key)
        quantity = classify(key)
        if isinstance(item, dict) and _OWN.search(bare(key)):
            inner.append((item, where))
        elif isinstance(item, str) and quantity is not None and quantity.name not in figures:
            figure = parse_figure(item, where, quantity.unit, quantity.name in COUNTS)
            if figure is not None:
                figures[quantity.name], quantities[quantity.name] = figure, quantity
    for item, where in inner:
        more, described = _figures(item, where)
        figures, quantities = {**more, **figures}, {**described, **quantities}
    return figures, quantities


def _listed(value: Mapping[str, Any], path: str, kind: str) -> list[tuple[Mapping[str, Any], str]]:
    """Returns the objects of single epochs or ranks, with their places in the JSON.

    ``kind`` is "epoch" or "rank". Keys are for example ``epoch_0`` and ``rank_results``.
    """
    listed: list[tuple[Mapping[str, Any], str]] = []
    for key, item in value.items():
        where = _under(path, key)
        if isinstance(item, dict) and _NUMBERED.match(key) and key.startswith(kind):
            listed.append((item, where))
        elif isinstance(item, list) and _LISTED.match(key) and key.startswith(kind):
            listed += [(x, f"{where}[{i}]") for i, x in enumerate(item) if isinstance(x, dict)]
    return listed


def _one(value: Mapping[str, Any], path: str, *names: str) -> StatedFigure | None:
    figures, _ = _figures(value, path)
    return next((figures[name] for name in names if name in figures), None)


def _of_all(ranks: list[tuple[Mapping[str, Any], str]], name: str) -> tuple[StatedFigure, ...]:
    figures = [_one(document, where, name) for document, where in ranks]
    known_figures = [figure for figure in figures if figure is not None]
    return tuple(known_figures) if len(known_figures) == len(figures) else ()


def _parts(value: Mapping[str, Any], path: str) -> dict[str, StatedFigure]:
    """Returns the mean step and its parts from a result of commprof; empty for other JSON."""
    metrics = value.get("aggregated_metrics")
    parts = metrics.get("parts") if isinstance(metrics, dict) else None
    if not isinstance(parts, dict):
        return {}
    found = {
        key: parse_figure(item, f"{path}.aggregated_metrics.parts.{key}", "ms")
        for key, item in parts.items()
        if isinstance(item, str)
    }
    return {key: figure for key, figure in found.items() if figure is not None}
