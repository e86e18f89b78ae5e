"""Content of a scaling report: its rows, and what it states about all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commprof.audit.figure import StatedFigure
from commprof.audit.quantities import Quantity
from commprof.text import counted

#: Largest number of rows of one world size in a table. It limits the time that the audit takes.
_MOST_ALIKE = 1000


@dataclass(frozen=True)
class Row:
    """Figures of one world size; ``ranks`` is 0 for figures without a world size."""

    ranks: int
    #: Figures by the name of the quantity, see ``quantities.py``.
    figures: Mapping[str, StatedFigure]
    #: Meaning of the figures' column headers, by the name of the quantity.
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    epoch_times: tuple[StatedFigure, ...] = ()
    rank_times: tuple[StatedFigure, ...] = ()
    rank_samples: tuple[StatedFigure, ...] = ()
    #: The mean step and its parts by name, from a result of commprof; empty for other reports.
    parts: Mapping[str, StatedFigure] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the row for messages."""
        if not self.ranks:
            return "the report"
        return counted(self.ranks, "rank")


@dataclass(frozen=True)
class Series:
    """Rows that can be compared with each other: one row per world size, in ascending order."""

    rows: tuple[Row, ...]

    def base(self, quantity: str, value: float) -> Row | None:
        """Returns the row with which the other rows are compared; None if there is none.

        This is the row of the smallest world size, if its figure for ``quantity`` can be ``value``.
        A row without such a figure must have world size 1.
        """
        first = next((row for row in self.rows if row.ranks), None)
        if first is None:
            return None
        figure = first.figures.get(quantity)
        if figure is None:
            return first if first.ranks == 1 else None
        return first if figure.span.low <= value <= figure.span.high else None


@dataclass(frozen=True)
class Statement:
    """A speed-up or an efficiency that a sentence states for a number of ranks."""

    base_ranks: int
    ranks: int
    #: Keys are "speedup" and "efficiency"; one of the two may be missing.
    figures: Mapping[str, StatedFigure]


@dataclass(frozen=True)
class Technique:
    """One optimisation and the speed-up that is claimed for it."""

    name: str
    speedup: StatedFigure


@dataclass(frozen=True)
class Document:
    """The parts of a scaling report that the rules of the audit check."""

    series: tuple[Series, ...] = ()
    #: Figures without a world size: batch, epochs, price, overhead, parallel share.
    facts: Mapping[str, tuple[StatedFigure, ...]] = field(default_factory=dict)
    price_is_per_rank: bool = False
    statements: tuple[Statement, ...] = ()
    #: Number of ranks and speed-up by Amdahl's law, as the report states them.
    amdahl: tuple[tuple[int, StatedFigure], ...] = ()
    #: Each inner tuple is a table of optimisations.
    techniques: tuple[tuple[Technique, ...], ...] = ()

    def fact(self, *names: str) -> StatedFigure | None:
        """Returns the first fact under one of these names; None if there is none."""
        return next((self.facts[name][0] for name in names if self.facts.get(name)), None)


def join(tables: Sequence[Sequence[Row]]) -> tuple[Series, ...]:
    """Joins tables into series.

    A table is added to a series if the two have a world size in common and do not contradict each
    other. Otherwise the table begins a new series. A table with several rows of one world size is
    split first.

    Raises:
        ValueError: a table has too many rows of one world size.
    """
    series: list[dict[int, Row]] = []
    for table in tables:
        for part in _one_row_each(table):
            home = next((rows for rows in series if _fits(rows, part)), None)
            if home is None:
                series.append(dict(part))
                continue
            for ranks, row in part.items():
                home[ranks] = _merged(home[ranks], row) if ranks in home else row
    return tuple(Series(tuple(rows[n] for n in sorted(rows))) for rows in series)


def _one_row_each(table: Sequence[Row]) -> list[dict[int, Row]]:
    counts = Counter(row.ranks for row in table)
    most = max(counts.values(), default=0)
    if most > _MOST_ALIKE:
        ranks = counted(max(counts, key=lambda n: counts[n]), "rank")
        raise ValueError(
            f"a table has {most} rows for {ranks} (allowed: {_MOST_ALIKE}), so it lists single "
            "steps or calls; give a table with a row for each world size"
        )
    parts: list[dict[int, Row]] = [{} for _ in range(most)]
    filled: Counter[int] = Counter()
    for row in table:
        parts[filled[row.ranks]][row.ranks] = row
        filled[row.ranks] += 1
    return parts


def _fits(rows: Mapping[int, Row], part: Mapping[int, Row]) -> bool:
    common = [(rows[n], part[n]) for n in part if n in rows and n]
    return bool(common) and all(
        one.figures[name].span.meets(other.figures[name].span)
        for one, other in common
        for name in one.figures.keys() & other.figures.keys()
    )


def _merged(row: Row, other: Row) -> Row:
    return Row(
        ranks=row.ranks,
        figures={**other.figures, **row.figures},
        quantities={**other.quantities, **row.quantities},
        epoch_times=row.epoch_times or other.epoch_times,
        rank_times=row.rank_times or other.rank_times,
        rank_samples=row.rank_samples or other.rank_samples,
        parts=row.parts or other.parts,
    )
